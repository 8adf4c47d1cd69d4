"""The command `try`: measure changes on a training script as it is, and compare each with its prediction."""

import dataclasses
import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from profiler_job.jobs.cli.console import err, fail, out
from profiler_job.jobs.cli.follow_up import ask
from profiler_job.jobs.cli.measure_script import (
    EndOfStep,
    MeasuredSteps,
    Name,
    ScriptCommand,
    SkippedSteps,
    attempt,
    check_command,
    check_name,
    describe_overhead,
    make_recording,
    measure,
)
from profiler_job.jobs.cli.script_name import choose_default_name
from profiler_job.jobs.cli.sweep_options import ResultsFolder
from profiler_job.jobs.contract.changes import TRIABLE, ChangeSetError, RefusalCode, parse_sets
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.json_format import add_format_version
from profiler_job.jobs.contract.layout import name_changed
from profiler_job.jobs.contract.outputs import check_file, is_tries, write_file
from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.events import Emit, Terminal
from profiler_job.jobs.executor.nodes import find_node

JUDGE = "profiler_job.analysis.prediction.judge_tries"
"""Module that answers what recordings and changes tell."""
WIDTH = 80
ADVICE = "choose another --name"
SAME_LOSS = 1e-4
"""Relative difference of losses up to which sums in another order are the reason."""
OTHER_NUMBERS = 0.2
"""Relative difference of the losses of the first step above which other random numbers are the reason."""


def try_changes(
    command: ScriptCommand,
    change: Annotated[
        list[str],
        typer.Option(metavar="NAME,...", help=f"Made together; repeat for more sets: {', '.join(TRIABLE)}."),
    ],
    results: ResultsFolder = Path("results"),
    name: Name = "",
    skip: SkippedSteps = 10,
    steps: MeasuredSteps = 5,
    step: EndOfStep = "auto",
) -> None:
    """Try changes on a training script: is it faster, as expected?

    The script is measured as `profile` does, without changes and then with each set of them. Exit code: 1 the script
    failed, or a set of changes could not be tried (the others are), 2 usage, or a change needs other code; other codes
    are like those from `profile`.
    """
    try:
        sets = parse_sets(change)
    except ChangeSetError as error:
        code = ""
        if error.code is RefusalCode.NEEDS_CODE:
            code = f": {ask('what to write', [JUDGE, 'code', *error.names])}"
        raise fail(f"--change {error}{code}", ExitCode.USAGE) from None
    check_command(command)
    if find_node(command) is not None:
        raise fail(
            "`try` starts a script again and again on this machine alone: give it one that trains here", ExitCode.USAGE
        )
    chosen = name or choose_default_name(command)
    names = [name_changed(chosen, changes) for changes in sets]
    for each in (chosen, *names):
        check_name(each, results)
    check_file(name_tries(chosen, results), is_tries, advice=ADVICE)
    plain = script.Script(command=command, name=chosen, skip=skip, steps=steps, step=step, goes_on=False)
    emit = Terminal()
    folder, noted = measure(plain, results)
    out.print(describe_overhead(noted), soft_wrap=True)
    with make_recording(folder, results, emit) as (before, _):
        question = [
            JUDGE,
            "expect",
            str(before.absolute()),
            *map(",".join, sets),
        ]
        expected = ask("what is expected", question)
    tries = [{"changes": changes, "name": each, "expected": said} for changes, each, said in zip(sets, names, expected)]
    save_tries(tries, plain, results)
    print_wrapped("expected, before any of it is tried:", *map(format_expectation, tries))
    for entry in tries:
        entry |= try_set(plain, entry, noted, results, emit)
        save_tries(tries, plain, results)
    emit.close()
    print_wrapped(f"`profiler-job site --results {results}` makes pages of all that was measured")
    if any("failed" in entry for entry in tries):
        raise typer.Exit(ExitCode.FAILED)


def save_tries(tries: list[dict[str, Any]], plain: script.Script, results: Path) -> None:
    """Write RESULTS/<name>-tries.json. It has the prediction for each set before the set is tried."""
    content = add_format_version({"baseline": plain.name, "tries": tries})
    write_file(name_tries(plain.name, results), json.dumps(content, indent=1), is_tries, advice=ADVICE)


def name_tries(name: str, results: Path) -> Path:
    """Return the file that says what was tried."""
    return results / f"{name}-tries.json"


def format_expectation(entry: dict[str, Any]) -> str:
    """Return what is expected of a set of changes, in one line."""
    return f"{','.join(entry['changes'])}: {'; '.join(entry['expected']['lines'])}"


