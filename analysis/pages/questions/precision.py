"""(j) What does lower precision buy, and what does it leave as it was?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.changes.evidence import LEAST_IDLE
from profiler_job.analysis.metrics import differences, kernel_time, precisions, run_grid, timing, waiting
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.precisions import (
    BASE,
    ELEMENTS,
    FRACTION_BITS,
    GEMM,
    MODE,
    OPTIMIZER_BUSY,
    PHASES,
    SLOWER,
    UNCHANGED,
)
from profiler_job.analysis.metrics.steady import find_steady_runs, mark_quotable, prefer_turns_band
from profiler_job.analysis.metrics.turns import compare_with_base, have_turns, list_rounds
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import (
    count_all,
    find_highest,
    format_percent_span,
    give_largest,
    many,
    name_calibrated_gpu,
    noise_of,
    ratios_of,
    span,
)
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.reference import element_types, kernel_families
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.studies import PRECISION
from profiler_job.jobs.contract.words import NOT_MEASURED

LABELS = {name: record.label for name, record in PRECISIONS.items()}
PARTS = {"step": "step, unprofiled", "busy": "GPU busy", "gemms": "GEMM kernels", "rest": "all other kernels"}
TIMED = (*PARTS, *PHASES, OPTIMIZER_BUSY)
HEADINGS = case_headings(["size", "context_length", "precision"], linked=False)


def answer(given: Inputs) -> Answer:
    """Training steps in TF32 and BF16 autocast against the same step in FP32.

    Speed-up is FP32's time over this one's: of the step and its phases by the unprofiled timer, of the GPU by busy
    time, of GEMM kernels and of all others by kernel time. Faster and slower mean by more than the noise band of their
    kind of time (`bands`); the band of a step is the wider, the longer the GPU waits in it. How long it waits for
    launches is what `metrics.waiting` says. The math path of a GEMM is what the name of its kernel says; where no
    documentation backs the name, it is inferred. MFU is the FLOPs of the matmuls over the step's wall time, over the
    machine's measured peak for the precision and over the data sheet's. Casts are copy kernels whose name says that
    they convert. The difference of logits is relative to FP32's logits at the same weights, root mean square.
    """
    tables = (given.runs, given.steps, given.processes, given.kernels, given.memops, given.figures)
    frames = _frames(*tables, given.calibration, given.bands)
    facts = _facts(given.calibration, given.bands) | {"took_turns": have_turns(given.steps)}
    return assemble(facts, _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="j",
    slug="precision",
    title="What does lower precision make faster?",
    needs=("runs", "steps", "processes", "kernels", "memops", "figures", "calibration", "bands"),
    answer=answer,
    section=Section.CHANGE,
    place=2,
    study=PRECISION,
    searched=("MFU", "BF16", "TF32", "mixed precision", "autocast", "tensor cores"),
)


@dataclass(frozen=True, kw_only=True)
class PrecisionData:
    """`cases`: one row per case and precision. `families`: kernel time by family in each precision; `others` are all
    families but GEMM. `paths`: GEMM kernels by math path. `numerics`: difference of logits and loss. `shares`: kernel
    time of each measured case by family."""

    cases: pd.DataFrame
    families: pd.DataFrame
    others: pd.DataFrame
    paths: pd.DataFrame
    numerics: pd.DataFrame
    shares: pd.DataFrame

    @property
    def lower(self) -> pd.DataFrame:
        """Measured cases in TF32 and BF16 that have FP32 next to them."""
        cases = _select_measured(self.cases)
        return cases[(cases["precision"] != BASE) & cases["step_speedup"].notna()]

    @property
    def autocast(self) -> pd.DataFrame:
        return self.lower[self.lower["precision"] == "bf16"]

    @property
    def gaining(self) -> pd.DataFrame:
        return self.others[self.others["apart"] & self.others["gains"]]

    @property
    def losing(self) -> pd.DataFrame:
        return self.others[self.others["apart"] & self.others["loses"]]


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    processes: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    figures: pd.DataFrame,
    calibration: pd.DataFrame,
    bands: Bands | None,
) -> PrecisionData:
    totals = kernel_time.kernel_totals(kernels)
    grid = run_grid.cases_along(runs, MODE, "precision", list(FRACTION_BITS))
    cases = grid
    for part in (
        precisions.phase_times(steps),
        precisions.gpu_times(kernels, memops),
        precisions.contents(totals, memops, kernels),
    ):
        cases = cases.merge(part, how="left", on="run_id")
    cases = cases.merge(precisions.use_of(runs, cases, calibration), how="left", on="run_id")
    waits = waiting.launch_waits(steps, kernels, memops, bands.wall if bands else None)
    waits = waits[waits["phase"] == ranges.STEP][["run_id", "launch_wait", "waits"]]
    cases = _add_parts(cases, kernels).merge(waits, how="left", on="run_id")
    cases = cases.assign(steady=cases["run_id"].isin(find_steady_runs(steps)))
    cases = _join_fp32(cases, bands, list_rounds(steps, processes))
    families = precisions.families_of(totals, kernels, grid)
    ok = _select_measured(cases)
    shares = kernel_time.sum_by_family(totals[totals["run_id"].isin(ok["run_id"])], ["run_id"])
    return PrecisionData(
        cases=cases,
        families=families,
        others=precisions.compare_other_families(families, grid, bands.kernel if bands else None),
        paths=precisions.paths_of(totals, grid),
        numerics=precisions.numerics_of(figures, grid),
        shares=ok[["size", "precision", "run_id"]].merge(shares, on="run_id"),
    )


def _add_parts(cases: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    share = timing.busy_share(cases, kernels, wall="step_ns")
    return cases.assign(busy_share=share, step_parts=(cases["step_ns"] * (1 - share)).clip(lower=0))


def _join_fp32(cases: pd.DataFrame, bands: Bands | None, rounds: pd.DataFrame) -> pd.DataFrame:
    """`cases` with FP32's values next to them, and speed-ups over FP32: of the step within rounds if it took turns."""
    times = [f"{name}_ns" for name in TIMED]
    spread = ["step_min_ns", "step_max_ns", "step_parts", "steady"]
    others = ["launch_wait", "casts", "launches", "copied_bytes", "peak_memory_bytes"]
    table = run_grid.join_base(cases, "precision", BASE, ["run_id", *times, *others, *spread])
    turns = compare_with_base(table["run_id"], table["run_id_fp32"], rounds)
    for name in TIMED:
        table[f"{name}_speedup"] = (table[f"{name}_ns_fp32"] / table[f"{name}_ns"]).where(table["precision"] != BASE)
    table["step_speedup"] = turns["times_as_fast"].fillna(table["step_speedup"])
    table["optimizer_busy_share"] = table[f"{OPTIMIZER_BUSY}_ns"] / table["busy_ns"]
    table["memory_saved"] = 1 - table["peak_memory_bytes"] / table["peak_memory_bytes_fp32"]
    # No GEMM can take less than no time: what the other kernels of FP32 leave.
    kernels, of_base = (table["gemms_ns" + of] + table["rest_ns" + of] for of in ("", "_fp32"))
    table["kernel_speedup"] = of_base / kernels
    table["ceiling"] = of_base / table["rest_ns_fp32"]
    ends = ("ns", "min_ns", "max_ns", "parts")
    renamed = table.rename(columns={f"step_{end}_fp32": f"base_{end}" for end in ends})
    half_band = differences.half_band_ns(renamed, "step", "base", bands.wall if bands else None)
    table["step_band_ns"] = prefer_turns_band(turns, table["step_ns"], half_band).where(table["precision"] != BASE)
    differ = differences.differ(renamed, "step", "base", bands.wall if bands else None)
    table["step_apart"] = differ.mask(turns["times_as_fast"].notna(), turns["differs"])
    table["quotable"] = mark_quotable(table["step_apart"], table["steady"], table["steady_fp32"], turns=turns)
    return table


