"""The runs that `jobs/sweeps/ladder.sh` measures, without measuring them."""

import os
import re
import subprocess
from pathlib import Path

from profiler_job.jobs.sweep.plan import load_sweep, select_runs

SWEEPS = Path(__file__).parents[2] / "jobs" / "sweeps"
PROFILER = """#!/bin/sh
printf '%s\\n' "$3 $5 $6" >> "$COMMANDS"
exit "${CODE:-0}"
"""


def run_script(folder: Path, *options: str, code: int = 0) -> tuple[int, list[list[str]]]:
    """Run the script with a profiler-job that ends with `code`. Returns the script's exit code, and of each command
    the sweep file, the choice of runs and the first option after it."""
    profiler, commands = folder / "profiler-job", folder / "commands"
    profiler.write_text(PROFILER)
    profiler.chmod(0o755)
    given = {"PROFILER": str(profiler), "COMMANDS": str(commands), "CODE": str(code)}
    done = subprocess.run([SWEEPS / "ladder.sh", *options], env=os.environ | given)
    return done.returncode, [line.split(" ") for line in commands.read_text().splitlines()]


def list_chosen(folder: Path) -> dict[str, list[str]]:
    """List the ids of the runs that the script measures, by their block; of several in one command, by the first."""
    chosen: dict[str, list[str]] = {}
    for file, only, _ in run_script(folder)[1]:
        block = re.findall(r"block=(\w+)", only)[0]
        chosen.setdefault(block, []).extend(run.run_id for run in select_runs(load_sweep(Path(file)), only))
    return chosen
