"""(k) How many steps does a number need?"""

from typing import Any

import numpy as np
import pandas as pd

from analysis import metrics
from analysis.answer import Answer, Chart, Claim, Column, Table, assemble
from analysis.facts import extremes, largest, out_of
from analysis.knowledge import cuda_api
from jobs import ranges

SLUG = "warm-up"
TITLE = "How many steps does a number need?"
STUDY = "warm_up"

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
    "outside": "no CUDA call: Python and libraries",
}

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
    ok = metrics.measured_runs(runs).astype({"run_id": str, **dict.fromkeys(CASE, str), "context_length": int})
    timed = _timed(ok, steps)
    warm_up, num_timed = _settings(main)
    numbers = _numbers(timed, num_timed)
    spreads = _spreads(timed)
    needed = _needed(timed, warm_up, num_timed)
    known = needed[needed["num_known"] > 0]
    beside = spreads.merge(_in_main(ok, main), on=CASE)
    beside["off"] = beside["main_ns"] / beside["median_ns"] - 1
    outside = (beside["main_ns"] < beside["median_min_ns"]) | (beside["main_ns"] > beside["median_max_ns"])
    tolerances, finest = _tolerances(known), _finest(known)
    anatomy = _anatomy(ok, steps, api)
    extra = _first_kernels(ok, kernels)
    phases = _phases(ok, steps)
    parts = anatomy[anatomy["component"] != "whole"]
    unlike = spreads[spreads["between"] > CHANCE * spreads["expected"]]
    medians = numbers[numbers["statistic"] == "median"]
    claims = [
        Claim("answered", finest,  facts=lambda rows: {"cases": rows.to_dict("records")}),
        Claim("unanswered", known[known[_within_key(TOLERANCES[-1])].isna()],  facts=_first_of(known)),
        Claim("first", spreads, lambda rows: rows["first_ratio"].min() > 1, extremes("first_ratio")),
        Claim("enough", _enough(medians, spreads),  facts=largest("warm_up")),
        Claim("mean", _of(numbers, 0, "mean"), lambda rows: rows["error"].max() > TOLERANCES[0], extremes("error")),
        Claim("median", _of(numbers, 0, "median"), lambda rows: rows["error"].notna().all(), extremes("error")),
        Claim("processes", unlike,  facts=_first_of(spreads)),
        Claim("alike", spreads, lambda rows: not len(unlike) and rows["between"].notna().any(), extremes("within")),
        Claim("between", spreads[spreads["between"] > spreads["within"]],  facts=_first_of(spreads)),
        Claim("within", spreads[spreads["between"] <= spreads["within"]],  facts=_first_of(spreads)),
        Claim("too_fine", tolerances[tolerances["num_steps"].isna()],  facts=extremes("tolerance")),
        Claim("main_number", needed[needed["main_error"].notna()],  facts=largest("main_error")),
        Claim("short_number", needed[needed["short_error"].notna()],  facts=largest("short_error")),
        Claim("main_outside", beside[outside],  facts=_furthest(beside)),
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
    case = (Column("size", "model"), Column("context_length", "context", "count"))
    tables = [
        Table(
            "numbers",
            f"What {num_timed} steps would have said, over processes",
            (
                *case,
                Column("warm_up", "warm-up steps", "count"),
                Column("statistic", "of the steps"),
                Column("number_ns", "number", "ms", lower="number_min_ns", upper="number_max_ns"),
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
                    Column(_within_key(part), f"until within {part:.0%}", "count", absent="too few recorded")
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
                Column("median_ns", "later steps", "ms", lower="median_min_ns", upper="median_max_ns"),
                Column("main_ns", "main recording", "ms", absent="not recorded"),
                Column("within", "between steps", "share"),
                Column("expected", "between processes, if they were alike", "share"),
                Column("between", "between processes", "share"),
            ),
            spreads.merge(beside[[*CASE, "main_ns"]], how="left", on=CASE),
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


# ---------------------------------------------------------------- unprofiled steps


def _settings(main: Any) -> tuple[int, int]:
    """Warm-up steps and timed steps of the main recording, the fewest of any run; SHORT where it has no run."""
    if not len(main.runs):
        return SHORT
    return int(main.runs["warmup_steps"].min()), int(main.runs["measured_steps"].min())


def _timed(ok: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Unprofiled steps of runs without warm-up, in order: run_id, CASE, step (from 0), wall_ns."""
    rows = steps[(steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == ranges.STEP)]
    cold = ok[ok["warmup_steps"] == 0][["run_id", *CASE]]
    rows = cold.merge(rows.astype({"run_id": str})[["run_id", "step", "wall_ns"]], on="run_id")
    place = rows["run_id"].map({run_id: place for place, run_id in enumerate(cold["run_id"])})
    return rows.assign(_place=place).sort_values(["_place", "step"], ignore_index=True).drop(columns="_place")


def _processes(timed: pd.DataFrame):
    """(case, [steps of a process, ...]) in model order."""
    for case, rows in timed.groupby(CASE, sort=False):
        yield (
            dict(zip(CASE, case, strict=True)),
            [one.to_numpy() for _, one in rows.groupby("run_id", sort=False)["wall_ns"]],
        )


def _reference(one: np.ndarray) -> float:
    """The process's own step time: the median of the steps after the longest warm-up of WARM_UPS."""
    return float(np.median(one[WARM_UPS[-1] :])) if len(one) >= WARM_UPS[-1] + LATER else float("nan")


def _within(processes: list[np.ndarray]) -> float:
    """Standard deviation of the steps over their median, of the median process."""
    return float(np.median([np.std(one, ddof=1) / np.median(one) for one in processes]))


def _numbers(timed: pd.DataFrame, num_timed: int) -> pd.DataFrame:
    """Per case, warm-up and statistic: number_ns (median over processes), _min_ns, _max_ns, and error, the part by
    which the worst process is off its own later steps."""
    rows = []
    for case, processes in _processes(timed):
        for warm_up in WARM_UPS:
            for statistic, of in (("median", np.median), ("mean", np.mean)):
                known = [one for one in processes if len(one) >= warm_up + num_timed]
                found = [float(of(one[warm_up : warm_up + num_timed])) for one in known]
                if found:
                    off = [abs(number / _reference(one) - 1) for number, one in zip(found, known, strict=True)]
                    ends = {"number_min_ns": min(found), "number_max_ns": max(found)}
                    number = {"number_ns": float(np.median(found)), **ends, "error": max(off)}
                    rows.append({**case, "warm_up": warm_up, "statistic": statistic, **number})
    columns = [*CASE, "warm_up", "statistic", "number_ns", "number_min_ns", "number_max_ns", "error"]
    return pd.DataFrame(rows, columns=columns)


def _spreads(timed: pd.DataFrame) -> pd.DataFrame:
    """Per case: within and between as `answer` says; expected: the deviation that medians of so many steps would have
    if all processes were alike, 1.25 within / sqrt(steps); median_ns, the number of the case, with the lowest and
    highest process; first_ratio: the first step over the later ones."""
    rows = []
    for case, processes in _processes(timed):
        later = [one[WARM_UPS[-1] :] for one in processes if len(one) >= WARM_UPS[-1] + LATER]
        if not later:
            continue
        medians = np.array([np.median(one) for one in later])
        within = _within(later)
        between = float(np.std(medians, ddof=1) / np.median(medians)) if len(later) > 1 else float("nan")
        firsts = [one[0] / _reference(one) for one in processes if len(one) >= WARM_UPS[-1] + LATER]
        expected = float(np.sqrt(np.pi / 2) * within / np.sqrt(np.median([len(one) for one in later])))
        found = {"within": within, "expected": expected, "between": between, "first_ratio": float(np.median(firsts))}
        rows.append({**case, "processes": len(later), **_span(medians), **found})
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


def _span(medians: np.ndarray) -> dict[str, float]:
    ends = {"median_min_ns": float(medians.min()), "median_max_ns": float(medians.max())}
    return {"median_ns": float(np.median(medians)), **ends}


def _needed(timed: pd.DataFrame, warm_up: int, num_timed: int) -> pd.DataFrame:
    """Per case: for each of TOLERANCES the fewest steps after the warm-up that are enough (NaN: none); num_known, the
    most steps that every process has after it; main_error, how far the worst process is off with num_timed steps, and
    main_process, which it is (from 1); short_error, the same after SHORT's warm-up with as many steps as SHORT says."""
    rows = []
    for case, processes in _processes(timed):
        errors = _errors(processes, warm_up)
        found = {_within_key(part): _from_then_on(list(errors.max(axis=0) <= part)) for part in TOLERANCES}
        found["num_known"] = errors.shape[1]
        for name, (before, num) in {"main": (warm_up, num_timed), "short": SHORT}.items():
            known = _errors(processes, before)[:, num - 1 : num].ravel()
            found[f"{name}_error"] = known.max() if len(known) else float("nan")
            found[f"{name}_process"] = known.argmax() + 1 if len(known) else float("nan")
        rows.append({**case, **found})
    ends = [f"{name}_{what}" for name in ("main", "short") for what in ("error", "process")]
    return pd.DataFrame(rows, columns=[*CASE, *map(_within_key, TOLERANCES), "num_known", *ends])


def _within_key(tolerance: float) -> str:
    return f"within_{100 * tolerance:g}"


def _tolerances(needed: pd.DataFrame) -> pd.DataFrame:
    """TOLERANCES, finest first: the steps that are enough in every case (NaN: no number recorded is), num_known."""
    rows = [
        {
            "tolerance": part,
            "num_steps": needed[_within_key(part)].max(skipna=False),
            "num_known": needed["num_known"].min(),
        }
        for part in TOLERANCES
    ]
    return pd.DataFrame(rows if len(needed) else [], columns=["tolerance", "num_steps", "num_known"])


def _finest(needed: pd.DataFrame) -> pd.DataFrame:
    """Per case the finest of TOLERANCES that a number of steps keeps: CASE, tolerance, num_steps."""
    keys = {_within_key(part): part for part in TOLERANCES}
    rows = needed.melt(CASE, list(keys), var_name="tolerance", value_name="num_steps").dropna()
    rows["tolerance"] = rows["tolerance"].map(keys)
    order = needed[CASE].merge(rows.sort_values("tolerance", kind="stable"), on=CASE)
    return order.drop_duplicates(CASE).reset_index(drop=True)


def _errors(processes: list[np.ndarray], warm_up: int) -> np.ndarray:
    """How far medians are from the number of the case, by process and by number of steps after the warm-up, from 1: no
    columns where too few steps were recorded."""
    references = [_reference(one) for one in processes]
    longest = 0 if np.isnan(references).any() else min(map(len, processes)) - warm_up
    medians = [[np.median(one[warm_up : warm_up + n]) for n in range(1, longest + 1)] for one in processes]
    return np.abs(np.array(medians).reshape(len(processes), -1) / np.median(references) - 1)


def _in_main(ok: pd.DataFrame, main: Any) -> pd.DataFrame:
    """The same cases in the main recording: CASE, main_ns (median of its unprofiled steps)."""
    names = [name for name in (*CASE, "batch_size", "precision", "attention", "compile", "optimizer")
             if name in ok and name in main.runs]  # fmt: skip
    runs = metrics.measured_runs(main.runs).astype({"run_id": str, **dict.fromkeys(CASE, str), "context_length": int})
    same = runs.astype({name: ok[name].dtype for name in names}).merge(ok[names].drop_duplicates(), on=names)
    timer = metrics.host_times(main.steps, "timer", "main")
    timer = timer[timer["phase"] == ranges.STEP]
    return same[["run_id", *CASE]].merge(timer, on="run_id")[[*CASE, "main_ns"]]


def _from_then_on(held: list[bool]) -> float:
    """The first place, from 1, from which on all hold; NaN where the last does not."""
    place = len(held)
    while place and held[place - 1]:
        place -= 1
    return float(place + 1) if place < len(held) else float("nan")


def _enough(medians: pd.DataFrame, spreads: pd.DataFrame) -> pd.DataFrame:
    """Per case the shortest warm-up from which on a number is off by no more than steps spread in a process."""
    rows = medians.merge(spreads[[*CASE, "within"]], on=CASE)
    kept = []
    for _, one in rows.groupby(CASE, sort=False):
        place = _from_then_on(list(one["error"] <= one["within"]))
        if not np.isnan(place):
            kept.append(one.iloc[int(place) - 1])
    return pd.DataFrame(kept, columns=rows.columns).reset_index(drop=True)


def _phases(ok: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Per case and phase, unprofiled, mean over processes: first_ns, later_ns (mean of steps after the reference's
    warm-up), extra_ns."""
    rows = steps[(steps["collector"].astype(str) == "timer")].astype({"run_id": str, "phase": str})
    rows = ok[ok["warmup_steps"] == 0][["run_id", *CASE]].merge(rows[["run_id", "step", "phase", "wall_ns"]])
    rows = rows[rows["phase"] != ranges.STEP]
    by = [*CASE, "phase"]
    first = rows[rows["step"] == 0].groupby(by, sort=False)["wall_ns"].mean().rename("first_ns")
    later = rows[rows["step"] >= WARM_UPS[-1]].groupby(by, sort=False)["wall_ns"].mean().rename("later_ns")
    table = pd.concat([first, later], axis=1).reset_index()
    order = {phase: place for place, phase in enumerate(ranges.PHASES)}
    case = table.groupby(CASE, sort=False).ngroup()
    places = pd.DataFrame({"case": case, "phase": table["phase"].map(order)}).sort_values(["case", "phase"])
    return table.assign(extra_ns=table["first_ns"] - table["later_ns"]).loc[places.index].reset_index(drop=True)


# ---------------------------------------------------------------- profiled steps


def _anatomy(ok: pd.DataFrame, steps: pd.DataFrame, api: pd.DataFrame) -> pd.DataFrame:
    """Per case and component, mean over processes: first_ns, later_ns (of later profiled steps), extra_ns, and share,
    its part of the extra time; the component `whole` is the step's NVTX range, which the others add up to."""
    cold = ok[ok["warmup_steps"] == 0][["run_id", *CASE]]
    walls = steps[(steps["collector"].astype(str) == "nsys") & (steps["phase"].astype(str) == ranges.STEP)]
    walls = cold.merge(walls.astype({"run_id": str})[["run_id", "step", "wall_ns"]], on="run_id")
    calls = api.astype({"run_id": str, "name": str})
    groups = {name: cuda_api.group(cuda_api.base_name(name)) for name in calls["name"].unique()}
    known = set(COMPONENTS)
    calls["component"] = calls["name"].map({n: g if g in known else "rest" for n, g in groups.items()})
    sums = calls.pivot_table(
        index=["run_id", "step"], columns="component", values="total_ns", aggfunc="sum", fill_value=0
    )
    names = [name for name in COMPONENTS if name != "outside"]
    table = walls.merge(sums.reindex(columns=names, fill_value=0).reset_index(), how="left", on=["run_id", "step"])
    table[names] = table[names].fillna(0)
    table["outside"] = table["wall_ns"] - table[names].sum(axis=1)
    table = table.rename(columns={"wall_ns": "whole"})
    parts = [*COMPONENTS, "whole"]
    first = table[table["step"] == 0].groupby(CASE, sort=False)[parts].mean()
    later = table[table["step"] > 0].groupby(CASE, sort=False)[parts].mean()
    found = pd.concat(
        [first.stack().rename("first_ns"), later.stack().rename("later_ns")], axis=1
    ).rename_axis([*CASE, "component"])  # fmt: skip
    found = found.dropna().reset_index()
    found["extra_ns"] = found["first_ns"] - found["later_ns"]
    whole = found[found["component"] == "whole"].set_index(CASE)["extra_ns"]
    found["share"] = found["extra_ns"] / whole.reindex(pd.MultiIndex.from_frame(found[CASE])).to_numpy()
    return found.assign(label=found["component"].map(COMPONENTS).fillna("whole step"))


def _first_kernels(ok: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Per case, mean over processes: the GPU's busy time in the first and in later profiled steps, kernels and
    matrix products more in the first, and host time of a launch call in the first step: of the first launch of a kernel
    (new_call_ns) and of the others; new_share: the first launches' part of the time in launch calls."""
    cold = ok[ok["warmup_steps"] == 0][["run_id", *CASE]]
    rows = metrics.in_steps(kernels)
    rows = rows[rows["run_id"].astype(str).isin(set(cold["run_id"]))]
    gpu = metrics.gpu_times(rows)
    gpu = gpu[gpu["phase"] == ranges.STEP].set_index(["run_id", "step"])
    of_step = [rows["run_id"].astype(str), rows["step"]]
    gpu["products"] = (rows["family"].astype(str) == "gemm").groupby(of_step).sum()
    gpu["optimizer"] = (rows["phase"].astype(str) == ranges.OPTIMIZER).groupby(of_step).sum()
    gpu = gpu.reset_index()
    first = gpu[gpu["step"] == 0].set_index("run_id")
    later = gpu[gpu["step"] > 0].groupby("run_id")[["busy_ns", "launches", "products", "optimizer"]].mean()
    opening = rows[rows["step"] == 0].sort_values("launch_ns", kind="stable")
    call = opening["launch_end_ns"] - opening["launch_ns"]
    new = ~opening.astype({"run_id": str, "kernel_name": str}).duplicated(["run_id", "kernel_name"])
    run = opening["run_id"].astype(str)
    table = pd.DataFrame(
        {
            "first_busy_ns": first["busy_ns"],
            "later_busy_ns": later["busy_ns"],
            "extra_kernels": first["launches"] - later["launches"],
            "extra_products": first["products"] - later["products"],
            "extra_optimizer": first["optimizer"] - later["optimizer"],
            "new_call_ns": call[new].groupby(run[new]).mean(),
            "other_call_ns": call[~new].groupby(run[~new]).mean(),
            "new_share": call[new].groupby(run[new]).sum() / call.groupby(run).sum(),
        }
    ).dropna()
    table = cold.merge(table.rename_axis("run_id").reset_index(), on="run_id")
    table = table.drop(columns="run_id").groupby(CASE, sort=False).mean().reset_index()
    return table.assign(busy_ratio=table["first_busy_ns"] / table["later_busy_ns"])


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
    for case, processes in _processes(timed):
        rows = [
            {"series": _after(warm_up), "x": n + 1, "y": 100 * error}
            for warm_up in WARM_UPS
            for n, error in enumerate(_errors(processes, warm_up).max(axis=0))
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
