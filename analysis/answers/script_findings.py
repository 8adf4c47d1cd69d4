"""Print what was found of a script, from its recording: the figures that its page has, of a step without a profiler.

python -m profiler_job.analysis.answers.script_findings RECORDING
"""

import sys
from pathlib import Path

import pandas as pd

from profiler_job.analysis.insight.advice_lines import format_run_advice
from profiler_job.analysis.insight.first_advice import NOTHING
from profiler_job.analysis.insight.module_times import describe_modules
from profiler_job.analysis.insight.section_columns import ADVICE_TITLE
from profiler_job.analysis.pages.script_answers import ScriptAnswers, answer_script
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference.columns import format_heading
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.render.terminal_text import measure_terminal, wrap_text
from profiler_job.analysis.show.show_formats import TITLES
from profiler_job.analysis.show.table_columns import LINE, fit_table
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import PASSES
from profiler_job.jobs.contract.words import inflect

MOST_ROWS, MOST_MODULES = 5, 10
COLUMNS = ["where", "function", "wait_ns", "share", "cause", "ceiling_ns", "phase", "module"]
"""Of the lines that the GPU waits for; what they are in and what to do is in the sentences."""
CALLS, CALLS_TITLE = ("sync_calls", "copy_calls", "allocation_calls"), "Calls that wait, copy or allocate, in a step"
"""Tables of `script_answers`; batches of a DataLoader are in the sentences."""


def format_findings(answers: ScriptAnswers, width: int) -> str:
    """Format what limits a step, what to change first, the lines that the GPU waits for, calls that wait, what
    torch.compile did, and the modules that take most, in so many columns."""
    of_script, first = answers.of_script.facts, answers.of_run.facts["first"]
    lines = [text for line in of_script["insight"].sentences.verdict for text in wrap_text(line, width, "  ")]
    advised = format_run_advice([entry for entry in first if not entry["reason"]], answers.of_run.facts["step_ns"])
    advised = advised or [NOTHING]
    numbered = [f"{place}. {make_printable(line)}" for place, line in enumerate(advised, start=1)]
    lines += ["", ADVICE_TITLE, *(text for line in numbered for text in wrap_text(line, width, "  "))]
    rows = answers.of_script.tables["waits"].rows
    if of_script["waits"]:
        said = [text for line in of_script["waits"] for text in wrap_text(make_printable(line), width, "  ")]
        lines += ["", f"{TITLES['waits']}, in a step without a profiler", *said]
        lines += format_in_tables(rows[COLUMNS].head(MOST_ROWS), width) if len(rows) else []
    lines += _format_calls(answers.of_script, width)
    return "\n".join([*lines, *_format_compiling(answers.of_script, width), *_format_modules(answers, width)])


def _format_calls(of_script: Answer, width: int) -> list[str]:
    """Format the calls of the first rank that make the CPU wait, copy or allocate, most time first; nothing if there
    are none."""
    calls = pd.concat([of_script.tables[name].rows for name in CALLS], ignore_index=True)
    calls = calls[calls["rank"] == calls["rank"].min()].astype({"where": str, "call": str})
    if not len(calls):
        return []
    calls = calls.sort_values("time_ns", ascending=False, kind="stable")
    table, _ = fit_table("script_calls", calls[["where", "call", "count", "time_ns"]].head(MOST_ROWS), width)
    more = len(calls) - MOST_ROWS
    return ["", CALLS_TITLE, *table, *[f"  ... and {more} more (the page lists all)"] * (more > 0)]


def _format_modules(answers: ScriptAnswers, width: int) -> list[str]:
    """Format the modules that take most, as `show` does; nothing if none is known."""
    modules, drawn = answers.modules, answers.of_script.facts["drawn_modules"]
    if not len(modules):
        return []
    table, _ = fit_table("modules", modules.head(MOST_MODULES), width)
    more = len(modules) - MOST_MODULES
    left_out = [f"  ... and {more} more (the page lists all, and `show` of the capture)"] * (more > 0)
    notes = [text for line in describe_modules(modules, drawn) for text in wrap_text(f"{line}.", width, "  ")]
    return ["", TITLES["modules"], *table, *left_out, *notes]


def _format_compiling(of_script: Answer, width: int) -> list[str]:
    """Format what torch.compile did, and what each line costs at which graphs break; nothing if it compiled nothing."""
    said = [*of_script.facts["compiling"]]
    for row in of_script.tables["graph_breaks"].rows.to_dict("records"):
        num = row["forward_breaks"]
        costs = [f"{num:.3g} {inflect(num, 'time')} a step"] * (num > 0)
        idle = {phase: row[f"{phase}_idle_ns"] for phase in PASSES}
        costs += [f"GPU idle for {format_time(ns)} in {phase}" for phase, ns in idle.items() if ns >= 0]
        costs += [f"{row['kernels']:.3g} {inflect(row['kernels'], 'kernel')} in no graph"] * (row["kernels"] >= 0)
        cost = ", ".join(costs) or "what it costs is not known"
        place = f"at {row['where']}" if row["where"] else f"at a line that is not known ({row['reason']})"
        said.append(f"Graph break {place}: {cost}.")
    wrapped = [text for line in said for text in wrap_text(make_printable(line), width, "  ")]
    return ["", "torch.compile", *wrapped] if said else []


def format_in_tables(rows: pd.DataFrame, width: int) -> list[str]:
    """Format lines of a script as a table, and columns that have no room in it as another one."""
    table, headings = fit_table("script_waits", rows, width)
    others = [column for column in rows if format_heading(column) in headings]
    more = fit_table("script_places", rows[[LINE, *others]], width)[0] if others else []
    return ["", *table, *[""] * bool(more), *more]


def main(recording: Path) -> int:
    """Print the findings of a recording of one script. Returns the exit code."""
    print(format_findings(answer_script(store.load(recording)), measure_terminal()))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
