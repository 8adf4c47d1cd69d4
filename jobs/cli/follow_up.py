"""The steps after a sweep: its recording, its pages and its site, all below the results folder.

RESULTS/recordings/<name>/   the tidy tables of a sweep
RESULTS/site/                the built site; open index.html
RESULTS/answers/<name>/      the class's five questions as Markdown; open index.md
RESULTS/recordings/lock      held by the job that makes these (a shard holds its own folder)

Each step is a process of its own and puts its result in place only when it is whole, so that a step that fails takes
nothing with it. Nothing else is written but temporary files, so the program's folder may be read-only.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import clear, find_folders, restore
from profiler_job.jobs.contract.layout import CAPTURE, MANIFEST, SCRIPT, TRACE
from profiler_job.jobs.contract.outputs import is_recording, is_site, replace_folder
from profiler_job.jobs.contract.printable import fit_terminal
from profiler_job.jobs.contract.program import PROGRAM, find_shipped_data, find_site_sources
from profiler_job.jobs.contract.studies import STUDIES, find_recordings, find_study_folder
from profiler_job.jobs.contract.tuning import TRACE_ENDING, TUNE, TUNED
from profiler_job.jobs.executor.events import Emit
from profiler_job.jobs.executor.stop import SHUTDOWN_S
from profiler_job.jobs.executor.temporary import create_temporary_folder, remove_abandoned


class StepError(ProfilerError):
    """A step after the measurements failed; the message says which."""

    exit_code = ExitCode.BUG


PASSED_ON = {ExitCode.DAMAGED, ExitCode.MISSING, ExitCode.CANNOT_WRITE, ExitCode.LOCKED}
"""Exit codes of a step that become the exit code of the whole command; others mean nothing there."""


def fail_step(name: str, module: Sequence[str], code: int) -> StepError:
    """Return the error of a step that ended with an exit code that it should not have."""
    exit_code = ExitCode(code) if code in PASSED_ON else ExitCode.BUG
    program = module[0].rpartition(".")[2]
    return StepError(f"the step `{name}` failed ({program} {module[1]}, exit {code}), see above", exit_code=exit_code)


def find_shipped_recordings() -> list[Path]:
    """Return the folders of the recordings that come with the program."""
    return find_recordings(find_shipped_data())


def find_own_recordings(results: Path) -> list[Path]:
    """Return the folders of the recordings that jobs made below `results`."""
    return find_folders(results / "recordings", MANIFEST)


def ingest(sweep: Path, recording: Path, emit: Emit) -> bool:
    """Turn the results of a sweep into a recording, in place of an older one, and return whether every run that was
    measured is in it. Raises StepError."""
    restore(recording)
    draft = recording.absolute().parent / ".draft" / recording.name
    clear(draft)  # of a job that was killed
    command = ["profiler_job", "ingest", str(sweep.absolute()), "--out", str(draft)]
    code = _run_step("recording", command, emit, copies={draft: recording}, allowed=(ExitCode.OK, ExitCode.FAILED))
    if not draft.is_dir():  # a crash of Python gives 1, too
        raise StepError(f"the step `recording` failed (`ingest`, exit {code}) and left no recording, see above")
    replace_folder(draft, recording, is_recording)
    with suppress(OSError):  # not empty: a job of another sweep makes its recording, or was killed when it did
        draft.parent.rmdir()
    return code == 0


def write_answers(recording: Path, answers: Path, emit: Emit) -> None:
    """Write the answers of the class's five questions from a recording. Raises StepError."""
    command = ["profiler_job", "answers", str(recording.absolute()), "--out", str(answers.absolute())]
    _run_step("answers", command, emit)


def summarise_captures(folder: Path, emit: Emit) -> None:
    """Print the tables of the captures in the results of a script, as `show` does. It needs no extra. Raises
    StepError."""
    captures = sorted(str(path) for name in (CAPTURE, TRACE) for path in folder.absolute().rglob(name))
    sections = (option for name in ("phases", "families", "kernels") for option in ("--section", name))
    _run_step("summary", ["profiler_job", "show", "--top", "5", *sections, *captures], emit)


def print_findings(recording: Path, emit: Emit) -> None:
    """Print what the page of a script has found, from its recording: what limits a step, what to change first, and the
    lines that the GPU waits for. It needs no extra. Raises StepError."""
    _run_step("findings", ["profiler_job.analysis.answers.script_findings", str(recording.absolute())], emit)


