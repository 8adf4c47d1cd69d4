"""Arithmetic and memory traffic that the workload's operations need, from their shapes.

Conventions, the same everywhere:
- A multiply-add is two operations. exp, sigmoid, sqrt, rsqrt and a comparison are one each. Per-row constants (adding
  eps, one logarithm a token) are left out.
- `bytes` is the least traffic with device memory: every operand read once, every result written once. An unfused
  sequence of kernels moves more; a cache may move less.
- Attention is counted in full, T x T scores, as eager attention computes it; `torch.utils.flop_counter` counts so, too,
  and counts everything but matmuls as 0. `skip_masked` counts only the T (T + 1) / 2 pairs that the causal mask leaves,
  which is what a model needs: MFU counts these, so that long contexts do not look better than they are.

Shapes: B batch_size, T context_length, N = B T tokens, D d_model, F d_ff, H num_heads, K = D / H, L num_layers,
V vocab_size. Source of the formulas: the shapes of the operands; for the model's total also Kaplan et al. 2020
(arXiv 2001.08361), section 2.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from profiler_job.jobs.contract.axes import Attention
from profiler_job.jobs.contract.options import parse_options
from profiler_job.jobs.contract.ranges import PHASES
from profiler_job.jobs.workloads import LLAMA
from profiler_job.jobs.workloads.llama.costs import LLAMA_8B
from profiler_job.jobs.workloads.transformer.sizes import ModelSize

FP32_BYTES = 4
BF16_BYTES = 2
TOKEN_BYTES = 8  # token ids are 64-bit integers
INDEX_BYTES = 8  # where a maximum was found

ATTENTION = get_args(Attention)


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """What determines the cost of a step. All counts, no units."""

    batch_size: int
    context_length: int
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int

    @property
    def d_head(self) -> int:
        return self.d_model // self.num_heads

    @property
    def num_tokens(self) -> int:
        return self.batch_size * self.context_length

    @property
    def num_scores(self) -> int:
        """Elements of the attention scores of one layer, B H T T."""
        return self.batch_size * self.num_heads * self.context_length**2

    @property
    def num_unmasked(self) -> int:
        """Those that the causal mask leaves, B H T (T + 1) / 2."""
        return self.batch_size * self.num_heads * self.context_length * (self.context_length + 1) // 2


@dataclass(frozen=True)
class Cost:
    """Operations and least memory traffic in bytes."""

    flops: int
    bytes: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.flops * times, self.bytes * times)

    @property
    def intensity(self) -> float:
        """FLOP per byte: above peak FLOP/s over peak bandwidth an operation can be compute-bound, below it cannot."""
        return self.flops / self.bytes


# --- operations -------------------------------------------------------------------------------------------------------


def linear(num_tokens: int, in_features: int, out_features: int, element_bytes: int = FP32_BYTES) -> Cost:
    """[N, I] @ [I, O] -> [N, O]: 2 N I O. Its gradients for input and weight are two matmuls of the same cost."""
    elements = num_tokens * in_features + in_features * out_features + num_tokens * out_features
    return Cost(2 * num_tokens * in_features * out_features, elements * element_bytes)


def query_key(shape: StepShape, element_bytes: int = FP32_BYTES) -> Cost:
    """Q K^T of one layer, [B, H, T, K] @ [B, H, K, T] -> [B, H, T, T]: 2 B H T T K."""
    elements = 2 * shape.num_tokens * shape.d_model + shape.num_scores
    return Cost(2 * shape.num_scores * shape.d_head, elements * element_bytes)


def attention_value(shape: StepShape, element_bytes: int = FP32_BYTES) -> Cost:
    """A V of one layer, [B, H, T, T] @ [B, H, T, K] -> [B, H, T, K]: 2 B H T T K, the same as Q K^T."""
    return query_key(shape, element_bytes)


def fused_attention(shape: StepShape, element_bytes: int = FP32_BYTES, skip_masked: bool = False) -> Cost:
    """Q K^T, softmax and A V of one layer with the scores kept on chip: reads Q, K, V, writes the output.

    Only the two matmuls are counted as operations. `skip_masked`: a fused kernel need compute no more.
    """
    pairs = shape.num_unmasked if skip_masked else shape.num_scores
    return Cost(4 * pairs * shape.d_head, 4 * shape.num_tokens * shape.d_model * element_bytes)


def softmax(shape: StepShape, element_bytes: int = FP32_BYTES) -> Cost:
    """Softmax over the scores of one layer: max, subtract, exp, sum, divide, five operations for each of B H T T."""
    return Cost(5 * shape.num_scores, 2 * shape.num_scores * element_bytes)


def softmax_kernels(shape: StepShape, element_bytes: int = FP32_BYTES) -> dict[str, Cost]:
    """Softmax of one layer as five kernels, in the order of their launches: each goes once through the
    scores and once through one number a row; `max` writes the position of the maximum, too."""
    scores, rows = shape.num_scores, shape.num_scores // shape.context_length

    def kernel(passes: int, row_bytes: int) -> Cost:
        return Cost(scores, passes * scores * element_bytes + rows * row_bytes)

    return {
        "max": kernel(1, element_bytes + INDEX_BYTES),
        "subtract": kernel(2, element_bytes),
        "exp": kernel(2, 0),
        "sum": kernel(1, element_bytes),
        "divide": kernel(2, element_bytes),
    }


def rms_norm(num_tokens: int, d_model: int, element_bytes: int = FP32_BYTES) -> Cost:
    """x rsqrt(mean(x^2) + eps) w over [N, D]: square, sum, two multiplications, four operations an element."""
    return Cost(4 * num_tokens * d_model, (2 * num_tokens * d_model + d_model) * element_bytes)


def rope(shape: StepShape, element_bytes: int = FP32_BYTES) -> Cost:
    """Rotary embedding of Q and K of one layer, [B, H, T, K] each: four multiplications and two additions a pair.

    Reads and writes both and reads the tables of cosine and sine, [T, K / 2] each.
    """
    elements = 2 * shape.num_tokens * shape.d_model
    tables = shape.context_length * shape.d_head
    return Cost(3 * elements, (2 * elements + tables) * element_bytes)


def swiglu_gate(num_tokens: int, d_ff: int, element_bytes: int = FP32_BYTES) -> Cost:
    """a sigmoid(a) b over [N, F], the elementwise part of SwiGLU: sigmoid and two multiplications."""
    return Cost(3 * num_tokens * d_ff, 3 * num_tokens * d_ff * element_bytes)


def residual(num_tokens: int, d_model: int, element_bytes: int = FP32_BYTES) -> Cost:
    """x + y over [N, D]."""
    return Cost(num_tokens * d_model, 3 * num_tokens * d_model * element_bytes)


def embedding(num_tokens: int, d_model: int, element_bytes: int = FP32_BYTES) -> Cost:
    """One row of [V, D] a token: no arithmetic; reads N ids and N rows, writes [N, D]."""
    return Cost(0, 2 * num_tokens * d_model * element_bytes + num_tokens * TOKEN_BYTES)


def cross_entropy(num_tokens: int, vocab_size: int) -> Cost:
    """Mean of -log softmax(logits)[target] over [N, V] in FP32: max, subtract, exp, sum, subtract the logarithm.

    Least traffic reads the logits and targets once.
    """
    return Cost(5 * num_tokens * vocab_size, num_tokens * (vocab_size * FP32_BYTES + TOKEN_BYTES))


def adamw(num_parameters: int) -> Cost:
    """One AdamW step in FP32: 13 operations a parameter and 28 bytes, a fused kernel's traffic, which reads weight,
    gradient and both moments and writes weight and both moments.

    First moment 3, second moment 4, weight decay 1, sqrt and eps 2, update 3.
    """
    return Cost(13 * num_parameters, 7 * FP32_BYTES * num_parameters)


def adamw_unfused(num_parameters: int) -> Cost:
    """The same step as eight elementwise kernels a tensor (mul, add, mul, addcmul, mul, sqrt, add, addcdiv), each of
    which goes through memory: 20 reads and writes of 4 bytes a parameter."""
    return Cost(13 * num_parameters, 20 * FP32_BYTES * num_parameters)


_TORCH_ADAMW = {"mul": 4, "lerp": 3, "addcmul": 3, "sqrt": 2, "div": 2, "add": 2, "addcdiv": 4}

ADAMW_ACCESSES = {
    "own": {"mul": 6, "add of gradient": 3, "addcmul": 3, "sqrt": 2, "add": 2, "addcdiv": 4},
    "loop": _TORCH_ADAMW,
    "foreach": _TORCH_ADAMW,
    "fused": {"fused": 7},
}
"""Reads and writes of an element for each parameter by the operations of an AdamW step, all kernels of one operation
together. An operation reads each of its operands once (addcmul its gradient, which it squares) and writes its result;
`add` adds eps. Reference AdamW and PyTorch's loop have one kernel a tensor, foreach one for a list of tensors: the same
accesses. They move 20 elements a parameter as `adamw_unfused`, fused 7 as `adamw`."""


# --- the model --------------------------------------------------------------------------------------------------------


def num_parameters(shape: StepShape) -> int:
    size = ModelSize(shape.d_model, shape.d_ff, shape.num_layers, shape.num_heads)
    return size.num_parameters(shape.vocab_size)


def num_matmuls(shape: StepShape, phase: str, attention: str = "naive", checkpointing: str = "off") -> int:
    """Matmuls that `phase` launches: forward 9 L + 1 (seven linears, Q K^T and A V a layer, and the head),
    backward twice that. With fused attention the two matmuls of each layer are inside its kernel: 7 L + 1.

    With checkpointing of `blocks`, backward also launches those of each layer again, but for the last: PyTorch stops
    when it has what backward needs, and that is the operands of the layer's last matmul, not its result."""
    of_layer = 9 if _is_eager(attention) else 7
    forward = of_layer * shape.num_layers + 1
    again = {"off": 0, "blocks": (of_layer - 1) * shape.num_layers}[checkpointing]
    return {"forward": forward, "loss": 0, "backward": 2 * forward + again, "optimizer": 0}[_check_phase(phase)]


