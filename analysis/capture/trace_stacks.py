"""Python stacks of a trace of torch.profiler: its calls of functions, looked at at regular times.

torch.profiler writes when each function began and ended, and the first line of the function. nsys takes samples. What
is made of samples is made of these calls, too: the stack of each thread that calls Python, once every `PERIOD_NS`, or
`MOST_SAMPLES` times in all.
"""

import re
import sys

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits
from profiler_job.analysis.capture.distinct_values import make_categorical
from profiler_job.analysis.capture.python_samples import SAMPLE_COLUMNS, PythonFrame, Stack, shorten_files
from profiler_job.analysis.capture.range_nesting import Nesting

PERIOD_NS, MOST_SAMPLES = 20_000, 200_000
_FRAME = re.compile(r"(.*)\((\d+)\): (.*)", re.DOTALL)
_LIBRARIES = {
    *("torch", "torchvision", "torchaudio", "triton", "transformers", "accelerate", "datasets", "tokenizers", "peft"),
    *(
        "lightning",
        "pytorch_lightning",
        "deepspeed",
        "megatron",
        "apex",
        "transformer_engine",
        "flash_attn",
        "xformers",
    ),
    *(
        "xformers",
        "numpy",
        "pandas",
        "scipy",
        "einops",
        "tqdm",
        "wandb",
        "tensorboard",
        "diffusers",
        "timm",
        "vllm",
        "sglang",
    ),
}
"""Packages whose files torch.profiler writes without the folder that they are installed in, as it writes the user's."""


def make_samples(
    start: np.ndarray, end: np.ndarray, thread: np.ndarray, name: np.ndarray, texts: list[str]
) -> tuple[pd.DataFrame, list[Stack]]:
    """Make samples (SAMPLE_COLUMNS, by start) and their stacks of calls: start and end (ns), thread, name (place in
    texts). Raises LimitError if calls nest too deep, or if there are too many stacks."""
    order = np.lexsort((-end, start))
    start, end, thread, name = start[order], end[order], thread[order], name[order]
    threads = np.unique(thread)
    if not len(threads):
        return pd.DataFrame(columns=list(SAMPLE_COLUMNS), dtype=np.int64), []
    calls = pd.DataFrame({"start_ns": start, "end_ns": end, "thread": thread})
    calls["style"], calls["domain"] = "PushPop", make_categorical(np.zeros(len(start), np.int64), [""])
    nesting = Nesting(calls)
    first, last = int(start.min()), int(end.max())
    period = max(PERIOD_NS, (last - first) * len(threads) // MOST_SAMPLES)
    moments = np.arange(first, last, period)
    of_thread = np.repeat(threads, len(moments))
    time = np.tile(moments, len(threads))
    (inner,) = nesting.find_chains(of_thread, time)
    rows = np.flatnonzero(inner >= 0)
    stacks, numbers = _list_stacks(inner[rows], nesting.stack_parent, name, texts)
    frame = pd.DataFrame(
        dict(zip(SAMPLE_COLUMNS, (time[rows], of_thread[rows] >> 24, of_thread[rows], numbers))), dtype=np.int64
    )
    return frame.sort_values("start_ns", kind="stable", ignore_index=True), shorten_files(stacks)


def _list_stacks(
    calls: np.ndarray, parent: np.ndarray, name: np.ndarray, texts: list[str]
) -> tuple[list[Stack], np.ndarray]:
    """List the different stacks that end with these calls, and the number of each call's stack."""
    frames: dict[int, PythonFrame | None] = {}
    stacks: dict[Stack, int] = {}
    numbers: dict[int, int] = {}
    for call in np.unique(calls).tolist():
        stack: list[PythonFrame] = []
        row = call
        while row >= 0:
            code = int(name[row])
            if code not in frames:
                frames[code] = _parse_frame(texts[code])
            if (frame := frames[code]) is not None:
                stack.append(frame)
            row = int(parent[row])
        numbers[call] = stacks.setdefault(tuple(stack), len(stacks))
        limits.PATHS.check(len(stacks))
    return list(stacks), np.array([numbers[call] for call in calls.tolist()], np.int64)


def _parse_frame(text: str) -> PythonFrame | None:
    """Parse `train.py(65): step`; None for a built-in function, which counts for the line that calls it."""
    match = _FRAME.fullmatch(text)
    if match is None:
        return None
    file, package = match[1], re.split(r"[/.]", match[1], maxsplit=1)[0]
    if package in _LIBRARIES and "/" in file:
        file = f"site-packages/{file}"
    elif package in sys.stdlib_module_names:
        file = f"lib/python3/{file}"
    return PythonFrame(match[3], file, int(match[2]) if len(match[2]) < 10 else 0)
