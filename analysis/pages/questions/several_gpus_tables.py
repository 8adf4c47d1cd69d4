"""The tables and charts of page (w) on several GPUs."""

import numpy as np
import pandas as pd

from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.questions.several_gpus_data import SeveralGpusData
from profiler_job.analysis.render.answer import Chart, Column, Table
from profiler_job.jobs.contract.axes import find_value_label

COMMON = ("precision", "attention", "compile", "optimizer", "batch_size")
"""Axes that name a case where they vary."""
MOST_LINES = 4


def build_tables(frames: SeveralGpusData) -> list[Table]:
    varying = [name for name in (*COMMON, "exchange") if name in frames.cases and frames.cases[name].nunique() > 1]
    shown = [name for name in ("precision", "attention", "optimizer") if name in frames.cases]
    others = [name for name in (*COMMON, "exchange") if name in {*shown, *varying}]
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
                Column("longer_ns", "longer, without optimizer", "ms", absent="base"),
                Column("slower_ns", "computing kernels, longer", "ms", absent="base"),
                Column("rest_ns", "the rest of that", "ms", absent="base"),
                *_columns_where_known(frames.cases, Column("silent_ns", "without exchange", "ms", absent="n/a")),
                Column("peak_memory_bytes", "peak allocated, of a GPU", "bytes"),
            ),
            frames.cases,
        ),
        Table(
            "communication",
            "Communication in a step of one GPU",
            (
                *case,
                Column("waiting_ns", "waiting", "ms", absent="n/a"),
                Column("transfer_ns", "transfer", "ms", absent="n/a"),
                Column("hidden_ns", "hidden", "ms"),
                Column("exposed_ns", "exposed", "ms"),
                Column("critical_ns", "critical", "ms", absent="n/a"),
                Column("exposed_share", "exposed ÷ step under nsys", "share", bar=True),
                Column("issue_share", "CPU issues work", "share", absent="n/a"),
                Column("limit", "limited by", absent="n/a"),
                Column("profiled_ratio", "nsys ÷ timer", "ratio"),
                Column("slowed", "matmuls, overlapped ÷ alone", "ratio", absent="n/a"),
            ),
            of_several,
        ),
        Table(
            "ranks",
            "Each rank in a step",
            (
                *case,
                Column("rank", "rank", "number"),
                Column("waiting_ns", "waiting", "ms", absent="n/a"),
                Column("transfer_ns", "transfer", "ms", absent="n/a"),
                Column("exposed_ns", "exposed", "ms"),
                Column("kept_waiting_ns", "others waited for it", "ms", absent="n/a"),
                Column("peak_bytes", "peak allocated", "bytes", absent="n/a"),
            ),
            frames.ranks,
        ),
        Table(
            "changed",
            "Other exchanges",
            (
                *case,
                Column("usual_ns", "step, default", "ms"),
                spread_column("step", "step, changed"),
                Column("gain", "default ÷ changed", "ratio"),
                Column("exposed_ns", "exposed", "ms", absent="n/a"),
                Column("peak_memory_bytes", "peak allocated, of a GPU", "bytes"),
            ),
            frames.changed,
        ),
        *_tables_of_link(frames, case),
    ]


def _columns_where_known(rows: pd.DataFrame, column: Column) -> tuple[Column, ...]:
    """The column if a row has a value for it."""
    return (column,) if rows[column.key].notna().any() else ()


_RATES = (
    Column("transfer_ns", "transfer", "ms", absent="n/a"),
    Column("bus_rate", "rate over the link", "byte_rate", absent="n/a"),
    Column("link_share", "÷ alone", "share", bar=True, absent="n/a"),
)


