"""(k) How many steps does a number need?"""

from typing import Any

import pandas as pd

from analysis.answer import Answer, Chart, Claim, Column, Table, assemble
from analysis.metrics import first_steps, run_grid, timing
from analysis.metrics.first_steps import CASE, SHORT, TOLERANCES, WARM_UPS
from analysis.pages.columns import case_headings, spread_column
from analysis.pages.facts import extremes, largest, out_of
from jobs.contract import ranges

SLUG = "warm-up"
TITLE = "How many steps does a number need?"
STUDY = "warm_up"


SAME_GPU_TIME = 0.05
"""The first step's GPU time is called that of later ones within this part of it."""
CHANCE = 1.54
"""Medians of five processes that are alike spread by more than this times the expected deviation once in twenty times
(chi-squared, four degrees of freedom)."""


def answer(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame, main: Any) -> Answer:
    """What steps from the very first on say of the later ones, in several fresh processes of each case.

    A number is the median, or the mean, of the timed steps after some warm-up steps; as many steps are taken as `main`
    times. To tell what warm-up does, it is compared with the median of all steps of its process after WARM_UPS' last.
    To tell how many steps a number needs, it is compared with the number of its case, which is the median over
    processes of those medians, so that neither one disturbed step nor one disturbed process decides it: n steps after
    the warm-up of `main` are enough where, in every process, the medians of n steps and of any more lie within a
    tolerance of it. The spread between steps is the standard deviation within a process, the median over processes;
    that between processes is the standard deviation of their medians; both are parts of the median. The anatomy is of
    the profiled steps: the mean of first steps and of all others, cut into CUDA calls by group and what lies outside
    any call.
    """
    ok = run_grid.measured_runs(runs).astype({"run_id": str, **dict.fromkeys(CASE, str), "context_length": int})
    timed = first_steps.timed_steps(ok, steps)
    warm_up, num_timed = _settings(main)
    numbers = first_steps.numbers_after(timed, num_timed)
    spreads = first_steps.spreads_of(timed)
    needed = first_steps.steps_needed(timed, warm_up, num_timed)
    known = needed[needed["num_known"] > 0]
    beside = spreads.merge(_in_main(ok, main), on=CASE)
    beside["off"] = beside["main_ns"] / beside["median_ns"] - 1
    outside = (beside["main_ns"] < beside["median_min_ns"]) | (beside["main_ns"] > beside["median_max_ns"])
    tolerances, finest = first_steps.tolerances_kept(known), first_steps.finest_kept(known)
    anatomy = first_steps.anatomy_of(ok, steps, api)
    extra = first_steps.first_kernels(ok, kernels)
    phases = first_steps.first_by_phase(ok, steps)
    parts = anatomy[anatomy["component"] != "whole"]
    unlike = spreads[spreads["between"] > CHANCE * spreads["expected"]]
    medians = numbers[numbers["statistic"] == "median"]
    claims = [
        Claim("answered", finest, facts=lambda rows: {"cases": rows.to_dict("records")}),
        Claim("unanswered", known[known[first_steps.within_key(TOLERANCES[-1])].isna()], facts=_first_of(known)),
        Claim("first", spreads, lambda rows: rows["first_ratio"].min() > 1, extremes("first_ratio")),
        Claim("enough", first_steps.enough_warm_up(medians, spreads), facts=largest("warm_up")),
        Claim("mean", _of(numbers, 0, "mean"), lambda rows: rows["error"].max() > TOLERANCES[0], extremes("error")),
        Claim("median", _of(numbers, 0, "median"), lambda rows: rows["error"].notna().all(), extremes("error")),
        Claim("processes", unlike, facts=_first_of(spreads)),
        Claim("alike", spreads, lambda rows: not len(unlike) and rows["between"].notna().any(), extremes("within")),
        Claim("between", spreads[spreads["between"] > spreads["within"]], facts=_first_of(spreads)),
        Claim("within", spreads[spreads["between"] <= spreads["within"]], facts=_first_of(spreads)),
        Claim("too_fine", tolerances[tolerances["num_steps"].isna()], facts=extremes("tolerance")),
        Claim("main_number", needed[needed["main_error"].notna()], facts=largest("main_error")),
        Claim("short_number", needed[needed["short_error"].notna()], facts=largest("short_error")),
        Claim("main_outside", beside[outside], facts=_furthest(beside)),
        Claim("main_inside", beside, lambda rows: not outside.any(), _furthest(beside)),
        Claim("largest", parts, _slower_first, _largest),
        Claim("called", parts[parts["component"] == "allocation"], _slower_first, extremes("share")),
        Claim("unseen", parts[parts["component"] == "outside"], _slower_first, extremes("share")),
        Claim("gpu_same", extra, lambda rows: _alike(rows["busy_ratio"]), extremes("busy_ratio")),
        Claim("gpu_differs", extra, lambda rows: not _alike(rows["busy_ratio"]), extremes("busy_ratio")),
        Claim("loading", extra, _first_launches_load, extremes("new_share")),
        Claim("state", extra, _state_only, extremes("extra_kernels")),
        Claim("no_tuning", extra, lambda rows: (rows["extra_products"] == 0).all(), extremes("extra_kernels")),
    ]  # fmt: skip
    with_main = spreads.merge(beside[[*CASE, "main_ns"]], how="left", on=CASE)
    tables = _tables(numbers, needed, with_main, parts, phases, extra, warm_up, num_timed)
    charts = [_step_by_step(timed), *_convergence(timed)]
    facts = {
        "processes": (int(spreads["processes"].min()), int(spreads["processes"].max())) if len(spreads) else (0, 0),
        "batch_sizes": sorted(set(ok["batch_size"].astype(str))),
        "known": len(known) > 0,
        "coarsest": TOLERANCES[-1],
        "warm_up": warm_up,
        "num_timed": num_timed,
        "short": SHORT,
        "reference": WARM_UPS[-1],
        "convergence": [chart.key for chart in charts[1:]],
    }
    return assemble(facts, claims, tables, charts)


