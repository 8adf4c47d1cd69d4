"""A block of a sweep file: a grid, with a run for every combination of its axes."""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import prod
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, create_model, model_validator

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
from profiler_job.jobs.contract.options import Option, format_options
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.sweep.model_axes import HuggingFace, OptionAxes, derive_config_name
from profiler_job.jobs.workloads import HUGGING_FACE, REFERENCE
from profiler_job.jobs.workloads.transformer.sizes import MODEL_SIZES, VOCAB_SIZE, ModelSize

MOST_RUNS = 100_000
MOST_PARAMETERS = 10**13

EXCHANGES = {
    "none": {"default"},
    "ddp": {"default", "buckets", "half"},
    "fsdp": {"default", "prefetch", "keep", "half"},
    "tp": {"default"},
}
"""The values of `exchange` that each way to share the work has."""
HALF_PRECISION_ATTENTION = {"cudnn", "flash"}
HUGGING_FACE_ATTENTION = {"naive", "sdpa"}

SweepName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
BlockName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=100)]
# What a sweep file may ask for is bounded far above any GPU, so that a slip is not worked on for ever.
Width = Annotated[int, Field(gt=0, le=2**20), Number]


class CustomSize(BaseModel):
    model_config = ConfigDict(extra="forbid")

    d_model: Width
    d_ff: Width
    num_layers: Annotated[int, Field(gt=0, le=1000), Number]
    num_heads: Width

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.d_model % (2 * self.num_heads):
            raise ValueError(f"d_model must be a multiple of 2 x num_heads = {2 * self.num_heads}, not {self.d_model}")
        if self.model_size.num_parameters(VOCAB_SIZE) > MOST_PARAMETERS:
            raise ValueError(f"more than {MOST_PARAMETERS:,} parameters; choose a smaller d_model, d_ff or num_layers")
        return self

    @property
    def model_size(self) -> ModelSize:
        return ModelSize(self.d_model, self.d_ff, self.num_layers, self.num_heads)


def _describe_axes() -> dict[str, Any]:
    """Return the axes that a file lists as fields of pydantic: name -> type and default."""
    fields: dict[str, Any] = {}
    for name in find_listed_axes():
        default = find_default(name)
        some = Field(... if default is None else [default], min_length=1)
        fields[name] = (GenericAlias(list, find_type(name)), some)
    return fields


if TYPE_CHECKING:

    class BlockAxes(BaseModel):
        """The axes of a block; `Block.values_of` reads one."""

else:
    BlockAxes = create_model("BlockAxes", __config__=ConfigDict(extra="forbid"), **_describe_axes())


