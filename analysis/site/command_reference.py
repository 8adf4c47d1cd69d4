"""The commands as they describe themselves: the page of commands has no list of its own."""

import re
from typing import Any, cast

import typer.main
from markupsafe import Markup
from typer.core import TyperGroup

from profiler_job.analysis.render.answer import Answer, assemble
from profiler_job.jobs.contract import exit_codes

ADDED = re.compile(r"\s*\[([^]]*)\]$")
"""What the help adds to the line of an option: its default, the variable that gives it, what it may be."""
WORDS = {"default": "Default", "env var": "Variable"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
"""An option in running text."""


def make_answer() -> Answer:
    """Return the subcommands of `profiler-job` in the order of its help, and the exit codes of all of them."""
    # The program is above all rooms: it imports a command when the command is asked for.
    from profiler_job.__main__ import app

    program = cast(TyperGroup, typer.main.get_command(app))
    context = program.context_class(program, info_name="profiler-job")
    commands = [_describe_command(program, name, context) for name in program.list_commands(context)]
    names = dict.fromkeys(command["group"] for command in commands)
    groups = {Markup(name): [each for each in commands if each["group"] == name] for name in names}
    codes = {Markup(int(code)): Markup(meaning) for code, meaning in exit_codes.MEANINGS.items()}
    return assemble({"groups": groups, "exit_codes": codes}, [], [], [])


def _describe_command(program: TyperGroup, name: str, parent: Any) -> dict[str, Any]:
    """Return the name of a subcommand, its group, its usage, the paragraphs of its help, and its parameters."""
    entry: Any = program.get_command(parent, name)
    command = entry.load()
    context = command.context_class(command, info_name=name, parent=parent)
    usage = " ".join(["profiler-job", name, *command.collect_usage_pieces(context)])
    return {
        "name": Markup(name),
        "group": entry.rich_help_panel,
        "usage": Markup(usage),
        "paragraphs": [_mark_options(paragraph) for paragraph in command.help.split("\n\n")],
        "parameters": [
            _describe_parameter(each, context) for each in command.get_params(context) if each.name != "help"
        ],
    }


def _describe_parameter(parameter: Any, context: Any) -> dict[str, Markup]:
    """Return the names of an option (none of an argument) with what its value is called, and its line in the help."""
    names, line = parameter.get_help_record(context)
    if parameter.param_type_name == "option":
        value = names.rpartition(", ")[2].partition(" ")[2]
        names = ", ".join(f"`{name}`" for name in sorted(parameter.opts, key=len, reverse=True))
    else:
        value, names = names.partition(" ")[0], ""
    return {
        "names": Markup(names),
        "value": Markup(" or ".join(f"`{each}`" for each in value.strip("<>").split("|") if each)),
        "meaning": _mark_options(_join_line(line)),
    }


def _mark_options(words: str) -> Markup:
    """Return a sentence of the help with its options as code."""
    parts = words.split("`")
    return Markup("`".join(part if place % 2 else OPTION.sub(r"`\g<0>`", part) for place, part in enumerate(parts)))


def _join_line(line: str) -> str:
    """Return the line of an option in the help, with what is added to it as sentences."""
    if not (added := ADDED.search(line)):
        return line
    parts = (part.partition(": ") for part in added[1].split("; ") if not part.startswith("x>="))
    sentences = [f"{WORDS[kind]}: `{value.strip('()')}`." if value else "Required." for kind, _, value in parts]
    return " ".join([line[: added.start()], *sentences])
