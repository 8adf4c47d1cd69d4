"""Whose code a frame of a Python stack is: the user's, or a library's; and what that library is for."""

import re
from typing import NamedTuple

from profiler_job.jobs.contract.changes import (
    COMPILE,
    COPIES,
    CUDA_GRAPHS,
    FUSED_ADAMW,
    LOADER_WORKERS,
    SYNCHRONISATIONS,
)
from profiler_job.jobs.contract.step_limit import DATA, NOTHING

_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python3[^/]*|python3\.\d+)/|^<|^$")
GENERATED = r"(?:^|[/\\])c[a-z2-7]{50,}\.py$"
"""A file that Inductor wrote. `jobs.follow.script_frames`, which can import nothing of ours, has it, too."""
_PROFILER = re.compile(r"(?:^|/)(?:profiler_job/)?jobs/follow/\w+\.py$|(?:^|/)sitecustomize\.py$")
_PACKAGE = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+?)(?:\.py)?(?:/|$)")
_STANDARD = "Python's standard library"


class LibraryPart(NamedTuple):
    """A part of a library, by its files and functions, what to do where the GPU waits for it, and of which cause of
    `step_limit` that is; "" if it works for launches. changes: what does so, the best first."""

    name: str
    files: str
    functions: str = ""
    do: str = ""
    cause: str = ""
    changes: tuple[str, ...] = ()


