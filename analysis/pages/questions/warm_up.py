"""(k) How many steps does a number need?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import first_steps, run_grid, timing
from profiler_job.analysis.metrics.first_steps import CASE, SHORT, TOLERANCES, WARM_UPS
from profiler_job.analysis.pages.case_columns import case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, find_highest, give_largest
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.studies import STUDIES

STUDY = "warm_up"

SAME_GPU_TIME = 0.05
"""The first step's GPU time counts as equal to later ones within this part of it."""
CHANCE = 1.54
"""Medians of five processes that are alike spread by more than this times the expected deviation once in twenty times
(chi-squared, four degrees of freedom)."""


def answer(given: Inputs) -> Answer:
    """What the first steps tell about the later ones, in several fresh processes of each case.

    A number is the median, or the mean, of the timed steps after some warm-up steps; as many steps are taken as `main`
    times. To tell what warm-up does, it is compared with the median of all steps of its process after WARM_UPS' last.
    To tell how many steps a number needs, it is compared with the number of its case, which is the median over
    processes of those medians, so that no outlier, be it a step or a process, decides it. n steps after the warm-up of
    `main` are enough where, in every process, the medians of n steps and of any more lie within a tolerance of it. The
    spread between steps is the standard deviation within a process, the median over processes; that between processes
    is the standard deviation of their medians; both are parts of the median. The anatomy is of the profiled steps: the
    mean of first steps and of all others, cut into CUDA calls by group and what lies outside any call.
    """
    frames = _frames(given.runs, given.steps, given.kernels, given.memops, given.api, given.main, given.studies)
    return assemble(_facts(frames), _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="k",
    slug="warm-up",
    title="How many steps does a number need?",
    needs=("runs", "steps", "kernels", "memops", "api", "main", "studies"),
    answer=answer,
    section=Section.TRUST,
    place=1,
    study=STUDY,
    reads=STUDIES,
    searched=("warmup", "warm-up steps", "benchmarking"),
)


@dataclass(frozen=True, kw_only=True)
class WarmUpData:
    """`warm_up` and `num_timed`: steps of the main recording. `timed`: every unprofiled step. Per case: `numbers` by
    steps of warm-up, `needed` steps, `spreads`, and `joined`: the main recording; of the first step its `anatomy`,
    its `phases` and its `kernels`. `sessions`: the numbers of the same cases in other recordings; `session_s`: how long
    the processes of a case were started after each other."""

    warm_up: int
    num_timed: int
    batch_sizes: list[str]
    timed: pd.DataFrame
    numbers: pd.DataFrame
    needed: pd.DataFrame
    spreads: pd.DataFrame
    joined: pd.DataFrame
    anatomy: pd.DataFrame
    phases: pd.DataFrame
    kernels: pd.DataFrame
    sessions: pd.DataFrame
    session_s: float
    processes: pd.DataFrame
    """Of each other recording: its runs that several processes timed (`num_runs`), those with a process farther from
    their median than any of this study (`num_farther`), and how far the farthest is (`main_error`)."""

    @property
    def recorded_cases(self) -> pd.DataFrame:
        """Cases with at least one step after the warm-up."""
        return self.needed[self.needed["num_known"] > 0]


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    api: pd.DataFrame,
    main: Any,
    studies: Mapping[str, Any],
) -> WarmUpData:
    ok = run_grid.select_measured_runs(runs).astype({"run_id": str, **dict.fromkeys(CASE, str), "context_length": int})
    timed = first_steps.timed_steps(ok, steps)
    warm_up, num_timed = _settings(main)
    spreads = first_steps.spreads_of(timed)
    joined = spreads.merge(_join_main(ok, main.runs, main.steps), on=CASE)
    anatomy = first_steps.anatomy_of(ok, steps, api)
    needed = first_steps.count_steps_needed(timed, warm_up, num_timed)
    others = [main, *(rec for study, rec in studies.items() if study != STUDY)]
    return WarmUpData(
        warm_up=warm_up,
        num_timed=num_timed,
        batch_sizes=sorted(set(ok["batch_size"].astype(str))),
        timed=timed,
        numbers=first_steps.estimate_numbers(timed, num_timed),
        needed=needed,
        spreads=spreads,
        joined=joined.assign(off=joined["main_ns"] / joined["median_ns"] - 1),
        anatomy=anatomy[anatomy["component"] != "whole"],
        phases=first_steps.measure_first_by_phase(ok, steps),
        kernels=first_steps.first_kernels(ok, kernels, memops),
        sessions=_sessions(ok, others, num_timed),
        session_s=_session_s(ok),
        processes=_compare_processes(others, float(needed["main_error"].max())),
    )


