"""Costs of a Llama: those of the reference Transformer of its shape. Plain arithmetic.

A prediction, never shown as a measurement.
"""

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.options import parse_options
from profiler_job.jobs.workloads.transformer import costs as transformer

LLAMA_8B = {
    "d_model": 4096,
    "d_ff": 14336,
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 8,
    "vocab_size": 128_256,
}
"""The shape of a run whose options do not change it."""


def count_parameters(
    *, d_model: int, d_ff: int, num_layers: int, num_heads: int, num_kv_heads: int, vocab_size: int
) -> int:
    """Count the parameters: embedding and untied head, and per layer the projections of queries and output, those of
    keys and values, which groups of heads share, three feed-forward matrices, two norms; one final norm."""
    attention = 2 * d_model * d_model * (1 + num_kv_heads / num_heads)
    return int(2 * vocab_size * d_model + num_layers * (attention + 3 * d_model * d_ff + 2 * d_model) + d_model)


def fill_shape(run: Run) -> Run:
    """Return the run with the sizes that its options say."""
    shape = LLAMA_8B | {name: int(value) for name, value in parse_options(run.workload_options).items()}
    sizes = {name: size for name, size in shape.items() if name in Run.model_fields}
    return run.model_copy(update=sizes | {"num_parameters": count_parameters(**shape)})


def build_seconds(run: Run) -> float:
    return transformer.build_seconds(fill_shape(run))


def step_seconds(run: Run) -> float:
    return transformer.step_seconds(fill_shape(run))


def is_limited_by_cpu(run: Run) -> bool:
    return transformer.is_limited_by_cpu(fill_shape(run))


def compile_seconds(run: Run, is_known: bool) -> float:
    return transformer.compile_seconds(fill_shape(run), is_known)


def step_events(run: Run) -> float:
    return transformer.step_events(fill_shape(run))