def _select_measured(cases: pd.DataFrame) -> pd.DataFrame:
    return cases[(cases[NOT_MEASURED] == "") & cases["step_ns"].notna()]


def _facts(calibration: pd.DataFrame, bands: Bands | None) -> dict[str, Any]:
    return {
        "noise": noise_of(bands),
        "unchanged": UNCHANGED - 1,
        "calibrated_on": name_calibrated_gpu(calibration),
    }


def _claims(frames: PrecisionData) -> list[Claim]:
    return [
        *_step_claims(frames),
        *_kernel_claims(frames),
        *_path_claims(frames),
        *_claim_unchanged(frames),
        *_use_claims(frames),
        *_accuracy_claims(frames),
    ]


def _step_claims(frames: PrecisionData) -> list[Claim]:
    """What a training step gains by the unprofiled timer."""
    lower = frames.lower
    late = lower.dropna(subset=["launch_wait", "launch_wait_fp32"])
    apart = lower["step_apart"] & (lower["step_speedup"] > 1)
    return [
        Claim(
            "faster",
            run_grid.only(lower[apart], "step_ns", "step_min_ns", "step_max_ns", "step_speedup", "step_band_ns"),
            many(lower),
            facts=count_all(lower),
        ),
        Claim(
            "quoted",
            run_grid.only(lower[apart & lower["quotable"]], "step_ns", "step_ns_fp32", "step_speedup"),
            facts=_span_by_precision("step_speedup"),
        ),
        Claim(
            "not_faster",
            run_grid.only(lower[~apart], "step_ns", "step_min_ns", "step_max_ns", "step_ns_fp32", "step_band_ns"),
            facts=count_all(lower, lambda rows: {"first": rows.iloc[0].to_dict()}),
        ),
        Claim("tf32_first", precisions.find_slower_autocast(lower, LEAST_IDLE), facts=give_largest("over_tf32")),
        Claim(
            "waits",
            run_grid.only(late, "launch_wait", "launch_wait_fp32", "waits", "launches"),
            lambda rows: rows["launch_wait"].max() > rows["launch_wait_fp32"].max(),
            facts=lambda rows: {"high": find_highest(rows, "launch_wait"), "num_waiting": int(rows["waits"].sum())},
        ),
    ]


