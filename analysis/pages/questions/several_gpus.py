"""(w) What does a second GPU give, and what does communication cost?"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.answer import NOT_MEASURED, Answer, Chart, Claim, Column, Table, assemble
from analysis.metrics import differences, run_grid, timing
from analysis.metrics.differences import Bands
from analysis.metrics.exchange import communication_of
from analysis.pages.columns import band_column, case_headings, spread_column
from analysis.pages.facts import extremes, many, noise_of, out_of, span
from jobs.contract import ranges
from jobs.contract.axes import label_of_value

SLUG = "several-gpus"
TITLE = "What does a second GPU give, and what does communication cost?"
STUDY = "gpus"

MODE = "train_step"
WAYS = ("none", "ddp", "fsdp")
HIDES_WELL = 0.05
"""Exposed communication below this part of a step is called hidden."""


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    bands: Bands | None = None,
) -> Answer:
    """A training step on one GPU against the same step on several, each of which has the batch of the one: with
    DistributedDataParallel, and with parameters in parts (FSDP).

    The step is timed by Python without a profiler, and is that of the slowest rank; tokens of a step are those of all
    GPUs. Efficiency is tokens a second over those of as many single GPUs. Communication is of the captures, mean of
    steps and ranks, split as `analysis.communication` says.
    """
    frames = _frames(runs, steps, kernels, bands)
    return assemble({"noise": noise_of(bands)}, _claims(frames), _tables(frames), _charts(frames))


@dataclass(frozen=True, kw_only=True)
class Frames:
    cases: pd.DataFrame
    """One row per case, number of GPUs and way to share the work."""

    @property
    def several(self) -> pd.DataFrame:
        """Measured ones of several GPUs of which one GPU alone was measured, too."""
        rows = self.cases[(self.cases[NOT_MEASURED] == "") & (self.cases["gpus"] > 1)]
        return rows[rows["efficiency"].notna()]

    @property
    def split(self) -> pd.DataFrame:
        """Those whose communication is split into waiting and transfer."""
        return self.several[self.several["waiting_ns"].notna()]


def _frames(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, bands: Bands | None) -> Frames:
    cases = run_grid.cases_along(runs, MODE, "parallel", list(WAYS))
    if "gpus" not in cases:
        cases["gpus"] = int(runs["gpus"].iloc[0])
    cases["gpus"] = cases["gpus"].astype(int)
    of_run = runs[["run_id", *sorted({"batch_size", "peak_memory_bytes"} - {*cases})]].astype({"run_id": str})
    times = timing.host_times(steps, "timer", "step")
    times = times[times["phase"] == ranges.STEP].drop(columns="phase")
    for part in (of_run, times, communication_of(kernels)):
        cases = cases.merge(part, how="left", on="run_id")
    cases["tokens_per_s"] = run_grid.tokens_per_s(cases, cases["step_ns"])
    for name in ("waiting", "transfer", "exposed", "hidden"):
        cases[f"{name}_share"] = cases[f"{name}_ns"] / cases["step_ns"]
    return Frames(cases=_against_one(cases, bands))


def _against_one(cases: pd.DataFrame, bands: Bands | None) -> pd.DataFrame:
    """`cases` with the same case on one GPU beside them ({column}_1), efficiency, and what the step takes more."""
    by = [name for name in ("size", "context_length", *run_grid.VARIANT_AXES) if name in cases]
    by = [name for name in by if name not in ("gpus", "parallel", "batch_size")]
    clock = [f"step_{end}" for end in ("ns", "min_ns", "max_ns", "n")]
    single = cases[cases["gpus"] == 1][[*by, *clock, "tokens_per_s", "peak_memory_bytes"]]
    table = cases.merge(single, how="left", on=by, suffixes=("", "_1"), validate="m:1")
    is_several = table["gpus"] > 1
    table["speedup"] = (table["tokens_per_s"] / table["tokens_per_s_1"]).where(is_several)
    table["efficiency"] = table["speedup"] / table["gpus"]
    table["memory_ratio"] = (table["peak_memory_bytes"] / table["peak_memory_bytes_1"]).where(is_several)
    renamed = table.rename(columns={f"{name}_1": name.replace("step", "one") for name in clock})
    band = bands.wall if bands else None
    table["step_band_ns"] = differences.half_band_ns(renamed, "step", "one", band).where(is_several)
    return table


def _claims(frames: Frames) -> list[Claim]:
    several, split = frames.several, frames.split
    shown = ("gpus", "parallel", "tokens_per_s_1", "tokens_per_s", "speedup", "efficiency")
    of_step = ("gpus", "parallel", "exposed_ns", "step_ns", "exposed_share")
    exposed = several[several["exposed_share"] >= HIDES_WELL]
    waits = split[split["waiting_ns"] > split["transfer_ns"]]
    slowed = several[several["slowed"].notna()]
    sharded = several[several["parallel"] == "fsdp"]
    return [
        Claim("gives", _only(several, *shown), facts=_gives),
        Claim("range", _only(several, *shown), facts=extremes("efficiency")),
        Claim("exposed", _only(exposed, *of_step), many(several), facts=out_of(several, _most_exposed)),
        Claim(
            "hidden",
            _only(several, *of_step),
            lambda rows: (rows["exposed_share"] < HIDES_WELL).all(),
            facts=extremes("exposed_share"),
        ),
        Claim(
            "waiting",
            _only(waits, "gpus", "parallel", "waiting_ns", "transfer_ns"),
            many(split),
            facts=out_of(split, extremes("waiting_ns")),
        ),
        Claim(
            "slowed",
            _only(slowed, "gpus", "parallel", "slowed"),
            lambda rows: (rows["slowed"] > 1).any(),
            facts=extremes("slowed"),
        ),
        Claim(
            "memory",
            _only(sharded, "gpus", "parallel", "peak_memory_bytes_1", "peak_memory_bytes", "memory_ratio"),
            lambda rows: (rows["memory_ratio"] < 1).all(),
            facts=extremes("memory_ratio"),
        ),
    ]


def _only(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """As `run_grid.only`, each column once."""
    case = [name for name in ("size", "context_length", *run_grid.VARIANT_AXES, "run_id") if name in rows]
    return rows[list(dict.fromkeys([*case, *names]))]


def _most_exposed(rows: pd.DataFrame) -> dict:
    return {"least": HIDES_WELL, **extremes("exposed_share")(rows)}


def _gives(rows: pd.DataFrame) -> dict:
    return {"most": int(rows["gpus"].max()), "speedup": span(rows["speedup"]), "efficiency": span(rows["efficiency"])}


def _tables(frames: Frames) -> list[Table]:
    others = [name for name in ("precision", "attention", "optimizer") if name in frames.cases]
    case = case_headings(["size", "context_length", *others, "gpus", "parallel"], linked=False)
    of_several = frames.cases[frames.cases["gpus"] > 1]
    return [
        Table(
            "steps",
            "A training step on one GPU and on several",
            (
                *case,
                spread_column("step", "step, unprofiled"),
                band_column("step_band_ns"),
                Column("tokens_per_s", "tokens/s", "count"),
                Column("speedup", "÷ one GPU", "ratio", absent="base"),
                Column("efficiency", "efficiency", "share", bar=True, absent="base"),
                Column("peak_memory_bytes", "peak allocated, of a GPU", "bytes"),
            ),
            frames.cases,
        ),
        Table(
            "communication",
            "Communication in a step of one GPU",
            (
                *case,
                Column("kernel_ns", "kernel time", "ms"),
                Column("waiting_ns", "waiting", "ms", absent="n/a"),
                Column("transfer_ns", "transfer", "ms", absent="n/a"),
                Column("hidden_ns", "hidden", "ms"),
                Column("exposed_ns", "exposed", "ms"),
                Column("exposed_share", "exposed ÷ step", "share", bar=True),
                Column("slowed", "matmuls beside it ÷ alone", "ratio", absent="n/a"),
            ),
            of_several,
        ),
    ]


def _charts(frames: Frames) -> list[Chart]:
    split = frames.several
    parts = {"exposed_ns": "exposed", "hidden_ns": "hidden"}
    rows = pd.concat(
        [
            split.assign(
                scope=name,
                ms=split[column],
                way=[label_of_value("parallel", way) for way in split["parallel"]],
                share=split[column] / split["step_ns"],
            )
            for column, name in parts.items()
        ]
        if len(split)
        else [split.assign(scope="", share=np.nan)]
    )
    options = {
        "order": list(dict.fromkeys(rows["scope"])),
        "by": ["size", "context_length", "parallel"],
        "unit": "% of the step",
    }
    return [
        Chart("parts", "grouped_bars", "Communication, exposed and hidden, in a training step", rows, options=options)
    ]
