"""Tune a script, write the patch into a copy of its folder, and run both without this program: is the copy as fast as
`tune` says, and are its losses those that it states?

    python -m tests.bench.tuned_copies --folder nanoGPT --out copies.jsonl --budget 4 -- python train.py

The command runs in the folder, the copy's with the options that the patch names. The script and the patched copy
alternate, a process each (--pairs), timed by a hook after each update of an optimizer and nothing else. A line of JSON
is added: the winner's changes, what `tune` said and what the pairs show, both with intervals, and losses. What the
patch leaves to the user is named (`to_write`), and then the copy is not the winner.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from profiler_job.analysis.changes.patch import COMMAND
from profiler_job.jobs.contract.paired_ratio import compare_rounds
from profiler_job.jobs.contract.tuning import Tuning, name_tuned_folder, read_tuning
from profiler_job.jobs.executor.tune_confirmation import does_idle
from tests.bench.bare_steps import SETTINGS

INSIDE = Path(__file__).with_name("bare_steps.py")
NAME = "copy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the script; it is copied")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, help="folder that keeps what tune writes (none)")
    parser.add_argument("--budget", type=float, default=4.0, help="of tune, in minutes (4)")
    parser.add_argument("--changes", help="as of tune")
    parser.add_argument("--pairs", type=int, default=3, help="of processes (3)")
    parser.add_argument("--skip", type=int, default=20, help="steps before those that are timed (20)")
    parser.add_argument("--steps", type=int, default=30, help="that are timed (30)")
    parser.add_argument("script", nargs="+", help="the script's command, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        before, after = (Path(shutil.copytree(args.folder, root / name)) for name in ("before", "after"))
        tuning = tune(args.script, after, (args.results or root / "results").absolute(), args.budget, args.changes)
        sides = [(args.script, before), (find_command(tuning) or args.script, after)]
        pairs = [[run_alone(*side, args.skip, args.steps) for side in sides] for _ in range(args.pairs)]
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"command": " ".join(args.script)} | describe(tuning, pairs)) + "\n")


def tune(script: list[str], folder: Path, results: Path, budget: float, changes: str | None) -> Tuning:
    """Tune a script in its folder, and write the patch there."""
    command = [sys.executable, "-m", "profiler_job", "tune", "--results", str(results), "--name", NAME, "--write"]
    command += ["--budget", str(budget), *(["--changes", changes] if changes else []), "--", *script]
    subprocess.run(command, cwd=folder, check=True)
    return read_tuning(results / name_tuned_folder(NAME))


def find_command(tuning: Tuning) -> list[str]:
    """Find the command that the patch names in place of the script's; empty if it stays as it is."""
    lines = [line.code for line in (tuning.patch.to_write if tuning.patch else ()) if line.reason == COMMAND]
    return shlex.split(lines[0]) if lines else []


def run_alone(script: list[str], folder: Path, skip: int, steps: int) -> dict[str, Any]:
    """Run a script without this program until its steps are timed. Raises SystemExit if it ends before."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "steps.json")
        Path(temporary, "sitecustomize.py").write_text(f"import runpy; runpy.run_path({str(INSIDE)!r})", "utf-8")
        path = os.pathsep.join(filter(None, [temporary, os.environ.get("PYTHONPATH")]))
        settings = json.dumps({"skip": skip, "steps": steps, "out": str(out)})
        done = subprocess.run(script, cwd=folder, env=os.environ | {SETTINGS: settings, "PYTHONPATH": path})
        if not out.is_file():
            sys.exit(f"{' '.join(script)} ended with {done.returncode} before {skip + steps} steps")
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def describe(tuning: Tuning, pairs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Describe what `tune` said of the winner, and what pairs of processes, script and copy, show."""
    winner, patch = tuning.winner, tuning.patch
    times = [[run["step_ns"] for run in side] for side in zip(*pairs)]
    losses = [run["losses"] for run in pairs[0]]
    apart = [abs(copy / own - 1) for own, copy in zip(*losses)]
    shown = compare_rounds(*times)
    return {
        "gpu": tuning.gpu_name,
        "torch": tuning.torch,
        "used_s": round(tuning.used_s),
        "changes": winner.changes if winner else (),
        "said": winner.ratio_base.model_dump() if winner and winner.ratio_base else None,
        "is_cpu_limited": any(step and does_idle(step.kernels, step.step_ns) for step in (tuning.base, winner)),
        "is_bare": tuning.confirmation.is_bare,
        "to_write": [f"{line.change}: {line.reason}" for line in patch.to_write if line.reason != COMMAND]
        if patch
        else [],
        "pairs": {name: getattr(shown, name) for name in ("times_as_fast", "low", "high")},
        "steps_ms": [[round(time_ns / 1e6, 3) for time_ns in side] for side in times],
        "median_ms": [round(median(side) / 1e6, 3) for side in times],
        "losses_said": winner.losses.model_dump() if winner else None,
        "losses": {"num": len(apart), "first": apart[0] if apart else None, "largest": max(apart, default=None)},
    }


if __name__ == "__main__":
    main()