def _kernel_claims(frames: PrecisionData) -> list[Claim]:
    """What GEMM and all other kernels gain, and the limit that this sets."""
    lower, autocast = frames.lower, frames.autocast
    gains = run_grid.only(lower, "gemms_ns", "gemms_speedup", "rest_ns", "rest_speedup")
    return [
        Claim("rest_as_long", gains, lambda rows: _gemms_gain(rows) and not _is_rest_gaining(rows)),
        Claim(
            "rest_too",
            gains,
            lambda rows: _gemms_gain(rows) and _is_rest_gaining(rows),
            facts=lambda rows: {"most": rows["rest_speedup"].max()},
        ),
        Claim(
            "gemms_not_always",
            gains,
            lambda rows: not _gemms_gain(rows),
            facts=lambda rows: {"num_gaining": int((rows["gemms_speedup"] > 1).sum())},
        ),
        Claim(
            "gemms",
            run_grid.only(lower, "gemms_ns", "gemms_speedup"),
            _gemms_gain,
            facts=_span_by_precision("gemms_speedup"),
        ),
        Claim(
            "rest",
            run_grid.only(lower, "rest_ns", "rest_speedup"),
            lambda rows: rows["rest_speedup"].notna().all(),
            facts=_span_by_precision("rest_speedup"),
        ),
        _family_claim("families_faster", frames.gaining, frames),
        _family_claim("families_slower", frames.losing, frames),
        Claim(
            "ceiling",
            run_grid.only(autocast, "kernel_speedup", "ceiling"),
            lambda rows: (rows["kernel_speedup"] < rows["ceiling"]).all(),
            facts=lambda rows: {"ceiling": span(rows["ceiling"]), "reached": span(rows["kernel_speedup"])},
        ),
    ]


def _family_claim(key: str, families: pd.DataFrame, frames: PrecisionData) -> Claim:
    rows = families[families["precision"] == "bf16"].drop(columns=["apart", "gains", "loses"])
    every = frames.others[frames.others["precision"] == "bf16"]
    return Claim(key, rows, many(every), facts=lambda rows: _count_by_family(rows, len(frames.autocast)))


