"""Larger micro-batches of a script that accumulates gradients: how large, and the process that has them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.tuning import Accumulation
from profiler_job.jobs.executor.script import INJECTED, find_input

WANTED = "PROFILER_JOB_MICRO_BATCHES"
"""Variable for the process, as in `jobs.follow.changes.fewer_accumulations`."""
EDITED = str(INJECTED / "edited_script.py")
FILLED = 0.9
"""Part of the GPU's memory that may be full."""
SEVERAL_RANKS = "the micro-batches of several ranks are not changed"
ONE_PASS = "a step has one backward pass"
NO_ROWS = "the samples of a micro-batch are not known"
AS_MODULE = "it is started as a module, so that no edit of its code can be tried"
NO_FILE = "its command names no file of it"


@dataclass(frozen=True, kw_only=True)
class LargerMicroBatches:
    """What gives a script larger micro-batches. command: with other options. script: its file as the command names it.
    texts: of files that are edited, by whole path."""

    accumulation: Accumulation
    command: Sequence[str]
    script: str
    texts: Mapping[str, str]

    def prepare(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command of a process, and variables of its environment. folder: of the process."""
        numbers, command = self.accumulation, list(self.command)
        if self.texts:
            command = edit_command(command, self.script, self.texts, folder)
        rows, num_passes = numbers.rows * numbers.factor, numbers.num_passes // numbers.factor
        return command, {WANTED: f"{rows},{num_passes}"}


def choose_accumulation(facts: Mapping[str, Any]) -> Accumulation | str:
    """Choose how much larger micro-batches are to be: as much as surely fits into the GPU's memory, or else as little
    as possible. facts: of a script (see `jobs.follow.turns`). Return the reason if they cannot be larger."""
    if facts["world"] > 1:
        return SEVERAL_RANKS
    if (num_passes := facts["forwards"]) < 2:
        return ONE_PASS
    shape = find_input({"steps": [], **facts})["shape"]
    if not shape or not shape[0]:
        return NO_ROWS
    factors = [factor for factor in range(2, num_passes + 1) if num_passes % factor == 0]
    peak, memory = facts.get("peak_allocated_bytes", 0), facts.get("gpu_memory_bytes", 0)
    factor = max([each for each in factors if each * peak <= FILLED * memory] or factors[:1])
    return Accumulation(rows=shape[0], num_passes=num_passes, factor=factor)


def edit_command(command: Sequence[str], script: str, texts: Mapping[str, str], folder: Path) -> list[str]:
    """Return the command that runs a script with other texts of its files, which are written to a folder. script: its
    file as the command names it."""
    file = folder / "texts.json"
    file.write_text(json.dumps(texts), encoding="utf-8")
    place = command.index(script)
    return [*command[:place], EDITED, str(file.absolute()), *command[place:]]


def find_edit_obstacle(command: Sequence[str], script: str) -> str:
    """Return why a script cannot run with other texts of its files; "" if it can."""
    if not script:
        return NO_FILE
    return "" if script in command[1:] else AS_MODULE
