"""(g) What fills the memory, and which runs will not fit?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import device_memory, run_grid
from profiler_job.analysis.metrics.device_memory import CAP, FITS, GPU_SIZES, PARTS, PLANNED_FOR, TOLERANCE, USES
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import bound, extremes, give_largest
from profiler_job.analysis.pages.home_cases import BF16, COMPILED, FP32, select_state
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.pages.titles import title_of
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs import memory as prediction
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.studies import STUDIES, TRAINED
from profiler_job.jobs.contract.words import NOT_MEASURED, format_count, name_model
from profiler_job.jobs.memory import estimate_usable_bytes

STUDY = "memory"
OWNER_TOLERANCE = 0.05
"""A predicted part of the memory this near to the measured one counts as right."""
MOST_POINTS = 600
"""Points of the chart over a step, at most."""

TRAINED_CHARTS = {"peak-bf16": BF16, "peak-compiled": COMPILED}

ROUNDED_PARAMETER_BYTES = (16, 17)
"""A parameter, its gradient and its two moments take 16 bytes in FP32, and the allocator rounds up."""


def answer(given: Inputs) -> Answer:
    """Device memory of a training step, and what `jobs.memory` predicts of it from the shapes alone.

    Measured, in a step after the first, of runs without a cap: peak allocated in each phase; the bytes of
    parameters, gradients and Adam's state when the step has ended, from a snapshot of the allocator; activations, which
    is what the forward pass leaves allocated, by range. A range's bytes contain the bytes of the ranges inside it.

    Predicted: peak allocated, against every finished run of this study and of `main`, capped or not, and apart from
    these, of the other `studies` by name, without compiled runs and those after them in their process; whether each
    cell fits GPUs of GPU_SIZES; and, for runs with the allocator capped, the step and the phase in which they run
    out. The peaks of the study TRAINED are drawn alone.
    """
    frames = _frames(given.runs, given.memory, given.module_memory, given.figures, given.main, given.studies)
    trained = [_chart_trained(given, *named) for named in TRAINED_CHARTS.items()]
    facts = _facts(frames) | {"precisions": sorted(given.runs["precision"].astype(str).str.upper().unique())}
    return assemble(facts, _claims(frames), _tables(frames), [*_charts(frames), *filter(None, trained)])


QUESTION = Question(
    letter="g",
    slug="memory-use",
    title="What fills the memory, and which runs will not fit?",
    needs=("runs", "memory", "module_memory", "figures", "main", "studies"),
    answer=answer,
    section=Section.FIT,
    place=1,
    study=STUDY,
    reads=STUDIES,
    searched=(
        "out of memory",
        "OOM",
        "VRAM",
        "peak memory",
        "activations",
        "gradient checkpointing",
        "activation checkpointing",
    ),
    has_small_tables=True,
)


@dataclass(frozen=True, kw_only=True)
class MemoryUseData:
    """Of runs without a cap: `cells`, one row per case with what its memory held, and `fits`, where each cell fits. Of
    capped runs: `fates`, how each ended. Predicted against measured: `errors` of this study and the main recording,
    `elsewhere` of other studies; apart from both, the `excess` of `followers`, and the `casts` of autocast. `plan`:
    what fits, of sizes that were not measured, too. `trace`: of one step, predicted, of the run `traced`.
    `by` names a case."""

    by: list[str]
    cells: pd.DataFrame
    fits: pd.DataFrame
    fates: pd.DataFrame
    errors: pd.DataFrame
    elsewhere: pd.DataFrame
    excess: pd.DataFrame
    casts: pd.DataFrame
    plan: pd.DataFrame
    trace: pd.DataFrame
    traced: str

    @property
    def oom(self) -> pd.DataFrame:
        return self.fates[self.fates["status"] == "oom"]

    @property
    def measured(self) -> pd.DataFrame:
        return self.cells[(self.cells[NOT_MEASURED] == "") & self.cells["peak"].notna()]


def _frames(
    runs: pd.DataFrame,
    memory: pd.DataFrame,
    module_memory: pd.DataFrame,
    figures: pd.DataFrame,
    main: Any,
    studies: Any,
) -> MemoryUseData:
    known = device_memory.plain_runs(runs)
    by = run_grid.case_columns(known[known[CAP] == 0])
    cells = _cells(known, memory, module_memory, figures)
    fates = device_memory.fates_of(known, by)
    here = pd.concat([device_memory.plain_runs(main.runs).assign(sweep="main"), known.assign(sweep=STUDY)])
    others = device_memory.runs_elsewhere({name: study for name, study in studies.items() if name != STUDY}, known)
    elsewhere = device_memory.errors_of(others[~others["after_compiled"]])
    trace = device_memory.trace_step(known[known[CAP] == 0], MOST_POINTS)
    return MemoryUseData(
        by=by,
        cells=cells,
        fits=device_memory.fits_of(cells[[*by, "run_id", NOT_MEASURED, "peak"]], known, fates),
        fates=fates,
        errors=device_memory.errors_of(here),
        elsewhere=elsewhere,
        excess=device_memory.excess_of(others[others["after_compiled"]], studies),
        casts=device_memory.count_kept_casts(elsewhere, studies),
        plan=device_memory.plan(pd.concat([here, others[~others["after_compiled"]]], ignore_index=True)),
        trace=trace,
        traced=next((title_of(run) for run in known.to_dict("records") if {run["run_id"]} == {*trace["run_id"]}), ""),
    )


def _cells(
    known: pd.DataFrame, memory: pd.DataFrame, module_memory: pd.DataFrame, figures: pd.DataFrame
) -> pd.DataFrame:
    """Every case of the runs without a cap, with its peaks, its activations by module, and their shares."""
    probed = device_memory.read_probes(memory, figures)
    probed = probed.merge(device_memory.sum_kept_by_module(module_memory), how="outer", on="run_id")
    cells = run_grid.cases(known[known[CAP] == 0], "train_step").merge(probed, how="left", on="run_id")
    cells = cells.merge(known[["run_id", "num_parameters"]], how="left", on="run_id")
    cells = cells.merge(device_memory.predict_owners(known), how="left", on="run_id")
    cells["owner_error"] = device_memory.find_owner_errors(cells)
    fixed = cells[list(USES[:3])].sum(axis=1, min_count=3)
    cells["parameter_bytes"] = fixed / cells["num_parameters"]
    # At a peak in the optimizer the activations are gone.
    cells["activations_share"] = (cells["activations"] / cells["peak"]).mask(cells["highest"] == ranges.OPTIMIZER)
    cells["softmax_share"] = cells["softmax"] / cells["activations"]
    cells["model_share"] = fixed / cells["peak"]
    return cells


def _facts(frames: MemoryUseData) -> dict[str, Any]:
    context = frames.oom["context_bytes"].dropna()
    return {
        "tolerance": TOLERANCE,
        "sizes": [f"{size} GB" for size in GPU_SIZES],
        "context_assumed": prediction.CUDA_CONTEXT_BYTES,
        "context": context.median() if len(context) else None,
        "num_context": len(context),
        "has_trace": len(frames.trace) > 0,
    }


def _claims(frames: MemoryUseData) -> list[Claim]:
    return [_plan_claim(frames.plan), *_prediction_claims(frames), *_cap_claims(frames), *_claim_content(frames)]


def _prediction_claims(frames: MemoryUseData) -> list[Claim]:
    """How far predicted peak allocated is off, and its parts."""
    owners = frames.measured[[*frames.by, "run_id", "owner_error"]].dropna(subset="owner_error")
    return [
        Claim("exact", frames.errors, lambda rows: (rows["error"].abs() < TOLERANCE).all(), facts=_find_worst),
        Claim("inexact", frames.errors, lambda rows: (rows["error"].abs() >= TOLERANCE).any(), facts=_find_worst),
        Claim("elsewhere", frames.elsewhere, facts=_find_worst),
        Claim("by_owner", owners, lambda rows: (rows["owner_error"] < OWNER_TOLERANCE).all(), facts=_bound_owners),
        Claim("followers", frames.excess, _everywhere, facts=_find_least_and_most),
        Claim("casts", frames.casts, lambda rows: (rows["kept"] > rows["casts"]).any(), facts=_find_most_rounded),
    ]


def _plan_claim(plan: pd.DataFrame) -> Claim:
    """What of a size that was measured nowhere fits the smallest GPU."""
    smallest = PLANNED_FOR[0]
    measured = plan.groupby("size")["peak"].transform("count") > 0
    facts = {"gb": smallest, "fitting": plan[~measured & (plan[f"in_{smallest}"] == FITS)].to_dict("records")}
    return Claim("planned", plan[~measured], facts=lambda rows: facts | extremes("predicted")(rows))


def _cap_claims(frames: MemoryUseData) -> list[Claim]:
    """Which capped runs ran out, and where."""
    fates, oom = frames.fates, frames.oom
    return [
        Claim("foreseen", fates, lambda rows: rows["as_predicted"].all(), facts=_outcomes),
        Claim("unforeseen", fates, lambda rows: not rows["as_predicted"].all(), facts=_outcomes),
        Claim("phases", oom, facts=_phases),
        Claim(
            "second_step", oom[oom["status_step"] == 1], lambda rows: rows["first_step_fits"].any(), facts=_second_step
        ),
        Claim(
            "unused",
            oom,
            lambda rows: (rows["unused_bytes"] > rows["asked_bytes"]).any(),
            facts=give_largest("unused_bytes"),
        ),
    ]


def _claim_content(frames: MemoryUseData) -> list[Claim]:
    """What the memory of a training step holds."""

    def tabulate_span(*columns: str) -> pd.DataFrame:
        return frames.measured[[*frames.by, "run_id", NOT_MEASURED, *columns]]

    shares = tabulate_span("peak", "model_share", "activations_share")
    in_peak = tabulate_span("activations", "peak", "highest", "activations_share")
    in_peak = in_peak[in_peak["highest"] != ranges.OPTIMIZER]
    return [
        Claim("turns", shares, _turns, facts=extremes("activations_share")),
        Claim(
            "fills", in_peak, lambda rows: _is_known(rows) and not _turns(shares), facts=extremes("activations_share")
        ),
        Claim("activations", in_peak, _is_known, facts=extremes("activations_share")),
        Claim(
            "softmax",
            tabulate_span("softmax", "activations", "softmax_share"),
            _is_known,
            facts=extremes("softmax_share"),
        ),
        Claim(
            "parameters", tabulate_span(*USES[:3], "parameter_bytes"), _is_as_rounded, facts=extremes("parameter_bytes")
        ),
        Claim("peak_phase", tabulate_span("peak", "highest"), _is_short_in_optimizer, facts=_find_highest),
        Claim(
            "reserved", tabulate_span("peak", "reserved", "reserved_ratio"), _is_known, facts=extremes("reserved_ratio")
        ),
    ]


def _tables(frames: MemoryUseData) -> list[Table]:
    return [*_fit_tables(frames), *_tabulate_content(frames), *_prediction_tables(frames)]


def _fit_tables(frames: MemoryUseData) -> list[Table]:
    headings = case_headings(frames.by, linked=False)
    return [
        Table(
            "plan",
            "What fits: a training step by size, predicted (simulated without a GPU) and measured",
            (
                Column("model", "model"),
                Column("context_length", "context", "count"),
                Column("batch_size", "batch", "count"),
                Column("setting", "precision"),
                Column("predicted", "peak allocated, predicted", "bytes"),
                Column("peak", "measured", "bytes", absent="not measured"),
                *(Column(f"in_{gb}", f"in {gb} GB, predicted") for gb in PLANNED_FOR),
            ),
            frames.plan.assign(
                model=[name_model(*row) for row in zip(frames.plan["size"], frames.plan["num_parameters"])]
            ),
        ),
        Table(
            "fits",
            "Predicted end of a training step on three GPUs, and how many of the runs tried ended so",
            (
                *headings,
                Column("predicted", "peak allocated, predicted", "bytes"),
                Column("peak", "peak allocated, measured", "bytes"),
                *(Column(f"predicted_{size}", f"in {size} GB") for size in GPU_SIZES),
                Column("tried", "as predicted, of tried"),
            ),
            frames.fits,
        ),
        Table(
            "failures",
            "Runs that ran out of memory under a cap",
            (
                *headings,
                Column("cap_bytes", "cap", "bytes"),
                Column("place", "ran out in"),
                Column("predicted_place", "predicted"),
                Column("first_peak", "first step, predicted", "bytes"),
                Column("later_peak", "later steps, predicted", "bytes"),
                Column("asked_bytes", "asked for", "mib"),
                Column("unused_bytes", "reserved and unused", "mib"),
            ),
            frames.oom,
        ),
    ]


def _tabulate_content(frames: MemoryUseData) -> list[Table]:
    def tabulate_cells(key: str, title: str, *columns: Column) -> Table:
        """A table of some columns of all cells, and its CSV of no others."""
        rows = frames.cells[[*frames.by, "run_id", NOT_MEASURED, *(column.key for column in columns)]]
        return Table(key, title, (*case_headings(frames.by, linked=False), *columns), rows)

    return [
        tabulate_cells(
            "uses",
            "At the end of a training step, and what the forward pass keeps for the backward pass",
            *(Column(use, use.replace("_", " ").replace("optimizer", "Adam's"), "bytes") for use in USES),
            Column("parameter_bytes", "bytes a parameter", "count"),
            Column("activations", "activations", "bytes"),
            Column("activations_share", "activations, of peak allocated", "share", bar=True, absent="gone by then"),
        ),
        tabulate_cells(
            "owners",
            "At the peak of a training step, predicted",
            *(
                Column(key, owner.replace("optimizer", "Adam's"), "bytes")
                for owner, key in device_memory.AT_PEAK.items()
            ),
        ),
        tabulate_cells(
            "phases",
            "Peak allocated in each phase of a training step",
            *(Column(f"{phase}_peak", phase, "bytes") for phase in ranges.PHASES),
            Column("highest", "highest in"),
            Column("reserved", "peak reserved", "bytes"),
            Column("reserved_ratio", "peak reserved ÷ peak allocated", "ratio"),
        ),
        tabulate_cells(
            "modules",
            "Activations by module, all layers: what each left allocated",
            Column("attention", "attention", "bytes"),
            Column("softmax", "of it softmax", "bytes"),
            Column("ffn", "feed-forward", "bytes"),
            Column("norm", "norms", "bytes"),
            Column("ends", "embedding, head", "bytes"),
            Column("between", "freed between them", "bytes"),
            Column("activations", "together", "bytes"),
            Column("softmax_share", "softmax, of all", "share", bar=True),
        ),
    ]


def _prediction_tables(frames: MemoryUseData) -> list[Table]:
    return [
        Table(
            "accuracy",
            "How far predicted peak allocated is off, by recording",
            (
                Column("sweep", "sweep"),
                Column("precision", "precision"),
                Column("mode", "mode"),
                Column("num_runs", "runs", "count"),
                Column("num_exact", "right to the byte", "count"),
                Column("largest", "largest error", "share"),
            ),
            device_memory.accuracy(pd.concat([frames.errors, frames.elsewhere])),
        ),
        Table(
            "errors",
            "Predicted and measured peak allocated of every finished run",
            (
                Column("sweep", "sweep"),
                *case_headings(["size", "context_length"], linked=False),
                Column("mode", "mode"),
                Column("cap_bytes", "cap", "bytes", absent="none"),
                Column("predicted", "predicted", "bytes"),
                Column("peak", "measured", "bytes"),
                Column("error", "error", "share"),
                Column("least_gb", "fits from, GB", "count", absent=f"more than {GPU_SIZES[-1]}"),
            ),
            frames.errors,
        ),
    ]


def _charts(frames: MemoryUseData) -> list[Chart]:
    return [_chart_peak(frames.measured, frames.by), *_chart_over_a_step(frames.trace, frames.traced)]


def _chart_peak(measured: pd.DataFrame, by: list[str], key: str = "peak", state: str = FP32) -> Chart:
    parts = device_memory.parts_of_peak(measured, by)
    limits = {f"{size} GB": estimate_usable_bytes(size) for size in GPU_SIZES}
    options = {"by": by, "order": list(PARTS), "limits": limits}
    return Chart(key, "stacked_parts", _title_of_peak(parts, by), parts, options=options, state=state)


def _chart_trained(given: Inputs, key: str, state: str) -> Chart | None:
    """The peak of steps as people train, in a state, of the batches of this study; None if it was not recorded."""
    if not (rec := given.studies.get(TRAINED)):
        return None
    runs = select_state(rec, state, given.runs["batch_size"]).runs
    probed = device_memory.read_probes(rec.memory, rec.figures)
    probed = probed.merge(device_memory.sum_kept_by_module(rec.module_memory), how="outer", on="run_id")
    cells = run_grid.cases(runs, "train_step").merge(probed, how="left", on="run_id")
    measured = cells.dropna(subset=["peak", "activations"])
    return _chart_peak(measured, run_grid.case_columns(runs), key, state) if len(measured) else None


def _chart_over_a_step(trace: pd.DataFrame, traced: str) -> list[Chart]:
    if trace.empty:
        return []
    rows = trace.assign(series=trace["phase"], x=trace["change"], y=trace["bytes"] / 2**30)
    highest = rows.loc[rows["y"].idxmax()]
    title = f"{traced}: allocated over a step, predicted; the peak of {highest['y']:.3g} GiB lies in "
    title += str(highest["phase"])
    order = [phase for phase in ranges.PHASES if (rows["phase"] == phase).any()]
    axes = {"x_title": "allocations and releases since the step began", "y_title": "GiB"}
    return [Chart("over-a-step", "traces", title, rows, options={"order": order, **axes})]


def _title_of_peak(parts: pd.DataFrame, by: list[str]) -> str:
    """How many training steps fit the smallest GPU."""
    peaks = parts.groupby(by, sort=False)["bytes"].sum()
    if not len(peaks):
        return "Peak allocated in a training step, and what GPUs leave to it"
    least = GPU_SIZES[0]
    num_fitting = int((peaks <= estimate_usable_bytes(least)).sum())
    return f"{num_fitting} of {format_count(len(peaks), 'training step')} fit {least} GB"


# ---------------------------------------------------------------- facts of the claims


def _find_worst(rows: pd.DataFrame) -> dict[str, Any]:
    worst = rows.loc[rows["error"].abs().idxmax()]
    off, exact = rows["error"].abs() >= TOLERANCE, rows["error"] == 0
    numbers = {"num_off": int(off.sum()), "num_exact": int(exact.sum())}
    return numbers | {"bound": bound(abs(worst["error"]), 1e-4), "run": title_of(worst), "gpu_name": worst["gpu_name"]}


def _bound_owners(rows: pd.DataFrame) -> dict[str, Any]:
    return {"bound": bound(rows["owner_error"].max(), 1e-3), "num_rows": len(rows)}


def _outcomes(rows: pd.DataFrame) -> dict[str, Any]:
    oom = rows["status"] == "oom"
    return {"num_oom": int(oom.sum()), "num_right": int(rows["as_predicted"].sum())}


def _phases(rows: pd.DataFrame) -> dict[str, Any]:
    counts = rows["status_phase"].value_counts()
    by_phase = [(phase, int(counts[phase])) for phase in ranges.PHASES if phase in counts]
    return {"phases": [{"phase": phase, "num_runs": number} for phase, number in by_phase]}


def _second_step(rows: pd.DataFrame) -> dict[str, Any]:
    return {"run": rows[rows["first_step_fits"]].iloc[0].to_dict()}


def _everywhere(rows: pd.DataFrame) -> bool:
    """Every phase peaks higher, all by about the same number of bytes."""
    return bool(rows["excess"].min() > (1 - TOLERANCE) * rows["excess"].max() > 0)


def _find_least_and_most(rows: pd.DataFrame) -> dict[str, Any]:
    return {**extremes("excess")(rows), "num_runs": rows["run_id"].nunique()}


def _find_most_rounded(rows: pd.DataFrame) -> dict[str, Any]:
    most = rows.loc[(rows["kept"] - rows["casts"]).idxmax()].to_dict()
    facts: dict[str, Any] = most | {"run": title_of(most)}
    return facts


def _is_known(rows: pd.DataFrame) -> bool:
    """Every row has its last column, and it is more than nothing."""
    return bool(rows.iloc[:, -1].gt(0).all())


def _turns(rows: pd.DataFrame) -> bool:
    """Of every model, activations are most of the peak at its longest context, and weights, gradients and Adam's state
    at its shortest."""
    ends = [rows.sort_values("context_length").groupby("size").nth(end) for end in (0, -1)]
    return bool((ends[0]["model_share"] > 1 / 2).all() and (ends[1]["activations_share"] > 1 / 2).all())


def _is_as_rounded(rows: pd.DataFrame) -> bool:
    return bool(rows["parameter_bytes"].between(*ROUNDED_PARAMETER_BYTES).all())


def _is_short_in_optimizer(rows: pd.DataFrame) -> bool:
    """Some peaks lie in the optimizer and the others in backward, which have the longer contexts of each model."""
    later = rows["highest"] == ranges.OPTIMIZER
    longest = rows[later].groupby("size")["context_length"].max()
    shortest = rows[~later].groupby("size")["context_length"].min()
    backward = (rows.loc[~later, "highest"] == ranges.BACKWARD).all()
    return later.any() and backward and not (longest >= shortest.reindex(longest.index)).any()


def _find_highest(rows: pd.DataFrame) -> dict[str, Any]:
    return {"num_optimizer": int((rows["highest"] == ranges.OPTIMIZER).sum())}