def try_set(
    plain: script.Script, entry: dict[str, Any], noted: dict[str, Any], results: Path, emit: Emit
) -> dict[str, Any]:
    """Measure the script with a set of changes, print what they gave, and return `measured` and `losses`, or why it
    `failed`. noted: what was noted in the script without changes."""
    changes, label = entry["changes"], ",".join(entry["changes"])
    followed = dataclasses.replace(plain, name=entry["name"], changes=changes)
    try:
        check_is_new(changes, noted)
        folder, with_changes = attempt(followed, results)
    except script.ScriptFailedError as error:
        how = "not tried" if isinstance(error, script.NotAppliedError) else "failed"
        err.print(f"{label}: {how}: {str(error).removeprefix(f'{label}: ')}", style="yellow", markup=False)
        return {"failed": str(error)}
    with make_recording(folder, results, emit) as (after, _):
        before = after.with_name(plain.name)
        question = [*map(str, (before.absolute(), after.absolute())), json.dumps(entry["expected"])]
        measured = ask("what it gave", [JUDGE, "judge", *question])
    losses = compare_losses(noted, with_changes)
    if losses["largest"] and "repeated" not in noted:
        noted["repeated"] = script.repeat_losses(plain, results)
    repeated = compare_losses(noted, noted | {"losses": noted.get("repeated", [])})
    print_wrapped(f"{label}: {measured['lines'][0]}", *measured["lines"][1:], describe_losses(losses, repeated))
    return {"measured": measured, "losses": losses}


def check_is_new(changes: Sequence[str], noted: dict[str, Any]) -> None:
    """Raise NotAppliedError if the script already has a change, as far as its steps without changes show that."""
    present: dict[str, str] = noted["present"]
    if name := next((name for name in changes if name in present), ""):
        raise script.NotAppliedError(f"{name}: {present[name]}")


class Losses(TypedDict):
    """The losses of a script without and with changes, compared.

    num: how many losses both have. first: the relative difference in the first step. largest: the largest relative
    difference, in `step` (from 1). If a loss is not finite, `step` is the first such step, and `not_finite` names the
    side. None: not known.
    """

    num: int
    first: float | None
    largest: float | None
    step: int | None
    not_finite: str


def compare_losses(without: dict[str, Any], with_changes: dict[str, Any]) -> Losses:
    """Compare the losses that were noted in a script without and with changes. Each backward pass has a loss, so a step
    may have several."""
    pairs = [
        (number, float(first), float(second))
        for number, (first, second) in enumerate(zip(without["losses"], with_changes["losses"]))
        if first is not None and second is not None
    ]
    per_step = max(len(without["losses"]) / max(without["seen"], 1), 1)
    for number, first, second in pairs:
        whose = [words for loss, words in ((first, "without"), (second, "with")) if not math.isfinite(loss)]
        if whose:
            step = int(number / per_step) + 1
            return Losses(num=len(pairs), first=None, largest=None, step=step, not_finite=" and ".join(whose))
    differences = [(abs(second - first) / (abs(first) or 1.0), number) for number, first, second in pairs]
    if not differences:
        return Losses(num=0, first=None, largest=None, step=None, not_finite="")
    largest, number = max(differences, key=lambda pair: pair[0])
    of_first = differences[0][0] if pairs[0][0] == 0 else None  # else it was overwritten, as by a CUDA graph
    return Losses(num=len(pairs), first=of_first, largest=largest, step=int(number / per_step) + 1, not_finite="")


def describe_losses(losses: Losses, repeated: Losses | None = None) -> str:
    """Return one sentence on the losses. repeated: of two runs without any change, compared."""
    if not losses["num"]:
        return "losses: no loss is known on both sides"
    if losses["not_finite"]:
        return f"losses: not finite in step {losses['step']}, {losses['not_finite']} the change"
    if repeated and (apart := repeated["largest"] or 0.0) > SAME_LOSS:
        return (
            f"losses: two runs without any change differ by {100 * apart:.2g}% in the first {repeated['num']} losses:"
            " set a seed to compare them"
        )
    first, largest = losses["first"], losses["largest"] or 0.0
    if first is not None and first > OTHER_NUMBERS:
        return (
            f"losses: the first step differs by {100 * first:.0f}%: the script seems to draw other random numbers each "
            "time; set a seed to compare them"
        )
    compared = f"losses: {losses['num']} compared"
    if not largest:
        return f"{compared}, all the same"
    start = "the first step is not known" if first is None else f"{100 * first:.2g}% difference in the first step"
    return f"{compared}: {start}, at most {100 * largest:.2g}%, in step {losses['step']}"


def print_wrapped(heading: str, *lines: str) -> None:
    """Print a heading, and lines indented below it, wrapped at 80 columns."""
    for line, indent in ((heading, ""), *((line, "  ") for line in lines)):
        wrapped = textwrap.wrap(
            line, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
        )
        for part in wrapped:
            out.print(part, markup=False, soft_wrap=True)