def _path_claims(frames: PrecisionData) -> list[Claim]:
    """Which unit multiplied, by the names of the kernels and by their rate."""
    lower = frames.lower
    paths = frames.paths[frames.paths["gemms"] > 0]
    return [
        Claim("proven", paths, _is_as_declared, facts=_proof),
        Claim(
            "not_as_declared",
            paths[paths["path"] != paths["precision"]],
            facts=lambda rows: {"num_runs": rows["run_id"].nunique()},
        ),
        Claim(
            "rate_agrees",
            run_grid.only(lower[lower["over_slower_peak"].notna()], "gemm_rate", "over_slower_peak"),
            lambda rows: len(rows) == len(lower) and (rows["over_slower_peak"] > 1).all(),
            facts=_span_by_precision("over_slower_peak", slower=SLOWER),
        ),
    ]


def _claim_unchanged(frames: PrecisionData) -> list[Claim]:
    """What stays in FP32, and what autocast adds."""
    lower, autocast = frames.lower, frames.autocast
    tf32, in_fp32 = lower[lower["precision"] == "tf32"], lower[lower["optimizer_fp32"].astype(bool)]
    elements = [f"{key}_elements_ns" for key in ELEMENTS]
    optimizer = [f"{OPTIMIZER_BUSY}_{name}" for name in ("ns", "speedup", "share")]
    return [
        Claim(
            "casts",
            run_grid.only(autocast, "casts", "casts_fp32", "cast_ns", "cast_share", "launches", "launches_fp32"),
            lambda rows: (rows["casts"] > 0).all() and (rows["casts_fp32"] == 0).all(),
            facts=lambda rows: {
                "casts": rows["casts"].max(),
                "share": span(rows["cast_share"]),
                "launches": span(rows["launches"] / rows["launches_fp32"]),
            },
        ),
        Claim(
            "elementwise",
            run_grid.only(autocast, "fp32_elements_share", "bf16_elements_share", *elements),
            lambda rows: (rows["fp32_elements_share"] > 0).all(),
            facts=lambda rows: {"fp32": span(rows["fp32_elements_share"]), "bf16": span(rows["bf16_elements_share"])},
        ),
        Claim(
            "tf32_bytes",
            run_grid.only(tf32, "copied_bytes", "copied_bytes_fp32", "casts", "rest_speedup"),
            lambda rows: _only_multiplies(rows) and not rows["run_id"].isin(frames.gaining["run_id"]).any(),
        ),
        Claim(
            "optimizer",
            run_grid.only(in_fp32, *optimizer),
            lambda rows: len(rows) == len(lower) and rows[f"{OPTIMIZER_BUSY}_speedup"].notna().all(),
            facts=lambda rows: {
                "speedup": span(rows[f"{OPTIMIZER_BUSY}_speedup"]),
                "largest": find_highest(rows, f"{OPTIMIZER_BUSY}_share"),
            },
        ),
        Claim(
            "memory",
            run_grid.only(autocast, "peak_memory_bytes", "memory_saved"),
            lambda rows: (rows["memory_saved"] > 0).all(),
            facts=lambda rows: {"saved": span(rows["memory_saved"])},
        ),
    ]


def _use_claims(frames: PrecisionData) -> list[Claim]:
    ok = _select_measured(frames.cases)
    known = ok[ok["mfu_measured"].notna()]
    return [Claim("mfu", run_grid.only(known, "step_rate", "mfu_measured", "mfu_sheet"), _falls, facts=_find_best_use)]


def _accuracy_claims(frames: PrecisionData) -> list[Claim]:
    numerics = frames.numerics
    return [
        Claim(
            "numerics",
            numerics[numerics["logits_ratio"].notna()],
            facts=_span_by_precision("logits_ratio", "loss_millionths"),
        ),
        Claim(
            "coarser",
            precisions.compare_rounding(numerics),
            lambda rows: (rows["times"] > 1).all(),
            facts=_measure_coarseness,
        ),
    ]


def _tables(frames: PrecisionData) -> list[Table]:
    return [*_time_tables(frames), *_tabulate_content(frames), *_use_tables(frames)]


