"""The time and the disk that a run will need, before it runs (`jobs.memory` has its memory), from the costs that its
workload offers. No GPU.

A prediction, never shown as a measurement: it orders work, sets timeouts, and is held against free space.
"""

from jobs.contract.axes import Run
from jobs.contract.layout import Protocol
from jobs.workloads.costs import costs_of

START_S = 5  # a run takes this long beside its steps
ASSUMED_S = 60.0  # a run whose workload predicts nothing, where work must be ordered or divided
LONGEST_S = 3600.0  # such a run counts as hung after this long

# Of the exports of nsys 2025.3 in tests/data: what they take without events, and for each.
EXPORT_BYTES, EVENT_BYTES = 200_000, 55


def predicted_seconds(run: Run, protocol: Protocol) -> float | None:
    """Time of both stages of a run in seconds on a modest GPU, warm-up included, process start excluded; None where its
    workload predicts nothing."""
    costs = costs_of(run.workload)
    if costs is None:
        return None
    num_steps = 2 * protocol.warmup_steps + 1 + protocol.measured_steps + protocol.profiled_steps
    return START_S + costs.step_seconds(run) * num_steps


def assumed_seconds(run: Run, protocol: Protocol) -> float:
    """`predicted_seconds`, or the same for every run that has no prediction: what work is ordered and divided by."""
    predicted = predicted_seconds(run, protocol)
    return ASSUMED_S if predicted is None else predicted


def assumed_stages(run: Run, protocol: Protocol) -> dict[str, float]:
    """`assumed_seconds` of each stage, by collector: divided as their steps are."""
    steps = {"timer": protocol.warmup_steps + 1 + protocol.measured_steps}
    if protocol.profiled_steps:
        steps["nsys"] = protocol.warmup_steps + protocol.profiled_steps
    both = assumed_seconds(run, protocol)
    return {name: both * number / sum(steps.values()) for name, number in steps.items()}


def timeout_seconds(run: Run, protocol: Protocol) -> float:
    """A stage of a run that has not ended after this long counts as hung."""
    predicted = predicted_seconds(run, protocol)
    return LONGEST_S if predicted is None else 120 + 5 * predicted


def predicted_export_bytes(run: Run, protocol: Protocol) -> float | None:
    """Size of the export of a run's capture, which holds the warm-up steps, too; 0 where none is captured, None where
    its workload predicts nothing."""
    if not protocol.profiled_steps:
        return 0.0
    costs = costs_of(run.workload)
    if costs is None:
        return None
    num_steps = protocol.warmup_steps + protocol.profiled_steps
    return EXPORT_BYTES + EVENT_BYTES * costs.step_events(run) * num_steps
