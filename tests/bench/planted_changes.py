"""Say how often the test of turns finds a change that was planted, from the steps of real turns.

python -m tests.bench.planted_changes [--rounds N] RECORDING ...

Each run is compared with itself: in each of its turns the first step is of one variant and the second of the other, and
in every other round the other way round. Where a turn has one step, two rounds that follow each other make one: more
lies between their steps than between those of two variants, so it is the harder test. That is what the noise of turns
makes of no difference. Then 3% are planted,
in steps of one variant and of the other. Printed as JSON: a line a run, whether it was called different without a
change (of so many judged), and how many of the planted ones were found; and the sums by what limits the step.

With --rounds each process has N rounds, drawn from those that it took: what a sweep of so many would find. Each run
is drawn DRAWS times: one draw of 58 planted changes found 51, and 20 of them 1,052 of 1,160.
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
DRAWS = 20
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
            judged = pd.DataFrame(judge_draws(of_processes, args.rounds, draw)).sum()
            rows.append({"run_id": run_id, "limit": limit} | {name: int(num) for name, num in judged.items()})
            print(json.dumps(rows[-1]))
    table = pd.DataFrame(rows).assign(runs=1)
    for limit, sums in table.groupby("limit")[["runs", *judged.index]].sum().iterrows():
        print(json.dumps({"limit": limit} | {name: int(num) for name, num in sums.items()}))


def judge_draws(of_processes: Sequence[Rounds], rounds: int, draw: random.Random) -> list[dict[str, int]]:
    """Judge a run against itself, once, or if processes are to have so many `rounds`, DRAWS times."""
    if not rounds:
        return [judge(of_processes)]
    return [judge([draw_rounds(pairs, rounds, draw) for pairs in of_processes]) for _ in range(DRAWS)]


def divide_turns(steps: pd.DataFrame) -> dict[str, list[Rounds]]:
    """Divide the first two steps of each turn, or of two rounds, between two variants, by run and process."""
    is_step = (steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == "step")
    turns = steps[is_step & (steps["round"] >= 0)].sort_values("step")
    divided: dict[str, list[Rounds]] = {}
    for (run_id, _), process in turns.groupby([turns["run_id"].astype(str), "process"]):
        of_turns = [rows["wall_ns"].tolist() for _, rows in process.groupby("round")]
        firsts = [times[0] for times in of_turns]
        pairs = list(zip(firsts[::2], firsts[1::2])) if len(firsts) == len(process) else [t[:2] for t in of_turns]
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
    alarms = int(is_said_different(of_processes, 1.0))
    return {"false_alarms": alarms, "judged": 1, "found": sum(longer), "planted": len(longer)}


def is_said_different(of_processes: Sequence[Rounds], factor: float) -> bool:
    return is_different(compare_processes([(a, [time * factor for time in b]) for a, b in of_processes]))


if __name__ == "__main__":
    main()
