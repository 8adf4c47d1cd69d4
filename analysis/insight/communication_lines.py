"""What communication costs, in sentences: what of it is waiting, what computation hides, who came last and why."""

from typing import NamedTuple

import pandas as pd

from profiler_job.analysis.insight.section_columns import SummaryTables
from profiler_job.analysis.insight.short_names import shorten
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_quantity, format_time
from profiler_job.jobs.contract.words import format_count

MOST_GPUS = 8
"""So many GPUs have a sentence each; of more the tables tell."""
LEAST_SHARE = 0.1
"""Share of the communication kernels' time that others must have waited for a GPU to be worth a sentence."""
LOOK_AT_CPU = "Look at what the CPU of its rank does first: faster kernels on the others would only wait longer"
"""What to do if others wait for a GPU whose CPU is late."""
LEAST_SLOWED = 1.05
"""Least ratio of a matmul's time during communication to its time alone that is worth a sentence."""
LEAST_CAUSE = 0.25
"""Least part of what each of the others waited in the mean that a kernel or line must explain to be named."""
LONGEST_NAME = 60


def describe_communication(summary: SummaryTables) -> list[str]:
    """Format lines of plain text; none if no kernel communicates."""
    rows, facts = summary.sections["communication"], summary.capture
    if not len(rows):
        return []
    shown = rows if len(rows) <= MOST_GPUS else rows.nlargest(MOST_GPUS, "exposed_ns").sort_index()
    causes = Causes(summary.sections["late_kernels"], summary.sections["waits"], len(rows))
    lines = _describe_rows(shown, facts["no_waiting_because"] or "", causes)
    if not facts["no_waiting_because"] and facts["ranks_apart_ns"] is not None:
        ranks = format_count(facts["communication_ranks"], "rank")
        apart = format_time(facts["ranks_apart_ns"])
        lines.append(
            f"The clocks agree: the same collectives end within {apart} of one another on {ranks}, in the median"
        )
    return lines


class Causes(NamedTuple):
    """What may make a GPU late: late_kernels, of the section of this name; waits, lines of the script that GPUs wait
    for, each with the GPU that waits for it longest; and the number of GPUs."""

    late_kernels: pd.DataFrame
    waits: pd.DataFrame
    num_gpus: int


NO_CAUSES = Causes(pd.DataFrame({"gpu": []}), pd.DataFrame({"gpu": []}), 0)


def describe_ranks(rows: pd.DataFrame, causes: Causes = NO_CAUSES) -> list[str]:
    """The same of one step of a run. rows: of `exchange.sum_by_gpu`."""
    if not len(rows):
        return []
    shown = rows if len(rows) <= MOST_GPUS else rows.nlargest(MOST_GPUS, "exposed_ns").sort_index()
    return _describe_rows(shown, "".join(rows["unknown"].unique()), causes._replace(num_gpus=len(rows)))


def _describe_rows(rows: pd.DataFrame, why_not: str, causes: Causes) -> list[str]:
    lines = [_describe_gpu(row) for _, row in rows.iterrows()]
    if why_not:
        return [*lines, f"How much of communication is waiting is not known: {why_not}"]
    lines += [line for _, row in rows.iterrows() if (line := _describe_last(row, causes))]
    return lines + [line for _, row in rows.iterrows() if (line := _describe_matmuls(row))]


def _describe_gpu(row: pd.Series) -> str:
    time = {name: format_time(row[f"{name}_ns"]) for name in ("kernel", "hidden", "exposed")}
    line = f"GPU {row['gpu']:.0f}: communication {time['kernel']} in {format_count(round(row['calls']), 'kernel')}"
    if not pd.isna(row["waiting_ns"]):
        waiting, transfer = (format_time(row[name]) for name in ("waiting_ns", "transfer_ns"))
        line += f", {waiting} of it waiting for other ranks, {transfer} transfer"
    line += f"; computation hides {time['hidden']}, and {time['exposed']} is exposed"
    parts = {"waiting": row["exposed_waiting_ns"], "critical": row["critical_ns"]}
    if said := ", ".join(f"{format_time(time)} {part}" for part, time in parts.items() if not pd.isna(time)):
        line += f" ({said})"
    return line


def _describe_last(row: pd.Series, causes: Causes) -> str:
    """Describe what a GPU did while others waited for it, if they waited long enough, and the kernel or the line of the
    script that makes it late."""
    kept = row["kept_waiting_ns"]
    if pd.isna(kept) or kept < LEAST_SHARE * row["kernel_ns"] or not kept:
        return ""
    computing, late = row["kept_computing_ns"], row["kept_late_ns"]
    parts = {f"it computed {format_time(computing)}": computing}
    parts |= {f"for {format_time(late)} it idled because its host had not launched the collective yet": late}
    said = ", and ".join(text for text, time in sorted(parts.items(), key=lambda part: -part[1]) if time)
    line = f"Others waited {format_time(kept)} for GPU {row['gpu']:.0f}" + f"; meanwhile {said}" * bool(said)
    is_late = not pd.isna(late) and late > (0 if pd.isna(computing) else computing)
    if is_late:
        return f"{line}. {_name_line(row, causes)}{LOOK_AT_CPU}"
    return f"{line}{_name_kernel(row, causes)}"


def _name_line(row: pd.Series, causes: Causes) -> str:
    """Name the line of the script that this GPU waits for longest, and the others for at most half as long; "" if none
    is known."""
    mine = causes.waits[causes.waits["gpu"] == row["gpu"]]
    if not len(mine):
        return ""
    line = mine.iloc[0]
    where, function = make_printable(line["where"]), make_printable(line["function"])
    return f"GPU {row['gpu']:.0f} waits for its CPU at {where} {function}, at least twice as long as the others. "


def _name_kernel(row: pd.Series, causes: Causes) -> str:
    """Name the kernel that this GPU runs longest beyond the others; "" if that does not explain much."""
    mine = causes.late_kernels[causes.late_kernels["gpu"] == row["gpu"]]
    if not len(mine) or mine["more_ns"].iloc[0] * max(causes.num_gpus - 1, 1) < LEAST_CAUSE * row["kept_waiting_ns"]:
        return ""
    kernel = mine.iloc[0]
    name = make_printable(shorten([kernel["name"]], LONGEST_NAME)[kernel["name"]])
    calls = round(kernel["more_calls"])
    more = f"{format_time(kernel['more_ns'])} longer than the others"
    return f". It runs {name} {more}" + (f": {format_count(calls, 'call')} more" if calls > 0 else "")


def _describe_matmuls(row: pd.Series) -> str:
    if not row["alone_ns"] or row["beside_ns"] < LEAST_SLOWED * row["alone_ns"]:
        return ""
    times, alone = format_quantity("number", row["beside_ns"] / row["alone_ns"]), format_time(row["alone_ns"])
    return (
        f"GPU {row['gpu']:.0f}: matmuls during communication take {times} times as long as the same kernels alone "
        f"({format_time(row['beside_ns'])} against {alone})"
    )
