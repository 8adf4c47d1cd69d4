"""The command `answers`: answer the class's five questions from a folder of captures or from a recording."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.terminal import describe_error, find_exit_code, print_lines
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import print_line
from profiler_job.jobs.contract.words import format_count


def answers(
    folder: Annotated[Path, typer.Argument(help="Captures, a recording, or a sweep's results.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    handout: Annotated[int, typer.Option(help="Hand-out whose sizes and batch are meant: 2025, 2026.")] = 0,
    name_pattern: Annotated[str, typer.Option(metavar="PATTERN", help='Names of files, such as "{size}_{mode}".')] = "",
    size: Annotated[str | None, typer.Option(help="Model size of all captures.")] = None,
    context_length: Annotated[int | None, typer.Option(metavar="N", help="Context length of all captures.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Batch size of all captures.")] = None,
    mode: Annotated[str | None, typer.Option(help="Mode of all captures.")] = None,
    precision: Annotated[str | None, typer.Option(help="Precision of all captures.")] = None,
    warmup: Annotated[
        int | None, typer.Option("--warmup", "--skip", metavar="N", help="Steps to leave out at the start.")
    ] = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(metavar="PHASE=RANGE", help="Your range that marks a phase, as for `show`."),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only Markdown and figures: no CSV, no HTML.")] = False,
) -> None:
    """Answer the five questions of CS336 from a folder of captures.

    They are of any script, one for each model size, context length and mode. Facts that no capture holds come from
    captures.toml or captures.csv in the folder, from options, or from the names of files.

    Exit code: 0 every capture was used, 1 some could not be read, 2 a fact is not known or wrong (it is named), 65
    none could be read, 74 the answers cannot be written.
    """
    from profiler_job.analysis.answers import capture_facts, write_answers
    from profiler_job.analysis.capture.phase_names import parse_phases

    try:
        if not folder.is_dir():
            raise ProfilerError(f"{folder} is not a folder: give one with captures, or a recording")
        if write_answers.is_recorded(folder):
            written = write_answers.answer_recording(folder, out, print_line, brief)
        else:
            options = {"size": size, "context_length": context_length, "batch_size": batch_size, "mode": mode}
            options |= {"precision": precision, "warmup": warmup}
            given = capture_facts.normalise_options(options)
            try:
                phases = parse_phases(phase or [])
            except ValueError as error:
                raise ProfilerError(str(error)) from error
            captures = capture_facts.collect_facts(folder, given, name_pattern, handout)
            if not any(facts.path for facts in captures):
                raise ProfilerError(f"{folder} holds no capture: give a folder with .nsys-rep, .sqlite or parquetdir")
            written = write_answers.answer_captures(folder, captures, phases, out, print_line, brief)
    except (ProfilerError, OSError) as error:
        print_line(f"error: {describe_error(error)}")
        raise typer.Exit(find_exit_code(error)) from error
    from profiler_job.analysis.render.text import plain

    for letter, sentence in written.first_sentences.items():
        print_lines(f"({letter}) {plain(sentence)}")  # type: ignore[arg-type]
    print_lines(f"{out / write_answers.INDEX}: from {format_count(written.num_runs, 'run')}")
    if written.num_unread:
        raise typer.Exit(ExitCode.FAILED)
