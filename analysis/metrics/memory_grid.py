"""Predicted memory of a grid of cases, for the page's calculator: a page cannot run the simulated step.

`python -m profiler_job.analysis.metrics.memory_grid > site/assets/memory_grid.js` predicts all cases anew (ten
minutes) and prints them as a script, which a page that was opened from a file can load, too. A test predicts some.
"""

import json
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from profiler_job.analysis.metrics.device_memory import OPTIMIZERS
from profiler_job.jobs.contract.precisions import PRECISIONS as KNOWN
from profiler_job.jobs.contract.words import name_model
from profiler_job.jobs.memory import (
    CHANGES,
    GIB,
    MODEL_SIZES,
    SIMULATED_BYTES,
    VOCAB_SIZE,
    estimate_usable_bytes,
    find_failure,
    infer_shape,
    predict_peak_bytes,
    predict_relieved_peak,
)

MODES = {"train_step": "training step", "forward": "forward only"}
PRECISIONS = {
    name: f"{record.label} (autocast)" if record.autocast else record.label
    for name, record in reversed(KNOWN.items())
    if record.element_bytes in SIMULATED_BYTES and record.matmul == "highest"  # TF32 takes as much memory as FP32
}
ATTENTIONS = {"sdpa": "fused", "naive": "eager"}
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
GPUS_GB = (16, 24, 40, 48, 80, 141)
"""Memory of GPUs in GB, as sold."""
CALL = "showMemoryGrid"


class Cell(NamedTuple):
    """gib: peak allocated in GiB, with the digits of the page's tables. fits: the place in GPUS_GB of the
    smallest GPU on which neither of the first two steps runs out; len(GPUS_GB) where none is large enough.
    relieved: of a training step, the same peak after each of CHANGES."""

    gib: float
    fits: int
    relieved: list[float]


def list_choices() -> dict[str, dict[str, str]]:
    """Return the labels of each choice's values, in the order in which the cells have them."""
    numbers = {name: size.num_parameters(VOCAB_SIZE) for name, size in MODEL_SIZES.items()}
    return {
        "size": {name: name_model(name, numbers[name]) for name in sorted(numbers, key=numbers.__getitem__)},
        "context_length": {str(context): f"{context:,}" for context in CONTEXTS},
        "mode": MODES,
        "precision": PRECISIONS,
        "attention": ATTENTIONS,
    }


def predict_cell(size: str, context: int, mode: str, precision: str, attention: str, batch: int) -> Cell:
    run: Any = SimpleNamespace(
        **MODEL_SIZES[size]._asdict(),
        context_length=context,
        batch_size=batch,
        mode=mode,
        precision=precision,
        attention=attention,
        optimizer=OPTIMIZERS[attention],
        vocab_size=VOCAB_SIZE,
        accumulation=1,
    )
    shape = infer_shape(run)
    too_small = [gb for gb in GPUS_GB if find_failure(shape, estimate_usable_bytes(gb))]
    changes = CHANGES.values() if mode == "train_step" else ()
    peaks = [predict_peak_bytes(run), *(predict_relieved_peak(shape, relief) for relief in changes)]
    gib, *relieved = [round(peak / GIB, 2) for peak in peaks]
    return Cell(gib, len(too_small), relieved)


def list_cases() -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of `predict_cell`, the batch changing first and the model last."""
    sizes, _, modes, precisions, attentions = (list(labels) for labels in list_choices().values())
    yield from product(sizes, CONTEXTS, modes, precisions, attentions, BATCHES)


def predict_grid() -> dict[str, Any]:
    cells = [predict_cell(*case) for case in list_cases()]
    choices = {name: list(labels.items()) for name, labels in list_choices().items()}
    return {
        "choices": choices,
        "batches": BATCHES,
        "gpus": GPUS_GB,
        "fits": "".join(str(cell.fits) for cell in cells),
        "changes": list(CHANGES),
        "peaks": " ".join(write_peaks([cell.gib, *cell.relieved]) for cell in cells),
    }


def write_peaks(gib: list[float]) -> str:
    """Write peaks as hundredths of a GiB in base 36: two thirds of the bytes of decimal numbers."""
    return ",".join(np.base_repr(round(peak * 100), 36) for peak in gib).lower()


if __name__ == "__main__":
    content = json.dumps(predict_grid(), separators=(",", ":"))
    print(f"{CALL}({content});")