def matmul_flops(shape: StepShape, phase: str, skip_masked: bool = False) -> int:
    """Operations of all matmuls of `phase`, those inside fused attention included.

    Forward 2 N (L (4 D^2 + 3 D F) + D V) + 4 L B T^2 D, or 2 L B T (T + 1) D if `skip_masked`. Backward exactly twice
    that: each matmul has one gradient for each operand, of the same cost. What backward recomputes, in a fused kernel
    or after checkpointing, is not counted: the numerator of MFU is the model's work.
    """
    return _PASSES[_check_phase(phase)] * _forward_flops(shape, shape.num_heads, skip_masked)


_PASSES = {"forward": 1, "loss": 0, "backward": 2, "optimizer": 0}
"""Matmuls of a phase for each of a forward pass."""


def _forward_flops(shape: StepShape, num_kv_heads: int, skip_masked: bool) -> int:
    d, shared = shape.d_model, shape.d_model * num_kv_heads // shape.num_heads
    linears = shape.num_layers * (2 * d * (d + shared) + 3 * d * shape.d_ff) + d * shape.vocab_size
    pairs = shape.num_unmasked if skip_masked else shape.num_scores
    return 2 * shape.num_tokens * linears + 4 * shape.num_layers * pairs * shape.d_head


def step_flops(shape: StepShape, mode: str, skip_masked: bool = False) -> int:
    """Operations of all matmuls of one step of `mode`: forward, forward_backward or train_step."""
    return sum(matmul_flops(shape, phase, skip_masked) for phase in _list_phases(mode))