def _settings(main: Any) -> tuple[int, int]:
    """Warm-up steps and timed steps of the main recording, the fewest of any run; SHORT where it has no run."""
    if not len(main.runs):
        return SHORT
    return int(main.runs["warmup_steps"].min()), int(main.runs["measured_steps"].min())


def _in_main(ok: pd.DataFrame, main: Any) -> pd.DataFrame:
    """The same cases in the main recording: CASE, main_ns (median of its unprofiled steps)."""
    names = [name for name in (*CASE, "batch_size", "precision", "attention", "compile", "optimizer")
             if name in ok and name in main.runs]  # fmt: skip
    runs = run_grid.measured_runs(main.runs).astype({"run_id": str, **dict.fromkeys(CASE, str), "context_length": int})
    same = runs.astype({name: ok[name].dtype for name in names}).merge(ok[names].drop_duplicates(), on=names)
    timer = timing.host_times(main.steps, "timer", "main")
    timer = timer[timer["phase"] == ranges.STEP]
    return same[["run_id", *CASE]].merge(timer, on="run_id")[[*CASE, "main_ns"]]


def _tables(
    numbers: pd.DataFrame,
    needed: pd.DataFrame,
    spreads: pd.DataFrame,
    parts: pd.DataFrame,
    phases: pd.DataFrame,
    extra: pd.DataFrame,
    warm_up: int,
    num_timed: int,
) -> list[Table]:
    case = case_headings(CASE[:2], linked=False)
    return [
        Table(
            "numbers",
            f"What {num_timed} steps would have said, over processes",
            (
                *case,
                Column("warm_up", "warm-up steps", "count"),
                Column("statistic", "of the steps"),
                spread_column("number", "number"),
                Column("error", "furthest off", "share"),
            ),
            numbers,
        ),
        Table(
            "needed",
            f"Steps that a median needs after {warm_up} warm-up steps",
            (
                *case,
                *(
                    Column(first_steps.within_key(part), f"until within {part:.0%}", "count", absent="too few recorded")
                    for part in TOLERANCES
                ),
                Column("num_known", "steps recorded", "count"),
                Column("main_error", f"off with {num_timed}, at most", "share", absent="too few recorded"),
                Column("main_process", "in process", "count", absent="none"),
                Column("short_error", "{1} after {0}, at most".format(*SHORT), "share", absent="too few recorded"),
            ),
            needed,
        ),
        Table(
            "spreads",
            "Spread between steps and between processes, standard deviations",
            (
                *case,
                Column("processes", "processes", "count"),
                Column("first_ratio", "first step ÷ later ones", "ratio"),
                spread_column("median", "later steps"),
                Column("main_ns", "main recording", "ms", absent="not recorded"),
                Column("within", "between steps", "share"),
                Column("expected", "between processes, if they were alike", "share"),
                Column("between", "between processes", "share"),
            ),
            spreads,
        ),
        Table(
            "anatomy",
            "The first step under nsys against the later ones",
            (
                *case,
                Column("label", "host time in"),
                Column("first_ns", "first step", "ms"),
                Column("later_ns", "later step", "ms"),
                Column("extra_ns", "extra", "ms"),
                Column("share", "of the extra", "share", bar=True),
            ),
            parts,
        ),
        Table(
            "phases",
            "The first step by phase, unprofiled",
            (
                *case,
                Column("phase", "phase"),
                Column("first_ns", "first step", "ms"),
                Column("later_ns", "later step", "ms"),
                Column("extra_ns", "extra", "ms"),
            ),
            phases,
        ),
        Table(
            "kernels",
            "The GPU in the first step under nsys",
            (
                *case,
                Column("first_busy_ns", "busy, first step", "ms"),
                Column("later_busy_ns", "busy, later step", "ms"),
                Column("extra_kernels", "kernels more", "count"),
                Column("extra_products", "matrix products more", "count"),
                Column("new_call_ns", "first launch of a kernel", "us"),
                Column("other_call_ns", "other launches", "us"),
            ),
            extra,
        ),
    ]  # fmt: skip


