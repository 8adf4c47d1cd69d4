"""The files of the five answers: a page of Markdown, a figure and tables for each, and a page that lists them."""

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.answers import markdown_text as md
from profiler_job.analysis.answers.bar_figure import Bar, draw_bars
from profiler_job.analysis.answers.capture_facts import CaptureFacts
from profiler_job.analysis.answers.captures_recording import FolderRecording, add_derived, record_captures
from profiler_job.analysis.answers.five_answers import LETTERS, Folder, WrittenAnswer, write_answer
from profiler_job.analysis.answers.markdown_text import UNKNOWN
from profiler_job.analysis.capture.capture_data import NOT_USED
from profiler_job.analysis.comparison.noise import choose_bands
from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages.question import Inputs
from profiler_job.analysis.pages.questions import QUESTIONS
from profiler_job.analysis.recording import ingest, store
from profiler_job.analysis.render.answer import Answer, Column
from profiler_job.analysis.render.document import render_document
from profiler_job.analysis.render.tables import to_csv
from profiler_job.analysis.render.text import file_name
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import MANIFEST, RECORD, SWEEP
from profiler_job.jobs.contract.outputs import TargetError, check_folder, replace_folder
from profiler_job.jobs.contract.words import format_count

INDEX = "index.md"
MARK = "<!-- Made by profiler-job answers -->"
"""Last line of every page of Markdown that this command writes."""
MOST_LINES = 150
"""Lines of a page of an answer, at most."""
MOST_BARS = 80
MOST_NOTES = 40
_SOURCES = (
    Column("capture", "capture"),
    Column("size", "model"),
    Column("context_length", "context", "count"),
    Column("mode", "mode"),
    Column("precision", "precision"),
    Column("steps", "steps", "count"),
    Column("steps_from", "steps from"),
    Column("status", "status"),
)


@dataclass(frozen=True, kw_only=True)
class AnswerFiles:
    """What was written. num_runs: measured, without those derived from them; num_unread: captures that could not be
    used."""

    folder: Path
    first_sentences: Mapping[str, str]
    num_runs: int
    num_unread: int


def is_recorded(folder: Path) -> bool:
    """Whether a folder holds a recording, or the results of a sweep of this program."""
    return (folder / MANIFEST).is_file() or (folder / SWEEP).is_file() or any(folder.glob(f"*/{RECORD}"))


def answer_recording(folder: Path, out: Path, emit: Callable[[str], None], is_brief: bool = False) -> AnswerFiles:
    """Answer from a recording or the results of a sweep. is_brief: as in `_write`. Raises RecordingError, ResultsError
    and TargetError."""
    check_target(out)
    if (folder / MANIFEST).is_file():
        rec = store.load(folder)
    else:
        with tempfile.TemporaryDirectory(prefix="profiler-job-") as work:
            ingest.ingest(folder, Path(work) / "recording", emit, label=folder.name)
            rec = store.load(Path(work) / "recording")
    if not len(rec.runs):
        raise store.RecordingError(f"{folder} holds no run: nothing was measured", exit_code=ExitCode.USAGE)
    names = ["run_id", "size", "context_length", "mode", "precision", "status", "profiled_steps"]
    sources = rec.runs[names].astype({"run_id": str, "mode": str}).rename(columns={"profiled_steps": "steps"})
    sources = sources.assign(capture=sources["run_id"], steps_from="ranges")
    return _write(
        add_derived(FolderRecording(recording=select_finished(rec), notes={}, sources=sources)), out, is_brief
    )


def answer_captures(
    folder: Path,
    captures: Sequence[CaptureFacts],
    phases: Mapping[str, str],
    out: Path,
    emit: Callable[[str], None],
    is_brief: bool = False,
) -> AnswerFiles:
    """Answer from captures of any script. is_brief: as in `_write`. Raises TargetError."""
    check_target(out)
    return _write(record_captures(folder, captures, phases, emit), out, is_brief)


def select_finished(rec: store.Recording) -> store.Recording:
    """Return a recording without what was measured of runs that did not finish: no number is derived from them."""
    finished = rec.runs.loc[rec.runs["status"].astype(str) == "ok", "run_id"].astype(str)
    tables = {name: getattr(rec, name) for name in ("steps", "ranges", "kernels", "api", "memops")}
    kept = {
        name: rows[rows["run_id"].astype(str).isin(finished)].reset_index(drop=True) for name, rows in tables.items()
    }
    return replace(rec, **kept)


def ask(letter: str, rec: store.Recording) -> Answer:
    """Return the answer of the site's question of this letter."""
    return QUESTIONS[letter].answer(Inputs(recording=rec, main=rec, bands=choose_bands(rec)))


