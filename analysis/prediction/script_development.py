"""Fits the rates of scripts to recorded pairs, and says how well they do on sizes that they were not fitted to.

python -m profiler_job.analysis.prediction.script_development RECORDING...

It runs in a checkout, whose site/data has the predictions of scripts that were tested.
"""

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics.run_grid import has_known_shape
from profiler_job.analysis.metrics.step_clocks import GAP_NS, clocks
from profiler_job.analysis.prediction import (
    development,
    fusion,
    ledger,
    other_models,
    predict,
    rates,
    script_changes,
    script_rates,
    scripts,
)
from profiler_job.analysis.prediction.abstentions import AbstentionError
from profiler_job.analysis.prediction.baseline import ATTENTION, GEMM, Baseline, Tables, baselines
from profiler_job.analysis.prediction.predict import GPU, HOST, host_key
from profiler_job.analysis.prediction.script_rates import (
    ATTENTION_GEMMS,
    AXES,
    LINEAR,
    REST,
    ScriptRates,
    name_of,
    width_of,
)
from profiler_job.analysis.prediction.sweep_changes import (
    BATCHED,
    EAGER,
    FUSED,
    PASSES,
    TIMES_BATCH,
    USUAL,
)
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference import flops
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.changes import COMPILED, FUSED_ATTENTION

