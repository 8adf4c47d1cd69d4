"""From a sweep file to a validated list of runs."""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field, model_validator

from jobs.model_sizes import MODEL_SIZES, VOCAB_SIZE, ModelSize

DEFAULT_SWEEP = Path(__file__).with_name("sweep.yaml")

# Folders beside those of the sweeps in a results folder.
RESERVED_NAMES = ("raw", "recordings", "site")

Mode = Literal["forward", "forward_backward", "train_step"]
Precision = Literal["fp32", "tf32", "bf16"]
Attention = Literal["naive", "sdpa"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*$")]
Positive = Annotated[int, Field(gt=0)]


class SweepError(ValueError):
    """A sweep file, filter or shard that cannot be used; the message says where and what is allowed."""


class Run(BaseModel):
    """One point of the sweep. Every field becomes a column of the `runs` table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Name
    d_model: Positive
    d_ff: Positive
    num_layers: Positive
    num_heads: Positive
    vocab_size: Positive
    context_length: Positive
    batch_size: Positive
    mode: Mode
    precision: Precision
    attention: Attention

    @computed_field
    @property
    def num_parameters(self) -> int:
        return ModelSize(self.d_model, self.d_ff, self.num_layers, self.num_heads).num_parameters

    @property
    def run_id(self) -> str:
        return f"{self.size}-ctx{self.context_length}-{self.precision}-{self.attention}-{self.mode}"


class CustomSize(BaseModel):
    model_config = ConfigDict(extra="forbid")

    d_model: Positive
    d_ff: Positive
    num_layers: Positive
    num_heads: Positive

    @model_validator(mode="after")
    def check_heads(self):
        if self.d_model % (2 * self.num_heads):
            raise ValueError(f"d_model must be a multiple of 2 x num_heads = {2 * self.num_heads}, not {self.d_model}")
        return self


class Protocol(BaseModel):
    """How each run is measured: what must be equal for a finished run to count as done."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    warmup_steps: Annotated[int, Field(ge=2)] = 5
    measured_steps: Annotated[int, Field(ge=1)] = 10
    profiled_steps: Annotated[int, Field(ge=3)] = 3


class Sweep(BaseModel):
    """A sweep file: axes as lists, the rest as single values."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    size: Annotated[list[str], Field(min_length=1)]
    context_length: Annotated[list[Positive], Field(min_length=1)]
    mode: Annotated[list[Mode], Field(min_length=1)]
    precision: Annotated[list[Precision], Field(min_length=1)] = ["fp32"]
    attention: Annotated[list[Attention], Field(min_length=1)] = ["naive"]
    batch_size: Positive = 4
    custom_sizes: dict[Name, CustomSize] = {}
    warmup_steps: int = Protocol.model_fields["warmup_steps"].default
    measured_steps: int = Protocol.model_fields["measured_steps"].default
    profiled_steps: int = Protocol.model_fields["profiled_steps"].default

    @model_validator(mode="after")
    def check(self):
        if self.name in RESERVED_NAMES:
            raise ValueError(f"name: {self.name} is taken by a folder of the results; any other name is allowed")
        unknown = [size for size in self.size if size not in self.sizes]
        if unknown:
            raise ValueError(f"size: unknown {', '.join(unknown)}; allowed: {', '.join(self.sizes)}")
        self.protocol  # noqa: B018  raises on a bad step count
        return self

    @property
    def sizes(self) -> dict[str, ModelSize]:
        return MODEL_SIZES | {name: ModelSize(**size.model_dump()) for name, size in self.custom_sizes.items()}

    @property
    def protocol(self) -> Protocol:
        return Protocol(**{name: getattr(self, name) for name in Protocol.model_fields})

    @cached_property
    def runs(self) -> list[Run]:
        """All runs, in the order of the axes: size outermost, then context length, precision, attention, mode."""
        axes = product(self.size, self.context_length, self.precision, self.attention, self.mode)
        runs = [
            Run(
                size=size,
                **self.sizes[size]._asdict(),
                vocab_size=VOCAB_SIZE,
                context_length=context_length,
                batch_size=self.batch_size,
                mode=mode,
                precision=precision,
                attention=attention,
            )
            for size, context_length, precision, attention, mode in axes
        ]
        return list(dict.fromkeys(runs))


def load_sweep(path: Path) -> Sweep:
    """Read a sweep file.

    Raises SweepError naming the file, the key and the allowed values.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SweepError(f"{path}: cannot be read ({error.strerror}); give an existing file with --sweep") from None
    except yaml.YAMLError as error:
        raise SweepError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise SweepError(f"{path}: expected keys and values such as those of {DEFAULT_SWEEP.name}")
    if isinstance(content.get("size"), list):
        content["size"] = [str(size) for size in content["size"]]
    try:
        return Sweep(**content)
    except ValidationError as error:
        raise SweepError("\n".join(f"{path}: {_explain(detail)}" for detail in error.errors())) from None


def _explain(detail: dict) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        allowed = (CustomSize if detail["loc"][0] == "custom_sizes" else Sweep).model_fields
        return f"{key}: unknown key; allowed: {', '.join(allowed)}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{key}: {message}, not {detail['input']!r}" if key else message


def select(runs: Sequence[Run], only: str | None) -> list[Run]:
    """The runs that match a filter such as `size=small,mode=forward`; a key may be repeated to allow several values.

    Raises SweepError for an unknown key or a value that no run has.
    """
    wanted: dict[str, set[str]] = {}
    for part in (only or "").split(","):
        if not part:
            continue
        key, _, value = part.partition("=")
        axes = [name for name in Run.model_fields if name in Sweep.model_fields]
        if key not in axes:
            raise SweepError(f"--only {part}: unknown key {key!r}; allowed: {', '.join(axes)}")
        values = list(dict.fromkeys(str(getattr(run, key)) for run in runs))
        if value not in values:
            raise SweepError(f"--only {part}: no run has this {key}; this sweep has: {', '.join(values)}")
        wanted.setdefault(key, set()).add(value)
    return [run for run in runs if all(str(getattr(run, key)) in values for key, values in wanted.items())]