def _settings(main: Any) -> tuple[int, int]:
    """Warm-up steps and timed steps of the main recording, the fewest of any run; SHORT where it has no run."""
    if not len(main.runs):
        return SHORT
    return int(main.runs["warmup_steps"].min()), int(main.runs["measured_steps"].min())


def _join_main(ok: pd.DataFrame, runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The same cases in another recording, such as the main one: CASE, main_ns (median of its unprofiled steps)."""
    names = [name for name in (*CASE, "batch_size", "precision", "attention", "compile", "optimizer")
             if name in ok and name in runs]  # fmt: skip
    runs = run_grid.select_measured_runs(runs).astype(
        {"run_id": str, **dict.fromkeys(CASE, str), "context_length": int}
    )
    types = {name: str if ok[name].dtype == "category" else ok[name].dtype for name in names}
    same = runs.astype(types).merge(ok[names].astype(types).drop_duplicates(), on=names)
    timer = timing.host_times(steps, "timer", "main")
    timer = timer[timer["phase"] == ranges.STEP]
    return same[["run_id", *CASE]].merge(timer, on="run_id")[[*CASE, "main_ns"]]


def _sessions(ok: pd.DataFrame, recordings: list[Any], num_timed: int) -> pd.DataFrame:
    """The same cases in every other recording that timed them, in all processes, in so many steps at least: CASE,
    recording, main_ns (median of its unprofiled steps)."""
    parts = []
    for rec in recordings:
        runs = rec.runs[rec.runs["processes"] * rec.runs["measured_steps"] >= num_timed]
        if len(runs):
            medians = _join_main(ok, runs, rec.steps).drop_duplicates(CASE)
            parts.append(medians.assign(recording=str(rec.manifest.get("name", ""))))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*CASE, "main_ns", "recording"])


def _compare_processes(recordings: list[Any], near: float) -> pd.DataFrame:
    """Compare the processes of each run by the medians of their steps: recording, num_runs, num_farther (with a process
    farther than `near`, a part of the median over processes, from it), main_error (of the farthest)."""
    rows = []
    for rec in recordings:
        steps = timing.wall_times(rec.steps, "timer")
        medians = steps[steps["phase"] == ranges.STEP].groupby(["run_id", "process"])["wall_ns"].median()
        of_run = medians.groupby("run_id")
        error = (medians / of_run.transform("median") - 1).abs()[of_run.transform("size") > 1]
        worst = error.groupby("run_id").max()
        if len(worst):
            name = str(rec.manifest.get("name", ""))
            rows.append((name, len(worst), int((worst > near).sum()), float(worst.max())))
    return pd.DataFrame(rows, columns=["recording", "num_runs", "num_farther", "main_error"])


def _session_s(ok: pd.DataFrame) -> float:
    """From the start of the first process of a case to the start of its last, in seconds, the longest of the cases."""
    started = pd.to_datetime(ok["started_at"].astype(str), utc=True, format="ISO8601")
    spans = started.groupby([ok[name] for name in CASE]).agg(lambda times: (times.max() - times.min()).total_seconds())
    return float(spans.max()) if len(spans) else 0.0


def _find_most_different(rows: pd.DataFrame) -> dict[str, Any]:
    """The case whose number differs most between recordings: its numbers by recording, shortest first."""
    of_case = rows.groupby(CASE)["main_ns"]
    times = (of_case.max() / of_case.min()).rename("times").reset_index()
    worst = times.loc[times["times"].idxmax()]
    recorded = rows[(rows[CASE] == worst[CASE]).all(axis=1)].sort_values("main_ns", kind="stable")
    return {**worst.to_dict(), "numbers": recorded[["recording", "main_ns"]].to_dict("records")}


def _facts(frames: WarmUpData) -> dict[str, Any]:
    processes = frames.spreads["processes"]
    return {
        "processes": (int(processes.min()), int(processes.max())) if len(processes) else (0, 0),
        "batch_sizes": frames.batch_sizes,
        "session_s": frames.session_s,
        "known": len(frames.recorded_cases) > 0,
        "coarsest": TOLERANCES[-1],
        "warm_up": frames.warm_up,
        "num_timed": frames.num_timed,
        "short": SHORT,
        "reference": WARM_UPS[-1],
        "convergence": [chart.key for chart in _convergence(frames.timed)],
    }


def _claims(frames: WarmUpData) -> list[Claim]:
    return [*_claim_numbers(frames), *_process_claims(frames), *_claim_first_step(frames)]


def _claim_numbers(frames: WarmUpData) -> list[Claim]:
    """How far off a number is, and how many steps it needs."""
    numbers, needed, known = frames.numbers, frames.needed, frames.recorded_cases
    medians = numbers[numbers["statistic"] == "median"]
    tolerances = first_steps.find_steps_for_tolerances(known)
    answered = first_steps.find_finest_tolerance(known)
    unanswered = known[known[first_steps.name_tolerance(TOLERANCES[-1])].isna()]
    return [
        Claim("answered", answered, facts=lambda rows: {"cases": rows.to_dict("records")}),
        Claim("unanswered", unanswered, facts=_find_first(known)),
        Claim("enough", first_steps.enough_warm_up(medians, frames.spreads), facts=give_largest("warm_up")),
        Claim(
            "mean",
            _select_numbers(numbers, 0, "mean"),
            lambda rows: rows["error"].max() > TOLERANCES[0],
            facts=extremes("error"),
        ),
        Claim(
            "median",
            _select_numbers(numbers, 0, "median"),
            lambda rows: rows["error"].notna().all(),
            facts=extremes("error"),
        ),
        Claim("too_fine", tolerances[tolerances["num_steps"].isna()], facts=extremes("tolerance")),
        Claim(
            "main_number",
            needed[needed["main_error"].notna()],
            facts=lambda rows: {
                **give_largest("main_error")(rows),
                "own_error": _select_numbers(numbers, frames.warm_up, "median")["error"].max(),
            },
        ),
        Claim(
            "elsewhere",
            frames.processes,
            lambda rows: rows["num_farther"].sum() > 0,
            facts=lambda rows: {
                **rows[["num_runs", "num_farther"]].sum().to_dict(),
                "farthest": find_highest(rows, "main_error"),
            },
        ),
        Claim("short_number", needed[needed["short_error"].notna()], facts=give_largest("short_error")),
    ]


def _process_claims(frames: WarmUpData) -> list[Claim]:
    """How processes differ, and how the main recording does."""
    spreads, joined = frames.spreads, frames.joined
    unlike = spreads[spreads["between"] > CHANCE * spreads["expected"]]
    between, within = (spreads[name].round(3) for name in ("between", "within"))  # as pages print them
    outside = (joined["main_ns"] < joined["median_min_ns"]) | (joined["main_ns"] > joined["median_max_ns"])
    return [
        Claim("processes", unlike, facts=_find_first(spreads)),
        Claim(
            "alike", spreads, lambda rows: not len(unlike) and rows["between"].notna().any(), facts=extremes("within")
        ),
        Claim("between", spreads[between > within], facts=_find_first(spreads)),
        Claim("within", spreads[between < within], facts=_find_first(spreads)),
        Claim("sessions", frames.sessions, lambda rows: rows.duplicated(CASE).any(), facts=_find_most_different),
        Claim("main_outside", joined[outside], facts=_find_furthest(joined)),
        Claim("main_inside", joined, lambda rows: not outside.any(), facts=_find_furthest(joined)),
    ]


def _claim_first_step(frames: WarmUpData) -> list[Claim]:
    """How long the first step takes, on what, and what the GPU does in it."""
    parts, kernels = frames.anatomy, frames.kernels
    return [
        Claim("first", frames.spreads, lambda rows: rows["first_ratio"].min() > 1, facts=extremes("first_ratio")),
        Claim("largest", parts, _find_slower_first, facts=_largest),
        Claim("called", parts[parts["component"] == "allocation"], _find_slower_first, facts=extremes("share")),
        Claim("unseen", parts[parts["component"] == "outside"], _find_slower_first, facts=extremes("share")),
        Claim("gpu_same", kernels, lambda rows: _alike(rows["busy_ratio"]), facts=extremes("busy_ratio")),
        Claim("gpu_differs", kernels, lambda rows: not _alike(rows["busy_ratio"]), facts=extremes("busy_ratio")),
        Claim("loading", kernels, _is_loading_at_first, facts=extremes("new_share")),
        Claim("state", kernels, _state_only, facts=extremes("extra_kernels")),
        Claim("no_tuning", kernels, lambda rows: (rows["extra_gemms"] == 0).all(), facts=extremes("extra_kernels")),
    ]


def _tables(frames: WarmUpData) -> list[Table]:
    case = case_headings(CASE[:2], linked=False)
    return [*_tabulate_numbers(frames, case), *_tabulate_first_step(frames, case)]


def _tabulate_numbers(frames: WarmUpData, case: tuple[Column, ...]) -> list[Table]:
    too_few = "too few recorded"
    return [
        Table(
            "numbers",
            f"What {frames.num_timed} steps would have said, over processes",
            (
                *case,
                Column("warm_up", "warm-up steps", "count"),
                Column("statistic", "statistic"),
                spread_column("number", "number"),
                Column("error", "off the later steps of its process, at most", "share"),
            ),
            frames.numbers,
        ),
        Table(
            "needed",
            f"Steps that a median needs after {frames.warm_up} warm-up steps",
            (
                *case,
                *(
                    Column(first_steps.name_tolerance(part), f"until within {part:.0%}", "count", absent=too_few)
                    for part in TOLERANCES
                ),
                Column("num_known", "steps recorded", "count"),
                Column("main_error", f"off the median process, with {frames.num_timed}", "share", absent=too_few),
                Column("main_process", "in process", "count", absent="none"),
                Column("short_error", "with {1} after {0}, at most".format(*SHORT), "share", absent=too_few),
            ),
            frames.needed,
        ),
        Table(
            "spreads",
            "Standard deviations between steps and between processes",
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
            frames.spreads.merge(frames.joined[[*CASE, "main_ns"]], how="left", on=CASE),
        ),
    ]


def _tabulate_first_step(frames: WarmUpData, case: tuple[Column, ...]) -> list[Table]:
    times = (
        Column("first_ns", "first step", "ms"),
        Column("later_ns", "later step", "ms"),
        Column("extra_ns", "extra", "ms"),
    )
    return [
        Table(
            "anatomy",
            "The first step under nsys against the later ones",
            (*case, Column("label", "host time in"), *times, Column("share", "share of extra", "share", bar=True)),
            frames.anatomy,
        ),
        Table(
            "phases",
            "The first step by phase, unprofiled",
            (*case, Column("phase", "phase"), *times),
            frames.phases,
        ),
        Table(
            "kernels",
            "The GPU in the first step under nsys",
            (
                *case,
                Column("first_busy_ns", "GPU busy, first step", "ms"),
                Column("later_busy_ns", "GPU busy, later step", "ms"),
                Column("extra_kernels", "more kernels", "count"),
                Column("extra_gemms", "more GEMMs", "count"),
                Column("new_call_ns", "first launch of a kernel", "us"),
                Column("other_call_ns", "other launches", "us"),
            ),
            frames.kernels,
        ),
    ]


def _charts(frames: WarmUpData) -> list[Chart]:
    return [_step_by_step(frames.timed), *_convergence(frames.timed)]


def _step_by_step(timed: pd.DataFrame) -> Chart:
    rows = timed.assign(series=timed["size"], line=timed["run_id"], x=timed["step"] + 1, y=timed["wall_ns"] / 1e6)
    options = {
        "order": list(dict.fromkeys(timed["size"])),
        "x_title": "step of the process",
        "y_title": "ms (log scale)",
        "log": True,
    }
    return Chart("steps", "traces", "Every step from the first on: one line a process", rows, options=options)


def _word_warm_up(warm_up: int) -> str:
    return f"after {warm_up} warm-up step{'' if warm_up == 1 else 's'}"


def _convergence(timed: pd.DataFrame) -> list[Chart]:
    """One chart a case: how far the worst process's median is off its case's number, over the steps in it."""
    charts: list[Chart] = []
    for case, processes in first_steps.list_processes(timed):
        rows = [
            {"series": _word_warm_up(warm_up), "x": n + 1, "y": 100 * error}
            for warm_up in WARM_UPS
            for n, error in enumerate(first_steps.errors_by_steps(processes, warm_up).max(axis=0))
        ]
        options = {
            "order": [_word_warm_up(warm_up) for warm_up in WARM_UPS],
            "x_title": "steps in the median",
            "y_title": "% (log scale)",
            "log": True,
        }
        drawn = pd.DataFrame(rows, columns=["series", "x", "y"])
        title = f"{case['size']} · {case['context_length']}: how far the worst process is off"
        last = drawn[drawn["series"] == _word_warm_up(WARM_UPS[-1])]
        if len(last):
            num, error = int(last["x"].iloc[-1]), last["y"].iloc[-1]
            title = (
                f"{case['size']} · {case['context_length']}: {_word_warm_up(WARM_UPS[-1])} the median of {num} is"
                f" {error:.2g}% off in the worst process"
            )
        charts.append(Chart(f"convergence-{len(charts)}", "traces", title, drawn[drawn["y"] > 0], options=options))
    return charts


# ---------------------------------------------------------------- facts of the claims


def _select_numbers(numbers: pd.DataFrame, warm_up: int, statistic: str) -> pd.DataFrame:
    return numbers[(numbers["warm_up"] == warm_up) & (numbers["statistic"] == statistic)]


def _find_first(every: pd.DataFrame) -> Callable[[pd.DataFrame], dict[str, Any]]:
    return lambda rows: {**rows.iloc[0].to_dict(), **count_all(every)(rows)}


def _find_furthest(every: pd.DataFrame) -> Callable[[pd.DataFrame], dict[str, Any]]:
    return lambda rows: {**rows.loc[rows["off"].abs().idxmax()].to_dict(), **count_all(every)(rows)}


def _find_slower_first(rows: pd.DataFrame) -> bool:
    return bool((rows["extra_ns"] > 0).any())


def _alike(ratio: pd.Series) -> bool:
    return bool((ratio - 1).abs().max() < SAME_GPU_TIME)


def _is_loading_at_first(rows: pd.DataFrame) -> bool:
    return bool((rows["new_call_ns"] > 2 * rows["other_call_ns"]).all())


def _state_only(rows: pd.DataFrame) -> bool:
    return bool((rows["extra_kernels"] > 0).all() and (rows["extra_optimizer"] == rows["extra_kernels"]).all())


def _largest(rows: pd.DataFrame) -> dict[str, Any]:
    """The two components that cost most in the case with the longest extra time."""
    case = rows.groupby(CASE)["extra_ns"].transform("sum")
    of_case = rows[case == case.max()].sort_values("extra_ns", ascending=False)
    first, second = of_case.iloc[0], of_case.iloc[1]
    return {"first": first.to_dict(), "second": second.to_dict()}