def llama_step_flops(run: Mapping[str, Any], skip_masked: bool = False) -> int | None:
    """Operations of all matmuls of one step of a run of the Llama, in which groups of heads share keys and values; None
    for a run of another workload."""
    if run.get("workload") != LLAMA:
        return None
    sizes = LLAMA_8B | {name: int(value) for name, value in parse_options(str(run["workload_options"] or "")).items()}
    num_kv_heads = sizes.pop("num_kv_heads")
    shape = StepShape(batch_size=int(run["batch_size"]), context_length=int(run["context_length"]), **sizes)
    num_passes = sum(_PASSES[phase] for phase in _list_phases(str(run["mode"])))
    return num_passes * _forward_flops(shape, num_kv_heads, skip_masked)


def _list_phases(mode: str) -> tuple[str, ...]:
    phases = {
        "forward": ("forward",),
        "forward_backward": ("forward", "backward"),
        "train_step": ("forward", "backward", "optimizer"),
    }
    if mode not in phases:
        raise ValueError(f"mode {mode!r} is unknown; choose one of {', '.join(phases)}")
    return phases[mode]


def kernel_costs(shape: StepShape) -> dict[tuple[str, str], Cost]:
    """Compute the cost of one float32 forward pass as the model is written, with eager attention and nothing fused: by
    innermost NVTX range and kernel family, summed over the layers.

    Each kernel reads its operands once and writes its result once, so everything that passes from kernel to kernel goes
    through memory. The operations are as many as in `linear`, `softmax` and the others; the bytes are more.
    """
    n, d, f, layers, scores = shape.num_tokens, shape.d_model, shape.d_ff, shape.num_layers, shape.num_scores
    soft = softmax_kernels(shape)

    def elements(flops: int, number: int, more_bytes: int = 0) -> Cost:
        return Cost(flops, number * FP32_BYTES + more_bytes)

    layer = {
        ("block", "elementwise"): residual(n, d) * 2,
        ("qkv_proj", "gemm"): linear(n, d, d) * 3,
        # Each of Q and K by halves: four products with a table, a difference, a sum, and both copied into the result.
        ("rope", "elementwise"): elements(6 * n * d, 14 * n * d + 4 * shape.context_length * shape.d_head),
        ("rope", "copy"): elements(0, 4 * n * d),
        ("attention_scores", "gemm"): query_key(shape),
        # Scaled, then masked by one byte for each pair of positions.
        ("attention_scores", "elementwise"): elements(scores, 4 * scores, shape.context_length**2),
        ("softmax", "reduce"): soft["max"] + soft["sum"],
        ("softmax", "elementwise"): soft["subtract"] + soft["exp"] + soft["divide"],
        ("attention_output", "copy"): elements(0, 2 * n * d),
        ("attention_output", "gemm"): attention_value(shape),
        ("o_proj", "copy"): elements(0, 2 * n * d),
        ("o_proj", "gemm"): linear(n, d, d),
        ("ffn", "gemm"): linear(n, d, f) * 2 + linear(n, f, d),
        ("ffn", "elementwise"): elements(3 * n * f, 8 * n * f),
    }
    norms = 2 * layers + 1
    return {
        ("embedding", "index"): embedding(n, d),
        # Square, mean, eps, root, and two products.
        ("norm", "elementwise"): elements(3 * n * d, 6 * n * d + 5 * n + d) * norms,
        ("norm", "reduce"): elements(n * d, n * d + n) * norms,
        **{key: cost * layers for key, cost in layer.items()},
        ("lm_head", "gemm"): linear(n, d, shape.vocab_size),
    }


