"""Fits the rates to recorded pairs, and says how well they do on sizes that they were not fitted to.

python -m profiler_job.analysis.prediction.development RECORDING...

It runs in a checkout, whose site/data has the predictions that were tested.
"""

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profiler_job.analysis.prediction import ledger, predict, rates
from profiler_job.analysis.prediction import sweep_changes as changes
from profiler_job.analysis.prediction.abstentions import AbstentionError
from profiler_job.analysis.prediction.baseline import ATTENTION, GEMM, Baseline, baselines
from profiler_job.analysis.prediction.rates import Rates
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference import flops
from profiler_job.analysis.reference.track_record import SWEEP
from profiler_job.jobs.contract import axes, ranges
from profiler_job.jobs.contract.changes import (
    BF16,
    CHANGES,
    COMPILE,
    COMPILED,
    CUDA_GRAPHS,
    FUSED_ADAMW,
    FUSED_ATTENTION,
    TF32,
)
from profiler_job.jobs.contract.studies import find_recordings

DATA = Path(__file__).resolve().parents[2] / "site" / "data"
CHANGED = (TF32, BF16, FUSED_ATTENTION, FUSED_ADAMW, COMPILE, CUDA_GRAPHS)
AXES = {
    axis: {CHANGES[name].value: name for name in CHANGED if CHANGES[name].axis == axis}
    for axis in ("precision", "attention", "optimizer", "compile")
}