# ---------------------------------------------------------------------------------------------------------------- files


def _write(made: FolderRecording, out: Path, is_brief: bool = False) -> AnswerFiles:
    """Write the answers; is_brief: the Markdown and its figures alone, without CSV, HTML and the list of captures."""
    rec = made.recording
    folder = _describe_folder(made)
    with tempfile.TemporaryDirectory(prefix="profiler-job-") as work:
        draft = Path(work) / "answers"
        draft.mkdir()
        written: dict[str, WrittenAnswer] = {}
        for letter in LETTERS:
            answer = ask(letter, rec)
            written[letter] = write_answer(letter, answer, folder)
            if not is_brief:
                _write_tables(draft, letter, answer, written[letter])
            if written[letter].bars:
                bars, note = _limit_bars(written[letter])
                figure = draw_bars(written[letter].figure_title, bars, written[letter].is_stacked, note)
                (draft / f"{letter}.svg").write_text(figure, encoding="utf-8")
            page = _make_page(written[letter], made, is_brief)
            (draft / f"{letter}.md").write_text("\n".join(page) + "\n", encoding="utf-8")
        (draft / INDEX).write_text("\n".join(_make_index(written, made, is_brief)) + "\n", encoding="utf-8")
        if not is_brief:
            (draft / "captures.csv").write_text(to_csv(made.sources), encoding="utf-8")
        if not is_brief and find_spec("markdown"):
            _write_html(draft)
        _replace_folder(draft, out)
    first = {letter: (answer.sentences or ["Not measured."])[0] for letter, answer in written.items()}
    num = int((made.sources.loc[made.sources["derived_from"] == "", "steps"].fillna(0) > 0).sum())
    return AnswerFiles(folder=out, first_sentences=first, num_runs=num, num_unread=made.num_unread)


def _describe_folder(made: FolderRecording) -> Folder:
    runs = made.recording.runs.astype({"run_id": str})
    by = run_grid.case_columns(runs)
    runs = runs.astype({name: str for name in by if runs[name].dtype == "category"})
    derived = runs[runs["run_id"].isin(made.derived)][[*by, "mode", "run_id"]]
    derived = derived.assign(mode=derived["mode"].astype(str), derived_from=derived["run_id"].map(made.derived))
    refused = runs[runs["run_id"].isin(made.refused)][[*by, "run_id"]]
    refused = refused.assign(why=refused["run_id"].map(made.refused))
    present = runs[[*by, "mode"]].astype({"mode": str})
    is_fused = ~runs["attention"].astype(str).isin([find_default("attention"), UNKNOWN])
    fused = frozenset(runs.loc[is_fused, "run_id"])
    has_traces = (runs["nsys"].astype(str) == NOT_USED).any() if "nsys" in runs else False
    return Folder(by=by, cases=present, derived=derived, refused=refused, fused_runs=fused, has_traces=bool(has_traces))


def _limit_bars(written: WrittenAnswer) -> tuple[list[Bar], str]:
    """Return the bars of the first cases, as many as a figure can show, and the line below them."""
    labels = [*dict.fromkeys(bar.label for bar in written.bars)]
    most = len(labels)
    while (most if written.is_stacked else sum(bar.label in labels[:most] for bar in written.bars)) > MOST_BARS:
        most -= 1
    kept = [bar for bar in written.bars if bar.label in labels[:most]]
    more = [f"the table has {format_count(len(labels) - most, 'more case')}"] * (most < len(labels))
    return kept, "; ".join([*([written.figure_note] if written.figure_note else []), *more])


def _write_tables(draft: Path, letter: str, answer: Answer, written: WrittenAnswer) -> None:
    (draft / f"{letter}.csv").write_text(to_csv(written.rows, tuple(written.columns)), encoding="utf-8")
    for key, table in answer.tables.items():
        if len(table.rows):
            text = to_csv(table.rows, table.columns)
            (draft / f"{letter}-{file_name(key)}.csv").write_text(text, encoding="utf-8")


