"""Costs of the reference Transformer, from its shape: time on an H200 and events in a capture. Plain arithmetic.

A prediction, never shown as a measurement. The rates are fitted to the steps and walls of the runs in `site/data`.
"""

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.precisions import PRECISIONS

BYTES_FP32 = 4

SUSTAINED_BYTES_PER_S = 4e12
SCORE_BYTES = 80
"""Bytes that unfused attention moves for an element of its scores, in a pass."""
UPDATE_BYTES = {"own": 130, "loop": 130, "foreach": 60, "fused": 30}
"""Bytes that an optimizer moves for a parameter."""
COMPILED_BYTES = 0.5
"""Part of the traffic of activations that is left when kernels are fused."""

# Seconds to launch the kernels of a layer: in a pass, and in the update of its parameters.
PASS_S, UPDATE_S, FUSED_UPDATE_S = 0.9e-3, 0.65e-3, 0.33e-3
LAUNCHED = {"off": 1.0, "default": 0.4, "blocks": 0.4, "cudagraphs": 0.02}
"""Part of the time to launch that is left."""

BUILD_S = 0.4
"""Seconds to make a model and give it up, for each billion parameters."""
COMPILE_S, COMPILE_LAYER_S, COMPILED_LAYER_S = 4.0, 1.6, 0.1
"""Seconds to compile a model, more for each layer, and for a layer whose code another process has compiled before. Less
without a backward pass."""

# The most kernels, API calls, copies and ranges of a layer in one step that any recording in site/data has.
EVENTS_PER_LAYER = {"forward": 390, "forward_backward": 550, "train_step": 970}


def count_passes(run: Run) -> int:
    """Count the passes through the model in units of a forward pass: a backward pass is two, and one more with
    checkpointing."""
    return 1 if run.mode == "forward" else 3 + (run.checkpointing != "off")


def build_seconds(run: Run) -> float:
    """Seconds to make the model and give it up again."""
    return BUILD_S * run.num_parameters / 1e9


def step_seconds(run: Run) -> float:
    """One step on an H200, in seconds: of the GPU or of the CPU, whichever takes longer."""
    return max(gpu_seconds(run), launch_seconds(run))


def is_limited_by_cpu(run: Run) -> bool:
    """Whether launching a step takes longer than computing it, on an H200."""
    return launch_seconds(run) > gpu_seconds(run)


def gpu_seconds(run: Run) -> float:
    """What the GPU computes in a step."""
    tokens = run.batch_size * run.context_length
    passes = count_passes(run)
    score_elements = run.num_layers * run.batch_size * run.num_heads * run.context_length**2
    flops = passes * (2 * run.num_parameters * tokens + 4 * score_elements * run.d_model / run.num_heads)
    moved = float(BYTES_FP32 * 3 * passes * tokens * run.num_layers * (20 * run.d_model + 6 * run.d_ff))
    if run.attention == "naive":
        moved += passes * score_elements * SCORE_BYTES
    moved *= COMPILED_BYTES if run.compile != "off" else 1
    if run.mode == "train_step":
        moved += UPDATE_BYTES[run.optimizer] * run.num_parameters
    return flops / PRECISIONS[run.precision].sustained_flops + moved / SUSTAINED_BYTES_PER_S


def launch_seconds(run: Run) -> float:
    """What the CPU takes to launch a step."""
    seconds = count_passes(run) * run.num_layers * run.accumulation * PASS_S
    if run.mode == "train_step":
        seconds += run.num_layers * (FUSED_UPDATE_S if run.optimizer in ("fused", "foreach") else UPDATE_S)
    return seconds * LAUNCHED[run.compile]


def compile_seconds(run: Run, is_known: bool) -> float:
    """Seconds to compile the model of a run; 0 if it is not compiled. is_known: whether another process has compiled
    it."""
    if run.compile == "off":
        return 0.0
    layers = run.num_layers * count_passes(run) / 3
    return COMPILED_LAYER_S * layers if is_known else COMPILE_S + COMPILE_LAYER_S * layers


def step_events(run: Run) -> float:
    """Predict the events in a capture of one step, of all ranks."""
    of_micro_batches = EVENTS_PER_LAYER["forward_backward"] * (run.accumulation - 1)
    return (EVENTS_PER_LAYER[run.mode] + of_micro_batches) * run.num_layers * run.gpus