NO_MATTER = ("repeat", "fresh_process")
"""Axes that the time of a step does not depend on."""
ACCUMULATION = "(gradient accumulation)"
ALIKE = ("size", "context_length", "mode", "precision", "attention", "optimizer", "batch_size")
"""Axes by which a run finds the one with the longer context."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """A run before and after `changes`."""

    before: Baseline
    after: Baseline
    changes: tuple[str, ...]


def pairs(runs: Iterable[Baseline]) -> list[Pair]:
    """Each run with every run of the same size, context and mode that differs from it by changes alone."""
    runs = list(runs)
    return [
        Pair(before, after, names) for before in runs for after in runs if (names := difference(before.run, after.run))
    ]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """The changes that lead from one run to the other; none where something else differs, too."""
    others = {name: axes.find_default(name) for name in axes.AXES if name not in (*AXES, *NO_MATTER)}
    if any(str(before.get(name, usual)) != str(after.get(name, usual)) for name, usual in others.items()):
        return ()
    names = []
    for axis, by_value in AXES.items():
        old, new = str(before[axis]), str(after[axis])
        if old == new:
            continue
        if old not in ("fp32", "naive", "own", "off") or new not in by_value:
            return ()
        if axis == "optimizer" and str(before["mode"]) != "train_step":
            continue
        names.append(by_value[new])
    return tuple(names)


def fit_rates(every: list[Pair], runs: list[Baseline], peaks: Mapping[str, float], gpu: str) -> Rates:
    """Rates of these pairs and runs."""
    made = Rates(gpu=gpu, peaks=peaks, host=_host(runs))
    uncompiled = [pair for pair in every if not {*pair.changes} & {*COMPILED}]
    for name in (TF32, BF16):
        made = _add_times(made, name, [pair for pair in uncompiled if name in pair.changes])
    eager = [run for run in runs if str(run.run["compile"]) == "off"]
    of_attention = [pair for pair in uncompiled if FUSED_ATTENTION in pair.changes and BF16 not in pair.changes]
    made = _add_attention(made, of_attention, eager)
    made = _add_batch(made, eager)
    made = _add_compile(made, every)
    return _add_adamw(made, eager)


def _add_times(made: Rates, name: str, chosen: list[Pair]) -> Rates:
    """Adds the groups of a precision. Where attention changes, too, its groups and those around it are left out."""
    rows: dict[str, list[Any]] = {}
    more: dict[str, list[Any]] = {}
    for pair in chosen:
        if str(pair.before.run["mode"]) != "train_step":
            continue
        alone = pair.changes == (name,)
        for (phase, leaf, kind), old, new in groups(pair):
            if phase not in changes.PASSES or (name == TF32 and kind != GEMM):
                continue
            attends = leaf in (*changes.EAGER, changes.FUSED) or (kind != GEMM and leaf in changes.AROUND)
            if "::" in leaf or (attends and not alone):  # a library's own range: what sorts tokens is as before
                continue
            run = dict(pair.before.run) | {"precision": name}
            values = changes.features(run, made, phase, leaf, kind, old)
            rows.setdefault(changes.key_of(name, phase, leaf, kind), []).append((values, new["time_ns"]))
            more.setdefault(f"{name}/{phase}/{leaf}/{kind}", []).append(
                (new["launches"] - old["launches"]) / int(run["num_layers"])
            )
    return _add_groups(made, rows, more)


def groups(pair: Pair) -> Iterable[tuple[tuple[str, str, str], dict[str, Any], dict[str, Any]]]:
    """The groups of the run after, each with itself before (nothing where it comes with the change)."""
    old = {(row["phase"], row["leaf"], row["kind"]): row for row in pair.before.parts.to_dict("records")}
    for row in pair.after.parts.to_dict("records"):
        key = (row["phase"], row["leaf"], row["kind"])
        yield key, old.get(key, {"time_ns": 0.0, "launches": 0.0}), row


def _add_groups(made: Rates, rows: Mapping[str, list[Any]], more: Mapping[str, list[Any]]) -> Rates:
    times = dict(made.times) | {key: rates.fit(*zip(*values)) for key, values in rows.items()}
    launches = dict(made.launches) | {key: float(np.median(values)) for key, values in more.items()}
    return dataclasses.replace(made, times=times, launches=launches)


def _add_attention(made: Rates, chosen: list[Pair], runs: list[Baseline]) -> Rates:
    rows: dict[str, list[Any]] = {}
    more: dict[str, list[Any]] = {}
    for pair in chosen:
        for (phase, leaf, kind), old, new in groups(pair):
            if phase not in changes.PASSES or leaf not in changes.AROUND or kind == GEMM or not old["time_ns"]:
                continue
            values = changes.features(pair.after.run, made, phase, leaf, kind, old)
            key = f"{changes.FUSED_IN[str(pair.after.run['precision'])]}/{phase}/{leaf}/{kind}"
            rows.setdefault(key, []).append((values, new["time_ns"]))
            more.setdefault(key, []).append((new["launches"] - old["launches"]) / int(pair.after.run["num_layers"]))
    for run in runs:
        if str(run.run["attention"]) != "sdpa":
            continue
        for row in run.parts[run.parts["kind"] == ATTENTION].to_dict("records"):
            phase = row["phase"]
            key = f"{changes.FUSED_IN[str(run.run['precision'])]}/{phase}/{changes.FUSED}/{ATTENTION}"
            rows.setdefault(key, []).append((changes.fused_features(run.run, made, phase), row["time_ns"]))
            more.setdefault(key, []).append(row["launches"] / int(run.run["num_layers"]))
    return _add_groups(made, rows, more)


def pair_longer(runs: Iterable[Baseline]) -> list[tuple[Baseline, Baseline]]:
    """Each training step that is not compiled, with the one whose context is TIMES_BATCH times as long."""
    known = {
        tuple(str(run.run[name]) for name in ALIKE): run
        for run in runs
        if str(run.run["mode"]) == "train_step" and str(run.run["compile"]) == "off"
    }
    others = {at: (at[0], str(changes.TIMES_BATCH * int(at[1])), *at[2:]) for at in known}
    return [(known[at], known[other]) for at, other in others.items() if other in known]


def _add_batch(made: Rates, runs: list[Baseline]) -> Rates:
    """Adds how operations grow with the batch. No run was recorded with another, so it is inferred from twice the
    context, which is as many tokens: what is done for each pair of tokens grows there by three times as much."""
    rows: dict[str, list[Any]] = {}
    for run, longer_run in pair_longer(runs):
        larger = dict(run.run) | {"batch_size": changes.TIMES_BATCH * int(run.run["batch_size"])}
        for (phase, leaf, kind), old, new in groups(Pair(run, longer_run, ())):
            if phase not in changes.PASSES or "::" in leaf or not old["time_ns"]:
                continue
            of_pairs = leaf in (*changes.EAGER, changes.FUSED)
            of_pairs |= leaf == ACCUMULATION and str(run.run["attention"]) == "naive"  # sums of scores, above all
            more = (new["time_ns"] - old["time_ns"]) / (changes.TIMES_BATCH**2 - 1 if of_pairs else 1)
            values = changes.features(larger, made, phase, leaf, kind, old)
            key = changes.key_of(f"larger_batch_{run.run['precision']}", phase, leaf, kind)
            rows.setdefault(key, []).append((values, old["time_ns"] + max(more, 0.0)))
    return _add_groups(made, rows, {})


def _add_compile(made: Rates, every: list[Pair]) -> Rates:
    """Adds what is left of the time and the number of operations, by phase and kind."""
    rows: dict[str, list[Any]] = {}
    launches: dict[str, list[float]] = {}
    for pair in every:
        if len(pair.changes) > 1 or pair.changes[0] not in COMPILED:
            continue
        if (str(pair.before.run["precision"]), str(pair.before.run["attention"])) != ("bf16", "sdpa"):
            continue
        runs = (pair.before, pair.after)
        before, after = (run.parts.groupby(["phase", "kind"])[["launches", "time_ns"]].sum() for run in runs)
        for (phase, kind), row in before.iterrows():
            if phase in changes.PASSES:
                key, new = f"{pair.changes[0]}/{phase}//{kind}", after.loc[phase, kind]
                rows.setdefault(key, []).append(([row["time_ns"]], new["time_ns"]))
                launches.setdefault(key, []).append(new["launches"] / row["launches"])
    return _add_groups(made, rows, launches)


def _add_adamw(made: Rates, runs: list[Baseline]) -> Rates:
    rows, host = [], []
    tensors = {
        str(run.run["size"]): run.parts.loc[run.parts["phase"] == ranges.OPTIMIZER, "launches"].sum() / 8
        for run in runs
        if str(run.run["mode"]) == "train_step" and str(run.run["optimizer"]) == "own"
    }
    for run in runs:
        if str(run.run["mode"]) != "train_step" or str(run.run["optimizer"]) != "fused":
            continue
        num_tensors = tensors[str(run.run["size"])]
        busy_ns = run.parts.loc[run.parts["phase"] == ranges.OPTIMIZER, "time_ns"].sum()
        work = flops.adamw(int(run.run["num_parameters"])).bytes / (made.peaks["copy"] / 1e9)
        rows.append(([work, 1e3 * num_tensors], busy_ns))
        host.append((run.clocks[ranges.OPTIMIZER].wall_ns - busy_ns) / num_tensors)
    if not rows:
        return made
    matrix, target = zip(*rows)
    times = dict(made.times) | {f"{FUSED_ADAMW}/optimizer": rates.fit(matrix, target)}
    return dataclasses.replace(made, times=times, host=dict(made.host) | {FUSED_ADAMW: float(np.median(host))})


def _host(runs: list[Baseline]) -> dict[str, float]:
    known: dict[str, list[float]] = {}
    for run in runs:
        for phase, rate in predict.own_host_rates(run).items():
            if phase != ranges.OPTIMIZER:
                known.setdefault(predict.host_key(run.run, phase), []).append(rate)
    return {key: float(np.median(values)) for key, values in known.items()}


def errors_of(every: list[Pair], runs: list[Baseline], peaks: Mapping[str, float], gpu: str) -> list[dict[str, Any]]:
    """Each pair predicted with the rates of all other sizes: changes, size, context_length, mode, baseline_ns,
    predicted_ns, low_ns, high_ns, ceiling_ns, measured_ns, ratio (measured over predicted), limited_by; with `reason`
    where there is no prediction."""
    rows, made_of = [], {}
    for size in dict.fromkeys(str(pair.before.run["size"]) for pair in every):
        others = [pair for pair in every if str(pair.before.run["size"]) != size]
        of_others = [run for run in runs if str(run.run["size"]) != size]
        made_of[size] = fit_rates(others, of_others, peaks, gpu)
        rows += [(pair, _error(pair, made_of[size])) for pair in every if str(pair.before.run["size"]) == size]
    errors = [row for _, row in rows]
    for pair, row in rows:  # an interval is made of the errors of the other sizes, which are known only now
        if "ratio" in row:
            made = made_of[row["size"]]
            state = predict.apply_changes(pair.before, pair.changes, made)
            low_ns, high_ns = predict.interval(pair.before, state, made, errors)
            row |= {"low_ns": max(low_ns, row["ceiling_ns"]), "high_ns": high_ns}
    return errors


def _error(pair: Pair, made: Rates) -> dict[str, Any]:
    run = pair.before.run
    row = {"changes": "+".join(pair.changes), "size": str(run["size"]), "context_length": int(run["context_length"])}
    row |= {"mode": str(run["mode"]), "baseline_ns": pair.before.step_ns, "measured_ns": pair.after.step_ns}
    try:
        state = predict.apply_changes(pair.before, pair.changes, made)
    except AbstentionError as reason:
        return row | {"reason": str(reason)}
    said = predict.estimate_step(pair.before, pair.changes, made, state)
    row |= {"predicted_ns": said.step_ns, "ceiling_ns": said.ceiling_ns, "limited_by": said.limited_by}
    return row | {"ratio": pair.after.step_ns / said.step_ns}


def develop(folders: Sequence[Path]) -> Rates:
    """Rates of the recordings in `folders`, and their errors. Calibrated by the first of them that was."""
    recordings = [store.load(folder) for folder in folders]
    calibrated = next(recording for recording in recordings if recording.manifest.get("calibration"))
    peaks = {rate["figure"]: rate["value"] for rate in calibrated.manifest["calibration"]}
    sources = [{key: recording.manifest[key] for key in ("name", "created", "commit")} for recording in recordings]
    made = develop_rates([[*baselines(recording)] for recording in recordings], peaks, str(calibrated.manifest["gpu"]))
    return dataclasses.replace(made, made_from=sources)


def develop_rates(runs: Sequence[Sequence[Baseline]], peaks: Mapping[str, float], gpu: str) -> Rates:
    """Rates of the runs of several recordings, and their errors."""
    every = [pair for of_recording in runs for pair in pairs(of_recording)]
    # Across recordings, where no run of the same recording shows the change.
    known = {(*pair.changes, pair.before.run["run_id"]) for pair in every}
    across = pairs([run for of_recording in runs for run in of_recording if _has_host_times(run)])
    every += [pair for pair in across if (*pair.changes, pair.before.run["run_id"]) not in known]
    all_runs = [run for of_recording in runs for run in of_recording]
    made = fit_rates(every, all_runs, peaks, gpu)
    return dataclasses.replace(made, errors=errors_of(every, all_runs, peaks, gpu))


def _has_host_times(run: Baseline) -> bool:
    return not math.isnan(run.clocks[ranges.STEP].issue_ns)


def errors_of_tests(data: Path, known: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tested predictions of sweeps in the ledgers below `data`, but for `known` pairs, which have their
    kernels, too: what an error has without its interval."""
    recordings = [store.load(folder) for folder in find_recordings(data)]
    held = ledger.compare_with_measured(ledger.read_all(data / ledger.FOLDER), [*recordings, *ledger.recordings(data)])
    case = ["changes", "size", "context_length"]
    measured: dict[tuple[Any, ...], list[float]] = {}
    for error in known:
        if "ratio" in error:
            measured.setdefault(tuple(error[name] for name in case), []).append(error["measured_ns"])
    tested = held[(held["kind"] == SWEEP) & held["error"].notna()]
    is_new = [  # they are rounded to five digits where kept
        not np.isclose(measured.get(tuple(key), []), time_ns, rtol=1e-4, atol=0).any()
        for *key, time_ns in tested[[*case, "measured_ns"]].itertuples(index=False)
    ]
    tested = tested[is_new]
    names = ["changes", "size", "context_length", "mode", "predicted_ns", "measured_ns", "ratio", "limited_by"]
    errors: list[dict[str, Any]] = tested.assign(ratio=tested["measured_ns"] / tested["predicted_ns"])[names].to_dict(
        "records"
    )
    return errors


if __name__ == "__main__":
    made = develop([Path(folder) for folder in sys.argv[1:]])
    rates.save(dataclasses.replace(made, tested=errors_of_tests(DATA, made.errors)))
