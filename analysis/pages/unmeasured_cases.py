"""The steps that the picker of the home page offers and no recording has: the nearest that was measured, and what is
predicted.

Memory alone is predicted, by the simulated step. Times are not: scaled from the nearest other model by FLOPs they would
miss the measured steps in BF16 by up to 2.2 times. So a step between two measured models names the cost of both.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

from profiler_job.analysis.pages.home_cases import BF16, FP32, USUAL, CaseNumbers, HomeCase
from profiler_job.analysis.reference import gpus
from profiler_job.jobs.contract.words import name_model
from profiler_job.jobs.memory import (
    MODEL_SIZES,
    VOCAB_SIZE,
    estimate_usable_bytes,
    find_failure,
    infer_shape,
    predict_peak_bytes,
)

CHOICES = ("model", "context", "batch", "GPU")
"""What a reader chooses, in the order of `home_cases.KEY`."""
PREDICTED = {FP32: "fp32", BF16: "bf16"}
"""The precisions of the states whose memory is predicted."""


class PredictedMemory(NamedTuple):
    """Peak allocated of a training step in bytes, and whether it fits the GPU."""

    peak_bytes: int
    fits: bool


class UnmeasuredCase(NamedTuple):
    """A case by `home_cases.KEY` as a page shows it. differs: the CHOICES in which the nearest case is another. size:
    its name in the memory calculator, or "". Of a model of which no step was measured: memory, by state, and around:
    the measured models just below and above it in the same step as `nearest`."""

    at: tuple[str, ...]
    nearest: HomeCase
    differs: tuple[str, ...]
    size: str
    memory: Mapping[str, PredictedMemory]
    around: Sequence[HomeCase]


def list_models(cases: Sequence[HomeCase], is_training: bool) -> dict[str, float]:
    """List the parameters of the models to choose from, smallest first: models of the cases, and, if these are
    `is_training`, models of MODEL_SIZES between two of them."""
    models = {case.at[0]: case.numbers.parameters for case in cases}
    of_plan = [number for name, number in _list_planned().items() if name in models]
    if is_training and of_plan:
        between = {name: n for name, n in _list_planned().items() if min(of_plan) < n < max(of_plan)}
        models = between | models
    return dict(sorted(models.items(), key=lambda item: item[1]))


def list_unmeasured(
    cases: Sequence[HomeCase], models: Mapping[str, float], is_training: bool
) -> Iterator[UnmeasuredCase]:
    """Yield each combination of a model, and of a context, a batch and a GPU of the cases, that has no case."""
    measured = {case.at for case in cases}
    known = {case.at[0] for case in cases}
    contexts = {case.at[1]: case.numbers.context_length for case in cases}
    batches = {case.at[2]: case.numbers.batch_size for case in cases}
    kinds = {case.at[3]: case.numbers.gpu_name for case in cases}
    for at in product(models, contexts, batches, kinds):
        if at in measured:
            continue
        model, context, batch, gpu = at
        numbers = CaseNumbers(models[model], contexts[context], batches[batch], kinds[gpu])
        nearest = find_nearest(cases, model, numbers)
        size = model.partition(" (")[0] if is_training and model in _list_planned() else ""
        yield UnmeasuredCase(
            at,
            nearest,
            differs=tuple(name for name, of, by in zip(CHOICES, nearest.at, at) if of != by),
            size=size,
            memory={} if model in known else _predict_memory(size, numbers),
            around=[] if model in known else _find_around(cases, nearest, numbers.parameters),
        )


def find_nearest(cases: Sequence[HomeCase], model: str, numbers: CaseNumbers) -> HomeCase:
    """Find the nearest case: first by the logarithm of the parameters, then of the context, then of the batch; of equal
    ones, one on the same GPU."""

    def measure_distance(case: HomeCase) -> tuple[float, ...]:
        apart = [_measure_log_distance(float(of), float(by)) for of, by in zip(case.numbers[:3], numbers[:3])]
        if case.at[0] == model:
            apart[0] = 0.0
        return (*apart, case.numbers.gpu_name != numbers.gpu_name)

    return min(cases, key=measure_distance)


def _measure_log_distance(first: float, second: float) -> float:
    ratio = _divide(first, second)
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _divide(of: float, by: float) -> float:
    return of / by if of and by else math.nan


def _list_planned() -> dict[str, float]:
    """The parameters of each model whose step can be simulated, by its name in the picker."""
    numbers = {name: size.num_parameters(VOCAB_SIZE) for name, size in MODEL_SIZES.items()}
    return {name_model(name, number): number for name, number in numbers.items()}


def _find_around(cases: Sequence[HomeCase], nearest: HomeCase, parameters: float) -> list[HomeCase]:
    same = [case for case in cases if case.at[1:] == nearest.at[1:] and case.numbers.parameters]
    below = [case for case in same if case.numbers.parameters < parameters]
    above = [case for case in same if case.numbers.parameters > parameters]
    if not below or not above:
        return []
    by_parameters = lambda case: case.numbers.parameters  # noqa: E731
    return [max(below, key=by_parameters), min(above, key=by_parameters)]


def _predict_memory(size: str, numbers: CaseNumbers) -> dict[str, PredictedMemory]:
    gpu = gpus.lookup(numbers.gpu_name)
    if gpu is None:
        return {}
    predicted = {}
    for state, precision in PREDICTED.items():
        run: Any = SimpleNamespace(
            **MODEL_SIZES[size]._asdict(),
            **USUAL[state],
            precision=precision,
            mode="train_step",
            vocab_size=VOCAB_SIZE,
            accumulation=1,
            context_length=numbers.context_length,
            batch_size=numbers.batch_size,
        )
        fits = find_failure(infer_shape(run), estimate_usable_bytes(gpu.memory_gb)) is None
        predicted[state] = PredictedMemory(predict_peak_bytes(run), fits)
    return predicted