class Block(BlockAxes):
    """A grid of runs: axes as lists, the rest as single values.

    name: "" if the block is the whole file. batch_size: for each GPU if `scaling` is weak, of all of them together if
    it is strong. workload_axes: the keyword arguments of a workload and their values. hf: the models of workload hf;
    each is a size.
    """

    model_config = ConfigDict(extra="forbid")

    name: BlockName = ""
    repeats: Positive = 1
    fresh_process: StrictBool = False
    batch_size: Annotated[int, Field(gt=0, le=1_000_000), Number] = find_default("batch_size")
    scaling: Literal["weak", "strong"] = "weak"
    workload: Workload = find_default("workload")
    workload_axes: OptionAxes = Field(default_factory=dict)
    hf: HuggingFace | None = None
    custom_sizes: Annotated[dict[Name, CustomSize], Field(default_factory=dict)]

    @model_validator(mode="before")
    @classmethod
    def name_models(cls, content: Any) -> Any:
        """Take the models of `hf` as the sizes: a file has neither size nor workload as well."""
        if not isinstance(content, dict) or content.get("hf") is None:
            return content
        if twice := [key for key in ("size", "workload", "workload_axes") if key in content]:
            raise ValueError(f"{twice[0]}: is given by hf, whose configurations are the sizes; leave it out")
        given = content["hf"].get("config") if isinstance(content["hf"], dict) else None
        files = given if isinstance(given, list) else [given]
        sizes = [derive_config_name(file) for file in files if isinstance(file, str)]
        return content | {"size": sizes or [HUGGING_FACE], "workload": HUGGING_FACE}

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.workload != REFERENCE and self.custom_sizes:
            raise ValueError(f"custom_sizes: are for the reference Transformer; {self.workload} knows its own")
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
        if self.num_runs > MOST_RUNS:
            raise ValueError(f"{self.num_runs:,} runs: at most {MOST_RUNS:,} are allowed; shorten an axis or repeats")
        for axis in (*find_listed_axes(), "workload_options"):
            named: dict[str, Any] = {}
            for value in self.values_of(axis):
                if named.setdefault(token := AXES[axis].token(value), value) != value:
                    raise ValueError(f"{axis}: {named[token]!r} and {value!r} are both called {token}; choose one")
        half_precision = HALF_PRECISION_ATTENTION.intersection(self.values_of("attention"))
        halves = [name for name, record in PRECISIONS.items() if record.element_bytes == 2]
        if half_precision and not set(self.values_of("precision")) <= {*halves}:
            raise ValueError(
                f"attention: {' and '.join(sorted(HALF_PRECISION_ATTENTION))} exist for precision "
                f"{' and '.join(halves)} only"
            )
        self._check_gpus()
        self._check_accumulation()
        self._check_checkpointing()
        return self

    def _check_gpus(self) -> None:
        """One GPU goes with parallel none, several with the other ways; other combinations of a file are left out."""
        gpus, parallel = self.values_of("gpus"), self.values_of("parallel")
        several, ways = [n for n in gpus if n > 1], [way for way in parallel if way != "none"]
        if several and not ways:
            raise ValueError(f"gpus: {several[0]} need parallel: [ddp], [fsdp] or [tp]")
        if ways and not several:
            raise ValueError(f"parallel: {ways[0]} is for several GPUs; give gpus: [2], say")
        if 1 in gpus and "none" not in parallel:
            raise ValueError("gpus: 1 needs none among parallel")
        if self.scaling == "strong" and (odd := [n for n in several if self.batch_size % n]):
            raise ValueError(f"batch_size: {self.batch_size} cannot be divided among {odd[0]} GPUs; choose a multiple")
        if none := [value for value in self.values_of("exchange") if not any(value in EXCHANGES[w] for w in parallel)]:
            raise ValueError(f"exchange: {none[0]} is not for parallel {', '.join(parallel)}")
        wider = [name for name in self.values_of("precision") if PRECISIONS[name].element_bytes > 2]
        if wider and "half" in self.values_of("exchange"):
            raise ValueError(f"exchange: half sends BF16, and is not for precision {wider[0]}")
        if "tp" in ways:
            self._check_tensor_parallel(several)

    def _check_tensor_parallel(self, several: Sequence[int]) -> None:
        """The heads of a layer, and the width of its feed-forward, are divided among the GPUs."""
        if self.workload != REFERENCE:
            raise ValueError("parallel: tp is for the reference Transformer, whose matrices it divides")
        for size in self.values_of("size"):
            shape = self.sizes.get(size)
            for gpus in several:
                if shape and (shape.num_heads % gpus or shape.d_ff % gpus):
                    raise ValueError(
                        f"parallel: tp cannot divide the {shape.num_heads} heads and d_ff {shape.d_ff} of {size} among "
                        f"{gpus} GPUs"
                    )

    def _check_accumulation(self) -> None:
        if (most := max(self.values_of("accumulation"))) == 1:
            return
        if uneven := [parts for parts in self.values_of("accumulation") if self.batch_size % parts]:
            raise ValueError(f"accumulation: a batch of {self.batch_size} cannot be cut into {uneven[0]} equal parts")
        if "forward" in self.values_of("mode"):
            raise ValueError(f"accumulation: mode forward has no gradients to add up over {most} micro-batches")
        if "cudagraphs" in self.values_of("compile"):
            raise ValueError("accumulation: CUDA graphs write a micro-batch's gradients over the previous one's")
        if set(self.values_of("parallel")) != {"none"}:
            raise ValueError("accumulation: is measured on one GPU; leave out gpus and parallel")

    def _check_checkpointing(self) -> None:
        if "blocks" in self.values_of("checkpointing") and "forward" in self.values_of("mode"):
            raise ValueError("checkpointing: mode forward keeps no activations; leave one of the two out")

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
        values: list[Any] = getattr(self, axis)
        return values

    @property
    def options(self) -> dict[str, list[Option]]:
        """The axes of the workload itself."""
        return self.hf.changes if self.hf else self.workload_axes

    @property
    def num_runs(self) -> int:
        """An upper bound: combinations of `gpus`, `parallel` and `exchange` that do not exist are counted."""
        lists = [*map(self.values_of, find_listed_axes()), *self.options.values()]
        return prod(map(len, lists)) * self.repeats

    @property
    def sizes(self) -> dict[str, ModelSize]:
        return MODEL_SIZES | {name: size.model_size for name, size in self.custom_sizes.items()}

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
            if point["exchange"] not in EXCHANGES[point["parallel"]]:
                continue
            batch = {"batch_size": self.batch_size // (point["gpus"] if self.scaling == "strong" else 1)}
            runs.append(Run.model_validate(point | shapes[point["size"]] | fixed | batch | {"repeat": repeat}))
        return list(dict.fromkeys(runs))

    def _shape(self, size: str) -> dict[str, Any]:
        """Return the sizes of a reference Transformer, or the configuration of a model of Hugging Face; nothing for
        other workloads."""
        if self.hf:
            return {"workload_config": self.hf.configs[size]}
        if self.workload != REFERENCE:
            return {}
        shape = self.sizes[size]
        return shape._asdict() | {"vocab_size": VOCAB_SIZE, "num_parameters": shape.num_parameters(VOCAB_SIZE)}
