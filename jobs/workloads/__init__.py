"""Workloads: functions `build(run, device, **options)` that return a model, its batch and its loss.

`run` holds the fields of `jobs.contract.axes.Run`; its `workload` names the function: `transformer` is the reference
Transformer, `llama` a Llama, `hf` a model of Hugging Face by its configuration, and `my_package.models:build` any other
that the worker can import. Its `workload_options` are the keyword arguments. The predicted costs of a workload are
optional: see `jobs.workloads.costs_by_name`.

Importing this package imports no torch: planning needs none.
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.extras import install_command
from profiler_job.jobs.contract.options import Option, parse_options

if TYPE_CHECKING:
    import torch

REFERENCE = "transformer"
"""The workload that comes with this program."""

LLAMA = "llama"
"""A Llama, which comes with this program, too; its options change its shape."""

HUGGING_FACE = "hf"
"""Any causal language model that Hugging Face's transformers build from a configuration."""

BUILDS = {
    REFERENCE: "profiler_job.jobs.workloads.transformer.build:build",
    LLAMA: "profiler_job.jobs.workloads.llama.build:build",
    HUGGING_FACE: "profiler_job.jobs.workloads.hugging_face:build",
}


class OptionError(ProfilerError, ValueError):
    """A workload cannot take an option; the message says which and why."""


class Built(NamedTuple):
    """A workload, ready to run steps: a forward pass is `model(*batch)`, and `loss` turns what that gives into a
    scalar tensor with gradients."""

    model: "torch.nn.Module"
    batch: tuple[Any, ...]
    loss: "Callable[[Any], torch.Tensor]"


Build = Callable[..., Built]


def build_workload(run: Mapping[str, Any], device: "torch.device") -> Built:
    """The workload of a run on a device. Raises ValueError where it cannot be imported, OptionError where it does not
    take the run's options."""
    build = find_build(run["workload"])
    options = parse_options(run["workload_options"])
    check_options(build, options, run["workload"])
    return Built(*build(run, device, **options))


def find_build(workload: str) -> Build:
    """The function that a workload's name stands for. Raises ValueError where it cannot be imported, whatever its
    module raises."""
    module, _, name = BUILDS.get(workload, workload).partition(":")
    if workload not in BUILDS and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at its end: a file there hides nothing that is installed
    try:
        build: Build = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # a script that ends when it is imported
        fix = "give MODULE:FUNCTION, with the module in the folder where the job is started or on PYTHONPATH"
        if workload == HUGGING_FACE:
            fix = install_command("hf")
        raise ValueError(f"workload {workload}: cannot be imported ({type(error).__name__}: {error}); {fix}") from error
    return build


def check_options(build: Build, options: Mapping[str, Option], workload: str) -> None:
    """Check that `build` takes the options and their types, and that none it needs is missing. Raises OptionError. A
    type is known if the parameter is annotated with bool, int, float or str."""
    parameters = list(signature(build).parameters.values())[2:]
    known = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    takes_any = any(parameter.kind == Parameter.VAR_KEYWORD for parameter in parameters)
    for name, value in options.items():
        if name in known:
            check_type(f"workload_axes.{name}", value, known[name].annotation, workload)
        elif not takes_any:
            allowed = f"it takes {', '.join(known)}" if known else "it takes no options"
            raise OptionError(f"workload_axes.{name}: {workload} has no such parameter; {allowed}")
    missing = [name for name, known_as in known.items() if known_as.default is Parameter.empty and name not in options]
    if missing:
        raise OptionError(f"workload_axes: {workload} needs {', '.join(missing)}; give a list of values for each")


def check_type(key: str, value: Option, wanted: Any, where: str) -> None:
    """Check that `value` has the type `wanted`, given as the type or its name; ignore any other annotation. Raises
    OptionError."""
    accepted: dict[str, set[type]] = {"bool": {bool}, "int": {int}, "float": {int, float}, "str": {str}}
    kind = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", "")
    if kind in accepted and type(value) not in accepted[kind]:
        raise OptionError(f"{key}: should be {kind}, as {where} says, not {value!r}; change the value")
