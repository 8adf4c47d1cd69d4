"""Runs that took turns in one process: ratios of their steps, within rounds, and the process that was fastest.

A ratio within rounds leaves out what changes from minute to minute, so it counts as measured however far processes
differ (`steady`). It has one definition, in `paired_ratio`, which `tune` uses, too.

A slow host does not leave it as it is: it holds up the variant that the CPU limits, and not the other. So processes
that are slower than the fastest one (`find_slow`) are left out of a ratio, as they are of times: TF32 was 1.58 times as
fast as FP32 in one process, and 1.07 times in the next, whose steps in TF32 took 66 ms in place of 42.
"""

from collections.abc import Collection

import pandas as pd

from profiler_job.analysis.metrics.per_rank import take_largest_rank
from profiler_job.jobs.contract.paired_ratio import FEWEST_PAIRS, compare_processes, compare_rounds, is_different
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.contract.slow_processes import find_slow
from profiler_job.jobs.contract.tuning import TuneRatio

_TURN = ["group", "round"]


def list_rounds(steps: pd.DataFrame, processes: pd.DataFrame) -> pd.DataFrame:
    """List the turns of all runs: run_id, group, round, wall_ns (the median of the turn's steps)."""
    if not have_turns(steps):
        return pd.DataFrame(columns=["run_id", *_TURN, "wall_ns"])
    rows = _select_timed(steps)
    groups = processes[["run_id", "process", "group"]].drop_duplicates().astype({"run_id": str, "group": str})
    rows = rows[rows["round"] >= 0].merge(groups, on=["run_id", "process"])
    return rows.groupby(["run_id", *_TURN], sort=False)["wall_ns"].median().reset_index()


def compare_turns(
    base: pd.DataFrame, other: pd.DataFrame, base_ids: Collection[str], other_ids: Collection[str]
) -> TuneRatio | None:
    """Compare the steps of runs by the rounds in which both took their turn: how many times as fast `other` is as
    `base`, runs that repeat each other taken together. None if they shared fewer rounds than an interval needs. Tables:
    as `list_rounds` makes them."""
    if not len(base) or not len(other):
        return None
    both = _pair_rounds(base, other, base_ids, other_ids)
    if len(both) < FEWEST_PAIRS:
        return None
    ratio = _compare_processes(both.drop(index=_find_slow_processes(both), level="group"))
    if ratio.num_pairs >= FEWEST_PAIRS:
        return ratio
    # too few rounds show a difference: the interval holds those of all processes
    ratios = [ratio, *(_compare_processes(rows) for _, rows in both.groupby(level="group"))]
    ends = {"low": min(each.low for each in ratios), "high": max(each.high for each in ratios)}
    return ratio.model_copy(update={"num_pairs": len(both)} | ends)


def list_counted_processes(
    base: pd.DataFrame, other: pd.DataFrame, base_ids: Collection[str], other_ids: Collection[str]
) -> list[str]:
    """List the processes, by their group, that a ratio of `compare_turns` is of."""
    both = _pair_rounds(base, other, base_ids, other_ids)
    return [*both.index.unique("group").difference(_find_slow_processes(both))]


def _pair_rounds(
    base: pd.DataFrame, other: pd.DataFrame, base_ids: Collection[str], other_ids: Collection[str]
) -> pd.DataFrame:
    """Pair the steps of runs by group and round: `base` and `other`."""
    sides = [
        rounds[rounds["run_id"].isin(run_ids)].groupby(_TURN, sort=True)["wall_ns"].median()
        for rounds, run_ids in ((base, base_ids), (other, other_ids))
    ]
    return pd.concat(sides, axis=1, join="inner", keys=("base", "other"))


def _find_slow_processes(both: pd.DataFrame) -> pd.Index:
    medians = both.groupby(level="group").median()
    return medians.index[find_slow(medians.to_numpy().tolist())]


def _compare_processes(both: pd.DataFrame) -> TuneRatio:
    """Compare the steps of two runs by round, `base` and `other`, process by process."""
    groups = both.groupby(level="group")
    return compare_processes([(rows["base"].tolist(), rows["other"].tolist()) for _, rows in groups])