def _tables_of_link(frames: SeveralGpusData, case: tuple[Column, ...]) -> list[Table]:
    """Collectives, their messages, and what the link gives alone."""
    return [
        Table(
            "collectives",
            "Collectives in a step of one GPU, and the link",
            (
                *case,
                Column("collective", "collective", "code"),
                Column("calls", "calls", "count"),
                Column("bytes", "messages", "bytes", absent="not recorded"),
                *_RATES,
            ),
            frames.collectives,
        ),
        Table(
            "messages",
            "Collectives by size of the message, in a step of one GPU",
            (
                *case,
                Column("collective", "collective", "code"),
                Column("message_bytes", "message", "mib"),
                Column("calls", "calls", "count"),
                Column("waiting_ns", "waiting", "ms", absent="n/a"),
                *_RATES,
            ),
            frames.messages,
        ),
        Table(
            "link",
            "The link between the GPUs, a collective alone",
            (
                Column("collective", "collective", "code"),
                Column("gpus", "GPUs", "count"),
                Column("size_bytes", "message of all GPUs", "bytes"),
                Column("bus_rate", "rate over the link of each GPU", "byte_rate"),
                Column("bus_rate_low", "lowest", "byte_rate"),
                Column("bus_rate_high", "highest", "byte_rate"),
                Column("num_runs", "runs", "count"),
            ),
            frames.link,
        ),
    ]


def build_charts(frames: SeveralGpusData) -> list[Chart]:
    split = frames.several
    parts = {"exposed_ns": "exposed", "hidden_ns": "hidden"}
    rows = pd.concat(
        [
            split.assign(
                scope=name,
                ms=split[column],
                way=[find_value_label("parallel", way) for way in split["parallel"]],
                share=split[column] / split["profiled_ns"],
            )
            for column, name in parts.items()
        ]
        if len(split)
        else [split.assign(scope="", share=np.nan)]
    )
    options = {
        "order": list(dict.fromkeys(rows["scope"])),
        "by": [name for name in ("size", "context_length", "precision", "parallel") if name in rows],
        "unit": "% of the step under nsys",
    }
    return [
        *_charts_of_lines(frames),
        Chart("parts", "grouped_bars", "Communication, exposed and hidden, in a training step", rows, options=options),
    ]


def _charts_of_lines(frames: SeveralGpusData) -> list[Chart]:
    """Speed-up over the number of GPUs of the case with most ways, and the rate of all-reduces over their size; none
    where nothing varies."""
    charts = []
    several = frames.several
    by = [name for name in ("size", "context_length", "precision", "attention") if name in several]
    if len(several) and several["gpus"].nunique() > 1:
        most = max((rows for _, rows in several.groupby(by, sort=False)), key=len)
        compiled = most["compile"].astype(str) if "compile" in most else pd.Series("off", most.index)
        ways = [
            find_value_label("parallel", way) + ("" if how == "off" else ", compiled")
            for way, how in zip(most["parallel"], compiled)
        ]
        points = most[["gpus", "speedup"]].assign(clock=ways, note="")
        chosen = points[points["clock"].isin(points["clock"].drop_duplicates()[:MOST_LINES])]
        starts = pd.DataFrame({"clock": chosen["clock"].drop_duplicates(), "gpus": 1, "speedup": 1.0, "note": ""})
        order = list(starts["clock"])
        options = {"order": order, "value": "speedup", "unit": "tokens/s ÷ one GPU", "x": "gpus", "x_title": "GPUs"}
        title = f"Tokens a second, relative to one GPU ({most['size'].iloc[0]})"
        charts.append(Chart("scaling", "lines", title, pd.concat([starts, chosen]), options=options))
    reduced = frames.link[frames.link["collective"] == "AllReduce"]
    if reduced["size_bytes"].nunique() > 1:
        points = reduced.assign(
            clock=[f"{gpus} GPUs" for gpus in reduced["gpus"]],
            note="",
            mib=reduced["size_bytes"] / 2**20,
            rate=reduced["bus_rate"] / 1e9,
        )
        order = list(points.sort_values("gpus")["clock"].drop_duplicates())[:MOST_LINES]
        options = {"order": order, "value": "rate", "unit": "GB/s", "x": "mib", "x_title": "message in MiB"}
        rows = points[points["clock"].isin(order)].sort_values("size_bytes")
        charts.append(Chart("grid", "lines", "Bus bandwidth of an all-reduce alone", rows, options=options))
    return charts