def matmul_costs(shape: StepShape, element_bytes: int = FP32_BYTES) -> dict[str, tuple[Cost, int]]:
    """Cost of one matmul and how many a forward pass has, by innermost NVTX range, with eager attention. All of a range
    have the same cost."""
    n, d, f = shape.num_tokens, shape.d_model, shape.d_ff
    of_layer = {
        "qkv_proj": (linear(n, d, d, element_bytes), 3),
        "attention_scores": (query_key(shape, element_bytes), 1),
        "attention_output": (attention_value(shape, element_bytes), 1),
        "o_proj": (linear(n, d, d, element_bytes), 1),
        "ffn": (linear(n, d, f, element_bytes), 3),
    }
    of_model = {name: (cost, number * shape.num_layers) for name, (cost, number) in of_layer.items()}
    return of_model | {"lm_head": (linear(n, d, shape.vocab_size, element_bytes), 1)}


def utilisation(amount: float, seconds: float, peak: float | None) -> float | None:
    """Share of a peak rate that was reached: `amount` (FLOP or bytes) in `seconds` over `peak` (FLOP/s or bytes/s).

    With `step_flops` without masked scores, and the wall time of a step, it is MFU. None when the peak is unknown.
    """
    return None if peak is None else amount / seconds / peak


def _check_phase(phase: str) -> str:
    if phase not in PHASES:
        raise ValueError(f"phase {phase!r} is unknown; choose one of {', '.join(PHASES)}")
    return phase


def _is_eager(attention: str) -> bool:
    if attention not in ATTENTION:
        raise ValueError(f"attention {attention!r} is unknown; choose one of {', '.join(ATTENTION)}")
    return attention == "naive"
