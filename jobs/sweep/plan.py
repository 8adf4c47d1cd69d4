"""From a sweep file to a validated list of runs."""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from reprlib import Repr
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails

from profiler_job.jobs.contract.axes import (
    AXES,
    Name,
    Number,
    Positive,
    Run,
    Workload,
    find_default,
    find_listed_axes,
    find_type,
    order_axes,
)
from profiler_job.jobs.contract.layout import RESERVED_NAMES, Protocol
from profiler_job.jobs.contract.options import Option, format_options, parse_options
from profiler_job.jobs.contract.studies import Study
from profiler_job.jobs.sweep.model_axes import HuggingFace, OptionAxes, derive_config_name
from profiler_job.jobs.workloads import HUGGING_FACE, REFERENCE
from profiler_job.jobs.workloads.transformer.sizes import MODEL_SIZES, VOCAB_SIZE, ModelSize

DEFAULT_SWEEP = Path(__file__).resolve().parents[1] / "sweep.yaml"
LARGEST_FILE = 2**20  # bytes
MOST_RUNS = 100_000
MOST_PARAMETERS = 10**13

HALF_PRECISION_ATTENTION = {"cudnn", "flash"}
HUGGING_FACE_ATTENTION = {"naive", "sdpa"}

SweepName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
LIKE_A_SHARD = re.compile(r"(^|-)shard-\d+-of-\d+$")  # the recording of a shard is <sweep>-shard-I-of-N
# What a sweep file may ask for is bounded far above any GPU, so that a slip is not worked on for ever.
Width = Annotated[int, Field(gt=0, le=2**20), Number]
Steps = Annotated[int, Field(le=1_000_000), Number]


class SweepError(ValueError):
    """A sweep file, filter or shard that cannot be used; the message says where and what is allowed."""


class CustomSize(BaseModel):
    model_config = ConfigDict(extra="forbid")

    d_model: Width
    d_ff: Width
    num_layers: Annotated[int, Field(gt=0, le=1000), Number]
    num_heads: Width

    @model_validator(mode="after")
    def check(self):
        if self.d_model % (2 * self.num_heads):
            raise ValueError(f"d_model must be a multiple of 2 x num_heads = {2 * self.num_heads}, not {self.d_model}")
        if self.model_size.num_parameters(VOCAB_SIZE) > MOST_PARAMETERS:
            raise ValueError(f"more than {MOST_PARAMETERS:,} parameters; choose a smaller d_model, d_ff or num_layers")
        return self

    @property
    def model_size(self) -> ModelSize:
        return ModelSize(self.d_model, self.d_ff, self.num_layers, self.num_heads)


def _axes_of_files() -> dict[str, Any]:
    """The name of a sweep and the axes that its file lists, as fields: name -> type and default."""
    fields: dict[str, Any] = {"name": (SweepName, ...)}
    for name in find_listed_axes():
        default = find_default(name)
        some = Field(... if default is None else [default], min_length=1)
        fields[name] = (GenericAlias(list, find_type(name)), some)
    return fields


if TYPE_CHECKING:

    class SweepAxes(BaseModel):
        """What is known of them before the program runs; `Sweep.values_of` reads an axis."""

        name: SweepName
else:
    SweepAxes = create_model("SweepAxes", __config__=ConfigDict(extra="forbid"), **_axes_of_files())


