"""The time and the disk that a run will need, before it runs (`jobs.memory` has its memory), from the costs that its
workload offers. No GPU.

A prediction, never shown as a measurement: it orders work, sets timeouts, and is compared with free space.
"""

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.contract.plain import PLAIN, count_plain_steps
from profiler_job.jobs.workloads.costs_by_name import find_costs

# Seconds of a stage in addition to its steps, from the recordings of an H200 in site/data.
START_S = 2.5
CAPTURE_S = 3.0  # of nsys, in place of START_S
EXPORT_EVENT_S = 15e-6
PLAIN_START_S = 2.5  # of the plain run before the first process of a run
FRESH_S, RANKS_S = 3.0, 6.0  # of a process that is not forked: of nsys for a fresh one, of several ranks
SHARED_START_S = 1.0  # START_S of a run that takes turns with others in a process
NOTED = 1.1  # of a first compilation: what a capture needs, which notes its graphs and takes none from a cache
BUSY_S = 1.0  # steps for the energy of the GPU, whose counter has a new value every 20 to 100 ms
HOST_LOOP_S = 0.3  # the speed of the CPU
FIRST_RUN_S = 1.0  # libraries that are loaded when they are first used
COMPILED_FIRST_RUN_S = 3.0  # the same, and what was compiled; a capture has no more than the settling
SETTLING_S = 1.5  # of a capture, before its measured steps
SLOWER = 6.0  # steps of a modest GPU, deliberately slow, so that a timeout means trouble
ASSUMED_S = 60.0  # a run whose workload predicts nothing, where work must be ordered or divided
LONGEST_S = 3600.0  # such a run counts as hung after this long

# Of the exports of nsys 2025.3 in tests/data: what they take without events, and for each.
EXPORT_BYTES, EVENT_BYTES = 200_000, 55


def name_stage(collector: str, process: int) -> str:
    """Name of a stage of a run: timer, timer-1, timer-2... by the number of the unprofiled process, and nsys."""
    return f"{collector}-{process}" if collector == "timer" and process else collector


def count_stage_steps(protocol: Protocol) -> dict[str, int]:
    """Count the steps of each stage of a run, in order; one more for probes or followed modules, and one more in each
    turn."""
    timed = protocol.warmup_steps + 1 + protocol.measured_steps
    of_turns = protocol.warmup_steps + protocol.rounds + protocol.measured_steps
    steps = {
        name_stage("timer", process): of_turns if protocol.turns and process else timed
        for process in range(protocol.processes)
    }
    return steps | ({"nsys": protocol.warmup_steps + 1 + protocol.profiled_steps} if protocol.profiled_steps else {})


def predict_stages(run: Run, protocol: Protocol, slower: float = 1.0) -> dict[str, float] | None:
    """Time of each stage of a run in seconds, on an H200 or on a GPU whose steps take `slower` times as long; None if
    its workload predicts nothing."""
    costs = find_costs(run.workload)
    if costs is None:
        return None
    step_s = slower * costs.step_seconds(run)
    build_s = costs.build_seconds(run) + RANKS_S * (run.gpus > 1)
    busy_s = max(BUSY_S, step_s)
    plain_s = 0.0
    if num_plain := count_plain_steps(run.model_dump(), protocol.warmup_steps):
        plain_s = PLAIN_START_S + build_s + slower * num_plain * costs.step_seconds(run.model_copy(update=PLAIN))
    compile_s, again_s = (costs.compile_seconds(run, is_known) for is_known in (False, True))
    events = costs.step_events(run) * (protocol.warmup_steps + protocol.profiled_steps)
    fixed_s = {
        name_stage("timer", 0): START_S + compile_s + plain_s + busy_s,
        "nsys": CAPTURE_S + NOTED * compile_s + EXPORT_EVENT_S * events + FRESH_S * run.fresh_process,
    }
    if protocol.samples and costs.is_limited_by_cpu(run):  # the same again, with samples of Python
        fixed_s["nsys"] += fixed_s["nsys"] + build_s + step_s * count_stage_steps(protocol)["nsys"]
    later_s = again_s + (SHARED_START_S if protocol.turns else START_S + busy_s)
    return {
        stage: build_s + step_s * steps + fixed_s.get(stage, later_s)
        for stage, steps in count_stage_steps(protocol).items()
    }


def predict_running(run: Run, protocol: Protocol) -> dict[str, float]:
    """The part of each stage of a run for which its process has the GPU alone, in seconds, if others compile side by
    side with it; their processes that take turns warm up so, too. The workload predicts times."""
    costs = find_costs(run.workload)
    assert costs is not None
    step_s = costs.step_seconds(run)
    running = {}
    for stage, steps in count_stage_steps(protocol).items():
        if stage == "nsys":
            sessions = 2 if protocol.samples and costs.is_limited_by_cpu(run) else 1
            running[stage] = sessions * (FIRST_RUN_S + SETTLING_S + step_s * steps)
        elif protocol.turns and stage != name_stage("timer", 0):
            running[stage] = HOST_LOOP_S + step_s * (steps - protocol.warmup_steps)
        else:
            first_s = FIRST_RUN_S if run.compile == "off" else COMPILED_FIRST_RUN_S
            running[stage] = HOST_LOOP_S + first_s + max(BUSY_S, step_s) + step_s * steps
    return running


def predict_seconds(run: Run, protocol: Protocol) -> float | None:
    """The same of all stages together."""
    stages = predict_stages(run, protocol)
    return None if stages is None else sum(stages.values())


def assume_seconds(run: Run, protocol: Protocol) -> float:
    """`predict_seconds`, or the same for every run that has no prediction: what work is ordered and divided by."""
    predicted = predict_seconds(run, protocol)
    return ASSUMED_S if predicted is None else predicted


def assume_stages(run: Run, protocol: Protocol) -> dict[str, float]:
    """`assume_seconds` of each stage, by name."""
    steps = count_stage_steps(protocol)
    equal = {stage: ASSUMED_S * number / sum(steps.values()) for stage, number in steps.items()}
    return predict_stages(run, protocol) or equal


def compute_timeout(run: Run, protocol: Protocol) -> float:
    """A stage of a run that has not ended after this long counts as hung."""
    stages = predict_stages(run, protocol, SLOWER)
    return LONGEST_S if stages is None else 120 + 10 * max(stages.values())


def predict_export_bytes(run: Run, protocol: Protocol) -> float | None:
    """Size of the export of a run's capture, which holds the warm-up steps, too; 0 where none is captured, None where
    its workload predicts nothing."""
    if not protocol.profiled_steps:
        return 0.0
    costs = find_costs(run.workload)
    if costs is None:
        return None
    num_steps = protocol.warmup_steps + protocol.profiled_steps
    return EXPORT_BYTES + EVENT_BYTES * costs.step_events(run) * num_steps * run.gpus