def build_site(
    recordings: Sequence[Path],
    site: Path,
    emit: Emit,
    price_per_hour: float | None = None,
    page_options: Sequence[str] = (),
) -> bool:
    """Build the site of some recordings from a temporary copy of its sources, in place of an older one, and return
    whether no check that `page_options` make strict fails.

    price_per_hour: of the GPU of a run, to show the price of tokens. page_options: further options of the step that
    writes the pages; their paths are absolute. Raises StepError.
    """
    sources = find_site_sources()
    restore(site)
    remove_abandoned()
    with create_temporary_folder("site-") as work:
        docs = work / "site"
        # The site of a script has no questions, so the guide, which explains them, stays out.
        of_scripts = all(is_of_script(recording) for recording in recordings)
        left_out = ("data", "report", *(("guide", "notebooks", "extend.md") if of_scripts else ()))
        shutil.copytree(sources / "site", docs, ignore=shutil.ignore_patterns(*left_out))
        for folder in (docs, *docs.rglob("*/")):
            folder.chmod(0o755)  # the sources may be read-only, which copies are, too
        copies = {
            docs / "data" / find_study_folder(_study_of(recording)) / recording.name: recording
            for recording in recordings
        }
        for copy, recording in copies.items():
            shutil.copytree(recording, copy)
        for tuned in site.absolute().parent.glob(f"*/{TUNE}"):
            target = docs / "data" / TUNED / tuned.parent.name / TUNE
            target.parent.mkdir(parents=True)
            shutil.copyfile(tuned, target)
            for trace in tuned.parent.glob(f"*{TRACE_ENDING}"):
                shutil.copyfile(trace, target.with_name(trace.name))
        prices = [] if price_per_hour is None else ["--price-per-hour", str(price_per_hour)]
        module = ["profiler_job", "site", "--pages-only", "--docs", str(docs), *prices, *page_options]
        allowed = (ExitCode.OK, ExitCode.FAILED) if "--strict" in page_options else (ExitCode.OK,)
        code = _run_step("pages", module, emit, copies={**copies, docs: site}, allowed=allowed)
        draft = site.absolute().with_name(f".{site.name}.draft")
        clear(draft)  # of a job that was killed
        module = ["profiler_job.analysis.site.build_html", "copy", str(sources), str(work), str(draft)]
        _run_step("site", module, emit)
    replace_folder(draft, site, is_site)
    emit("site_built", path=str(site / "index.html"))
    return code == ExitCode.OK


def ask(name: str, module: Sequence[str]) -> Any:
    """Run a Python module, and return the JSON that it prints. Raises StepError."""
    command = [sys.executable, "-P", "-m", *module]
    done = subprocess.run(command, cwd=PROGRAM, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if code := done.returncode:
        raise fail_step(name, module, code)
    return json.loads(done.stdout)


def print_tuned(folder: Path, form: str) -> None:
    """Print the result of `tune` in a folder as text, json, md or csv, and write its page. Raises StepError."""
    module = ["profiler_job.analysis.show.tuned", str(folder.absolute()), form]
    width = {"COLUMNS": str(shutil.get_terminal_size((120, 24)).columns)}
    sys.stdout.flush()
    code = subprocess.run(
        [sys.executable, "-P", "-m", *module], cwd=PROGRAM, stdin=subprocess.DEVNULL, env=os.environ | width
    ).returncode
    if code:
        raise fail_step("the ladder", module, code)


def is_of_script(recording: Path) -> bool:
    """Whether a recording is of somebody's own script."""
    return bool(_about(recording).get(SCRIPT))


def _about(recording: Path) -> dict[str, Any]:
    """The manifest of a recording; {} if it cannot be read, which `report` explains."""
    try:
        manifest = json.loads((recording / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _study_of(recording: Path) -> str:
    """The study of a recording; "" if it names none that exists."""
    study = _about(recording).get("study", "")
    return study if study in STUDIES else ""


def end_step(process: subprocess.Popen[str]) -> None:
    """Have a step end, so that it removes its temporary files, or else kill it."""
    process.terminate()
    try:
        process.wait(SHUTDOWN_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _run_step(
    name: str,
    module: Sequence[str],
    emit: Emit,
    *,
    copies: Mapping[Path, Path] = MappingProxyType({}),
    allowed: Sequence[int] = (0,),
) -> int:
    """Run a Python module and return its exit code, which is one of those `allowed`. What it prints goes to standard
    error, since standard output is for events. It goes through a pipe, because the module would fail if nobody reads
    standard error. Paths of `copies` become the paths of the originals. Raises StepError."""
    emit("step_started", step=name)
    started = time.monotonic()
    width = {"COLUMNS": str(shutil.get_terminal_size().columns)} if sys.stderr.isatty() else {}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", *module],
        cwd=PROGRAM,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | width,
    ) as process:
        assert process.stdout is not None  # a pipe
        try:
            for line in process.stdout:
                for copy in sorted(copies, reverse=True):  # `tiny-2` before `tiny`
                    line = line.replace(str(copy), str(copies[copy]))
                sys.stderr.write(fit_terminal(line, sys.stderr))
        except BaseException:
            end_step(process)
            raise
    if (code := process.returncode) not in allowed:
        raise fail_step(name, module, code)
    emit("step_finished", step=name, wall_s=round(time.monotonic() - started, 1))
    return code
