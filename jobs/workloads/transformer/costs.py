"""Costs of the reference Transformer, from its shape: time on a modest GPU and events in a capture. Plain arithmetic.

A prediction, never shown as a measurement.
"""

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.precisions import PRECISIONS

BYTES_FP32 = 4

SUSTAINED_BYTES_PER_S = 0.3e12
"""Bytes per second that a modest data-centre GPU sustains; deliberately low, so that a timeout means trouble."""
LAUNCH_S = 20e-6

# The most kernels, API calls, copies and ranges of a layer in one step that any recording in site/data has.
EVENTS_PER_LAYER = {"forward": 390, "forward_backward": 550, "train_step": 970}


def step_seconds(run: Run) -> float:
    """One step on a modest GPU, in seconds."""
    tokens = run.batch_size * run.context_length
    passes = {"forward": 1, "forward_backward": 3, "train_step": 3}[run.mode]
    score_elements = run.num_layers * run.batch_size * run.num_heads * run.context_length**2
    flops = passes * (2 * run.num_parameters * tokens + 4 * score_elements * run.d_model / run.num_heads)
    moved = passes * (score_elements * 60 + tokens * run.num_layers * (20 * run.d_model + 6 * run.d_ff) * BYTES_FP32)
    if run.mode == "train_step":
        moved += 60 * run.num_parameters
    launches = 60 * passes * run.num_layers * run.accumulation
    launches += 130 * run.num_layers if run.mode == "train_step" else 0
    return flops / PRECISIONS[run.precision].sustained_flops + moved / SUSTAINED_BYTES_PER_S + launches * LAUNCH_S


def step_events(run: Run) -> float:
    """Predict the events in a capture of one step, of all ranks."""
    of_micro_batches = EVENTS_PER_LAYER["forward_backward"] * (run.accumulation - 1)
    return (EVENTS_PER_LAYER[run.mode] + of_micro_batches) * run.num_layers * run.gpus