def _time_tables(frames: PrecisionData) -> list[Table]:
    speedups = [Column(f"{name}_speedup", name, "ratio", absent="base") for name in PHASES]
    lower = [precision for precision in FRACTION_BITS if precision != BASE]
    return [
        Table(
            "speed",
            "Unprofiled time of a training step, and FP32's time over it",
            (
                *HEADINGS,
                spread_column("step", "step"),
                Column("step_speedup", "step", "ratio", absent="base"),
                band_column("step_band_ns"),
                *speedups,
                Column("busy_share", "GPU busy", "share", bar=True),
                Column("launch_wait", "waits for launches", "share"),
            ),
            frames.cases,
        ),
        Table(
            "parts",
            "Kernel time of one step, and what faster GEMM kernels can gain at most",
            (
                *HEADINGS,
                Column("gemms_ns", "GEMM kernels", "ms"),
                Column("gemms_speedup", "GEMM kernels", "ratio", absent="base"),
                Column("rest_ns", "all other kernels", "ms"),
                Column("rest_speedup", "all others", "ratio", absent="base"),
                Column("busy_speedup", "GPU busy", "ratio", absent="base"),
                Column("ceiling", "limit: GEMM in no time", "ratio"),
            ),
            frames.cases,
        ),
        Table(
            "families",
            "Kernel time of one step by family",
            (
                Column("size", "model"),
                Column("context_length", "context", "count"),
                Column("family", "family", "family"),
                *(Column(f"{precision}_ns", LABELS[precision], "ms") for precision in FRACTION_BITS),
                *(Column(f"{precision}_speedup", f"FP32 ÷ {LABELS[precision]}", "ratio") for precision in lower),
            ),
            frames.families,
        ),
    ]


def _tabulate_content(frames: PrecisionData) -> list[Table]:
    return [
        Table(
            "paths",
            "Math path of every GEMM of one step, from the names of its kernels",
            (
                *HEADINGS,
                Column("math_path", "math path"),
                Column("gemms", "GEMMs", "count"),
                Column("helpers", "kernels that add up parts", "count"),
                Column("inferred_share", "of them by inference", "share", absent="says nothing"),
                Column("time_ns", "kernel time", "ms"),
                Column("share", "of GEMM time", "share", bar=True),
            ),
            frames.paths,
        ),
        Table(
            "unchanged",
            "What stays in FP32, and what autocast adds, in one step",
            (
                HEADINGS[0],
                HEADINGS[2],
                *(
                    Column(f"{key}_elements_ns", f"elementwise, {element_types.ELEMENT_TYPES[key]}", "ms")
                    for key in ELEMENTS
                ),
                Column("casts", "casts", "count"),
                Column("cast_ns", "casts", "ms"),
                Column("launches", "launches", "count"),
                Column("copied_bytes", "copied on the device", "bytes"),
                Column("peak_memory_bytes", "peak allocated", "bytes"),
            ),
            frames.cases,
        ),
    ]


def _use_tables(frames: PrecisionData) -> list[Table]:
    return [
        Table(
            "use",
            "Model FLOPs over time, against what the machine can multiply",
            (
                *HEADINGS,
                Column("step_rate", "of the step", "tflops"),
                Column("mfu_measured", "MFU of measured peak", "share", absent="n/a: not calibrated"),
                Column("mfu_sheet", "MFU of data sheet's peak", "share", absent="n/a: GPU not listed"),
                Column("gemm_rate", "of GEMM alone", "tflops"),
                Column("gemm_use", "GEMM, of measured peak", "share", bar=True, absent="n/a: not calibrated"),
            ),
            frames.cases,
        ),
        Table(
            "numerics",
            "One forward pass against the same weights in FP32, before training",
            (
                *HEADINGS,
                Column("loss", "loss", "number"),
                Column("loss_fp32", "loss, FP32", "number"),
                Column("loss_millionths", "loss difference, millionths", "count"),
                Column("logits_millionths", "logits: typical difference, millionths", "count"),
                Column("logits_max_millionths", "largest, millionths", "count"),
            ),
            frames.numerics,
        ),
    ]


def _title_of_speedups(lower: pd.DataFrame) -> str:
    known = lower[lower["quotable"]].groupby("precision", sort=False)["step_speedup"]
    parts = [f"{ratios_of(of)} as fast in {str(name).upper()}" for name, of in known if len(of)]
    return f"A training step is {' and '.join(parts)} as in FP32" if parts else "Speed-up over FP32"


