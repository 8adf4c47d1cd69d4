"""The time and the disk that a run will need, before it runs (`jobs.memory` has its memory). Plain arithmetic on the
shapes, no GPU.

A prediction, never shown as a measurement: it orders work, sets timeouts, and is held against free space.
"""

from jobs.sweep.plan import Protocol, Run

BYTES_FP32 = 4

# Rates a modest data-centre GPU sustains on this workload; deliberately low, so that a timeout means trouble.
SUSTAINED_FLOPS = {"fp32": 8e12, "tf32": 30e12, "bf16": 40e12}
SUSTAINED_BYTES_PER_S = 0.3e12
LAUNCH_S = 20e-6

# The most kernels, API calls, copies and ranges of a layer in one step that any recording in site/data has.
EVENTS_PER_LAYER = {"forward": 390, "forward_backward": 500, "train_step": 970}
# Of the exports of nsys 2025.3 in tests/data: what they take without events, and for each.
EXPORT_BYTES, EVENT_BYTES = 200_000, 55


def predicted_seconds(run: Run, protocol: Protocol) -> float:
    """Time of both passes of a run in seconds on a modest GPU, warm-up included, process start excluded."""
    tokens = run.batch_size * run.context_length
    passes = {"forward": 1, "forward_backward": 3, "train_step": 3}[run.mode]
    score_elements = run.num_layers * run.batch_size * run.num_heads * run.context_length**2
    flops = passes * (2 * run.num_parameters * tokens + 4 * score_elements * run.d_model / run.num_heads)
    moved = passes * (score_elements * 60 + tokens * run.num_layers * (20 * run.d_model + 6 * run.d_ff) * BYTES_FP32)
    if run.mode == "train_step":
        moved += 60 * run.num_parameters
    launches = 60 * passes * run.num_layers + (130 * run.num_layers if run.mode == "train_step" else 0)
    step = flops / SUSTAINED_FLOPS[run.precision] + moved / SUSTAINED_BYTES_PER_S + launches * LAUNCH_S
    num_steps = 2 * protocol.warmup_steps + 1 + protocol.measured_steps + protocol.profiled_steps
    return 5 + step * num_steps


def predicted_passes(run: Run, protocol: Protocol) -> dict[str, float]:
    """`predicted_seconds` of each pass, by collector: divided as their steps are."""
    steps = {"timer": protocol.warmup_steps + 1 + protocol.measured_steps}
    if protocol.profiled_steps:
        steps["nsys"] = protocol.warmup_steps + protocol.profiled_steps
    whole = predicted_seconds(run, protocol)
    return {name: whole * number / sum(steps.values()) for name, number in steps.items()}


def timeout_seconds(run: Run, protocol: Protocol) -> float:
    """A pass of a run that has not ended after this long counts as hung."""
    return 120 + 5 * predicted_seconds(run, protocol)


def predicted_export_bytes(run: Run, protocol: Protocol) -> float:
    """Size of the export of a run's capture, which holds the warm-up steps, too; 0 where none is captured."""
    if not protocol.profiled_steps:
        return 0.0
    num_steps = protocol.warmup_steps + protocol.profiled_steps
    return EXPORT_BYTES + EVENT_BYTES * EVENTS_PER_LAYER[run.mode] * run.num_layers * num_steps
