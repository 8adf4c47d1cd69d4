"""What pages call a run, in words: its run id is for files."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.render.text import name_size
from profiler_job.jobs.contract.axes import (
    find_default,
    find_label,
    find_value_label,
    find_value_name,
    find_value_words,
    order_axes,
)
from profiler_job.jobs.contract.layout import SCRIPT

SAID = {
    "workload_options": lambda value: value.replace("=", " "),  # it may break there
    "memory_limit_gib": "cap {:g} GiB".format,
    "accumulation": "{} micro-batches".format,
    "gpus": "{} GPUs".format,
}
"""Words for values of axes that mean nothing without their axis."""
IN_TITLE = ("size", "context_length", "mode", "precision", "workload")
"""Axes that each title has, or that say nothing to a reader of one."""


def title_of(run: Mapping[str, Any]) -> str:
    """What tells a run from the others of a list: size, context, mode and precision, and what is not at its default of
    the other axes."""
    is_training = str(run["mode"]) == "train_step"
    words = [
        name_size(run),
        str(run["context_length"]),
        str(find_value_label("mode", str(run["mode"]))),
    ]
    words.append(str(run["precision"]).upper())
    for name in order_axes():
        value = run.get(name)
        if name in IN_TITLE or value is None or pd.isna(value) or value in ("", find_default(name)):
            continue
        if name in SAID:
            words.append(SAID[name](value))
        elif name != "optimizer" or is_training:
            named, said = find_value_name(name, value), find_value_words(name, value)
            as_is = f"{said} ({value})" if said else f"{find_label(name)} {value}"
            words.append(as_is if named == value else said or named)
    return " · ".join(words)


def attention_of(value: str) -> str:
    """What a sentence calls an attention: fused attention (flash)."""
    name, words = find_value_name("attention", value), find_value_words("attention", value)
    if name != find_value_label("attention", value):
        return str(name)
    return f"{words} ({name})" if words else f"{name} attention"


def name_setting(axis: str, value: str) -> str:
    """Name the value of an axis in a sentence."""
    return attention_of(value) if axis == "attention" else str(find_value_name(axis, value))


def count_gpus(run: Mapping[str, Any]) -> int:
    """Count the GPUs of a run; 1 in recordings that do not say."""
    value = run.get("gpus")
    return 1 if value is None or pd.isna(value) else int(value)


def name_gpus(run: Mapping[str, Any]) -> str:
    """Name the GPUs of a run: `2 × NVIDIA H200`."""
    num_gpus = count_gpus(run)
    return f"{num_gpus} × {run['gpu_name']}" if num_gpus > 1 else str(run["gpu_name"])


def description_of(run: Mapping[str, Any], has_shape: bool) -> str:
    """What was run, in a sentence without a verb: mode, model, context, precision, attention (of a model of known
    shape: another has its own), compilation (but a script may compile parts of its own), optimizer (of a training
    step), batch and GPUs."""
    mode = str(find_value_label("mode", str(run["mode"])))
    what = f"{mode.capitalize()} of {name_size(run)} at context {run['context_length']}"
    parts = [
        f"{what} in {str(run['precision']).upper()}",
        *[attention_of(str(run["attention"]))] * has_shape,
        *[find_value_name("compile", run.get("compile") or find_default("compile"))] * (run.get("workload") != SCRIPT),
        *[find_value_name("optimizer", run["optimizer"])] * (str(run["mode"]) == "train_step"),
        f"batch {run['batch_size']}",
        f"on {name_gpus(run)}",
        *[find_value_name("parallel", run.get("parallel"))] * (count_gpus(run) > 1),
    ]
    return ", ".join(map(str, parts))
