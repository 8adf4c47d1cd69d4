"""What can be measured: a workload is a function `build(run, device)` that gives a model, its batch and its loss.

`run` holds the fields of `jobs.contract.axes.Run`; its `workload` names the function: `transformer` is the reference
Transformer, and `my_package.models:build` any other that the worker can import. What a workload predicts of itself, its
costs, is optional: see `jobs.workloads.costs`.

Importing this package imports no torch: planning needs none.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

REFERENCE = "transformer"
"""The workload that comes with this program."""

BUILD_OF_REFERENCE = "jobs.workloads.transformer.build:build"


class Built(NamedTuple):
    """A workload, ready to run steps: a forward pass is `model(*batch)`, and `loss` turns what that gives into a
    scalar tensor with gradients."""

    model: "torch.nn.Module"
    batch: tuple[Any, ...]
    loss: "Callable[[Any], torch.Tensor]"


Build = Callable[[Mapping[str, Any], "torch.device"], Built]


def find_build(workload: str) -> Build:
    """The function that a workload's name stands for. Raises ValueError where it cannot be imported, whatever its
    module raises."""
    path = BUILD_OF_REFERENCE if workload == REFERENCE else workload
    module, _, name = path.partition(":")
    try:
        build = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # a script that ends when it is imported
        fix = "give MODULE:FUNCTION, with the module in the folder where the job is started or on PYTHONPATH"
        raise ValueError(f"workload {workload}: cannot be imported ({type(error).__name__}: {error}); {fix}") from error
    return build
