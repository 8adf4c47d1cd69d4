"""The name of a script's results, from its command."""

import re
from pathlib import Path

from profiler_job.jobs.cli.measure_script import LONGEST_NAME
from profiler_job.jobs.contract.layout import RESERVED_NAMES, SCRIPT

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start the script, with values of their own options before it."""


def choose_default_name(command: list[str]) -> str:
    """Return the name of the script without the characters that `--name` refuses: my-train for "my train.py"."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", find_script_name(command)).strip("._-")[:LONGEST_NAME] or SCRIPT
    return f"{name}-{SCRIPT}" if name in RESERVED_NAMES else name


def find_script_name(command: list[str]) -> str:
    """Return train for `python -u path/train.py --lr 1` and for `torchrun --nproc-per-node 2 train.py`, package for
    `python -m package`, and "" for code on the command line."""
    words = command[1:] or command
    for before, word in zip(["", *words], words):
        if before == "-m" and word not in LAUNCHERS:
            return word
        if before == "-c":
            return ""
        if word.endswith(".py"):
            return Path(word).stem
    return Path(next((word for word in words if not word.startswith("-")), command[0])).stem


def find_source(command: list[str]) -> str:
    """Return the file of the script of a command, as written there, or for `-m package.train` package/train.py if the
    current folder has it; "" if the command names none."""
    for before, word in zip(["", *command], command):
        if before == "-m":
            path = Path(*word.split("."))
            known = [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()]
            if known:
                return str(known[0])
        if word.endswith(".py"):
            return word
    return ""