def compare_with_base(run_ids: pd.Series, base_ids: pd.Series, rounds: pd.DataFrame) -> pd.DataFrame:
    """Compare each run with its base by the rounds in which both took their turn, row by row: times_as_fast with its
    interval low and high (NaN where they shared none), differs (whether the interval excludes 1). base_ids: NaN where
    there is no base."""
    ratios = [compare_turns(rounds, rounds, [base], [run]) for run, base in zip(run_ids, base_ids, strict=True)]
    names = ("times_as_fast", "low", "high")
    columns = {name: [getattr(ratio, name) if ratio else float("nan") for ratio in ratios] for name in names}
    columns |= {"differs": [bool(ratio and is_different(ratio)) for ratio in ratios]}
    return pd.DataFrame(columns, index=run_ids.index)


def measure_spreads(rounds: pd.DataFrame) -> pd.DataFrame:
    """Measure how well the ratio of two runs repeats that took turns in the same processes, two or more: run_id, other,
    by_turns, apart. Both are the largest ratio over the smallest, less 1: by_turns of ratios within the rounds of each
    process, apart of the medians of a run in one process and of the other run in the next, as if each process had one
    run. The first run that shares processes is compared with each other one. rounds: as `list_rounds` makes them."""
    turned = rounds[rounds["round"] >= 0].sort_values(["run_id", "group", "round"])
    of_runs = {
        run: {group: rows.set_index("round")["wall_ns"] for group, rows in table.groupby("group")}
        for run, table in turned.groupby("run_id")
    }
    sharing: dict[tuple[str, ...], list[str]] = {}
    for run, groups in of_runs.items():
        sharing.setdefault(tuple(groups), []).append(run)
    pairs = [(runs[0], other, groups) for groups, runs in sharing.items() if len(groups) > 1 for other in runs[1:]]
    rows = []
    for run, other, shared in pairs:
        first, second = of_runs[run], of_runs[other]
        both = [pd.concat([first[group], second[group]], axis=1, join="inner") for group in shared]
        turns = [compare_rounds(table.iloc[:, 0].tolist(), table.iloc[:, 1].tolist()).times_as_fast for table in both]
        following = [*shared[1:], shared[0]]
        apart = [first[group].median() / second[next_].median() for group, next_ in zip(shared, following)]
        spreads = {name: max(ratios) / min(ratios) - 1 for name, ratios in (("by_turns", turns), ("apart", apart))}
        rows.append({"run_id": run, "other": other} | spreads)
    return pd.DataFrame(rows, columns=["run_id", "other", "by_turns", "apart"])


def select_fastest_processes(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps without the unprofiled ones of all but the fastest process of each run that took turns: what
    made the other processes slower is not the run. Other runs keep all their processes."""
    if not have_turns(steps):
        return steps
    rows = _select_timed(steps)
    turned = find_turned_runs(steps)
    medians = rows[rows["run_id"].isin(turned)].groupby(["run_id", "process"])["wall_ns"].median()
    slower = medians.index.difference(pd.MultiIndex.from_tuples(medians.groupby(level="run_id").idxmin()))
    is_timed = steps["collector"].astype(str) == "timer"
    of_process = pd.MultiIndex.from_arrays([steps["run_id"].astype(str), steps["process"]])
    return steps[~(is_timed & of_process.isin(slower))]


def find_turned_runs(steps: pd.DataFrame) -> frozenset[str]:
    """Find the ids of the runs that took turns."""
    return frozenset(steps.loc[steps["round"] >= 0, "run_id"].astype(str)) if have_turns(steps) else frozenset()


def have_turns(steps: pd.DataFrame) -> bool:
    """Return whether any run of these steps took turns."""
    return "round" in steps and bool((steps["round"] >= 0).any())


def _select_timed(steps: pd.DataFrame) -> pd.DataFrame:
    """Select the unprofiled steps, of the slowest rank."""
    is_timed = (steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == STEP)
    columns = ["run_id", "rank", "process", "step", "round", "wall_ns"]
    return take_largest_rank(steps.loc[is_timed, columns].astype({"run_id": str}), ["wall_ns"])
