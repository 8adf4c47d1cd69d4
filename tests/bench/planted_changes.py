"""Say how often the test of turns finds a change that was planted, from the steps of real turns.

python -m tests.bench.planted_changes [--rounds N] RECORDING ...

Each run is compared with itself: in each of its turns the first step is of one variant and the second of the other, and
in every other round the other way round. That is what the noise of turns makes of no difference. Then 3% are planted,
in steps of one variant and of the other. Printed as JSON: a line a run, whether it was called different without a
change, and how many of the two planted ones were found; and the sums by what limits the step.

With --rounds each process has N rounds, drawn from those that it took: what a sweep of so many would find.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from profiler_job.analysis.metrics import step_limits
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.paired_ratio import compare_processes, is_different
from profiler_job.jobs.contract.step_limit import CPU

PLANTED = 0.03
Rounds = tuple[list[float], list[float]]
"""Paired times of a process, of one variant and of the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0, help="draw so many rounds for each process")
    parser.add_argument("recordings", nargs="+", type=Path, metavar="RECORDING")
    args = parser.parse_args()
    draw, rows = random.Random(0), []
    for folder in args.recordings:
        recording = store.load(folder)
        limits = step_limits.find_limits(recording.steps, recording.kernels, recording.memops)
        for run_id, of_processes in divide_turns(recording.steps).items():
            limit = "the CPU" if CPU in limits[run_id].names else "the GPU"
            if args.rounds:
                of_processes = [draw_rounds(rounds, args.rounds, draw) for rounds in of_processes]
            rows.append({"run_id": run_id, "limit": limit} | judge(of_processes))
            print(json.dumps(rows[-1]))
    table = pd.DataFrame(rows).assign(runs=1)
    for limit, sums in table.groupby("limit")[["runs", "false_alarms", "found", "planted"]].sum().iterrows():
        print(json.dumps({"limit": limit} | {name: int(num) for name, num in sums.items()}))


def divide_turns(steps: pd.DataFrame) -> dict[str, list[Rounds]]:
    """Divide the first two steps of each turn between two variants, by run and process."""
    is_step = (steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == "step")
    turns = steps[is_step & (steps["round"] >= 0)].sort_values("step")
    divided: dict[str, list[Rounds]] = {}
    for (run_id, _), process in turns.groupby([turns["run_id"].astype(str), "process"]):
        pairs = [rows["wall_ns"].tolist()[:2] for _, rows in process.groupby("round")]
        ordered = [pair[:: -1 if number % 2 else 1] for number, pair in enumerate(pairs) if len(pair) == 2]
        divided.setdefault(run_id, []).append(([a for a, _ in ordered], [b for _, b in ordered]))
    return divided


def draw_rounds(rounds: Rounds, number: int, draw: random.Random) -> Rounds:
    """Draw so many rounds with replacement, and for each which variant has which step, as turns come by chance."""
    pairs = [draw.choice((pair, pair[::-1])) for pair in draw.choices([*zip(*rounds, strict=True)], k=number)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def judge(of_processes: Sequence[Rounds]) -> dict[str, int]:
    """Judge a run against itself, without a change and with one."""
    longer = [is_said_different(of_processes, factor) for factor in (1 + PLANTED, 1 / (1 + PLANTED))]
    return {"false_alarms": int(is_said_different(of_processes, 1.0)), "found": sum(longer), "planted": len(longer)}


def is_said_different(of_processes: Sequence[Rounds], factor: float) -> bool:
    return is_different(compare_processes([(a, [time * factor for time in b]) for a, b in of_processes]))


if __name__ == "__main__":
    main()
