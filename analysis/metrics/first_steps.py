"""What the first steps of a process tell about the later ones."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import timing
from profiler_job.analysis.metrics.ordering import place, rank_first_seen, sort_stably
from profiler_job.analysis.recording.run_table import keep_runs, measure_by_run
from profiler_job.analysis.reference import cuda_api
from profiler_job.jobs.contract import ranges

WARM_UPS = (0, 1, 2, 5)
TOLERANCES = (0.01, 0.02, 0.05, 0.1)
"""A number is right within these parts of its case's number."""
LATER = 5
"""Fewest steps after the longest warm-up that a process needs."""
SHORT = (3, 5)
"""Warm-up and timed steps of most recordings of one study."""
CASE = ["size", "context_length", "mode"]
COMPONENTS = {
    "module": "calls that load code",
    "launch": "launch calls",
    "allocation": "allocation calls",
    "synchronisation": "waiting for the GPU",
    "rest": "other calls",
    "outside": "Python and libraries, outside CUDA calls",
}


def timed_steps(ok: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Unprofiled steps of runs without warm-up, in order: run_id, CASE, step (from 0), wall_ns."""
    rows = timing.wall_times(steps, "timer")
    rows = rows[rows["phase"] == ranges.STEP]
    cold = ok[ok["warmup_steps"] == 0][["run_id", *CASE]]
    rows = cold.merge(rows[["run_id", "step", "wall_ns"]], on="run_id")
    return sort_stably(rows, place(rows["run_id"], cold["run_id"]), rows["step"])


def list_processes(timed: pd.DataFrame) -> Iterator[tuple[Any, list[Any]]]:
    """(case, [steps of a process, ...]) in model order."""
    for case, rows in timed.groupby(CASE, sort=False):
        yield (
            dict(zip(CASE, case, strict=True)),
            [steps.to_numpy() for _, steps in rows.groupby("run_id", sort=False)["wall_ns"]],
        )


def reference_ns(steps: np.ndarray) -> float:
    """The process's own step time: the median of the steps after the longest warm-up of WARM_UPS."""
    return float(np.median(steps[WARM_UPS[-1] :])) if len(steps) >= WARM_UPS[-1] + LATER else float("nan")


def measure_spread(processes: list[np.ndarray]) -> float:
    """Standard deviation of the steps over their median, of the median process."""
    return float(np.median([np.std(steps, ddof=1) / np.median(steps) for steps in processes]))


def estimate_numbers(timed: pd.DataFrame, num_timed: int) -> pd.DataFrame:
    """Per case, warm-up and statistic: number_ns (median over processes), _min_ns, _max_ns, and error, the part by
    which the worst process is off its own later steps."""
    rows = []
    for case, processes in list_processes(timed):
        for warm_up in WARM_UPS:
            for statistic, of in (("median", np.median), ("mean", np.mean)):
                known = [steps for steps in processes if len(steps) >= warm_up + num_timed]
                numbers = [float(of(steps[warm_up : warm_up + num_timed])) for steps in known]
                if numbers:
                    off = [abs(number / reference_ns(steps) - 1) for number, steps in zip(numbers, known, strict=True)]
                    ends = {"number_min_ns": min(numbers), "number_max_ns": max(numbers)}
                    number = {"number_ns": float(np.median(numbers)), **ends, "error": max(off)}
                    rows.append({**case, "warm_up": warm_up, "statistic": statistic, **number})
    columns = [*CASE, "warm_up", "statistic", "number_ns", "number_min_ns", "number_max_ns", "error"]
    return pd.DataFrame(rows, columns=columns)


def spreads_of(timed: pd.DataFrame) -> pd.DataFrame:
    """Per case: within and between as `answer` says; expected: the deviation that medians of so many steps would have
    if all processes were alike, 1.25 within / sqrt(steps); median_ns, the number of the case, with the lowest and
    highest process; first_ratio: the first step over the later ones."""
    rows = []
    for case, processes in list_processes(timed):
        later = [steps[WARM_UPS[-1] :] for steps in processes if len(steps) >= WARM_UPS[-1] + LATER]
        if not later:
            continue
        medians = np.array([np.median(steps) for steps in later])
        within = measure_spread(later)
        between = float(np.std(medians, ddof=1) / np.median(medians)) if len(later) > 1 else float("nan")
        firsts = [steps[0] / reference_ns(steps) for steps in processes if len(steps) >= WARM_UPS[-1] + LATER]
        expected = float(np.sqrt(np.pi / 2) * within / np.sqrt(np.median([len(steps) for steps in later])))
        spread = {"within": within, "expected": expected, "between": between, "first_ratio": float(np.median(firsts))}
        rows.append({**case, "processes": len(later), **median_and_ends(medians), **spread})
    columns = [
        *CASE,
        "processes",
        "median_ns",
        "median_min_ns",
        "median_max_ns",
        "within",
        "expected",
        "between",
        "first_ratio",
    ]
    return pd.DataFrame(rows, columns=columns)


def median_and_ends(medians: np.ndarray) -> dict[str, float]:
    ends = {"median_min_ns": float(medians.min()), "median_max_ns": float(medians.max())}
    return {"median_ns": float(np.median(medians)), **ends}


def count_steps_needed(timed: pd.DataFrame, warm_up: int, num_timed: int) -> pd.DataFrame:
    """Per case: for each of TOLERANCES the fewest steps after the warm-up that are enough (NaN: none); num_known, the
    most steps that every process has after it; main_error, how far the worst process is off with num_timed steps, and
    main_process, which it is (from 1); short_error, the same after SHORT's warm-up with as many steps as SHORT says."""
    rows = []
    for case, processes in list_processes(timed):
        errors = errors_by_steps(processes, warm_up)
        needed = {name_tolerance(part): find_lasting_start(list(errors.max(axis=0) <= part)) for part in TOLERANCES}
        needed["num_known"] = errors.shape[1]
        for name, (before, num) in {"main": (warm_up, num_timed), "short": SHORT}.items():
            known = errors_by_steps(processes, before)[:, num - 1 : num].ravel()
            needed[f"{name}_error"] = known.max() if len(known) else float("nan")
            needed[f"{name}_process"] = int(known.argmax()) + 1 if len(known) else float("nan")
        rows.append({**case, **needed})
    ends = [f"{name}_{what}" for name in ("main", "short") for what in ("error", "process")]
    return pd.DataFrame(rows, columns=[*CASE, *map(name_tolerance, TOLERANCES), "num_known", *ends])


def name_tolerance(tolerance: float) -> str:
    return f"within_{100 * tolerance:g}"


def find_steps_for_tolerances(needed: pd.DataFrame) -> pd.DataFrame:
    """TOLERANCES, finest first: the steps that are enough in every case (NaN: no number recorded is), num_known."""
    rows = [
        {
            "tolerance": part,
            "num_steps": needed[name_tolerance(part)].max(skipna=False),
            "num_known": needed["num_known"].min(),
        }
        for part in TOLERANCES
    ]
    return pd.DataFrame(rows if len(needed) else [], columns=["tolerance", "num_steps", "num_known"])


def find_finest_tolerance(needed: pd.DataFrame) -> pd.DataFrame:
    """Per case the finest of TOLERANCES that a number of steps keeps: CASE, tolerance, num_steps."""
    keys = {name_tolerance(part): part for part in TOLERANCES}
    rows = needed.melt(CASE, list(keys), var_name="tolerance", value_name="num_steps").dropna()
    rows["tolerance"] = rows["tolerance"].map(keys)
    order = needed[CASE].merge(rows.sort_values("tolerance", kind="stable"), on=CASE)
    return order.drop_duplicates(CASE).reset_index(drop=True)


def errors_by_steps(processes: list[np.ndarray], warm_up: int) -> np.ndarray:
    """How far medians are from the number of the case, by process and by number of steps after the warm-up, from 1: no
    columns where too few steps were recorded."""
    references = [reference_ns(steps) for steps in processes]
    longest = 0 if np.isnan(references).any() else min(map(len, processes)) - warm_up
    medians = [[np.median(steps[warm_up : warm_up + n]) for n in range(1, longest + 1)] for steps in processes]
    return np.abs(np.array(medians).reshape(len(processes), -1) / np.median(references) - 1)


def find_lasting_start(held: list[bool]) -> float:
    """The first place, from 1, from which on all hold; NaN where the last does not."""
    first = len(held)
    while first and held[first - 1]:
        first -= 1
    return float(first + 1) if first < len(held) else float("nan")


def enough_warm_up(medians: pd.DataFrame, spreads: pd.DataFrame) -> pd.DataFrame:
    """Per case the shortest warm-up from which on a number is off by no more than steps spread in a process."""
    rows = medians.merge(spreads[[*CASE, "within"]], on=CASE)
    kept = []
    for _, group in rows.groupby(CASE, sort=False):
        first = find_lasting_start(list(group["error"] <= group["within"]))
        if not np.isnan(first):
            kept.append(group.iloc[int(first) - 1])
    return pd.DataFrame(kept, columns=rows.columns).reset_index(drop=True)


def measure_first_by_phase(ok: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Per case and phase, unprofiled, mean over processes: first_ns, later_ns (mean of steps after the reference's
    warm-up), extra_ns."""
    rows = steps[(steps["collector"].astype(str) == "timer")].astype({"run_id": str, "phase": str})
    rows = ok[ok["warmup_steps"] == 0][["run_id", *CASE]].merge(rows[["run_id", "step", "phase", "wall_ns"]])
    rows = rows[rows["phase"] != ranges.STEP]
    by = [*CASE, "phase"]
    first = rows[rows["step"] == 0].groupby(by, sort=False)["wall_ns"].mean().rename("first_ns")
    later = rows[rows["step"] >= WARM_UPS[-1]].groupby(by, sort=False)["wall_ns"].mean().rename("later_ns")
    table = pd.concat([first, later], axis=1).reset_index()
    table = sort_stably(table, rank_first_seen(table, CASE), place(table["phase"], ranges.PHASES))
    return table.assign(extra_ns=table["first_ns"] - table["later_ns"])


def anatomy_of(ok: pd.DataFrame, steps: pd.DataFrame, api: pd.DataFrame) -> pd.DataFrame:
    """Per case and component, mean over processes: first_ns, later_ns (of later profiled steps), extra_ns, and share,
    its part of the extra time; the component `whole` is the step's NVTX range, which the others add up to."""
    cold = ok[ok["warmup_steps"] == 0][["run_id", *CASE]]
    walls = steps[(steps["collector"].astype(str) == "nsys") & (steps["phase"].astype(str) == ranges.STEP)]
    step = ["run_id", "rank", "step"]
    walls = cold.merge(walls.astype({"run_id": str})[[*step, "wall_ns"]], on="run_id")
    calls = api.astype({"run_id": str, "name": str})
    groups = {name: cuda_api.find_group(name) for name in calls["name"].unique()}
    known = set(COMPONENTS)
    calls["component"] = calls["name"].map({n: g if g in known else "rest" for n, g in groups.items()})
    sums = calls.pivot_table(index=step, columns="component", values="total_ns", aggfunc="sum", fill_value=0)
    names = [name for name in COMPONENTS if name != "outside"]
    table = walls.merge(sums.reindex(columns=names, fill_value=0).reset_index(), how="left", on=step)
    table[names] = table[names].fillna(0)
    table["outside"] = table["wall_ns"] - table[names].sum(axis=1)
    table = table.rename(columns={"wall_ns": "whole"})
    parts = [*COMPONENTS, "whole"]
    first = table[table["step"] == 0].groupby(CASE, sort=False)[parts].mean()
    later = table[table["step"] > 0].groupby(CASE, sort=False)[parts].mean()
    components = pd.concat(
        [first.stack().rename("first_ns"), later.stack().rename("later_ns")], axis=1
    ).rename_axis([*CASE, "component"])  # fmt: skip
    components = components.dropna().reset_index()
    components["extra_ns"] = components["first_ns"] - components["later_ns"]
    extra = components[components["component"] == "whole"].set_index(CASE)["extra_ns"]
    components["share"] = components["extra_ns"] / extra.reindex(pd.MultiIndex.from_frame(components[CASE])).to_numpy()
    return components.assign(label=components["component"].map(COMPONENTS).fillna("whole step"))


def first_kernels(ok: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Per case, mean over processes: GPU busy in the first and in later profiled steps, kernels and
    matmuls more in the first, and host time of a launch call in the first step: of the first launch of a kernel
    (new_call_ns) and of the others; new_share: the first launches' part of the time in launch calls."""
    cold = ok[ok["warmup_steps"] == 0][["run_id", *CASE]]
    of_runs = (keep_runs(timing.select_steps(rows), set(cold["run_id"])) for rows in (kernels, memops))
    table = cold.merge(_compare_first(*of_runs), on="run_id")
    table = table.drop(columns="run_id").groupby(CASE, sort=False).mean().reset_index()
    return table.assign(busy_ratio=table["first_busy_ns"] / table["later_busy_ns"])


@measure_by_run
def _compare_first(rows: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Columns of `first_kernels` of each run, by run_id."""
    gpu = timing.gpu_times(rows, memops)
    gpu = gpu[gpu["phase"] == ranges.STEP].set_index(["run_id", "rank", "step"])
    of_step = [rows["run_id"].astype(str), rows["rank"], rows["step"]]
    gpu["gemms"] = (rows["family"].astype(str) == "gemm").groupby(of_step).sum()
    gpu["optimizer"] = (rows["phase"].astype(str) == ranges.OPTIMIZER).groupby(of_step).sum()
    gpu = gpu.reset_index()
    numbers = ["busy_ns", "launches", "gemms", "optimizer"]
    first, later = (gpu[of].groupby("run_id")[numbers].mean() for of in (gpu["step"] == 0, gpu["step"] > 0))
    opening = rows[rows["step"] == 0].sort_values("launch_ns", kind="stable")
    call = opening["launch_end_ns"] - opening["launch_ns"]
    new = ~opening.astype({"run_id": str, "kernel_name": str}).duplicated(["run_id", "rank", "kernel_name"])
    run = opening["run_id"].astype(str)
    table = pd.DataFrame(
        {
            "first_busy_ns": first["busy_ns"],
            "later_busy_ns": later["busy_ns"],
            "extra_kernels": first["launches"] - later["launches"],
            "extra_gemms": first["gemms"] - later["gemms"],
            "extra_optimizer": first["optimizer"] - later["optimizer"],
            "new_call_ns": call[new].groupby(run[new]).mean(),
            "other_call_ns": call[~new].groupby(run[~new]).mean(),
            "new_share": call[new].groupby(run[new]).sum() / call.groupby(run).sum(),
        }
    )
    return table.dropna().rename_axis("run_id").reset_index()
