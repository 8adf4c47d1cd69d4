"""The questions, in the order of the report. Each is a module with a SLUG, a TITLE, and `answer(<tables>)`, and a
template of the same name.

The parameters of `answer` name the tables that it reads (`runs`, `steps`, `kernels` ...); its docstring is its
specification. A question of STUDIES may have a STUDY: it then reads the tables of the recordings of that study, made by
the sweeps in jobs/sweeps that name it. It may also ask for `main`, the recording that QUESTIONS answer from, and for
`calibration`, the peak rates measured on the machine (columns figure, unit, value, low, high, repeats, gpu_name; empty
where no recording has them), for `predicted`, what was said about runs before they were measured (as in
`ledger.compare_with_measured`), and every question for `bands`, the noise bands of times, fitted to runs that were
recorded twice (None where none were).
"""

from collections.abc import Mapping
from typing import TypeVar

from profiler_job.analysis.pages.questions import (
    attention_cost,
    beyond_gemm,
    bounds,
    forward_time,
    fused_attention,
    gradient_accumulation,
    host,
    in_bf16,
    ladder,
    memory_use,
    optimizer_cost,
    precision,
    second_recording,
    several_gpus,
    softmax_detail,
    top_kernel,
    training_mix,
    warm_up,
)

T = TypeVar("T")

QUESTIONS = {
    "a": forward_time,
    "b": top_kernel,
    "c": beyond_gemm,
    "d": training_mix,
    "e": attention_cost,
}

STUDIES = {
    "f": fused_attention,
    "g": memory_use,
    "h": bounds,
    "i": host,
    "j": precision,
    "k": warm_up,
    "l": optimizer_cost,
    "m": second_recording,
    "s": softmax_detail,
    "t": in_bf16,
    "u": ladder,
    "v": gradient_accumulation,
    "w": several_gpus,
}

SECTIONS = {
    "Where time goes": ("a", "b", "c", "d", "t"),
    "What limits it": ("h", "i", "e", "s"),
    "What to change": ("u", "j", "f", "l", "w"),
    "Will it fit": ("g", "v"),
    "Trust": ("k", "m"),
}
"""What a reader asks, and the questions that answer it, in the order of the navigation."""
ELSEWHERE = "More"
"""The section of a question that none of SECTIONS names."""

SEARCHED = {
    "a": ("forward pass", "latency", "step time"),
    "b": ("hotspot", "slowest kernel"),
    "c": ("elementwise", "pointwise kernels"),
    "d": ("backward pass", "training step"),
    "e": ("softmax FLOPs",),
    "f": ("flash attention", "FlashAttention", "SDPA", "scaled_dot_product_attention"),
    "g": ("out of memory", "OOM", "VRAM", "peak memory", "activations"),
    "h": ("roofline", "compute-bound", "memory-bound", "launch-bound", "arithmetic intensity", "bottleneck"),
    "i": ("CUDA graphs", "torch.compile", "launch overhead", "host-bound"),
    "j": ("MFU", "BF16", "TF32", "mixed precision", "autocast", "tensor cores"),
    "k": ("warmup", "warm-up steps", "benchmarking"),
    "l": ("fused AdamW", "foreach", "optimizer step"),
    "m": ("noise band", "reproducibility", "variance"),
    "s": ("softmax bandwidth",),
    "t": ("fused BF16", "FP32 against BF16"),
    "u": ("optimization ladder", "speed up training", "what to change first", "padding", "padded vocabulary"),
    "v": ("micro-batch", "accumulate gradients", "gradient_accumulation_steps", "batch size"),
    "w": ("DDP", "FSDP", "NCCL", "multi-GPU", "scaling efficiency"),
}
"""What a reader may search for who has not read the page: search puts the page first."""


def section_of(letter: str) -> str:
    """The section of the site that a question belongs to."""
    return next((section for section, letters in SECTIONS.items() if letter in letters), ELSEWHERE)


def group_by_section(questions: Mapping[str, T]) -> dict[str, list[T]]:
    """What there is of `questions` (by letter) in each section, in its order; none without one."""
    letters = SECTIONS | {ELSEWHERE: tuple(key for key in questions if section_of(key) == ELSEWHERE)}
    grouped = {section: [questions[key] for key in keys if key in questions] for section, keys in letters.items()}
    return {section: entries for section, entries in grouped.items() if entries}