class Sweep(SweepAxes):
    """A sweep file: axes as lists, the rest as single values.

    `batch_size` is that of each GPU where `scaling` is weak, and of all of them together where it is strong. `study`
    names the question beyond the default sweep's that the runs are for; `calibrate` measures the machine's peak
    rates first. `workload_axes` are the keyword arguments of a workload by their values; `hf` says the models of
    workload hf, each of which is a size.
    """

    model_config = ConfigDict(extra="forbid")

    repeats: Positive = 1
    fresh_process: StrictBool = False
    calibrate: StrictBool = False
    study: Literal["", Study] = ""
    batch_size: Annotated[int, Field(gt=0, le=1_000_000), Number] = find_default("batch_size")
    scaling: Literal["weak", "strong"] = "weak"
    workload: Workload = find_default("workload")
    workload_axes: OptionAxes = Field(default_factory=dict)
    hf: HuggingFace | None = None
    custom_sizes: Annotated[dict[Name, CustomSize], Field(default_factory=dict)]
    warmup_steps: Steps = Protocol.model_fields["warmup_steps"].default
    measured_steps: Steps = Protocol.model_fields["measured_steps"].default
    processes: Annotated[int, Number] = Protocol.model_fields["processes"].default
    seed: Steps = Protocol.model_fields["seed"].default
    profiled_steps: Steps = Protocol.model_fields["profiled_steps"].default

    @model_validator(mode="before")
    @classmethod
    def name_models(cls, content: Any) -> Any:
        """The models of `hf` are the sizes, so a file says neither size nor workload beside it."""
        if not isinstance(content, dict) or content.get("hf") is None:
            return content
        if beside := [key for key in ("size", "workload", "workload_axes") if key in content]:
            raise ValueError(f"{beside[0]}: is said by hf, whose configurations are the sizes; leave it out")
        said = content["hf"].get("config") if isinstance(content["hf"], dict) else None
        files = said if isinstance(said, list) else [said]
        sizes = [derive_config_name(file) for file in files if isinstance(file, str)]
        return content | {"size": sizes or [HUGGING_FACE], "workload": HUGGING_FACE}

    @model_validator(mode="after")
    def check(self):
        if self.name in RESERVED_NAMES:
            raise ValueError(f"name: {self.name} is taken by a folder of the results; any other name is allowed")
        if LIKE_A_SHARD.search(self.name):
            raise ValueError(f"name: {self.name} reads like a shard of a sweep; any other ending is allowed")
        if self.workload != REFERENCE and self.custom_sizes:
            raise ValueError(f"custom_sizes: are those of the reference Transformer; {self.workload} knows its own")
        if self.workload == REFERENCE and self.workload_axes:
            raise ValueError("workload_axes: the reference Transformer has none; give workload: MODULE:FUNCTION")
        if self.workload == HUGGING_FACE:
            self._check_hugging_face()
        if same := [name for name in self.options if name in AXES]:
            raise ValueError(f"{same[0]}: an axis of every sweep has this name; rename the parameter of the workload")
        sizes = self.sizes
        unknown = [size for size in self.values_of("size") if size not in sizes]
        if unknown and self.workload == REFERENCE:
            raise ValueError(f"size: unknown {', '.join(unknown)}; allowed: {', '.join(sizes)}")
        lists = [*map(self.values_of, find_listed_axes()), *self.options.values()]
        num_runs = prod(map(len, lists)) * self.repeats
        if num_runs > MOST_RUNS:
            raise ValueError(f"{num_runs:,} runs: at most {MOST_RUNS:,} are allowed; shorten an axis or repeats")
        for axis in (*find_listed_axes(), "workload_options"):
            named: dict[str, Any] = {}
            for value in self.values_of(axis):
                if named.setdefault(token := AXES[axis].token(value), value) != value:
                    raise ValueError(f"{axis}: {named[token]!r} and {value!r} are both called {token}; choose one")
        if self.warmup_steps < 2 and not self.fresh_process:
            raise ValueError("warmup_steps: should be at least 2, except with fresh_process: true")
        half_precision = HALF_PRECISION_ATTENTION.intersection(self.values_of("attention"))
        if half_precision and set(self.values_of("precision")) != {"bf16"}:
            raise ValueError(
                f"attention: {' and '.join(sorted(HALF_PRECISION_ATTENTION))} exist for precision bf16 only"
            )
        self._check_gpus()
        self._check_accumulation()
        self.protocol  # noqa: B018  raises on a bad step count
        return self

    def _check_gpus(self) -> None:
        """One GPU goes with parallel none, several with ddp or fsdp; other combinations of a file are left out."""
        gpus, parallel = self.values_of("gpus"), self.values_of("parallel")
        several, ways = [n for n in gpus if n > 1], [way for way in parallel if way != "none"]
        if several and not ways:
            raise ValueError(f"gpus: {several[0]} need parallel: [ddp], [fsdp] or both")
        if ways and not several:
            raise ValueError(f"parallel: {ways[0]} is for several GPUs; give gpus: [2], say")
        if 1 in gpus and "none" not in parallel:
            raise ValueError("gpus: 1 needs none among parallel")
        if self.scaling == "strong" and (odd := [n for n in several if self.batch_size % n]):
            raise ValueError(f"batch_size: {self.batch_size} cannot be divided among {odd[0]} GPUs; choose a multiple")

    def _check_accumulation(self) -> None:
        if (most := max(self.values_of("accumulation"))) == 1:
            return
        if uneven := [parts for parts in self.values_of("accumulation") if self.batch_size % parts]:
            raise ValueError(f"accumulation: a batch of {self.batch_size} cannot be cut into {uneven[0]} equal parts")
        if "forward" in self.values_of("mode"):
            raise ValueError(f"accumulation: mode forward has no gradients to add up over {most} micro-batches")
        if "cudagraphs" in self.values_of("compile"):
            raise ValueError("accumulation: CUDA graphs write a micro-batch's gradients over those of the last")
        if set(self.values_of("parallel")) != {"none"}:
            raise ValueError("accumulation: is measured on one GPU; leave out gpus and parallel")

    def _check_hugging_face(self) -> None:
        if self.hf is None:
            raise ValueError("workload: hf needs the key hf, such as hf: {config: gpt2.json}")
        if others := set(self.values_of("attention")) - HUGGING_FACE_ATTENTION:
            allowed = "naive (called eager there) and sdpa"
            raise ValueError(f"attention: Hugging Face models have {allowed}, not {', '.join(sorted(others))}")

    def values_of(self, axis: str) -> list[Any]:
        """The values of one of `find_listed_axes`, or of `workload_options`."""
        if axis == "workload_options":
            return [format_options(dict(zip(self.options, values))) for values in product(*self.options.values())]
        return getattr(self, axis)

    @property
    def options(self) -> dict[str, list[Option]]:
        """The axes of the workload itself."""
        return self.hf.changes if self.hf else self.workload_axes

    @property
    def sizes(self) -> dict[str, ModelSize]:
        return MODEL_SIZES | {name: size.model_size for name, size in self.custom_sizes.items()}

    @property
    def protocol(self) -> Protocol:
        return Protocol(**{name: getattr(self, name) for name in Protocol.model_fields})

    @cached_property
    def runs(self) -> list[Run]:
        """All runs in reading order, each repeated."""
        axes = [name for name in order_axes() if AXES[name].is_list or name == "workload_options"]
        fixed = {name: getattr(self, name) for name in ("fresh_process", "workload")}
        shapes = {size: self._shape(size) for size in self.values_of("size")}
        runs = []
        for *values, repeat in product(*map(self.values_of, axes), range(self.repeats)):
            point = dict(zip(axes, values))
            if (point["gpus"] == 1) != (point["parallel"] == "none"):
                continue
            batch = {"batch_size": self.batch_size // (point["gpus"] if self.scaling == "strong" else 1)}
            runs.append(Run.model_validate(point | shapes[point["size"]] | fixed | batch | {"repeat": repeat}))
        return list(dict.fromkeys(runs))

    def _shape(self, size: str) -> dict[str, Any]:
        """Sizes of a model of the reference Transformer, and the configuration of one of Hugging Face; of other
        workloads nothing is known."""
        if self.hf:
            return {"workload_config": self.hf.configs[size]}
        if self.workload != REFERENCE:
            return {}
        shape = self.sizes[size]
        return shape._asdict() | {"vocab_size": VOCAB_SIZE, "num_parameters": shape.num_parameters(VOCAB_SIZE)}


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
            if key.tag == "tag:yaml.org,2002:merge":
                problem = "<<: merging is not allowed; write the keys out"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
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
        return Sweep.model_validate(content, context={"folder": path.parent})
    except ValidationError as error:
        raise SweepError("\n".join(f"{path}: {_explain(detail)}" for detail in error.errors())) from None


def _explain(detail: ErrorDetails) -> str:
    key = " ".join(".".join(map(str, detail["loc"])).split())
    if detail["type"] == "extra_forbidden":
        allowed = (CustomSize if detail["loc"][0] == "custom_sizes" else Sweep).model_fields
        return f"{key}: unknown key; allowed: {', '.join(allowed)}"
    if detail["type"] == "missing":
        return f"{key}: not given, and has no default"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if not key:
        return message
    is_of_keys = detail["type"] == "value_error" and isinstance(detail["input"], dict)  # the message says which
    return f"{key}: {message}" + ("" if is_of_keys else f", not {BRIEF.repr(detail['input'])}")


BRIEF = Repr()
BRIEF.maxstring = BRIEF.maxother = 80


def select(runs: Sequence[Run], only: str | None) -> list[Run]:
    """The runs that match a filter such as `size=small,mode=forward`; a key may be repeated to allow several values.

    Raises SweepError for an unknown key or a value that no run has.
    """
    wanted: dict[str, set[str]] = {}
    axes = [*find_listed_axes(), "batch_size", "repeat", *(parse_options(runs[0].workload_options) if runs else {})]
    for part in (only or "").split(","):
        if not part:
            continue
        key, _, value = part.partition("=")
        if key not in axes:
            raise SweepError(f"--only {part}: unknown key {key!r}; allowed: {', '.join(axes)}")
        values = list(dict.fromkeys(_said_of(run, key) for run in runs))
        if value not in values:
            raise SweepError(f"--only {part}: no run has this {key}; this sweep has: {', '.join(values)}")
        wanted.setdefault(key, set()).add(value)
    return [run for run in runs if all(_said_of(run, key) in values for key, values in wanted.items())]


def _said_of(run: Run, key: str) -> str:
    """The value of an axis, or of an option of the workload, as a filter says it."""
    if key in AXES:
        return str(getattr(run, key))
    return format_options({"": parse_options(run.workload_options)[key]}).removeprefix("=")
