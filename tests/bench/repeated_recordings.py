"""Say how well recordings by turns repeat on another machine.

profiler-job run --sweep trained_1 && profiler-job ingest results/trained_1 -o again/trained_1
python -m tests.bench.repeated_recordings FIRST again/trained_1 [FIRST AGAIN ...] > repeated.json

Two recordings of each sweep, FIRST the shipped one. `ratios`, of each two runs that took turns in both: the ratio with
its interval in each, whether the intervals meet, how far the second is from the first, and whether that is within 3%,
or 6% where the CPU limits one of the runs in either recording. Such a ratio is one of hosts, too: their loop of plain
Python in ms, in the processes that the ratio is of, and whether the slower one takes more than SLOW_HOST times as long;
then the two are not compared at one speed, and are counted by themselves. `kernels`: how far the kernel time of each
run's profiled step is, and whether it is within 1.5%; power_w is the largest that was read in either recording, and
is_capped whether the power cap held the clock down in most readings of both. `sums` counts both. Recordings of two
kinds of GPU are refused.
"""

import json
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, step_limits
from profiler_job.analysis.metrics.turns import compare_turns, list_counted_processes, list_rounds
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.store import Recording
from profiler_job.jobs.contract.slow_processes import SLOW_HOST
from profiler_job.jobs.contract.step_limit import CPU

WITHIN = {False: 0.03, True: 0.06}
"""How far two ratios may be, by whether the CPU limits a run of the pair."""
KERNELS_WITHIN = 0.015
POWER_CAP = "sw_power_cap"


def main() -> None:
    folders = sys.argv[1:]
    if not folders or len(folders) % 2:
        sys.exit(__doc__)
    recordings, rows = [], []
    for pair in zip(folders[::2], folders[1::2]):
        first, second = (store.load(Path(folder)) for folder in pair)
        rows += judge(first, second)
        at = [str(rec.runs["started_at"].min()) for rec in (first, second)]
        recordings.append({"sweep": Path(pair[0]).name, "gpu": str(first.runs["gpu_name"].iloc[0]), "started_at": at})
    lists = {name: [row for row in rows if key in row] for name, key in (("ratios", "runs"), ("kernels", "run_id"))}
    print(json.dumps({"recordings": recordings} | lists | {"sums": [*add_up(rows)]}, indent=1))


def judge(first: Recording, second: Recording) -> Iterator[dict[str, Any]]:
    """Judge each pair of runs that took turns in both recordings, and then each run. Raises SystemExit if they are of
    different GPUs or share no pair."""
    gpus = {str(name) for rec in (first, second) for name in rec.runs["gpu_name"]}
    if len(gpus) > 1:
        sys.exit(f"recordings of {' and '.join(sorted(gpus))} do not repeat each other")
    both = (first, second)
    rounds = [list_rounds(rec.steps, rec.processes) for rec in both]
    limited = [find_limited_by_cpu(rec) for rec in both]
    shared = sorted({*rounds[0]["run_id"]} & {*rounds[1]["run_id"]})
    pairs = 0
    for pair in combinations(shared, 2):
        ratios = [compare_turns(of, of, pair[:1], pair[1:]) for of in rounds]
        if all(ratios):
            pairs += 1
            values = [ratio.times_as_fast for ratio in ratios]
            is_cpu = any(run_id in ids for run_id in pair for ids in limited)
            row = {"runs": pair, "limit": "the CPU" if is_cpu else "the GPU"} | hold(*values, WITHIN[is_cpu])
            row |= {"intervals": [[round(ratio.low, 5), round(ratio.high, 5)] for ratio in ratios]}
            row |= {"do_meet": max(ratio.low for ratio in ratios) <= min(ratio.high for ratio in ratios)}
            if is_cpu:
                loops = [measure_loop(rec, of, pair) for rec, of in zip(both, rounds)]
                row |= {"loops_ms": loops, "is_one_speed": max(loops) <= SLOW_HOST * min(loops)}
            yield row
    if not pairs:
        sys.exit("no two runs took turns in both recordings: there is no ratio to compare")
    times = [sum_kernels(rec) for rec in both]
    for run_id in sorted({*times[0]} & {*times[1]}):
        row = {"run_id": run_id} | hold(times[0][run_id], times[1][run_id], KERNELS_WITHIN)
        states = [rec.telemetry[rec.telemetry["run_id"].astype(str) == run_id] for rec in both]
        power_w = max(float(read["power_mw"].max()) for read in states) / 1e3
        is_capped = all(read["throttle_reasons"].astype(str).str.contains(POWER_CAP).mean() > 0.5 for read in states)
        yield row | {"power_w": round(power_w), "is_capped": is_capped}


def hold(first: float, second: float, most: float) -> dict[str, Any]:
    away = second / first - 1
    rounded = {"first": round(first, 5), "second": round(second, 5), "away": round(away, 5)}
    return rounded | {"most": most, "within": abs(away) <= most}


def measure_loop(rec: Recording, rounds: pd.DataFrame, pair: tuple[str, ...]) -> float:
    """Measure the loop of plain Python (ms, median) in the processes that the ratio of two runs is of."""
    counted = list_counted_processes(rounds, rounds, pair[:1], pair[1:])
    processes = rec.processes[rec.processes["group"].isin(counted)].drop_duplicates("group")
    return round(float(processes["host_loop_ns"].median()) / 1e6, 1)


def find_limited_by_cpu(rec: Recording) -> set[str]:
    """Find the runs whose step the CPU limits, or may limit."""
    limits = step_limits.find_limits(rec.steps, rec.kernels, rec.memops)
    return {run_id for run_id, limit in limits.items() if CPU in limit.names}


def sum_kernels(rec: Recording) -> dict[str, float]:
    """Sum the kernel time (ns) of a profiled step of each run."""
    totals = kernel_time.kernel_totals(rec.kernels)
    return totals.groupby(totals["run_id"].astype(str))["time_ns"].sum().to_dict()


def add_up(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Count what is within, of ratios by limit and of kernel times."""
    table = pd.DataFrame(rows).assign(of=1)
    table["compared"] = table["limit"].map("ratios where {} limits".format, na_action="ignore").fillna("kernel times")
    if "is_one_speed" in table:
        at = table["is_one_speed"].map({True: ", hosts of one speed", False: ", hosts of two speeds"})
        table["compared"] += at.fillna("")
    for name, sums in table.groupby("compared")[["of", "within"]].sum().iterrows():
        yield {"compared": name, "within": int(sums["within"]), "of": int(sums["of"])}


if __name__ == "__main__":
    main()
