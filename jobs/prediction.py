"""What a run will need, before it runs: device memory and time. Plain arithmetic on the shapes, no GPU.

A prediction, never shown as a measurement: it orders work, sets timeouts and warns of runs that will not fit.
"""

from jobs.plan import Protocol, Run

BYTES_FP32 = 4
MIB = 2**20
CUDA_CONTEXT_BYTES = 600 * MIB  # context and loaded kernels of one process
WORKSPACE_BYTES = 32 * MIB  # cuBLAS's workspace, which PyTorch allocates

# Rates a modest data-centre GPU sustains on this workload; deliberately low, so that a timeout means trouble.
SUSTAINED_FLOPS = {"fp32": 8e12, "tf32": 30e12, "bf16": 40e12}
SUSTAINED_BYTES_PER_S = 0.3e12
LAUNCH_S = 20e-6


def tensor_bytes(num_elements: int) -> int:
    """Bytes that PyTorch's caching allocator gives to a float32 tensor: segments of 10 MiB and more are whole multiples
    of 2 MiB, and a rest of up to 1 MiB is not split off."""
    size = num_elements * BYTES_FP32
    segment = -(-size // (2 * MIB)) * 2 * MIB
    return segment if size >= 10 * MIB and segment - size <= MIB else size


def parameter_bytes(run: Run) -> int:
    """Device memory of one float32 copy of the parameters (weights, gradients or a moment) in bytes."""
    d, f = run.d_model, run.d_ff
    layer = 4 * tensor_bytes(d * d) + 3 * tensor_bytes(d * f) + 2 * tensor_bytes(d)
    return 2 * tensor_bytes(run.vocab_size * d) + run.num_layers * layer + tensor_bytes(d)


def predicted_memory_bytes(run: Run) -> int:
    """Peak device memory of a run in bytes: CUDA context, cuBLAS workspace and what `predicted_peak_bytes` counts."""
    return CUDA_CONTEXT_BYTES + predicted_peak_bytes(run)


def predicted_peak_bytes(run: Run) -> int:
    """Peak of PyTorch's allocator in bytes: parameters, gradients, Adam moments, saved activations, cuBLAS workspace
    and the largest temporaries alive at once.

    What autograd saves for each layer, counted from the operations of `jobs/model.py`, with N = B x T tokens and
    S = B x H x T x T score elements: 6 N D for the two norms, 4 N D for attention's q, k, v and output, 5 N F for the
    feed-forward, 2 S for naive softmax (the exponential and the quotient). Backward peaks at one of three moments: at
    the loss (three tensors of logits), in the last layer's attention (its feed-forward is released by then) or at its
    end, when every gradient exists.
    """
    tokens = run.batch_size * run.context_length
    scores = run.batch_size * run.num_heads * run.context_length**2 if run.attention == "naive" else 0
    logits = tokens * run.vocab_size
    parameters = parameter_bytes(run)
    matmul_bytes = 2 if run.precision == "bf16" else BYTES_FP32
    casts = run.num_parameters * matmul_bytes if run.precision == "bf16" else 0
    largest_weight = max(run.vocab_size, run.d_ff) * run.d_model

    if run.mode == "forward":
        layer = max(3 * scores + 3 * tokens * run.d_model, 4 * tokens * run.d_ff) + 2 * tokens * run.d_model
        temporaries = max(layer, logits) * BYTES_FP32 + (largest_weight * matmul_bytes if casts else 0)
        return parameters + temporaries + WORKSPACE_BYTES

    norms = 6 * tokens * run.d_model * BYTES_FP32
    feed_forward = 5 * tokens * run.d_ff * matmul_bytes
    attention = 4 * tokens * run.d_model * matmul_bytes + scores * (BYTES_FP32 + matmul_bytes)
    activations = run.num_layers * (norms + feed_forward + attention)
    at_loss = 3 * logits * BYTES_FP32
    in_attention = 4 * scores * BYTES_FP32 - feed_forward
    in_feed_forward = 3 * tokens * run.d_ff * BYTES_FP32
    moments = 2 * parameters if run.mode == "train_step" else 0
    in_backward = parameters + moments + casts + activations + max(at_loss, in_attention, in_feed_forward)
    in_update = 2 * parameters + moments + tensor_bytes(largest_weight)
    return max(in_backward, in_update) + WORKSPACE_BYTES


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