# ---------------------------------------------------------------- facts and charts


def _of(numbers: pd.DataFrame, warm_up: int, statistic: str) -> pd.DataFrame:
    return numbers[(numbers["warm_up"] == warm_up) & (numbers["statistic"] == statistic)]


def _first_of(every: pd.DataFrame):
    return lambda rows: {**rows.iloc[0].to_dict(), **out_of(every)(rows)}


def _furthest(every: pd.DataFrame):
    return lambda rows: {**rows.loc[rows["off"].abs().idxmax()].to_dict(), **out_of(every)(rows)}


def _slower_first(rows: pd.DataFrame) -> bool:
    return bool((rows["extra_ns"] > 0).any())


def _alike(ratio: pd.Series) -> bool:
    return bool((ratio - 1).abs().max() < SAME_GPU_TIME)


def _first_launches_load(rows: pd.DataFrame) -> bool:
    return bool((rows["new_call_ns"] > 2 * rows["other_call_ns"]).all())


def _state_only(rows: pd.DataFrame) -> bool:
    return bool((rows["extra_kernels"] > 0).all() and (rows["extra_optimizer"] == rows["extra_kernels"]).all())


def _largest(rows: pd.DataFrame) -> dict:
    """The two components that cost most in the case with the longest extra time."""
    case = rows.groupby(CASE)["extra_ns"].transform("sum")
    of_case = rows[case == case.max()].sort_values("extra_ns", ascending=False)
    first, second = of_case.iloc[0], of_case.iloc[1]
    return {"first": first.to_dict(), "second": second.to_dict()}


def _step_by_step(timed: pd.DataFrame) -> Chart:
    rows = timed.assign(series=timed["size"], line=timed["run_id"], x=timed["step"] + 1, y=timed["wall_ns"] / 1e6)
    options = {
        "order": list(dict.fromkeys(timed["size"])),
        "x_title": "step of the process",
        "y_title": "ms (log scale)",
        "log": True,
    }
    return Chart("steps", "traces", "Every step from the first on: one line a process", rows, options)


def _after(warm_up: int) -> str:
    return f"after {warm_up} warm-up step{'' if warm_up == 1 else 's'}"


def _convergence(timed: pd.DataFrame) -> list[Chart]:
    """One chart a case: how far the worst process's median is off its case's number, over the steps in it."""
    charts = []
    for case, processes in first_steps.processes_of(timed):
        rows = [
            {"series": _after(warm_up), "x": n + 1, "y": 100 * error}
            for warm_up in WARM_UPS
            for n, error in enumerate(first_steps.errors_by_steps(processes, warm_up).max(axis=0))
        ]
        options = {
            "order": [_after(warm_up) for warm_up in WARM_UPS],
            "x_title": "steps in the median",
            "y_title": "% (log scale)",
            "log": True,
        }
        drawn = pd.DataFrame(rows, columns=["series", "x", "y"])
        title = (
            f"How far a median is off the number of its case, worst process: {case['size']} · {case['context_length']}"
        )
        charts.append(Chart(f"convergence-{len(charts)}", "traces", title, drawn[drawn["y"] > 0], options))
    return charts
