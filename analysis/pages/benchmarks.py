"""How fast the job and the reader are, against what they promise: numbers from the benchmarks' own files."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.render.answer import Answer, Column, Table, assemble

SLUG = "benchmarks"
TITLE = "Benchmarks"
Facts = Mapping[str, Any]
NOTHING: Facts = MappingProxyType({})
OUTCOMES = {"whole": "went on, whole", "told": "told the error", "killed": "killed"}
"""How a step that met a fault ended."""


def answer(job: Facts, reader: Facts, faults: Facts = NOTHING, site: Facts = NOTHING) -> Answer:
    """What `tests.bench`, `tests.bench.sweep_speed`, `tests.bench.site_speed` and `tests.faults` wrote; a part that was
    not run is absent, not estimated.

    faults: one row for each step, with its points by kind and how the strikes ended. reader: one row for each tool,
    container and size. pages: one row for each page and width. targets: every promise with its limit, what was measured
    and whether it is met. gpu parts: wall times in seconds. Facts name the machines and dates; growth: how many times
    the time and the memory of the small capture the large one took, for each container.
    """
    tables = [
        *_tables(job, reader, site),
        *_page_tables(site.get("pages", [])),
        *_fault_tables(faults.get("steps", {})),
    ]
    names = {"machine": reader.get("machine"), "nsys_ai": reader.get("nsys_ai"), "read": reader.get("recorded")}
    facts = {name: job.get(name) for name in ("whole", "process_per_run", "gpus")} | names
    facts["site"] = {name: site[name] for name in ("machine", "recorded", "repeat") if site}
    facts |= {"growth": reader.get("growth", [])}
    facts |= {"nsys_stats": reader.get("nsys_stats"), "shown": [table.key for table in tables]}
    return assemble(facts, [], tables, [])


def _tables(job: Facts, reader: Facts, site: Facts) -> list[Table]:
    rows = pd.DataFrame(reader.get("results", []))
    promised = pd.DataFrame([*_job_targets(job), *(row for part in (reader, site) for row in part.get("targets", []))])
    parts = [{"part": name, "seconds": value} for name, value in job.get("whole", {}).get("parts_s", {}).items()]
    tables = []
    columns: tuple[Column, ...]
    if len(promised):
        promised["unit"] = promised["what"].map(_unit)
        columns = (
            Column("what", "promise", "prose"),
            Column("limit", "limit", "quantity"),
            Column("measured", "measured", "quantity", absent="not measured"),
            Column("met", "met", "yes_no"),
        )
        tables.append(Table("targets", "Promises", columns, promised))
    if len(rows):
        columns = (
            Column("tool", "tool"),
            Column("container", "from"),
            Column("kernels", "kernels", "count"),
            Column("seconds", "time", "seconds"),
            Column("peak_bytes", "peak resident memory", "bytes"),
            Column("kernels_counted", "kernels counted", "count"),
        )
        if "problem" in rows:
            columns += (Column("problem", "why not measured", "prose"),)
            rows["problem"] = rows["problem"].fillna("")
        tables.append(Table("reader", "Reading, attributing and summarising generated captures", columns, rows))
    if parts:
        columns = (Column("part", "part"), Column("seconds", "time", "seconds"))
        tables.append(Table("parts", "Parts of the whole job", columns, pd.DataFrame(parts)))
    return tables


def _page_tables(pages: list[Facts]) -> list[Table]:
    columns = (
        Column("page", "page"),
        Column("width", "width in pixels", "count"),
        Column("bytes", "HTML", "bytes"),
        Column("paint_s", "largest paint (median)", "seconds"),
        Column("longest_s", "longest", "seconds"),
    )
    return [Table("pages", "Pages in a browser", columns, pd.DataFrame(pages))] if pages else []


def _fault_tables(steps: Facts) -> list[Table]:
    kinds = list(dict.fromkeys(kind for result in steps.values() for kind in result["points"]))
    rows = [
        {"step": step, **{kind: result["points"].get(kind, 0) for kind in kinds}, "struck": result["struck"]}
        | {outcome: result["outcomes"].get(outcome, 0) for outcome in OUTCOMES}
        | {"wrong": len(result["wrong"]), "recorded": result["recorded"][:10], "commit": result["commit"]}
        for step, result in steps.items()
    ]
    columns = (
        Column("step", "step"),
        *(Column(kind, kind, "count") for kind in kinds),
        Column("struck", "faults", "count"),
        *(Column(outcome, words, "count") for outcome, words in OUTCOMES.items()),
        Column("wrong", "not whole in the end", "count"),
        Column("commit", "at commit"),
    )
    return [Table("faults", "Faults by step", columns, pd.DataFrame(rows))] if rows else []


def _unit(what: str) -> str:
    """Unit of a promise, told from its words."""
    endings = {"seconds": "s", "bytes": "bytes"}
    starts = {"share": "share", "largest change": "share", "times": "ratio"}
    units = [unit for word, unit in endings.items() if what.endswith(word)]
    units += [unit for word, unit in starts.items() if what.startswith(word)]
    return (units or [""])[0]


def _job_targets(job: Facts) -> list[dict[str, Any]]:
    """Promises of the job that were measured; the one about kernel times is an upper limit, the others lower ones. A
    part's `note` says that an earlier version of the job was measured."""
    promises = (
        ("whole", "gpu_busy_share", "share of the whole job in which the GPU is busy, at least"),
        ("process_per_run", "process_per_run_ratio", "times the speed of a new process for each stage, at least"),
        ("gpus", "gpus_ratio", "times the throughput on two GPUs, at least"),
        ("gpus", "kernel_time_difference", "largest change of a run's kernel time on two GPUs, at most"),
    )
    rows = []
    for part, name, what in promises:
        if part in job:
            limit, measured = job["targets"][name], job[part][name]
            if measured is None:  # every run was lost
                measured, met = float("nan"), False
            else:
                met = abs(measured) <= limit if what.endswith("at most") else measured >= limit
            earlier = " (an earlier version)" if job[part].get("note") else ""
            rows.append({"what": what + earlier, "limit": limit, "measured": measured, "met": met})
    return rows
