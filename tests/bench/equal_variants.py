"""Say how well the interval of turns holds, from a recording in which the same run took turns with itself.

profiler-job run --sweep equal && profiler-job ingest results/equal -o recording
python -m tests.bench.equal_variants recording

Printed as JSON, a line a case: how many processes took turns, the standard deviation of their ratios in percent, what
of that the noise within processes explains, and for each number of processes how many of its choices have an interval
(95%) that holds 1, and how wide it is in percent (median). Choices share processes, so few processes say little.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics.turns import list_rounds
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.paired_ratio import compare_processes, compare_rounds

Rounds = tuple[list[float], list[float]]
"""Paired times of a process: of the first repetition, and of the second."""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    for row in judge_recording(*(store.load_table(folder, name) for name in ("runs", "steps", "processes"))):
        print(json.dumps(row))


def judge_recording(runs: pd.DataFrame, steps: pd.DataFrame, processes: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Judge each case that has two repetitions which took turns."""
    rounds = list_rounds(steps, processes)
    walls = rounds.set_index(["run_id", "group", "round"])["wall_ns"]
    ids = runs[runs["repeat"] <= 1].astype({"run_id": str}).set_index("run_id")["repeat"]
    for first in ids[ids == 0].index:
        second = f"{first}-repeat1"
        if {first, second} <= {*walls.index.get_level_values("run_id")}:
            both = pd.concat([walls[first], walls[second]], axis=1, join="inner", keys=("a", "b"))
            of_processes = [(rows["a"].tolist(), rows["b"].tolist()) for _, rows in both.groupby(level="group")]
            yield {"run_id": first} | judge(of_processes)


def judge(of_processes: Sequence[Rounds]) -> dict[str, Any]:
    """Judge the ratios of two equal variants. Raises ValueError without a process."""
    alone = [compare_rounds(*pairs) for pairs in of_processes]
    logs = [math.log(ratio.times_as_fast) for ratio in alone]
    within = [stdev(math.log(a / b) for a, b in zip(*pairs)) / math.sqrt(len(pairs[0])) for pairs in of_processes]
    row: dict[str, Any] = {"processes": len(logs), "ratio": round(math.exp(fmean(logs)), 5)}
    if len(logs) > 1:
        row |= {"spread_percent": to_percent(stdev(logs)), "of_rounds_percent": to_percent(median(within))}
    for number in range(1, len(logs) + 1):
        ratios = [compare_processes(chosen) for chosen in combinations(of_processes, number)]
        held = sum(ratio.low <= 1 <= ratio.high for ratio in ratios)
        width = median(ratio.high - ratio.low for ratio in ratios)
        row[f"of_{number}"] = {"choices": len(ratios), "hold_1": held, "width_percent": to_percent(width)}
    return row


def to_percent(share: float) -> float:
    return round(100 * share, 3)


if __name__ == "__main__":
    main()
