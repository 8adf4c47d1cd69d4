"""A causal language model of Hugging Face's transformers as a workload: built from a configuration, with random weights
and random tokens. Nothing is downloaded.

Importing this module needs transformers: `pip install 'profiler-job[hf]'`.
"""

import json
import os
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiler_job.jobs.contract.options import Option
from profiler_job.jobs.workloads import Built, OptionError, check_type

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers are imported

from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

ATTENTION = {"naive": "eager", "sdpa": "sdpa"}
"""Names in Transformers of the values of the axis `attention`."""


def build(run: Mapping[str, Any], device: torch.device, **changes: Option) -> Built:
    """The model of the run's configuration with `changes`, and a batch of tokens [B, T]; the loss is the mean
    cross-entropy of the next token. Weights are FP32: the axis `precision` says what is computed in."""
    config = read_config(run["workload_config"])
    change_config(config, changes)
    most = getattr(config, "max_position_embeddings", None) or run["context_length"]
    if run["context_length"] > most:
        raise ValueError(f"context_length {run['context_length']}: {run['size']} has {most} positions; shorten it")
    config.use_cache = False  # of keys and values, for generation
    with device:
        how = {"dtype": torch.float32, "attn_implementation": ATTENTION[run["attention"]]}
        model = AutoModelForCausalLM.from_config(config, **how)
        vocab_size = config.get_text_config().vocab_size
        tokens = torch.randint(vocab_size, (run["batch_size"], run["context_length"] + 1))
    model.train(run["mode"] != "forward")  # with dropout where there are gradients
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Built(model, (inputs,), partial(compute_loss, targets=targets))


def compute_loss(output: Any, targets: Tensor) -> Tensor:
    """Mean cross-entropy of an output whose logits are [B, T, V]."""
    return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1).float(), targets.flatten())


def read_config(said: str) -> PreTrainedConfig:
    """The configuration that a run names, as `FILE sha256:DIGEST`. Raises ValueError where the file is another one by
    now, or of no model that transformers know."""
    file, _, digest = said.rpartition(" sha256:")
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); start the job in the folder as before") from None
    if not sha256(content).hexdigest().startswith(digest):
        raise ValueError(f"{file}: changed since the sweep was planned; start the job again")
    values = json.loads(content)
    kind = values["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ValueError(f"{file}: model_type: transformers do not know {kind!r}; install a newer version")
    return CONFIG_MAPPING[kind].from_dict(values)


def change_config(config: PreTrainedConfig, changes: Mapping[str, Option]) -> None:
    """Change the configuration. Raises OptionError if it has no such key, or a value of another type."""
    keys = {*config.to_dict(), *config.attribute_map} - {"model_type", "transformers_version"}
    for name, value in changes.items():
        if name not in keys:
            allowed = ", ".join(sorted(keys))
            raise OptionError(f"hf.{name}: unknown key of a configuration of {config.model_type}; it has {allowed}")
        check_type(f"hf.{name}", value, type(getattr(config, name)), config.model_type)
        setattr(config, name, value)