def _charts(frames: PrecisionData) -> list[Chart]:
    by = ["size", "precision"]
    parts = {f"{part}_speedup": label for part, label in PARTS.items()}
    speedups = frames.lower.melt([*by, "run_id"], list(parts), var_name="clock", value_name="value")
    speedups["clock"] = speedups["clock"].map(parts)
    speedups["precision"] = speedups["precision"].map(LABELS)
    options = {"order": [*PARTS.values()], "by": by, "unit": "times as fast as FP32 (log scale)", "value": "value"}
    families = set(frames.shares["family"])
    return [
        Chart("speedup", "dumbbell", _title_of_speedups(frames.lower), speedups, options=options),
        Chart(
            "mix",
            "stacked_shares",
            _title_of_mix(frames.shares),
            frames.shares.assign(precision=frames.shares["precision"].map(LABELS)),
            options={"order": [key for key in kernel_families.FAMILIES if key in families], "by": by},
        ),
    ]


def _title_of_mix(shares: pd.DataFrame) -> str:
    """What the figure shows of GEMMs: their part in each precision, least and most."""
    of_precision = shares[shares["family"] == GEMM].groupby("precision")["share"]
    parts = [
        f"{format_percent_span(of_precision.get_group(name))} in {label}"
        for name, label in LABELS.items()
        if name in of_precision.groups
    ]
    return f"GEMMs take this part of a training step's kernel time: {', '.join(parts) or 'none'}"


# ---------------------------------------------------------------- facts of the claims


def _span_by_precision(*names: str, slower: dict[str, str] | None = None) -> Callable[[pd.DataFrame], dict[str, Any]]:
    """Lowest and highest of each column for each precision, `of`: {label: {name: (low, high)}}, and the label of the
    `slower` one; and `contexts` and `sizes`."""

    def facts(rows: pd.DataFrame) -> dict[str, Any]:
        by_label: dict[str, dict[str, tuple[float, float] | str]] = {}
        for precision, part in rows.groupby("precision", sort=False):
            by_label[LABELS[precision]] = {name: span(part[name]) for name in names}
            if slower:
                by_label[LABELS[precision]]["slower"] = LABELS[slower[precision]]
        contexts, sizes = sorted(rows["context_length"].unique()), list(dict.fromkeys(rows["size"].astype(str)))
        return {"of": by_label, "contexts": contexts, "sizes": sizes}

    return facts


def _count_by_family(rows: pd.DataFrame, num_all: int) -> dict[str, Any]:
    """Speed-up and number of cases of each family, the most common first."""
    of = [
        {"family": family, "speedup": span(part["speedup"]), "num_cases": len(part)}
        for family, part in rows.groupby("family", sort=False, observed=True)
    ]
    return {"of": sorted(of, key=lambda row: -row["num_cases"]), "num_all": num_all}


def _gemms_gain(rows: pd.DataFrame) -> bool:
    return bool((rows["gemms_speedup"] > 1).all())


def _is_rest_gaining(rows: pd.DataFrame) -> bool:
    return bool((rows["rest_speedup"] >= UNCHANGED).any())


def _only_multiplies(rows: pd.DataFrame) -> bool:
    unchanged = (rows["copied_bytes"] == rows["copied_bytes_fp32"]) & (rows["casts"] == 0)
    return bool((unchanged & (rows["rest_speedup"] < UNCHANGED)).all())


def _is_as_declared(paths: pd.DataFrame) -> bool:
    return bool((paths["path"] == paths["precision"]).all())


def _proof(paths: pd.DataFrame) -> dict[str, Any]:
    return {
        "num_gemms": paths["gemms"].sum(),
        "num_runs": paths["run_id"].nunique(),
        "inferred": (paths["gemms"] * paths["inferred_share"]).sum() / paths["gemms"].sum(),
    }


def _falls(rows: pd.DataFrame) -> bool:
    best = [row["mfu_measured"] for row in _find_best_use(rows)["best"]]
    return len(best) > 1 and best == sorted(best, reverse=True)


def _find_best_use(rows: pd.DataFrame) -> dict[str, Any]:
    best = rows.loc[rows.groupby("precision", sort=False)["mfu_measured"].idxmax()]
    return {"best": [row | {"label": LABELS[row["precision"]]} for row in best.to_dict("records")]}


def _measure_coarseness(rows: pd.DataFrame) -> dict[str, Any]:
    bits = FRACTION_BITS["tf32"] - FRACTION_BITS["bf16"]
    return {"times": span(rows["times"]), "bits": bits, "expected": 2**bits}
