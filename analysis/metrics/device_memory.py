"""Device memory of runs: what was measured, and what `jobs.memory` predicts of it."""

from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import per_rank, run_grid
from profiler_job.analysis.reference import flops
from profiler_job.jobs import memory as prediction
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import order_axes
from profiler_job.jobs.contract.words import NOT_MEASURED
from profiler_job.jobs.memory import MODEL_SIZES, VOCAB_SIZE, estimate_usable_bytes, infer_shape

TOLERANCE = 0.03
"""A prediction this near to the measured peak counts as right."""
GPU_SIZES = (24, 80, 141)
"""Memory in GB, as sold, of the GPUs that cells are compared with."""
PLANNED_FOR = (24, 40, 80)
"""Memory in GB, as sold, of the GPUs that sizes are planned for, measured or not."""
CASES = ((512, 1), (512, 4), (1024, 4))
"""Context and batch."""
OPTIMIZERS = {"naive": "own", "sdpa": "fused"}
"""The AdamW of cases with this attention: nothing is fused, or both are."""
SETTINGS = {
    label: {"precision": precision, "attention": attention, "optimizer": OPTIMIZERS[attention]}
    for label, precision, attention in (("FP32", "fp32", "naive"), ("BF16, fused", "bf16", "sdpa"))
}
"""Nothing fused, and as people train today."""
SAME_LIMIT = 0.01
"""A cap this near to what a GPU leaves to the allocator stands for that GPU."""
PARTS = ("parameters", "Adam's state", "activations", "gradients, temporaries, buffers")
USES = ("parameters", "gradients", "optimizer_state", "other")
AT_PEAK = {owner: f"peak_{owner.name.lower()}" for owner in prediction.Owner}
"""Columns of what is allocated at the predicted peak, by owner."""
FITS = "fits"
WHOLE = (
    *("d_model", "d_ff", "num_layers", "num_heads", "vocab_size"),
    *("context_length", "batch_size", "accumulation", "gpus"),
)
"""Whole numbers, also next to runs of other workloads, which have none there: pandas makes floats of them."""
CAP = "memory_limit_gib"
MEMORY_THEN = ("status_total_bytes", "status_free_bytes", "status_reserved_bytes")
BINARY = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# What a recording from before these axes has in all its runs.
DEFAULTS = {"compile": "off", "optimizer": "own", "fresh_process": False, CAP: 0.0, "status_step": float("nan")}
DEFAULTS |= {"workload": run_grid.REFERENCE, "gpus": 1}


def plain_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs as plain text and numbers, with the axes that older recordings lack; without compiled ones, for which
    nothing is predicted."""
    names = ["run_id", "status", "status_phase", "size", "mode", "precision", "attention", "compile", "optimizer"]
    names.append("workload")
    known = runs.assign(**{name: value for name, value in DEFAULTS.items() if name not in runs})
    known = known.astype({name: object for name in names})
    return known[known["compile"] == "off"]


def select_predictable(runs: pd.DataFrame) -> pd.DataFrame:
    """The `plain_runs` whose memory is predicted: the reference Transformer on one GPU."""
    known = [prediction.is_predictable(run) for run in runs.itertuples()]
    rows = runs[pd.Series(known, index=runs.index, dtype=bool)]
    return rows.astype({name: int for name in WHOLE if name in rows})


def place_of(failure: Any) -> str:
    """`forward, step 1` for a step counted from 0, and FITS where nothing fails."""
    return FITS if failure is None else f"{failure[1]}, step {int(failure[0]) + 1}"


def errors_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Predicted against measured peak of every finished run with a prediction, and the smallest of GPU_SIZES that it
    fits; with the axes of the run."""
    known = select_predictable(runs)
    done = known[(known["status"] == "ok") & known["peak_memory_bytes"].notna()]
    rows = [*done.itertuples()]
    predicted = [prediction.predict_peak_bytes(row) for row in rows]
    axes = [name for name in order_axes() if name in done]
    errors = done[["sweep", "run_id", "gpu_name", *axes]].assign(
        **{NOT_MEASURED: ""},
        cap_bytes=(done[CAP] * prediction.GIB).where(done[CAP] > 0),
        predicted=predicted,
        peak=done["peak_memory_bytes"],
        least_gb=[
            next((size for size in GPU_SIZES if peak <= estimate_usable_bytes(size)), None) for peak in predicted
        ],
    )
    return errors.assign(error=errors["predicted"] / errors["peak"] - 1).reset_index(drop=True)