def _make_page(written: WrittenAnswer, made: FolderRecording, is_brief: bool) -> list[str]:
    """Make the lines of the page of an answer: the answer first, a figure, the table, the method, what is missing.
    is_brief: there is no CSV."""
    answer = " ".join(written.sentences) or "Not measured: see what is missing below."
    lines = [f"# ({written.letter}) {written.title}", "", answer, ""]
    if written.bars:
        lines += [f"![{md.escape(written.figure_title)}]({written.letter}.svg)", ""]
    lines += [*md.table(written.rows, written.columns), ""]
    more = len(written.rows) - md.MOST_ROWS
    all_rows = f"[All rows as CSV]({written.letter}.csv)"
    if more > 0:
        lines += [f"{format_count(more, 'more row')} in the CSV.{'' if is_brief else f' {all_rows}'}", ""]
    elif not is_brief:
        lines += [all_rows, ""]
    lines += ["## How it was worked out", "", *(f"- {line}" for line in [*written.method, *_describe_runs(made)]), ""]
    missing = written.missing or ["Nothing: every case of the grid was measured."]
    lines += ["## What is missing for an exact answer", "", *(f"- {line}" for line in missing), ""]
    lines += ["[All five answers](index.md)", "", MARK]
    assert len(lines) <= MOST_LINES, f"{written.letter} has {len(lines)} lines"
    return lines


def _describe_runs(made: FolderRecording) -> list[str]:
    """Describe where the steps are from, the same for every answer."""
    rows = made.sources
    lines = []
    gpus = sorted({*made.recording.runs["gpu_name"].dropna().astype(str)} - {UNKNOWN})
    if gpus:
        lines.append(f"GPU: {md.escape(', '.join(gpus))}.")
    num_steps = pd.to_numeric(rows["steps"], errors="coerce").dropna()
    num_steps = num_steps[num_steps > 0]
    if len(num_steps):
        ends = dict.fromkeys((int(num_steps.min()), int(num_steps.max())))
        how = ", ".join(dict.fromkeys(str(name) for name in rows["steps_from"] if name))
        lines.append(f"Steps of each capture: {' to '.join(map(str, ends))}, without warm-up, from {how}.")
    return lines


def _make_index(written: Mapping[str, WrittenAnswer], made: FolderRecording, is_brief: bool) -> list[str]:
    lines = ["# Five questions about the time of a Transformer", ""]
    for letter, answer in written.items():
        first = (answer.sentences or ["Not measured."])[0]
        lines += [f"- **[({letter}) {answer.title}]({letter}.md)** {first}"]
    lines += [""]
    if not is_brief:
        lines += ["## Captures", ""]
        columns = [column for column in _SOURCES if column.key in made.sources]
        rows = made.sources
        rows = rows[rows["derived_from"] == ""] if "derived_from" in rows else rows
        lines += [*md.table(rows, columns), "", "[Every fact, and where it is from](captures.csv)", ""]
    if notes := [f"- {md.code(name)}: {md.escape(line)}" for name, said in made.notes.items() for line in said]:
        lines += ["## What was noticed", "", *notes[:MOST_NOTES]]
        lines += [f"- and {len(notes) - MOST_NOTES} more lines, as the command prints them"] * (len(notes) > MOST_NOTES)
        lines += [""]
    return [*lines, MARK]


# ----------------------------------------------------------------------------------------------------------------- HTML


def _write_html(draft: Path) -> None:
    """Write each page as HTML, too, with its figure in it."""
    import markdown

    for file in sorted(draft.glob("*.md")):
        body = markdown.markdown(file.read_text(encoding="utf-8"), extensions=["tables"])
        image = r'<p><img alt="[^"]*" src="(\w+\.svg)" ?/></p>'
        body = re.sub(image, lambda match: (draft / match[1]).read_text(encoding="utf-8"), body)
        body = re.sub(r'href="(\w+)\.md"', r'href="\1.html"', body)
        body = body.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")
        title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        page = render_document(title, [Markup(body)], "answers")
        file.with_suffix(".html").write_text(page, encoding="utf-8")


# ----------------------------------------------------------------------------------------------------------- the folder


def is_answers(folder: Path) -> bool:
    """Whether a folder holds answers that this command wrote, and nothing else."""
    index = folder / INDEX
    if not index.is_file() or not index.read_text(encoding="utf-8", errors="replace").rstrip().endswith(MARK):
        return False
    own = re.compile(r"(index|[a-e])\.(md|html)|[a-e]\.svg|([a-e](-[\w.-]+)?|captures)\.csv")
    return all(own.fullmatch(path.name) for path in folder.iterdir())


def check_target(out: Path) -> None:
    """Raise TargetError if a folder may not be replaced."""
    check_folder(out, is_answers)


def _replace_folder(draft: Path, out: Path) -> None:
    """Put a drafted folder in place. Raises TargetError."""
    target = out.absolute()
    beside = target.with_name(f".{target.name}.draft")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(draft, beside)
        replace_folder(beside, target, is_answers)
    except OSError as error:
        message = f"{out} cannot be written ({error.strerror or error})"
        raise TargetError(message, exit_code=ExitCode.CANNOT_WRITE) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
