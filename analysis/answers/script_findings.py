"""Print what was found of a script, from its recording: the figures that its page has, of a step without a profiler.

python -m profiler_job.analysis.answers.script_findings RECORDING
"""

import sys
from pathlib import Path

import pandas as pd

from profiler_job.analysis.insight.advice_lines import format_run_advice
from profiler_job.analysis.insight.first_advice import NOTHING
from profiler_job.analysis.insight.section_columns import ADVICE_TITLE
from profiler_job.analysis.pages.script_answers import ScriptAnswers, answer_script
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference.columns import format_heading
from profiler_job.analysis.render.terminal_text import measure_terminal, wrap_text
from profiler_job.analysis.show.show_formats import TITLES
from profiler_job.analysis.show.table_columns import LINE, fit_table
from profiler_job.jobs.contract.printable import make_printable

MOST_ROWS = 5
COLUMNS = ["where", "function", "wait_ns", "share", "cause", "ceiling_ns", "phase", "module"]
"""Of the lines that the GPU waits for; what they are in and what to do is in the sentences."""


def format_findings(answers: ScriptAnswers, width: int) -> str:
    """Format what limits a step, what to change first, and the lines that the GPU waits for, in so many columns."""
    of_script, first = answers.of_script.facts, answers.of_run.facts["first"]
    lines = [text for line in of_script["insight"].sentences.verdict for text in wrap_text(line, width, "  ")]
    advised = format_run_advice([entry for entry in first if not entry["reason"]]) or [NOTHING]
    numbered = [f"{place}. {make_printable(line)}" for place, line in enumerate(advised, start=1)]
    lines += ["", ADVICE_TITLE, *(text for line in numbered for text in wrap_text(line, width, "  "))]
    rows = answers.of_script.tables["waits"].rows
    if len(rows):
        said = [text for line in of_script["waits"] for text in wrap_text(make_printable(line), width, "  ")]
        lines += ["", f"{TITLES['waits']}, in a step without a profiler", *said]
        lines += format_in_tables(rows[COLUMNS].head(MOST_ROWS), width)
    return "\n".join(lines)


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
