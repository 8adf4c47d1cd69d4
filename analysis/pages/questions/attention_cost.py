"""(e) Does attention's softmax cost what its arithmetic says?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, format_percent_span, ratios_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.reference import flops
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

GEMM, ATTENTION = "gemm", "attention"
SCOPES = {
    "scores": "QKᵀ",
    "softmax": "softmax",
    "output": "AV",
}
NO_RANGES = "no such ranges"
_RANGES = {
    "scores": ranges.ATTENTION_SCORES,
    "softmax": ranges.SOFTMAX,
    "output": ranges.ATTENTION_OUTPUT,
}


def answer(given: Inputs) -> Answer:
    """Kernel time of QK^T, softmax and AV in a forward pass (mode `forward`, eager attention) against their FLOPs, for
    every case.

    QK^T is the GEMM kernels launched inside the range `attention_scores` (its scaling and mask are not), AV those
    inside `attention_output`, softmax all kernels inside `softmax`. FLOPs are of the whole forward pass, causal mask
    ignored, as the kernels compute them. Ratios are softmax to QK^T: in time, in FLOPs, and the first by the second
    (how many times more a softmax FLOP costs); both_* are the same ratios to QK^T and AV together. Of fused attention,
    which does all three at once, there is its share of forward kernel time (fused_share).
    """
    frames = _frames(given.runs, given.kernels)
    return assemble(_facts(frames), _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="e",
    slug="attention-cost",
    title="Does softmax cost what its arithmetic says?",
    needs=("runs", "kernels"),
    answer=answer,
    section=Section.LIMIT,
    place=3,
    searched=("softmax FLOPs",),
)


@dataclass(frozen=True, kw_only=True)
class AttentionCostData:
    """`cases`: one row per case with the times, FLOPs and ratios of the three operations; `measured`: those that have
    them. `by` names a case; `softmax_operations` is FLOPs of softmax per element of the scores, None without a known
    shape."""

    by: list[str]
    cases: pd.DataFrame
    measured: pd.DataFrame
    softmax_operations: float | None


def _frames(runs: pd.DataFrame, kernels: pd.DataFrame) -> AttentionCostData:
    table = run_grid.cases(runs, "forward").merge(_times(kernel_time.kernel_totals(kernels)), how="left", on="run_id")
    work = _work(runs)
    table = table.merge(work.drop(columns="softmax_operations"), how="left", on="run_id")
    table["time_ratio"] = table["softmax_ns"] / table["scores_ns"]
    table["flop_ratio"] = table["softmax_flops"] / table["scores_flops"]
    table["cost_ratio"] = table["time_ratio"] / table["flop_ratio"]
    for value in ("ns", "flops"):
        table[f"both_{value}"] = table[f"scores_{value}"] + table[f"output_{value}"]
    table["both_time_ratio"] = table["softmax_ns"] / table["both_ns"]
    table["both_flop_ratio"] = table["softmax_flops"] / table["both_flops"]
    table["both_cost_ratio"] = table["both_time_ratio"] / table["both_flop_ratio"]
    for scope in SCOPES:
        table[f"{scope}_rate"] = table[f"{scope}_flops"] / table[f"{scope}_ns"] / 1e3
    finished = table[NOT_MEASURED] == ""
    table.loc[finished & table["time_ratio"].isna(), NOT_MEASURED] = NO_RANGES
    table.loc[finished & ~table["run_id"].isin(work["run_id"]), NOT_MEASURED] = "FLOPs not known"
    return AttentionCostData(
        by=run_grid.case_columns(runs),
        cases=table,
        measured=table[(table[NOT_MEASURED] == "") & table["time_ratio"].notna()],
        softmax_operations=work["softmax_operations"].max() if len(work) else None,
    )


def _facts(frames: AttentionCostData) -> dict[str, Any]:
    return {"softmax_operations": frames.softmax_operations}


def _claims(frames: AttentionCostData) -> list[Claim]:
    measured = frames.measured
    fused = frames.cases[frames.cases["fused_share"] > 0]
    unknown = frames.cases[frames.cases[NOT_MEASURED] == NO_RANGES]
    return [
        Claim("dearer", measured, lambda rows: (rows["cost_ratio"] > 1).all(), facts=_measure_cost),
        Claim("cheaper_somewhere", measured, lambda rows: (rows["cost_ratio"] <= 1).any(), facts=_measure_cost),
        Claim("both", measured[measured["both_cost_ratio"].notna()], facts=_both),
        Claim("time", measured, facts=extremes("time_ratio")),
        Claim("longer", measured[measured["time_ratio"] > 1], facts=count_all(measured)),
        Claim("never_longer", measured, lambda rows: (rows["time_ratio"] <= 1).all(), facts=count_all(measured)),
        Claim("share", measured, facts=extremes("softmax_share")),
        Claim("fused", fused, facts=extremes("fused_share")),
        Claim("no_ranges", unknown, lambda rows: not len(measured) and not len(fused)),
    ]


def _tables(frames: AttentionCostData) -> list[Table]:
    headings = case_headings(frames.by)
    rates = [f"{scope}_{part}" for part in ("flops", "rate") for scope in SCOPES]
    return [
        Table(
            "cost",
            "Kernel time of one forward pass; ratios are softmax ÷ QKᵀ",
            (
                *headings,
                *(Column(f"{scope}_ns", label, "ms") for scope, label in SCOPES.items()),
                Column("time_ratio", "time ratio", "ratio"),
                Column("flop_ratio", "FLOP ratio", "ratio"),
                Column("cost_ratio", "time per FLOP, ratio", "ratio"),
                Column("both_time_ratio", "softmax ÷ both matmuls, time", "ratio"),
                Column("both_cost_ratio", "time per FLOP", "ratio"),
                Column("softmax_share", "softmax, of forward", "share", bar=True),
            ),
            frames.cases,
        ),
        Table(
            "rates",
            "FLOPs of one forward pass, and FLOPs over kernel time",
            (
                *headings,
                *(Column(f"{scope}_flops", label, "gflop") for scope, label in SCOPES.items()),
                *(Column(f"{scope}_rate", label, "tflops") for scope, label in SCOPES.items()),
            ),
            frames.cases[[*frames.by, "run_id", NOT_MEASURED, *rates]],
        ),
    ]


def _charts(frames: AttentionCostData) -> list[Chart]:
    labels = {"flop_ratio": "FLOPs", "time_ratio": "kernel time"}
    long = frames.measured.melt([*frames.by, "run_id"], list(labels), var_name="clock", value_name="value")
    long["clock"] = long["clock"].map(labels)
    options = {"order": list(labels.values()), "by": frames.by, "unit": "softmax ÷ QKᵀ (log scale)", "value": "value"}
    title = "Softmax against QKᵀ: arithmetic and time"
    if len(long):
        times, work = frames.measured["time_ratio"], frames.measured["flop_ratio"]
        title = f"Softmax takes {ratios_of(times)} as long as QKᵀ, with {format_percent_span(work)} of its FLOPs"
    return [Chart("ratios", "dumbbell", title, long, options=options)]


def _measure_cost(rows: pd.DataFrame) -> dict[str, Any]:
    return {name: span(rows[f"{name}_ratio"]) for name in ("time", "flop")} | extremes("cost_ratio")(rows)


def _both(rows: pd.DataFrame) -> dict[str, Any]:
    names = ("time", "flop", "cost")
    return {name: span(rows[f"both_{name}_ratio"]) for name in names} | extremes("both_time_ratio")(rows)


def _times(totals: pd.DataFrame) -> pd.DataFrame:
    """Forward kernel time of the three scopes per run: scores_ns, softmax_ns, output_ns, softmax_share, fused_share."""
    forward = totals[totals["phase"] == ranges.FORWARD]
    innermost = forward["module"].str.rsplit("/", n=1).str[-1]
    times = {}
    for scope, name in _RANGES.items():
        inside = (innermost == name) & ((forward["family"] == GEMM) | (name == ranges.SOFTMAX))
        times[f"{scope}_ns"] = forward[inside].groupby("run_id")["time_ns"].sum()
    total_ns = forward.groupby("run_id")["time_ns"].sum()
    is_fused = (innermost == ranges.FUSED_ATTENTION) | (forward["family"] == ATTENTION)
    fused_ns = forward[is_fused].groupby("run_id")["time_ns"].sum()
    frame = pd.DataFrame(times, index=total_ns.index)
    shares = {"softmax_share": frame["softmax_ns"] / total_ns, "fused_share": fused_ns / total_ns}
    return frame.assign(**shares).reset_index()


def _work(runs: pd.DataFrame) -> pd.DataFrame:
    """FLOPs of the runs whose shape is known: run_id and what `_flops` gives."""
    rows = [
        {"run_id": str(run["run_id"]), **_flops(run)} for run in run_grid.select_known_shapes(runs).to_dict("records")
    ]
    return pd.DataFrame(rows, columns=["run_id", *(f"{scope}_flops" for scope in SCOPES), "softmax_operations"])


def _flops(run: Mapping[str, Any]) -> dict[str, float]:
    """FLOPs of the three operations in one forward pass, all layers."""
    shape = run_grid.shape_of(run)
    layers = shape.num_layers
    return {
        "scores_flops": layers * flops.query_key(shape).flops,
        "softmax_flops": layers * flops.softmax(shape).flops,
        "output_flops": layers * flops.attention_value(shape).flops,
        "softmax_operations": flops.softmax(shape).flops / shape.num_scores,
    }
