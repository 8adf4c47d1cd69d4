"""Measure how much longer an unprofiled step takes because the script is followed.

python -m tests.bench.by_turns --mark "step " --pairs 300 -- python train.py

Some steps of the script are followed, the next left alone, and so on in one process: the host's speed changes too much
from minute to minute to compare two processes. The script must wait for the GPU in each step and then print a line
that begins with the mark, and run for as many steps; of each turn the first step is left out. With --updates N a step
is N updates of optimizers, and the GPU is waited for after each: for a script that prints seldom.

Printed as JSON: pairs of neighbouring turns, median step of the bare ones in ms, and the median ratio of a pair's
medians, followed over bare, with its 95% interval (bootstrap over pairs). With --control both kinds of turns are bare:
what the measurement makes of no difference.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).with_name("inside_turns.py")
DRAWS = 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mark", default="step ", help="how the line begins that the script prints after each step")
    parser.add_argument("--updates", type=int, default=0, help="of optimizers in a step, in place of a mark")
    parser.add_argument("--pairs", type=int, default=300, help="of turns (300)")
    parser.add_argument("--steps", type=int, default=4, help="in a turn (4)")
    parser.add_argument("--control", action="store_true", help="leave the steps of both kinds alone")
    parser.add_argument("script", nargs="+", help="the script's command, after --")
    args = parser.parse_args()
    if args.steps < 2 or args.pairs < 1:
        sys.exit("at least 2 steps in a turn, and 1 pair")
    facts = run(args.script, args.mark, args.pairs, args.steps, args.control, args.updates)
    print(json.dumps(judge(facts, args.steps, args.control)))


def run(
    script: list[str], mark: str, pairs: int, steps: int, is_control: bool = False, updates: int = 0
) -> dict[str, Any]:
    """The steps of the script, as inside_turns wrote them."""
    with tempfile.TemporaryDirectory() as folder:
        load = f"import runpy; runpy.run_path({str(INSIDE)!r})"
        Path(folder, "sitecustomize.py").write_text(load, encoding="utf-8")
        out = Path(folder, "steps.json")
        settings = {"injected": str(ROOT / "jobs" / "follow"), "out": str(out)}
        settings |= {"mark": mark, "pairs": pairs, "steps": steps, "is_control": is_control, "updates": updates}
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PROFILER_JOB_TURNS": json.dumps(settings), "PYTHONPATH": path}
        done = subprocess.run(script, env=environment, stdout=subprocess.DEVNULL, check=False)
        if not out.is_file():
            sys.exit(f"the script ended with {done.returncode} before {pairs} pairs of {steps} steps were measured")
        return json.loads(out.read_text(encoding="utf-8"))


def judge(facts: dict, steps: int, is_control: bool = False) -> dict:
    """Return the ratio that the module's docstring defines. Raises SystemExit if the script was followed otherwise."""
    ns = np.array([step["ns"] for step in facts["steps"]], float).reshape(-1, 2, steps)
    is_followed = np.array([step["is_followed"] for step in facts["steps"]]).reshape(-1, 2, steps)[:, :, 0]
    expected = 0 if is_control else ns.size // 2
    if facts["stage"] != "TIMED" or facts["num_followed"] != expected:
        sys.exit(f"{facts['num_followed']} of {ns.size} steps were followed, in the stage {facts['stage']}")
    medians = np.median(ns[:, :, 1:], axis=2)
    ratios = np.where(is_followed[:, 0], medians[:, 0] / medians[:, 1], medians[:, 1] / medians[:, 0])
    drawn = np.random.default_rng(0).choice(ratios, (DRAWS, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    bare = np.median(ns[:, :, 1:][~is_followed])
    figures = {"bare_ms": bare / 1e6, "ratio": np.median(ratios), "low": low, "high": high}
    return {"pairs": len(ratios)} | {name: round(float(value), 4) for name, value in figures.items()}


if __name__ == "__main__":
    main()
