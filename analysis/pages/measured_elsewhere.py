"""What a change gave in the same step of a model on another GPU, or with other settings."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.pages.explore import shorten_names
from profiler_job.analysis.pages.titles import name_setting
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.changes import LARGER_BATCH

WORDS = {"sdpa": "PyTorch's attention"}
KEPT = ("times_as_fast", "low", "before_ns", "after_ns", "gains", "on_slow_host")


def find_elsewhere(run: Mapping[str, Any], measured: pd.DataFrame) -> dict[tuple[str, ...], dict[str, Any]]:
    """Find what changes gave in other runs of the same step, by the names of the changes: gpu (`on an H200`) and
    settings (`with fused AdamW`), each "" if it is the same, KEPT, apart as in `run_advice.rank_changes`, and with a
    larger batch the tokens of the step before, or else None. Of several runs the one counts that differs in least.
    measured: rows of `prediction.measured` whose same_step is the run's."""
    known: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = {}
    names = shorten_names(sorted({str(run["gpu_name"]), *measured["gpu_name"].astype(str)}))
    for row in measured.to_dict("records"):
        gpu, settings = _name_other_gpus(run, row, names), _list_other_settings(run, row)
        num_differences = len(settings) + bool(gpu)
        best = known.get(row["changes"])
        if num_differences and (best is None or num_differences < best[0]):
            apart = row["apart"] if row["apart"] > MOST_APART else None
            is_rate = LARGER_BATCH in row["changes"]
            gain = {"gpu": gpu, "settings": f"with {' and '.join(settings)}" if settings else "", "apart": apart}
            gain["tokens"] = int(run["batch_size"]) * int(run["context_length"]) if is_rate else None
            gain |= {name: row[name] for name in KEPT}
            known[row["changes"]] = num_differences, gain
    return {changes: gain for changes, (_, gain) in known.items()}


def _name_other_gpus(run: Mapping[str, Any], row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Name the GPUs of a row of `prediction.measured`; "" if the run has the same."""
    gpu, num_gpus = str(row["gpu_name"]), int(row["gpus"] or 1)
    if num_gpus != int(run.get("gpus") or 1):
        return f"on {'one' if num_gpus == 1 else num_gpus} {names[gpu]}"
    return f"on an {names[gpu]}" if gpu != str(run["gpu_name"]) else ""


def _list_other_settings(run: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """List in words the settings of a row of `prediction.measured` that the run has not."""
    values = {name: str(row[name]) for name in ("attention", "optimizer")}
    others = (name for name, value in values.items() if value != str(run.get(name, find_default(name))))
    return [WORDS.get(values[name], name_setting(name, values[name])) for name in others]
