"""The reference Transformer as a workload: token ids at random, mean cross-entropy of the next token."""

from collections.abc import Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch

from profiler_job.jobs.workloads import Built
from profiler_job.jobs.workloads.transformer.model import TransformerLM, compute_loss

SHAPE = tuple(signature(TransformerLM).parameters)
"""Fields of a run that the model is made from."""


def build(run: Mapping[str, Any], device: torch.device) -> Built:
    """The model of a run and its batch, tokens [B, T]; the loss takes logits [B, T, V]."""
    with device:
        model = TransformerLM(**{name: run[name] for name in SHAPE})
        tokens = torch.randint(run["vocab_size"], (run["batch_size"], run["context_length"] + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Built(model, (inputs,), partial(compute_loss, targets=targets))
