"""What a run will need, before it runs: device memory and time. Plain arithmetic on the shapes, no GPU.

A prediction, never shown as a measurement: it orders work, sets timeouts and warns of runs that will not fit.
"""

from jobs.plan import Protocol, Run

BYTES_FP32 = 4
CUDA_CONTEXT_BYTES = 600 * 2**20  # context, loaded kernels and cuBLAS workspace of one process

# Rates a modest data-centre GPU sustains on this workload; deliberately low, so that a timeout means trouble.
SUSTAINED_FLOPS = {"fp32": 8e12, "tf32": 30e12, "bf16": 40e12}
SUSTAINED_BYTES_PER_S = 0.3e12
LAUNCH_S = 20e-6


def predicted_memory_bytes(run: Run) -> int:
    """Peak device memory of a run in bytes: CUDA context, parameters, gradients, Adam moments, saved activations and
    the largest temporaries alive at once.

    What autograd saves for each layer, counted from the operations of `jobs/model.py`, with N = B x T tokens and
    S = B x H x T x T score elements: 6 N D for the two norms, 4 N D for attention's q, k, v and output, 5 N F for the
    feed-forward, 2 S for naive softmax (the exponential and the quotient).
    """
    tokens = run.batch_size * run.context_length
    scores = run.batch_size * run.num_heads * run.context_length**2 if run.attention == "naive" else 0
    logits = tokens * run.vocab_size
    parameters = run.num_parameters * BYTES_FP32
    matmul_bytes = 2 if run.precision == "bf16" else BYTES_FP32
    casts = run.num_parameters * matmul_bytes if run.precision == "bf16" else 0

    if run.mode == "forward":
        layer = max(3 * scores, 5 * tokens * run.d_ff) + 4 * tokens * run.d_model
        largest_weight = max(run.vocab_size, run.d_ff) * run.d_model
        temporaries = max(layer, logits) * BYTES_FP32 + (largest_weight * matmul_bytes if casts else 0)
        return CUDA_CONTEXT_BYTES + parameters + temporaries

    norms = 6 * tokens * run.d_model * BYTES_FP32
    matmul_inputs = (4 * tokens * run.d_model + 5 * tokens * run.d_ff) * matmul_bytes
    softmax = scores * (BYTES_FP32 + matmul_bytes)
    activations = run.num_layers * (norms + matmul_inputs + softmax)
    backward = max(4 * scores, 3 * tokens * run.d_ff) * BYTES_FP32 + 3 * logits * BYTES_FP32
    moments = 2 * parameters if run.mode == "train_step" else 0
    in_backward = parameters + moments + casts + activations + backward
    in_update = 2 * parameters + moments + run.d_ff * run.d_model * BYTES_FP32
    return CUDA_CONTEXT_BYTES + max(in_backward, in_update)


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


def timeout_seconds(run: Run, protocol: Protocol) -> float:
    """After this long without finishing, a run counts as hung."""
    return 120 + 5 * predicted_seconds(run, protocol)
