"""What communication costs, in sentences: what of it is waiting, what computation hides, who came last and why."""

import pandas as pd

from profiler_job.analysis.insight.section_columns import SummaryTables
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


def describe_communication(summary: SummaryTables) -> list[str]:
    """Format lines of plain text; none if no kernel communicates."""
    rows, facts = summary.sections["communication"], summary.capture
    if not len(rows):
        return []
    shown = rows if len(rows) <= MOST_GPUS else rows.nlargest(MOST_GPUS, "exposed_ns").sort_index()
    lines = _describe_rows(shown, facts["no_waiting_because"] or "")
    if not facts["no_waiting_because"] and facts["ranks_apart_ns"] is not None:
        ranks = format_count(facts["communication_ranks"], "rank")
        apart = format_time(facts["ranks_apart_ns"])
        lines.append(
            f"The clocks agree: the same collectives end within {apart} of one another on {ranks}, in the median"
        )
    return lines


def describe_ranks(rows: pd.DataFrame) -> list[str]:
    """The same of one step of a run. rows: of `exchange.sum_by_gpu`."""
    if not len(rows):
        return []
    shown = rows if len(rows) <= MOST_GPUS else rows.nlargest(MOST_GPUS, "exposed_ns").sort_index()
    return _describe_rows(shown, "".join(rows["unknown"].unique()))


def _describe_rows(rows: pd.DataFrame, why_not: str) -> list[str]:
    lines = [_describe_gpu(row) for _, row in rows.iterrows()]
    if why_not:
        return [*lines, f"How much of communication is waiting is not known: {why_not}"]
    lines += [line for _, row in rows.iterrows() if (line := _describe_last(row))]
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


def _describe_last(row: pd.Series) -> str:
    """Describe what a GPU did while others waited for it, if they waited long enough."""
    kept = row["kept_waiting_ns"]
    if pd.isna(kept) or kept < LEAST_SHARE * row["kernel_ns"] or not kept:
        return ""
    computing, late = row["kept_computing_ns"], row["kept_late_ns"]
    parts = {f"it computed {format_time(computing)}": computing}
    parts |= {f"for {format_time(late)} it idled because its host had not launched the collective yet": late}
    said = ", and ".join(text for text, time in sorted(parts.items(), key=lambda part: -part[1]) if time)
    line = f"Others waited {format_time(kept)} for GPU {row['gpu']:.0f}" + f"; meanwhile {said}" * bool(said)
    is_late = not pd.isna(late) and late > (0 if pd.isna(computing) else computing)
    return f"{line}. {LOOK_AT_CPU}" if is_late else line


def _describe_matmuls(row: pd.Series) -> str:
    if not row["alone_ns"] or row["beside_ns"] < LEAST_SLOWED * row["alone_ns"]:
        return ""
    times, alone = format_quantity("number", row["beside_ns"] / row["alone_ns"]), format_time(row["alone_ns"])
    return (
        f"GPU {row['gpu']:.0f}: matmuls during communication take {times} times as long as the same kernels alone "
        f"({format_time(row['beside_ns'])} against {alone})"
    )
