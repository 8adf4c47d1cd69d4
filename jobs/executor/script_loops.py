"""Loops of a script whose steps no optimizer ends, as `jobs.follow.loops` counts them: which of them to measure."""

from typing import Any

NAMED_STEPS = ("auto", "optimizer", "backward", "forward")
"""What ends a step without an NVTX range of the script; see `jobs.follow.plan.Plan`."""
FEWEST = 7
"""Steps of a loop that can be measured; see `jobs.follow.loops`."""

PASSES = {
    "forward": "forward passes alone",
    "backward": "forward and backward passes",
    "optimizer": "updates of an optimizer",
}

Loop = dict[str, Any]
"""kind: what ends its steps, a name in PASSES. num: of its steps. before: steps of that kind before it."""


def choose_loops(loops: list[Loop]) -> list[Loop]:
    """Return the longest loop of each kind, in the order of the script."""
    longest = {loop["kind"]: loop for loop in sorted(loops, key=lambda loop: loop["num"])}
    return [loop for loop in loops if loop is longest[loop["kind"]]]


def find_unmeasured_loops(step: str, noted: dict[str, Any], code: int) -> list[Loop]:
    """Return the loops of a script that another start is to measure: loops that were only counted, and both of a
    script that has two kinds. None are if an optimizer took enough steps.

    step: what was to end a step. code: exit code of the script.
    """
    loops = choose_loops(noted["loops"])
    if code or step != "auto" or (noted["optimizers"] and noted["seen"] >= FEWEST):
        return []
    is_settled = noted["stage"] == "done" or noted["num_prefills"]  # what generates text has prefills to begin with
    return [] if is_settled and len(loops) < 2 else loops


def describe_loop(loop: Loop) -> str:
    """Return what a loop does, and how often, in a few words."""
    return f"{loop['num']} {PASSES[loop['kind']]}"
