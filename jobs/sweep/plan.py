"""From a sweep file to a validated list of runs."""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    computed_field,
    field_validator,
    model_validator,
)

from jobs.contract.studies import STUDIES
from jobs.workloads.transformer.sizes import MODEL_SIZES, VOCAB_SIZE, ModelSize

DEFAULT_SWEEP = Path(__file__).parents[1] / "sweep.yaml"
LARGEST_FILE = 2**20  # bytes

# Folders beside those of the sweeps in a results folder.
RESERVED_NAMES = ("raw", "recordings", "site")

Mode = Literal["forward", "forward_backward", "train_step"]
Precision = Literal["fp32", "tf32", "bf16"]
Attention = Literal["naive", "sdpa", "flash", "efficient", "cudnn"]
HALF_PRECISION_ATTENTION = {"cudnn", "flash"}
Compile = Literal["off", "default", "cudagraphs"]
Optimizer = Literal["own", "loop", "foreach", "fused"]
Study = Literal[("", *STUDIES)]


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


Number = BeforeValidator(_refuse_bool)  # to Python true is an integer
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*$", max_length=64)]
"""Of a model size; without a dash, which joins the parts of a run id."""
SweepName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
LIKE_A_SHARD = re.compile(r"(^|-)shard-\d+-of-\d+$")  # the recording of a shard is <sweep>-shard-I-of-N
Positive = Annotated[int, Field(gt=0), Number]
Count = Annotated[int, Field(ge=0), Number]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Number]
DEFAULT_BATCH_SIZE = 4


AXES = (
    "size",
    "context_length",
    "precision",
    "attention",
    "compile",
    "optimizer",
    "memory_limit_gib",
    "mode",
)
"""The axes of a sweep: lists in its file, fields of each run."""


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
    compile: Compile = "off"
    optimizer: Optimizer = "own"
    memory_limit_gib: NotNegative = 0
    fresh_process: bool = False
    repeat: Count = 0

    @computed_field
    @property
    def num_parameters(self) -> int:
        return ModelSize(self.d_model, self.d_ff, self.num_layers, self.num_heads).num_parameters(self.vocab_size)

    @property
    def run_id(self) -> str:
        """Readable and unique; what later axes leave at its default is not named."""
        named = [self.size, f"ctx{self.context_length}", self.precision, self.attention, self.mode]
        if self.batch_size != DEFAULT_BATCH_SIZE:
            named.append(f"batch{self.batch_size}")
        if self.compile != "off":
            named.append(f"compile_{self.compile}")
        if self.optimizer != "own":
            named.append(f"adamw_{self.optimizer}")
        if self.memory_limit_gib:
            named.append(f"limit{self.memory_limit_gib:g}")
        if self.fresh_process:
            named.append("fresh")
        if self.repeat:
            named.append(f"repeat{self.repeat}")
        return "-".join(named)


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

    warmup_steps: Count = 5
    measured_steps: Annotated[int, Field(ge=1), Number] = 10
    profiled_steps: Count = 3

    @field_validator("profiled_steps")
    @classmethod
    def check_profiled_steps(cls, steps: int) -> int:
        if steps in (1, 2):
            raise ValueError("should be 0 (no capture) or at least 3")
        return steps


