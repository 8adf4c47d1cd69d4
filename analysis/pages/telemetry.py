"""The machine while it measured: host speed, clocks, power, energy, and what tokens cost."""

from dataclasses import dataclass
from datetime import date
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import gpu_samples as machine
from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract.axes import find_value_label
from profiler_job.jobs.contract.slow_processes import SLOW_HOST

SLUG = "telemetry"
TITLE = "Telemetry"

SHOWN = {"tokens_per_s": 0, "watts": 0, "joules": 2, "joules_per_1k": 2, "cost_per_million": 4}
"""Decimals: the counter of energy ticks in millijoules, and processes differ by more."""


@dataclass(frozen=True)
class Price:
    """What the GPUs of one run cost for an hour, in any currency, and the day on which that was said."""

    per_hour: float
    on: date


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    processes: pd.DataFrame,
    telemetry: pd.DataFrame,
    price: Price | None = None,
) -> Answer:
    """State of the machine during each finished run, and what follows for energy, and for money where a price is given.

    See `analysis.metrics.gpu_samples` for the columns.
    """
    rows = machine.summarise_runs(runs, steps, processes, telemetry, price.per_hour if price else None)
    finished = set(rows["run_id"])
    read = machine.summarise_processes(processes, telemetry)
    read = read[read["run_id"].isin(finished)].reset_index(drop=True)
    cases = run_grid.case_columns(runs)
    facts = {
        "slow_host": SLOW_HOST,
        "price": price,
        "has_energy": bool(rows["joules"].notna().any()),
        "has_state": bool((rows["num_read"] > 0).any() or rows["samples"].sum()),
    }
    beside = machine.compare_slow_hosts(steps, processes, telemetry)
    beside = beside[beside["run_id"].isin(finished)].reset_index(drop=True)
    named = rows[["run_id", *cases, "mode"]]
    return assemble(
        facts, _claims(rows, read, beside.merge(named, on="run_id")), _tables(rows, cases, facts), _charts(rows, cases)
    )


def rounded(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns SHOWN with as many decimals as are shown."""
    return rows.round({name: digits for name, digits in SHOWN.items() if name in rows})


def cost_columns(price: Price | None) -> list[Column]:
    """The column of what tokens cost; none without a price."""
    return [Column("cost_per_million", "price of 1M tokens", "number", absent="n/a")] * (price is not None)


def _claims(rows: pd.DataFrame, read: pd.DataFrame, beside: pd.DataFrame) -> list[Claim]:
    hosts = read.dropna(subset=["loop_ns"])
    sampled = read[read["samples"] > 0]
    lowered = rows[rows["lowered"] > 0].sort_values("lowest_mhz", kind="stable", ignore_index=True)
    energy = rows.dropna(subset=["joules_per_1k"]).sort_values("joules_per_1k", kind="stable", ignore_index=True)
    of_last_mode = energy[energy["mode"].astype(str) == str(rows["mode"].iloc[-1])] if len(rows) else energy
    return [
        Claim("slow_hosts", hosts, lambda rows: rows["slow_host"].any(), facts=_describe_hosts),
        Claim("even_hosts", hosts, lambda rows: not rows["slow_host"].any(), facts=_describe_hosts),
        Claim("slower_steps", beside, lambda rows: rows["ratio"].iloc[-1] > 1, facts=_describe_ratios),
        Claim("lowered", lowered, facts=lambda claimed: _describe_clocks(claimed, rows)),
        Claim("not_lowered", sampled, lambda rows: not len(lowered)),
        Claim("energy", of_last_mode, lambda rows: len(rows) > 1, facts=_ends),
    ]


def _describe_hosts(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "num_slow": int(rows["slow_host"].sum()),
        "low_ns": rows["loop_ns"].min(),
        "high_ns": rows["loop_ns"].max(),
    }


def _describe_ratios(rows: pd.DataFrame) -> dict[str, Any]:
    return {"median": rows["ratio"].median(), "high": rows.iloc[-1].to_dict()}


def _describe_clocks(claimed: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "num_all": int((rows["samples"] > 0).sum()),
        "low": claimed.iloc[0].to_dict(),
        "reasons": list(dict.fromkeys(word for text in claimed["reasons"] for word in text.split(", "))),
    }


def _ends(rows: pd.DataFrame) -> dict[str, Any]:
    return {"low": rows.iloc[0].to_dict(), "high": rows.iloc[-1].to_dict()}


def _charts(rows: pd.DataFrame, cases: list[str]) -> list[Chart]:
    """What 1,000 tokens take in each case, by mode."""
    known = rows.dropna(subset=["joules_per_1k"])
    known = known.assign(clock=[str(find_value_label("mode", mode)) for mode in known["mode"]])
    modes = list(dict.fromkeys(known["clock"]))
    title = "Energy of 1,000 tokens"
    if len(known) > 1:
        least, most = (f"{joules:,.3g}" for joules in (known["joules_per_1k"].min(), known["joules_per_1k"].max()))
        title = f"1,000 tokens take {least} to {most} J, over all modes"
    options = {"order": modes, "by": cases, "value": "joules_per_1k", "unit": "J (log scale)", "sign": " J"}
    return [Chart("energy", "dumbbell", title, known, options=options)]


def _tables(rows: pd.DataFrame, cases: list[str], facts: dict[str, Any]) -> list[Table]:
    headings = (*case_headings(cases), Column("mode", "mode"))
    shares = rows.assign(lowered_share=rows["lowered"] / rows["samples"].where(rows["samples"] > 0))
    return [
        Table(
            "energy",
            "Throughput and energy",
            (
                *headings,
                Column("tokens_per_s", "tokens/s", "count", absent="n/a"),
                Column("joules", "J a step", "count", absent="n/a"),
                Column("joules_per_1k", "J per 1,000 tokens", "count", absent="n/a"),
                Column("watts", "W", "count", absent="n/a"),
                *cost_columns(facts["price"]),
            ),
            rounded(rows),
        ),
        Table(
            "machine",
            "Hosts and clocks",
            (
                *headings,
                Column("loop_ns", "plain loop", "ms", lower="loop_low_ns", upper="loop_high_ns", absent="n/a"),
                Column("num_slow", "on slow hosts", "count"),
                Column("num_read", "processes", "count"),
                Column("lowest_mhz", "lowest SM clock, MHz", "count", absent="n/a"),
                Column("lowered_share", "clock held down", "share", absent="n/a"),
                Column("reasons", "by"),
                Column("hottest", "°C at most", "count", absent="n/a"),
            ),
            shares,
        ),
    ]