def runs_elsewhere(studies: Mapping[str, Any], runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of the `studies`, with the columns of `runs` at least: sweep, and after_compiled, whether a compiled one
    came before in their process."""
    parts = [runs.head(0).assign(sweep="", after_compiled=False)]
    for name, study in studies.items():
        known = plain_runs(study.runs)
        compiled = study.runs[~study.runs["run_id"].astype(str).isin(known["run_id"])]
        after = known["started_at"] > compiled["started_at"].min() if len(compiled) else False
        parts.append(known.assign(sweep=name, after_compiled=after & ~known["fresh_process"].astype(bool)))
    return pd.concat(parts, ignore_index=True).astype({"after_compiled": bool})


def accuracy(errors: pd.DataFrame) -> pd.DataFrame:
    """Per recording, precision and mode: runs, those whose peak is right to the byte, and the largest error."""
    marked = errors.assign(exact=errors["error"] == 0, largest=errors["error"].abs())
    groups = marked.groupby(["sweep", "precision", "mode"], sort=False)
    table = groups.agg(num_runs=("run_id", "size"), num_exact=("exact", "sum"), largest=("largest", "max"))
    return table.reset_index().assign(**{NOT_MEASURED: ""})


def excess_of(runs: pd.DataFrame, studies: Mapping[str, Any]) -> pd.DataFrame:
    """By how many bytes each phase of the runs peaks higher than predicted."""
    rows = []
    for run in select_predictable(runs).itertuples():
        memory = per_rank.memory_by_phase(studies[run.sweep].memory)
        for row in memory[memory["run_id"] == run.run_id].itertuples():
            predicted = prediction.predict_peaks(run, 1)[row.phase]
            peak = row.peak_allocated_bytes
            rows.append((run.run_id, row.phase, predicted, peak, peak - predicted, peak / predicted - 1))
    return pd.DataFrame(rows, columns=["run_id", "phase", "predicted", "peak", "excess", "excess_share"])


def count_kept_casts(errors: pd.DataFrame, studies: Mapping[str, Any]) -> pd.DataFrame:
    """Forward passes under autocast: what their blocks keep (bf16 copies of their weights, and nothing else), and the
    bytes of those copies."""
    rows = []
    for error in errors[(errors["precision"] == "bf16") & (errors["mode"] == "forward")].to_dict("records"):
        study = studies[error["sweep"]]
        run = study.runs[study.runs["run_id"].astype(str) == error["run_id"]].iloc[0]
        modules = per_rank.list_kept_by_module(study.module_memory)
        modules = modules[modules["run_id"] == error["run_id"]]
        blocks = modules["module"].isin([ranges.name_block(i) for i in range(int(run["num_layers"]))])
        if blocks.any():
            layers = run["num_parameters"] - 2 * run["vocab_size"] * run["d_model"]
            rows.append(error | {"kept": modules.loc[blocks, "kept_bytes"].sum(), "casts": flops.BF16_BYTES * layers})
    return pd.DataFrame(rows, columns=[*errors.columns, "kept", "casts"])


def fates_of(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Runs with the allocator capped: where they ran out of memory, and where they were predicted to. Without those
    that have no prediction."""
    known = select_predictable(runs)
    capped = run_grid.sort_runs(known[(known[CAP] > 0) & known["status"].isin(["ok", "oom"])])
    capped = capped.assign(**{name: float("nan") for name in MEMORY_THEN if name not in capped})
    said = capped["status_message"].astype(object)
    rows = [*capped.itertuples()]
    limits = [prediction.compute_allocator_limit(row) for row in rows]
    peaks = [[max(prediction.predict_peaks(row, step).values()) for step in (0, 1)] for row in rows]
    places = [place_of((row.status_step, row.status_phase) if row.status == "oom" else None) for row in rows]
    predicted = [place_of(prediction.predict_failure(row, limit)) for row, limit in zip(rows, limits)]
    total, free, reserved = (capped[name] for name in MEMORY_THEN)
    named = ["run_id", "size", "context_length", "status", "status_phase", "status_step"]
    return capped[[*dict.fromkeys([*by, *named])]].assign(
        **{NOT_MEASURED: ""},
        cap_bytes=limits,
        place=places,
        predicted_place=predicted,
        as_predicted=[place == other for place, other in zip(places, predicted)],
        first_peak=[first for first, _ in peaks],
        later_peak=[later for _, later in peaks],
        first_step_fits=[first <= limit for (first, _), limit in zip(peaks, limits)],
        asked_bytes=bytes_said(said, "Tried to allocate {}"),
        unused_bytes=bytes_said(said, "and {} is reserved by PyTorch but unallocated"),
        context_bytes=total - free - reserved,
    )


def bytes_said(messages: pd.Series, pattern: str) -> pd.Series:
    """A size in PyTorch's message, in bytes. It is of the moment of the failure: later, what the failed operation held
    is free again."""
    matches = messages.str.extract(pattern.format(rf"([\d.]+) ({'|'.join(BINARY)})"))
    return matches[0].astype(float) * matches[1].map(BINARY)


def fits_of(table: pd.DataFrame, runs: pd.DataFrame, fates: pd.DataFrame) -> pd.DataFrame:
    """Per cell the predicted peak, and for each of GPU_SIZES the predicted fate and the fate of a run that had its
    memory: under a cap, or on such a GPU."""
    rows = {row.run_id: row for row in select_predictable(runs).itertuples()}
    cells = [rows.get(run_id) for run_id in table["run_id"]]
    table = table.assign(predicted=[prediction.predict_peak_bytes(row) if row else float("nan") for row in cells])
    tried = pd.concat(
        [
            fates[["size", "context_length", "cap_bytes", "place"]],
            runs[(runs[CAP] == 0) & (runs["status"] == "ok")].assign(
                cap_bytes=lambda free: free["gpu_memory_bytes"] - prediction.CUDA_CONTEXT_BYTES, place=FITS
            )[["size", "context_length", "cap_bytes", "place"]],
        ]
    )
    for size in GPU_SIZES:
        limit = estimate_usable_bytes(size)
        near = tried[(tried["cap_bytes"] / limit - 1).abs() < SAME_LIMIT]
        outcome = {(row.size, row.context_length): row.place for row in near.itertuples()}
        table[f"predicted_{size}"] = [
            place_of(prediction.predict_failure(row, limit)) if row else None for row in cells
        ]
        table[f"measured_{size}"] = [outcome.get(case) for case in zip(table["size"], table["context_length"])]
    pairs = [(table[f"predicted_{size}"], table[f"measured_{size}"]) for size in GPU_SIZES]
    tried = sum(measured.notna().astype(int) for _, measured in pairs)
    right = sum((predicted == measured).astype(int) for predicted, measured in pairs)
    return table.assign(tried=[f"{r} of {t}" if t else "not tried" for r, t in zip(right, tried)])


def plan(runs: pd.DataFrame) -> pd.DataFrame:
    """Training steps of MODEL_SIZES, smallest first, in each of CASES and SETTINGS: predicted peak and whether they fit
    each of PLANNED_FOR; peak measured in the first of `runs` that has this shape, with its run_id."""
    known = select_predictable(runs)
    known = known[(known["status"] == "ok") & (known["mode"] == "train_step")].drop_duplicates("run_id")
    measured = {infer_shape(run): run for run in [*known.itertuples()][::-1]}
    rows = []
    for name, size in sorted(MODEL_SIZES.items(), key=lambda item: item[1].num_parameters(VOCAB_SIZE)):
        for (context, batch), (label, axes) in product(CASES, SETTINGS.items()):
            case = {"context_length": context, "batch_size": batch}
            of_run = {**size._asdict(), **case, **axes, "vocab_size": VOCAB_SIZE, "accumulation": 1}
            planned: Any = SimpleNamespace(**of_run, mode="train_step")
            shape = infer_shape(planned)
            run = measured.get(shape)
            row = {"size": name, "num_parameters": size.num_parameters(VOCAB_SIZE), "setting": label, **case}
            row |= {"predicted": prediction.predict_peak_bytes(planned), "run_id": run and run.run_id}
            row |= {"peak": run.peak_memory_bytes if run else float("nan")}
            failures = {gb: prediction.find_failure(shape, estimate_usable_bytes(gb)) for gb in PLANNED_FOR}
            ends = {f"in_{gb}": f"no: {place_of(why)}" if why else FITS for gb, why in failures.items()}
            rows.append(row | ends)
    return pd.DataFrame(rows)


def trace_step(runs: pd.DataFrame, most: int) -> pd.DataFrame:
    """Predicted allocated memory during the second step of the run with the highest measured peak: `phase`, `change`
    (allocations and releases since the step began) and `bytes`, with the run's `run_id`. At most about `most` rows,
    each the highest of its neighbours in a phase; no rows where no run is predictable."""
    known = select_predictable(runs)
    known = known[(known["mode"] == "train_step") & (known["status"] == "ok") & known["peak_memory_bytes"].notna()]
    if known.empty:
        return pd.DataFrame(columns=["phase", "change", "bytes", "run_id"])
    run = next(known.nlargest(1, "peak_memory_bytes").itertuples())
    changes = pd.DataFrame(prediction.predict_owners(infer_shape(run)).timeline, columns=["phase", "bytes"])
    changes["change"] = range(1, len(changes) + 1)
    buckets = [changes["phase"], changes["change"] // (len(changes) // most + 1)]
    highest = changes.loc[changes.groupby(buckets)["bytes"].idxmax()]
    return highest.sort_values("change").assign(run_id=run.run_id).reset_index(drop=True)


def read_probes(memory: pd.DataFrame, figures: pd.DataFrame) -> pd.DataFrame:
    """One row per run: peak of each phase, the highest and its phase, reserved, activations, and bytes by use."""
    rows = per_rank.memory_by_phase(memory)
    peaks = rows.pivot(index="run_id", columns="phase", values="peak_allocated_bytes")
    peaks = peaks.reindex(columns=list(ranges.PHASES)).astype(float)
    forward = rows[rows["phase"] == ranges.FORWARD].set_index("run_id")
    reserved = rows.groupby("run_id")["peak_reserved_bytes"].max()
    used = per_rank.take_largest_rank(figures.astype({"run_id": str, "figure": str}), ["value"])
    used = used.pivot(index="run_id", columns="figure", values="value")
    used = used.reindex(columns=[f"memory_{use}" for use in USES]).set_axis(list(USES), axis=1)
    probes = peaks.add_suffix("_peak").assign(
        peak=peaks.max(axis=1),
        highest=peaks.idxmax(axis=1) if len(peaks) else None,
        reserved=reserved,
        reserved_ratio=reserved / peaks.max(axis=1),
        activations=forward["allocated_after_bytes"] - forward["allocated_before_bytes"],
    )
    return probes.join(used, how="outer").rename_axis("run_id").reset_index()


def predict_owners(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per predictable run of uncapped, finished training steps: `run_id`; bytes AT_PEAK; and bytes predicted of
    what is measured: `left_<use>` at the end of the step for all but the last of USES, and `activations_predicted`, the
    growth over the forward pass."""
    known = select_predictable(runs)
    rows = []
    for run in known[(known[CAP] == 0) & (known["status"] == "ok") & (known["mode"] == "train_step")].itertuples():
        memory = prediction.predict_owners(infer_shape(run))
        row = {"run_id": run.run_id, "activations_predicted": memory.grown}
        row |= {column: memory.owners.get(owner, 0) for owner, column in AT_PEAK.items()}
        row |= {f"left_{use}": memory.left.get(prediction.Owner(use.replace("_", " ")), 0) for use in USES[:3]}
        rows.append(row)
    columns = ["run_id", "activations_predicted", *AT_PEAK.values(), *(f"left_{use}" for use in USES[:3])]
    return pd.DataFrame(rows, columns=columns)


def find_owner_errors(cells: pd.DataFrame) -> pd.Series:
    """Find the largest error of the predictions by owner of each cell: parameters, gradients, optimizer state and
    activations, as a fraction of what was measured."""
    pairs = {f"left_{use}": use for use in USES[:3]} | {"activations_predicted": "activations"}
    errors = pd.DataFrame({use: cells[predicted] / cells[use] - 1 for predicted, use in pairs.items()})
    return errors.abs().max(axis=1, skipna=False)


def sum_kept_by_module(module_memory: pd.DataFrame) -> pd.DataFrame:
    """One row per run: bytes kept by attention, feed-forward and norms over all layers, by softmax (inside attention),
    by embedding and head, and what their callers freed or kept between them. Without softmax they add up to the
    activations."""
    rows = per_rank.list_kept_by_module(module_memory)
    name = rows["module"].str.rsplit("/", n=1).str[-1]
    ends = name.isin([ranges.EMBEDDING, ranges.LM_HEAD])
    parts = {part: name == part for part in (ranges.ATTENTION, ranges.SOFTMAX, ranges.FFN, ranges.NORM)} | {
        "ends": ends,
        "outermost": ~rows["module"].str.contains("/"),
    }
    kept = pd.DataFrame({part: rows[of].groupby("run_id")["kept_bytes"].sum() for part, of in parts.items()})
    named = kept[[ranges.ATTENTION, ranges.FFN, ranges.NORM, "ends"]].sum(axis=1)
    kept = kept.assign(between=kept["outermost"] - named).drop(columns="outermost")
    return kept.rename_axis("run_id").reset_index()


def parts_of_peak(measured: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The peak cut into PARTS. A peak in the optimizer's phase comes after the activations are gone."""
    later = measured["highest"] == ranges.OPTIMIZER
    activations = measured["activations"].mask(later, 0)
    parts = [measured["parameters"], measured["optimizer_state"], activations]
    parts.append(measured["peak"] - sum(parts))
    frames = [measured[[*by, "run_id"]].assign(scope=name, bytes=size) for name, size in zip(PARTS, parts)]
    return pd.concat(frames).dropna(subset="bytes").sort_index(kind="stable").reset_index(drop=True)