class Sweep(BaseModel):
    """A sweep file: axes as lists, the rest as single values.

    `study` names the question beyond the default sweep's that the runs are for; `calibrate` measures the machine's peak
    rates first.
    """

    model_config = ConfigDict(extra="forbid")

    name: SweepName
    size: Annotated[list[str], Field(min_length=1)]
    context_length: Annotated[list[Positive], Field(min_length=1)]
    mode: Annotated[list[Mode], Field(min_length=1)]
    precision: Annotated[list[Precision], Field(min_length=1)] = ["fp32"]
    attention: Annotated[list[Attention], Field(min_length=1)] = ["naive"]
    compile: Annotated[list[Compile], Field(min_length=1)] = ["off"]
    optimizer: Annotated[list[Optimizer], Field(min_length=1)] = ["own"]
    memory_limit_gib: Annotated[list[NotNegative], Field(min_length=1)] = [0]
    repeats: Positive = 1
    fresh_process: bool = False
    calibrate: bool = False
    study: Study = ""
    batch_size: Positive = DEFAULT_BATCH_SIZE
    custom_sizes: dict[Name, CustomSize] = {}
    warmup_steps: Annotated[int, Number] = Protocol.model_fields["warmup_steps"].default
    measured_steps: Annotated[int, Number] = Protocol.model_fields["measured_steps"].default
    profiled_steps: Annotated[int, Number] = Protocol.model_fields["profiled_steps"].default

    @field_validator("compile", mode="before")
    @classmethod
    def read_off(cls, values: object) -> object:
        """YAML reads a bare `off` as false."""
        return ["off" if value is False else value for value in values] if isinstance(values, list) else values

    @model_validator(mode="after")
    def check(self):
        if self.name in RESERVED_NAMES:
            raise ValueError(f"name: {self.name} is taken by a folder of the results; any other name is allowed")
        if LIKE_A_SHARD.search(self.name):
            raise ValueError(f"name: {self.name} reads like a shard of a sweep; any other ending is allowed")
        unknown = [size for size in self.size if size not in self.sizes]
        if unknown:
            raise ValueError(f"size: unknown {', '.join(unknown)}; allowed: {', '.join(self.sizes)}")
        if self.warmup_steps < 2 and not self.fresh_process:
            raise ValueError("warmup_steps: should be at least 2, except with fresh_process: true")
        if set(self.attention) & HALF_PRECISION_ATTENTION and set(self.precision) != {"bf16"}:
            raise ValueError(
                f"attention: {' and '.join(sorted(HALF_PRECISION_ATTENTION))} exist for precision bf16 only"
            )
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
        """All runs, in the order of AXES, the first outermost, each repeated."""
        repeats = range(self.repeats)
        runs = []
        for *values, repeat in product(*(getattr(self, axis) for axis in AXES), repeats):
            point = dict(zip(AXES, values))
            fixed = {"vocab_size": VOCAB_SIZE, "batch_size": self.batch_size, "fresh_process": self.fresh_process}
            runs.append(Run(**self.sizes[point["size"]]._asdict(), **point, **fixed, repeat=repeat))
        return list(dict.fromkeys(runs))


class SweepLoader(yaml.SafeLoader):
    """Reads YAML in which no key is given twice and nothing is an alias of something else: a few of them can stand for
    more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()
            problem = f"*{alias.anchor}: aliases are not allowed; write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=alias.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in lines:
                problem = f"{key.value}: given twice, first in line {lines[key.value]}; keep one of them"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def load_sweep(path: Path) -> Sweep:
    """Read a sweep file.

    Raises SweepError naming the file, the key and the allowed values.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise SweepError(f"{path}: cannot be read ({error.strerror}); give an existing file with --sweep") from None
    if len(text) > LARGEST_FILE:
        raise SweepError(f"{path}: larger than {LARGEST_FILE // 2**20} MiB, which no sweep file is")
    try:
        content = yaml.load(text.decode(), SweepLoader)
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise SweepError(f"{path}: line {line} is not UTF-8 text; save the file as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        said = " ".join(filter(None, (error.context, error.problem)))
        raise SweepError(f"{path}: not valid YAML: {said}, in line {error.problem_mark.line + 1}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that does not exist
        raise SweepError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SweepError(f"{path}: not a sweep: nested too deeply") from None
    if not isinstance(content, dict):
        raise SweepError(f"{path}: expected keys and values such as those of {DEFAULT_SWEEP.name}")
    if isinstance(content.get("size"), list):
        content["size"] = [str(size) if isinstance(size, (int, float)) else size for size in content["size"]]
    try:
        return Sweep.model_validate(content)
    except ValidationError as error:
        raise SweepError("\n".join(f"{path}: {_explain(detail)}" for detail in error.errors())) from None


def _explain(detail: dict) -> str:
    key = " ".join(".".join(map(str, detail["loc"])).split())
    if detail["type"] == "extra_forbidden":
        allowed = (CustomSize if detail["loc"][0] == "custom_sizes" else Sweep).model_fields
        return f"{key}: unknown key; allowed: {', '.join(allowed)}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{key}: {message}, not {BRIEF.repr(detail['input'])}" if key else message


BRIEF = Repr()
BRIEF.maxstring = BRIEF.maxother = 80


def select(runs: Sequence[Run], only: str | None) -> list[Run]:
    """The runs that match a filter such as `size=small,mode=forward`; a key may be repeated to allow several values.

    Raises SweepError for an unknown key or a value that no run has.
    """
    wanted: dict[str, set[str]] = {}
    for part in (only or "").split(","):
        if not part:
            continue
        key, _, value = part.partition("=")
        axes = [*AXES, "batch_size", "repeat"]
        if key not in axes:
            raise SweepError(f"--only {part}: unknown key {key!r}; allowed: {', '.join(axes)}")
        values = list(dict.fromkeys(str(getattr(run, key)) for run in runs))
        if value not in values:
            raise SweepError(f"--only {part}: no run has this {key}; this sweep has: {', '.join(values)}")
        wanted.setdefault(key, set()).add(value)
    return [run for run in runs if all(str(getattr(run, key)) in values for key, values in wanted.items())]
