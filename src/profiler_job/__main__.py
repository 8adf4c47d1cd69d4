"""Find out where the GPU time of a Transformer goes: measure a sweep under Nsight Systems, read any capture, publish.

One command for both sides. What a subcommand needs is imported when it runs: help needs neither torch nor pandas.
"""

import sys
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from profiler_job.jobs.cli.output import Output
from profiler_job.jobs.contract.exit_codes import CANNOT_MEASURE
from profiler_job.jobs.contract.extras import MissingExtraError, check_extra
from profiler_job.jobs.contract.find_nsys import add_nsys_to_path

COMMANDS = {
    "show": ("analysis.cli.show_command:show", "Summarise nsys profiles of any program."),
    "compare": (
        "analysis.cli.compare_command:compare",
        "Hold B against A: is it faster, by how much, why, and is that more than noise?",
    ),
    "history": (
        "analysis.cli.history_command:history",
        "Follow one metric over many recordings or captures, and mark changes that exceed the noise band.",
    ),
    "predict": (
        "analysis.cli.predict_command:predict",
        "Predict a step of recorded runs with a change, such as BF16, fused attention, CUDA graphs or a larger batch.",
    ),
    "profile": (
        "jobs.cli.profile_command:profile",
        "Profile a training script as it is: which module each kernel is of, backward included.",
    ),
    "try": (
        "jobs.cli.try_command:try_changes",
        "Try changes on a training script as it is: was it faster, and was that expected?",
    ),
    "doctor": (
        "jobs.cli.doctor_command:doctor",
        "Check that this machine can measure: GPU, torch, nsys, memory, disk.",
    ),
    "install-nsys": (
        "jobs.cli.install_nsys_command:install_nsys",
        "Install the command line of NVIDIA Nsight Systems, without root, too.",
    ),
    "plan": (
        "jobs.cli.plan_command:plan",
        "Print the runs of a sweep with their parameters, predicted memory and time.",
    ),
    "run": ("jobs.cli.run_command:run", "Measure the runs of a sweep that are not finished yet."),
    "status": ("jobs.cli.status_command:status", "Show how far a running or finished sweep is."),
    "job": (
        "jobs.cli.job_command:job",
        "Everything: check this machine, measure the sweep, make its recording and the site.",
    ),
    "merge": (
        "analysis.cli.merge_command:merge",
        "Join the results that several machines measured of one sweep.",
    ),
    "verify": (
        "analysis.cli.verify_command:verify",
        "Check that results and recordings are what was written.",
    ),
    "ingest": ("analysis.cli.ingest_command:ingest", "Turn the results of a sweep into a recording."),
    "report": (
        "analysis.cli.report_command:report",
        "Write the pages of a recording; `mkdocs build` then makes the site.",
    ),
    "render": ("jobs.cli.site_command:render", "Build the site of the recordings in RESULTS/recordings."),
    "publish-data": (
        "analysis.cli.publish_data_command:publish_data",
        "Put a recording into site/data, after showing what becomes public.",
    ),
    "check-public": (
        "analysis.cli.check_public_command:check_public",
        "Check folders that are to become public: nothing in them looks private, and no link of a page leads nowhere.",
    ),
}
"""Subcommands in the order of the help: the function of each, and its line there."""


NEED_SITE = {"job", "report", "render", "publish-data", "check-public"}
"""Subcommands that cannot do without the extra `site`, which is checked before they begin."""

Context = Any
"""The context of a command, whose class typer does not export."""


class Subcommand(TyperCommand):
    """A command that is imported when it is called."""

    def __init__(self, name: str, function: str, help: str):
        super().__init__(name, help=help)
        self.function = function

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Context:
        context = self.load().make_context(info_name, args, parent, **extra)
        if self.name in NEED_SITE:
            check_extra("site")
        return context

    def load(self) -> TyperCommand:
        module, _, name = self.function.partition(":")
        subcommand = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        subcommand.command(self.name)(getattr(import_module(f"profiler_job.{module}"), name))
        return cast(TyperCommand, typer.main.get_command(subcommand))  # of one function: no group


class Subcommands(TyperGroup):
    def invoke(self, ctx: Context) -> Any:
        try:
            return super().invoke(ctx)
        except MissingExtraError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(CANNOT_MEASURE) from error

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Subcommand | None:
        return Subcommand(cmd_name, *COMMANDS[cmd_name]) if cmd_name in COMMANDS else None


app = typer.Typer(
    cls=Subcommands, no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False
)


@app.callback()
def prepare() -> None:
    """Find nsys when it is not on PATH, and go on when nobody reads what is printed."""
    add_nsys_to_path()
    if sys.stdout is not None:  # as where a shell closed it
        sys.stdout = Output(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = Output(sys.stderr)


if __name__ == "__main__":
    app()