GARBAGE = "garbage collection"
LOCK = "waiting for Python's lock"
SLEEP = "sleeping"
OWN, OWN_OF_MODULE, OWN_LAUNCHES = "own code", "own code of a module", "own tensor operations"
COMPILED = "compiled code"
SAVING, WAITING = "checkpoint", "other programs"
LOGGING, PRINTING = "logging", "printing of tensors"
LOADER, NO_WORKERS = "data loader", "data loader without workers"
_MODULE = re.compile(r"(?:^|/)torch/nn/modules/module\.py$")
_FETCH = re.compile(r"(?:^|/)torch/utils/data/_utils/fetch\.py$")
"""File that a DataLoader calls the data set from: in the script's own process only if it has no workers."""
PARTS = (
    LibraryPart(
        COMPILED,
        GENERATED,
        do='torch.compile(mode="reduce-overhead") launches less there: it captures CUDA graphs',
        changes=(CUDA_GRAPHS,),
    ),
    LibraryPart(
        "tensor-by-tensor optimizer",
        r"/torch/optim/",
        r"_single_tensor_\w+",
        "give the optimizer fused=True, or foreach=True",
        changes=(FUSED_ADAMW,),
    ),
    LibraryPart("torch.optim", r"/torch/optim/", do="give the optimizer fused=True", changes=(FUSED_ADAMW,)),
    LibraryPart(
        LOADER,
        r"/torch/utils/data/",
        do="give the DataLoader more workers, or a larger prefetch_factor",
        cause=DATA,
        changes=(LOADER_WORKERS,),
    ),
    LibraryPart(
        "data set", r"/(?:datasets|webdataset|torchdata)/", do="read it in the workers of a DataLoader", cause=DATA
    ),
    LibraryPart(
        "tokenizer",
        r"/(?:tokenizers|sentencepiece|tiktoken)(?:/|\.py)|/transformers/tokenization|/transformers/models/[^/]*/token",
        do="tokenize before training, or in a worker",
        cause=DATA,
    ),
    LibraryPart(PRINTING, r"/torch/_tensor_str\.py", do="print less often, and only what is on the CPU already"),
    LibraryPart(
        LOGGING,
        r"/(?:logging/__init__|tqdm/|rich/|wandb/|tensorboard/|loguru/|mlflow/|comet_ml/|neptune/)",
        do="log less often, or from a thread",
    ),
    LibraryPart(
        SAVING,
        r"/(?:torch/serialization\.py|torch/distributed/checkpoint/|safetensors/)",
        do="save less often, or copy the state to the CPU and save it from a thread",
        cause=NOTHING,
    ),
    LibraryPart(
        "autograd engine",
        r"/torch/autograd/(?:graph|__init__)\.py",
        r"_engine_run_backward|backward|grad",
        do="torch.compile or CUDA graphs launch less in backward",
        changes=(CUDA_GRAPHS, COMPILE),
    ),
    LibraryPart(
        "walk over modules",
        r"/torch/nn/modules/module\.py",
        r"(?:named_)?(?:parameters|modules|children|buffers)|_named_members|zero_grad|train|eval|requires_grad_|<lambda>",
        "walk over the modules once, before the loop: keep list(model.parameters()), and clear gradients with "
        "optimizer.zero_grad()",
    ),
    LibraryPart(
        "gradient clipping",
        r"/torch/nn/utils/clip_grad\.py",
        do="torch.compile a function that clips the gradients and steps the optimizer: it launches less",
    ),
    LibraryPart(
        "nn.Module.__call__",
        r"/torch/nn/modules/module\.py",
        do="torch.compile or CUDA graphs take the Python of modules away",
        changes=(CUDA_GRAPHS, COMPILE),
    ),
    LibraryPart(
        "torch.nn",
        r"/torch/nn/",
        do="torch.compile or CUDA graphs take the Python of modules away",
        changes=(CUDA_GRAPHS, COMPILE),
    ),
    LibraryPart(
        WAITING,
        r"/(?:subprocess|socket|ssl)\.py|/http/client\.py",
        do="wait for it in a thread, while the GPU works",
        cause=NOTHING,
    ),
)
"""The first that fits a frame names its part. WAITING is of whom waits: another part in the stack, if there is one."""
_MATCHERS = [(part, re.compile(part.files), re.compile(part.functions or ".*")) for part in PARTS]
DO = {part.name: part.do for part in PARTS} | {
    NO_WORKERS: "give the DataLoader num_workers=4 and pin_memory=True",
    GARBAGE: "call gc.freeze() after start-up and gc.disable(), or collect between epochs",
    LOCK: "another thread runs Python meanwhile: move its work into a process of its own",
    OWN_OF_MODULE: "do less in Python there; torch.compile takes away what it can trace",
    SLEEP: "sleep less, or outside of the steps",
    OWN_LAUNCHES: "launch less there: torch.compile the function, or take lists of tensors at once, as torch.optim and "
    "torch._foreach_add_ do",
    OWN: "move it out of the step: prepare it in a worker or thread while the GPU works, or do it less often",
}
_COMPILES = {
    "torch.compile or CUDA graphs launch": "CUDA graphs launch",
    "torch.compile or CUDA graphs take": "CUDA graphs take",
    "; torch.compile takes away what it can trace": "",
}
"""What an advice says that names torch.compile, and what it says to a script that is compiled already."""
DO_SYNC = "keep the value on the GPU, and read it every some steps"
DO_COPY = "pin the memory of what is copied (pin_memory=True), and copy with non_blocking=True"
"""What to do where a line synchronises or copies for most of the GPU's waiting for it."""
CHANGES_BY_DO = {part.do: part.changes for part in PARTS if part.changes} | {
    DO[NO_WORKERS]: (LOADER_WORKERS,),
    DO_SYNC: (SYNCHRONISATIONS,),
    DO_COPY: (COPIES,),
}
"""The changes that do what an advice begins with, the best first."""
CHANGES_BY_DO |= {
    do.replace(text, other): tuple(name for name in changes if name != COMPILE)
    for do, changes in CHANGES_BY_DO.items()
    for text, other in _COMPILES.items()
    if text in do
}
CAUSES = {part.name: part.cause for part in PARTS if part.cause} | {NO_WORKERS: DATA, SLEEP: NOTHING}
"""What the GPU waits for, by part; launches for the others."""


def leave_out_compile(do: str) -> str:
    """Return what to do about a line in a script that is compiled already."""
    for text, other in _COMPILES.items():
        do = do.replace(text, other)
    return do


def is_profiler(file: str) -> bool:
    """Whether a file is the profiler's, which follows the script from inside."""
    return _PROFILER.search(file) is not None


def is_library(file: str) -> bool:
    """Whether a file is of an installed package, of Python itself, written by Inductor, or no file at all."""
    return _LIBRARY.search(file) is not None or re.search(GENERATED, file) is not None


def fetches_data(file: str) -> bool:
    """Whether a frame of this file calls the data set of a DataLoader."""
    return _FETCH.search(file) is not None


def calls_module(file: str) -> bool:
    """Whether a frame of this file calls the forward of a module."""
    return _MODULE.search(file) is not None


def name_part(function: str, file: str) -> str:
    """Name the part of a library that a frame is of; "" if no part is known."""
    path = f"/{file}"
    return next(
        (part.name for part, files, functions in _MATCHERS if files.search(path) and functions.fullmatch(function)), ""
    )


def name_package(file: str) -> str:
    """Name the package of a library's file, as `transformers`."""
    match = _PACKAGE.search(file)
    return match[1] if match else _STANDARD
