"""The program: one command for both sides. What a subcommand needs is imported when it runs, so that help needs
neither torch nor pandas."""

if __name__ == "__main__":  # `python -m profiler_job`: before all imports, which Ctrl-C would end with a traceback
    from profiler_job.start import start

    start()  # imports this module by its name, and exits

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module, metadata
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from profiler_job.jobs.cli.output import open_streams
from profiler_job.jobs.cli.tidy_end import end_tidily
from profiler_job.jobs.contract.errors import ProfilerError, end_with
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.extras import check_extra
from profiler_job.jobs.contract.find_nsys import add_nsys_to_path


class Entry(NamedTuple):
    """A subcommand: its group in the help, `module:function` below this package, and its line in the help."""

    group: str
    function: str
    line: str


MEASURE, SCRIPT, READ, PUBLISH = "Measure", "Your own script", "Read", "Publish"

COMMANDS = {
    "doctor": Entry(
        MEASURE,
        "jobs.cli.doctor_command:doctor",
        "Check that this machine can measure.",
    ),
    "install-nsys": Entry(
        MEASURE,
        "jobs.cli.install_nsys_command:install_nsys",
        "Install nsys, the profiler of NVIDIA; needs no root.",
    ),
    "plan": Entry(
        MEASURE,
        "jobs.cli.plan_command:plan",
        "Print the runs of a sweep, with predicted memory and time.",
    ),
    "run": Entry(MEASURE, "jobs.cli.run_command:run", "Measure the runs of a sweep that are not finished yet."),
    "status": Entry(MEASURE, "jobs.cli.status_command:status", "Show how far a running or finished sweep is."),
    "job": Entry(
        MEASURE,
        "jobs.cli.job_command:job",
        "Do it all: check, measure a sweep, make its site.",
    ),
    "merge": Entry(
        MEASURE, "analysis.cli.merge_command:merge", "Join the results of one sweep from several machines."
    ),
    "verify": Entry(
        MEASURE, "analysis.cli.verify_command:verify", "Check that results and recordings are undamaged."
    ),
    "ingest": Entry(MEASURE, "analysis.cli.ingest_command:ingest", "Turn the results of a sweep into a recording."),
    "profile": Entry(
        SCRIPT,
        "jobs.cli.profile_command:profile",
        "Profile a training script as it is: steps, modules, kernels.",
    ),
    "tune": Entry(
        SCRIPT,
        "jobs.cli.tune_command:tune",
        "Find the fastest that a script can run, and what to write.",
    ),
    "show": Entry(READ, "analysis.cli.show_command:show", "Summarise captures: where GPU time goes, what to change first."),
    "answers": Entry(
        READ,
        "analysis.cli.answers_command:answers",
        "Answer the five questions of CS336 from a folder of captures.",
    ),
    "compare": Entry(
        READ, "analysis.cli.compare_command:compare", "Compare B with A: is it faster, by how much, and why?"
    ),
    "history": Entry(
        READ,
        "analysis.cli.history_command:history",
        "Follow one metric over many recordings or captures.",
    ),
    "site": Entry(
        PUBLISH, "analysis.cli.site_command:site", "Write the pages of recordings and build their site."
    ),
    "publish-data": Entry(
        PUBLISH,
        "analysis.cli.publish_data_command:publish_data",
        "Put a recording into site/data, to be published.",
    ),
    "check-public": Entry(
        PUBLISH,
        "analysis.cli.check_public_command:check_public",
        "Check folders before they become public.",
    ),
}
"""Subcommands by name, in the order of the help."""

OLD_NAMES = {"report": "site --pages-only", "render": "site", "try": "tune --changes", "predict": "tune"}
"""Names of commands that are gone, and what took their place."""

WITH_SCRIPTS = ("profile", "tune")
"""Commands that start a script: the first word that is not an option begins the command of the script."""

SETTINGS = {"help_option_names": ["-h", "--help"]}

NEED_SITE = {"job", "site", "publish-data", "check-public"}
"""Subcommands that need the extra `site`, which is checked before they begin."""

Context = Any
"""The context of a command, whose class typer does not export."""


def join_lines(text: str) -> str:
    """Join the lines of each paragraph: lines of the code are longer than lines of many terminals."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def hide_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command. The help names no type for flags, which take no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class LoadedCommand(TyperCommand):
    """A command with its options. Its help fits 80 columns."""

    def __init__(self, *arguments: Any, help: str, **settings: Any):
        super().__init__(*arguments, help=join_lines(help), **settings)

    def get_params(self, ctx: Context) -> list[Any]:
        return hide_types_of_flags(super().get_params(ctx))


class Subcommand(TyperCommand):
    """A command that is imported when it is called."""

    def __init__(self, name: str, entry: Entry):
        super().__init__(name, help=entry.line, rich_help_panel=entry.group)
        self.function = entry.function

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Context:
        context = self.load().make_context(info_name, args, parent, **extra)
        if self.name in NEED_SITE:
            check_extra("site")
        return context

    def load(self) -> TyperCommand:
        """Import the function of the command, and return the command that it makes."""
        module, _, name = self.function.partition(":")
        settings: dict[str, Any] = dict(SETTINGS)
        if self.name in WITH_SCRIPTS:
            settings["allow_interspersed_args"] = False
        subcommand = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        subcommand.command(self.name, cls=LoadedCommand, context_settings=settings)(
            getattr(import_module(f"profiler_job.{module}"), name)
        )
        return cast(TyperCommand, typer.main.get_command(subcommand))  # of one function: no group


class Subcommands(TyperGroup):
    """All commands. An error that none of them expected ends with one line and an exit code, never with a traceback."""

    def get_params(self, ctx: Context) -> list[Any]:
        return hide_types_of_flags(super().get_params(ctx))

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Subcommand | None:
        return Subcommand(cmd_name, COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            if args[0] in OLD_NAMES:
                raise ProfilerError(f"{args[0]!r} is now `profiler-job {OLD_NAMES[args[0]]}`: use that")
            close = get_close_matches(args[0], COMMANDS)
            advice = f"did you mean {' or '.join(close)}?" if close else "`profiler-job --help` lists the commands"
            raise ProfilerError(f"there is no command {args[0]!r}: {advice}")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        run = partial(super().main, args, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        code: Any = ExitCode.OK
        with end_tidily() as received:
            open_streams()
            try:
                run()
            except SystemExit as ended:
                code = ended.code
            except Exception as error:
                code = 128 + received[0] if received else end_with(error)
        try:
            sys.stdout.flush()
        except OSError as error:  # a full disk, which is known only now
            code = code or end_with(error)
        sys.exit(code)


HELP = """Find out where the GPU time of a Transformer goes: profile a script, measure a sweep, read any capture, publish.

The exit codes mean the same for all commands: 0 done, 1 failed or found, 2 usage, 3 too little data to tell, 65 damaged
data, 69 something is missing, 70 a mistake of this program, 74 an output cannot be written, 75 locked."""

app = typer.Typer(
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
    help=join_lines(HELP),
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def print_version(wanted: bool) -> None:
    """Print the version of the program, and its commit if it is known."""
    if wanted:
        from profiler_job.jobs.contract.program import find_commit

        print(f"profiler-job {metadata.version('profiler-job')} ({find_commit() or 'commit not known'})")
        raise typer.Exit


@app.callback()
def prepare(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Find nsys when it is not on PATH."""
    add_nsys_to_path()