DATA = Path(__file__).resolve().parents[2] / "site" / "data"
OF_PAIRS = (*EAGER, FUSED, development.ACCUMULATION)
"""Some of their work is done for each pair of tokens."""
PER_TENSOR = ("own", "loop")
"""Optimizers that launch kernels for each tensor."""
SAME = ("size", "context_length", "mode", "batch_size", "precision", "attention", "compile", "optimizer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A run before and after a change. name: of the change, with the width of its numbers where that matters."""

    before: Baseline
    after: Baseline
    change: str

    @property
    def name(self) -> str:
        return name_of(self.change, str(self.before.run["precision"]))


def kinds(parts: pd.DataFrame) -> pd.DataFrame:
    """Operations of a run by phase and kind, of a table with the leaf: launches, time_ns."""
    kind = parts["kind"].where(parts["kind"].isin([GEMM, ATTENTION]), REST)
    kind = kind.mask(parts["kind"] == GEMM, np.where(parts["leaf"].isin(BATCHED), ATTENTION_GEMMS, LINEAR))
    return parts.groupby(["phase", kind.rename("kind")])[["launches", "time_ns"]].sum()


def pairs(runs: Iterable[Baseline]) -> list[Pair]:
    """Each training step with every other that differs from it by one change alone."""
    steps = [run for run in runs if str(run.run["mode"]) == "train_step"]
    return [
        Pair(before=before, after=after, change=change)
        for before in steps
        for after in steps
        for change, (axis, old, new) in AXES.items()
        if str(before.run[axis]) in old
        and str(after.run[axis]) == new
        and all(str(before.run[name]) == str(after.run[name]) for name in SAME if name != axis)
    ]


def fit_rates(every: Sequence[Pair], gpu: str, bandwidth: float, adamw: float) -> ScriptRates:
    times: dict[str, list[Any]] = {}
    launches: dict[str, list[float]] = {}
    host: dict[str, list[float]] = {}
    for pair in every:
        before, after = kinds(_merge_parts(pair, pair.before.parts)), kinds(_merge_parts(pair, pair.after.parts))
        for key, row in before.iterrows():
            phase, kind = key
            if phase not in PASSES or key not in after.index:
                continue
            name = f"{pair.name}/{phase}/{kind}"
            new = after.loc[key]
            times.setdefault(name, []).append(([row["time_ns"], 1e3 * row["launches"]], new["time_ns"]))
            launches.setdefault(name, []).append(new["launches"] / row["launches"])
        for phase in PASSES:
            known = [host_ns(run, phase) for run in (pair.before, pair.after)]
            if not any(map(math.isnan, known)):
                host.setdefault(f"{pair.name}/{phase}", []).append(known[1] / known[0])
    return ScriptRates(
        gpu=gpu,
        bandwidth=bandwidth,
        adamw=adamw,
        times={name: rates.fit(*zip(*rows)) for name, rows in times.items()},
        passes=_passes(every, bandwidth),
        launches={name: float(np.median(values)) for name, values in launches.items()},
        host={name: float(np.median(values)) for name, values in host.items()},
    )


def _passes(every: Iterable[Pair], bandwidth: float) -> dict[str, float]:
    """The factors of `fusion`, of pairs that differ by compiling."""
    rows: dict[str, list[Any]] = {}
    for pair in every:
        if pair.change not in COMPILED or math.isnan(pair.before.passes_ns):
            continue
        casts_ns, after = fusion.casts_ns(pair.before.run, bandwidth), kinds(pair.after.parts)
        for phase in PASSES:
            if (phase, REST) in after.index:
                left_ns = after.loc[(phase, REST), "time_ns"] - casts_ns
                rows.setdefault(f"{pair.name}/{phase}", []).append(([pair.before.passes_ns], left_ns))
    return {name: rates.fit(*zip(*known))[0] for name, known in rows.items()}


def _merge_parts(pair: Pair, parts: pd.DataFrame) -> pd.DataFrame:
    """torch.compile's matmuls are of no module, so all are of one kind there."""
    return parts.assign(leaf="") if pair.change in COMPILED else parts


def host_ns(run: Baseline, phase: str) -> float:
    """Time that the host needs to launch a phase; NaN where it waited for the GPU, or where that is not known."""
    parts = run.parts[run.parts["phase"] == phase]
    known = predict.own_host_rates(run)
    if phase in known:
        return known[phase] * float(parts["launches"].sum())
    clock = run.clocks.get(phase)
    if clock is None or not math.isnan(clock.issue_ns):
        return math.nan
    # An older recording: a phase that takes much longer than its kernels is the host's.
    return clock.wall_ns if clock.wall_ns > 1.3 * parts["time_ns"].sum() else math.nan


def errors_of_tests(data: Path) -> list[dict[str, Any]]:
    """The tested predictions of scripts in the ledgers below `data`, as in `error_of`; size: "", context_length: 0."""
    held = ledger.compare_with_measured(ledger.read_all(data / ledger.FOLDER), ledger.recordings(data))
    names = ["changes", "size", "context_length", "predicted_ns", "measured_ns", "ratio", "limited_by"]
    tested = held[(held["source"] == "") & held["error"].notna()].assign(size="", context_length=0)
    errors: list[dict[str, Any]] = tested.assign(ratio=tested["measured_ns"] / tested["predicted_ns"])[names].to_dict(
        "records"
    )
    return errors


def adamw_factor(runs: Iterable[Baseline], bandwidth: float) -> float:
    """Median of fused AdamW's time over the time of moving 28 bytes for each parameter."""
    known = [
        run.parts.loc[run.parts["phase"] == ranges.OPTIMIZER, "time_ns"].sum()
        / (flops.adamw(int(run.run["num_parameters"])).bytes / bandwidth * 1e9)
        for run in runs
        if str(run.run["mode"]) == "train_step" and str(run.run["optimizer"]) == "fused"
    ]
    return float(np.median(known))


def develop_rates(runs: Sequence[Baseline], known: rates.Rates) -> ScriptRates:
    """Rates of these runs, with the errors of their pairs. known: what was fitted to the reference Transformer."""
    every, gpu, bandwidth = pairs(runs), known.gpu, known.peaks["copy"]
    adamw = adamw_factor(runs, bandwidth)
    errors = []
    for size in dict.fromkeys(str(pair.before.run["size"]) for pair in every):
        others = fit_rates([pair for pair in every if str(pair.before.run["size"]) != size], gpu, bandwidth, adamw)
        errors += [error_of(pair, others, known.host) for pair in every if str(pair.before.run["size"]) == size]
    made = fit_rates(every, gpu, bandwidth, adamw)
    return dataclasses.replace(
        made,
        times={**made.times, **_growth(runs)},
        attention=_measure_fused(runs),
        per_tensor=per_tensor_factors(runs),
        errors=[error for error in errors if error is not None],
    )


def errors_of_other_models(recordings: Iterable[Tables], made: ScriptRates, known: rates.Rates) -> list[dict[str, Any]]:
    """Runs of the recordings with other models than the reference Transformer, each predicted from its run without
    changes, where that was captured; as in `error_of`."""
    recordings = [*recordings]
    times = {run_id: timed for recording in recordings for run_id, timed in clocks(recording.steps).items()}
    others = [(run, rec) for rec in recordings for run in baselines(rec) if not has_known_shape(run.run)]
    errors = []
    for baseline, recording in others:
        step = other_models.step_of(baseline, recording, made, known)
        for names in USUAL:
            measured = times.get(ledger.run_id_after(baseline.run, names))
            try:
                after = scripts.apply_changes(step, names, made)
            except AbstentionError:
                continue
            if measured and after.work == 1:
                measured_ns, predicted_ns = measured[ranges.STEP].wall_ns, after.take()
                errors.append(
                    {
                        "changes": "+".join(names),
                        "size": str(baseline.run["size"]),
                        "context_length": int(baseline.run["context_length"]),
                        "predicted_ns": predicted_ns,
                        "measured_ns": measured_ns,
                        "ratio": measured_ns / predicted_ns,
                        "limited_by": after.limited_by,
                    }
                )
    return errors


def _growth(runs: Sequence[Baseline]) -> dict[str, list[float]]:
    """How kinds grow with twice the batch, told from twice the context: what is done for each pair of tokens is left
    out. A kernel takes twice as long but for what it takes however little it has to do, which is as in `times`, and
    negative: a median of the pairs."""
    rows: dict[str, list[float]] = {}
    for width in (16, 32):
        mine = [run for run in runs if width_of(str(run.run["precision"])) == width]
        for before, after in development.pair_longer(mine):
            old, new = (kinds(run.parts[~run.parts["leaf"].isin(OF_PAIRS)]) for run in (before, after))
            for (phase, kind), row in old.iterrows():
                if phase in PASSES and kind in (LINEAR, REST) and (phase, kind) in new.index:
                    less_ns = TIMES_BATCH * row["time_ns"] - new.loc[(phase, kind), "time_ns"]
                    key = f"larger_batch/{width}/{phase}/{kind}"
                    rows.setdefault(key, []).append(less_ns / row["launches"] / 1e3)
    return {key: [TIMES_BATCH, -float(np.median(values))] for key, values in rows.items()}


def _measure_fused(runs: Sequence[Baseline]) -> dict[str, list[float]]:
    """As in `ScriptRates.attention`, of passes that differ by attention alone."""
    known: dict[str, list[float]] = {}
    for pair in development.pairs(runs):
        if pair.changes != (FUSED_ATTENTION,) or str(pair.before.run["mode"]) != "train_step":
            continue
        eager = pair.before.parts[pair.before.parts["leaf"].isin(EAGER)].groupby("phase")["time_ns"].sum()
        after = pair.after.parts[pair.after.parts["kind"] == ATTENTION].groupby("phase")["time_ns"].sum()
        known.setdefault(str(pair.before.run["precision"]), []).extend((after / eager).dropna())
    return {name: [min(values), float(np.median(values)), max(values)] for name, values in known.items()}


def per_tensor_factors(runs: Iterable[Baseline]) -> list[float]:
    """As in `ScriptRates.per_tensor`, of steps that differ by the optimizer alone."""
    times: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for run in runs:
        if str(run.run["mode"]) == "train_step":
            time_ns = float(run.parts.loc[run.parts["phase"] == ranges.OPTIMIZER, "time_ns"].sum())
            same = tuple(str(run.run[name]) for name in SAME if name != "optimizer")
            times.setdefault(same, {}).setdefault(str(run.run["optimizer"]), []).append(time_ns)
    known = [
        after / before
        for of_optimizers in times.values()
        for name in PER_TENSOR
        for before in of_optimizers.get(name, ())
        for after in of_optimizers.get("fused", ())
    ]
    return [min(known), float(np.median(known)), max(known)]


def error_of(pair: Pair, rates: ScriptRates, hosts: Mapping[str, float]) -> dict[str, Any] | None:
    """A recorded pair predicted as the phases of a script would be, each synchronised there: changes, size,
    context_length, predicted_ns, measured_ns, ratio, limited_by. None where there is no prediction. hosts: as in
    `Rates.host`."""
    run = dict(pair.before.run)
    predicted, by_host = pair.before.step_ns - sum(pair.before.clocks[p].wall_ns for p in pair.before.phases), 0.0
    parts = kinds(pair.before.parts)
    for phase in pair.before.phases:
        clock = pair.before.clocks[phase]
        mine = parts[parts.index.get_level_values("phase") == phase]
        if phase not in PASSES or mine.empty:
            predicted += clock.wall_ns
            continue
        issue_ns = host_ns(pair.before, phase)
        if math.isnan(issue_ns):  # it waited for the GPU: what hosts of recorded runs needed for as many launches
            issue_ns = hosts[host_key(run, phase)] * float(mine["launches"].sum())
        busy_ns = float(mine["time_ns"].sum())
        gap_ns = max(clock.wall_ns - busy_ns, 0.0) / max(float(mine["launches"].sum()), 1.0)
        step = script_changes.Step(
            run=run,
            step_ns=clock.wall_ns,
            parts=mine,
            gap_ns=min(gap_ns, GAP_NS),
            host_ns={phase: issue_ns},
            passes_ns=pair.before.passes_ns,
        )
        try:
            after = scripts.apply_changes(step, [pair.change], rates)
        except AbstentionError:
            return None
        predicted += after.take()
        by_host += after.take() if after.limited_by == HOST else 0.0
    return {
        "changes": pair.change,
        "size": str(run["size"]),
        "context_length": int(run["context_length"]),
        "predicted_ns": predicted,
        "measured_ns": pair.after.step_ns,
        "ratio": pair.after.step_ns / predicted,
        "limited_by": HOST if by_host > predicted / 2 else GPU,
    }


if __name__ == "__main__":
    recordings, reference = [store.load(Path(folder)) for folder in sys.argv[1:]], rates.load()
    made = develop_rates(
        [run for recording in recordings for run in baselines(recording) if has_known_shape(run.run)], reference
    )
    # Where none of other models is given, what is known of them stays.
    others = errors_of_other_models(recordings, made, reference) or script_rates.load().others
    sources = [{key: recording.manifest[key] for key in ("name", "created", "commit")} for recording in recordings]
    made = dataclasses.replace(made, tested=errors_of_tests(DATA), others=others, made_from=sources)
    script_rates.save(made)
