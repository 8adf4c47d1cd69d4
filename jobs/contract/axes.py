"""A run, and the axes that tell runs apart: each stands here once, as a field of `Run`.

The name, type and default of an axis are those of its field; its `Axis` says the rest. Everything else derives from
them: the keys of sweep files and of `--only`, run ids, the columns of the `runs` table, and the headings and labels of
pages. A new axis is one field here, and the code of the worker that acts on it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from profiler_job.jobs.contract.options import build_token
from profiler_job.jobs.contract.precisions import BASE_PRECISION, PRECISIONS


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What a field of `Run` means. `dtype` and `unit` are those of its column, as in the data dictionary."""

    meaning: str
    dtype: Literal["category", "string", "int64", "float64", "bool"] = "category"
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Axis(Detail):
    """An axis of a sweep.

    order: its place in reading order: the lower, the further out it varies; None where it tells no cases apart.
    label: its heading on pages. labels: what pages call its values, where that is not the value itself. names: what
    sentences call them, where no heading stands above. words: what readers who look for a value may call it besides.
    token: how a value enters the run id. is_list: sweep files list its values; otherwise a sweep has one.
    default: what sweep files may leave out, for an axis that every run id names; an axis whose field has a default is
    named in a run id only where a run is not at it.
    """

    order: int | None
    label: str
    labels: Mapping[Any, str] = field(default_factory=dict)
    names: Mapping[Any, str] = field(default_factory=dict)
    words: Mapping[Any, str] = field(default_factory=dict)
    token: Callable[[Any], str] = str
    is_list: bool = True
    default: Any = None


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


Number = BeforeValidator(_refuse_bool)  # to Python true is an integer
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*$", max_length=64)]
"""Of a model size; without a dash, which joins the parts of a run id."""
Positive = Annotated[int, Field(gt=0), Number]
Count = Annotated[int, Field(ge=0), Number]
ContextLength = Annotated[int, Field(gt=0, le=10_000_000), Number]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Number]


def _check_workload(value: str) -> str:
    if not re.fullmatch(r"transformer|hf|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", value, re.ASCII):
        raise ValueError("should be transformer, or MODULE:FUNCTION such as my_models:build")
    return value


Workload = Annotated[str, Field(max_length=200), AfterValidator(_check_workload)]
"""`transformer`, `hf` (which a sweep file says by its key hf), or a function by its dotted path."""


def _read_off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


Mode = Literal["forward", "forward_backward", "train_step"]
if TYPE_CHECKING:
    Precision = str
else:
    Precision = Literal[tuple(PRECISIONS)]
Attention = Literal["naive", "sdpa", "flash", "efficient", "cudnn"]
Compile = Annotated[Literal["off", "default", "cudagraphs"], BeforeValidator(_read_off)]
Optimizer = Literal["own", "loop", "foreach", "fused"]
Parallel = Literal["none", "ddp", "fsdp"]
GpuCount = Annotated[int, Field(ge=1, le=64), Number]


class Run(BaseModel):
    """One point of a sweep. Every field becomes a column of the `runs` table, in this order. Sizes of the model are 0
    where its workload does not say them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Annotated[Name, Axis(order=0, label="model", meaning="name of the model size")]
    d_model: Annotated[Count, Detail(dtype="int64", meaning="width of the residual stream")] = 0
    d_ff: Annotated[Count, Detail(dtype="int64", meaning="width of the feed-forward layer")] = 0
    num_layers: Annotated[Count, Detail(dtype="int64", meaning="number of Transformer blocks")] = 0
    num_heads: Annotated[Count, Detail(dtype="int64", meaning="attention heads of a block")] = 0
    vocab_size: Annotated[Count, Detail(dtype="int64", meaning="number of tokens")] = 0
    context_length: Annotated[
        ContextLength,
        Axis(
            order=1,
            label="context",
            token="ctx{}".format,
            dtype="int64",
            unit="tokens",
            meaning="tokens of one sequence",
        ),
    ]
    batch_size: Annotated[
        Positive,
        Axis(
            order=9,
            label="batch",
            token="batch{}".format,
            is_list=False,
            dtype="int64",
            meaning="sequences of one step, on each GPU",
        ),
    ] = 4
    accumulation: Annotated[
        Positive,
        Axis(
            order=13,
            label="micro-batches",
            token="accum{}".format,
            dtype="int64",
            meaning="micro-batches of one step, each a part of its batch, whose gradients add up before the optimizer",
        ),
    ] = 1
    mode: Annotated[
        Mode,
        Axis(
            order=100,
            label="mode",
            words={
                "forward": "forward pass",
                "forward_backward": "forward and backward pass",
                "train_step": "training step",
            },
            meaning="forward (no gradients) | forward_backward | train_step",
        ),
    ]
    precision: Annotated[
        Precision,
        Axis(
            order=3,
            label="precision",
            names={value: record.name for value, record in PRECISIONS.items()},
            default=BASE_PRECISION,
            meaning=" | ".join(PRECISIONS),
        ),
    ]
    attention: Annotated[
        Attention,
        Axis(
            order=4,
            label="attention",
            labels={"naive": "eager"},
            names={"naive": "unfused (eager) attention", "sdpa": "fused attention (PyTorch's choice)"},
            words={
                "naive": "eager attention",
                **dict[str, Any].fromkeys(("sdpa", "flash", "efficient", "cudnn"), "fused attention"),
            },
            default="naive",
            meaning="naive (eager attention) | fused: sdpa (as PyTorch chooses) | flash | efficient | cudnn",
        ),
    ]
    compile: Annotated[
        Compile,
        Axis(
            order=5,
            label="compile",
            names={
                "off": "not compiled",
                "default": "torch.compile",
                "cudagraphs": "torch.compile with CUDA graphs",
            },
            token="compile_{}".format,
            meaning="torch.compile: off | default | cudagraphs",
        ),
    ] = "off"
    optimizer: Annotated[
        Optimizer,
        Axis(
            order=6,
            label="optimizer",
            labels={"own": "reference"},
            names={
                "own": "reference AdamW",
                "loop": "AdamW in a loop",
                "foreach": "foreach AdamW",
                "fused": "fused AdamW",
            },
            words={
                "own": "reference AdamW",
                "loop": "AdamW in a loop",
                "foreach": "foreach AdamW",
                "fused": "fused AdamW",
            },
            token="adamw_{}".format,
            meaning="own (reference) | torch.optim's loop | foreach | fused",
        ),
    ] = "own"
    memory_limit_gib: Annotated[
        NotNegative,
        Axis(
            order=7,
            label="memory_limit_gib",
            token="limit{:g}".format,
            dtype="float64",
            unit="GiB",
            meaning="most that torch's allocator may reserve; 0: all of it",
        ),
    ] = 0.0
    fresh_process: Annotated[
        bool,
        Axis(
            order=None,
            label="fresh_process",
            token=lambda value: "fresh",
            is_list=False,
            dtype="bool",
            meaning="whether timer and nsys had a process each",
        ),
    ] = False
    repeat: Annotated[
        Count,
        Axis(
            order=8,
            label="repeat",
            token="repeat{}".format,
            is_list=False,
            dtype="int64",
            meaning="number of the repetition, from 0",
        ),
    ] = 0
    gpus: Annotated[
        GpuCount,
        Axis(
            order=11,
            label="GPUs",
            token="{}gpus".format,
            dtype="int64",
            meaning="GPUs that step together, with a process for each",
        ),
    ] = 1
    parallel: Annotated[
        Parallel,
        Axis(
            order=12,
            label="parallel",
            labels={"none": "none", "ddp": "DDP", "fsdp": "FSDP"},
            names={"none": "one GPU", "ddp": "DistributedDataParallel", "fsdp": "fully sharded (FSDP)"},
            meaning="how several GPUs share the work: none (one GPU) | ddp (DistributedDataParallel) | "
            "fsdp (fully_shard)",
        ),
    ] = "none"
    num_parameters: Annotated[Count, Detail(dtype="int64", meaning="parameters of the model")] = 0
    workload: Annotated[
        Workload,
        Axis(
            order=2,
            label="workload",
            token=lambda value: value.replace(":", "."),
            is_list=False,
            meaning="transformer (the reference Transformer) | hf (Hugging Face, by configuration) | MODULE:FUNCTION",
        ),
    ] = "transformer"
    workload_options: Annotated[
        str,
        Axis(
            order=10,
            label="options",
            token=build_token,
            is_list=False,
            dtype="string",
            meaning="what the run says to its workload, such as width=64, dropout=0.1",
        ),
    ] = ""
    workload_config: Annotated[
        str, Detail(dtype="string", meaning="configuration of a Hugging Face model: its file, and its SHA-256 (part)")
    ] = ""

    @property
    def run_id(self) -> str:
        """Readable and unique: every axis without a default, in reading order, then what is not at its default, in the
        order of the fields."""
        optional = [name for name in AXES if not _find_field(name).is_required()]
        named = [name for name in order_axes() if name not in optional]
        named += [name for name in optional if getattr(self, name) != _find_field(name).default]
        return "-".join(AXES[name].token(getattr(self, name)) for name in named)


def _find_field(name: str) -> FieldInfo:
    return Run.model_fields[name]


def describe_fields() -> dict[str, Detail]:
    """What each field of `Run` means, in the order of the fields."""
    return {
        name: detail
        for name, field in Run.model_fields.items()
        for detail in field.metadata
        if isinstance(detail, Detail)
    }


AXES: dict[str, Axis] = {name: detail for name, detail in describe_fields().items() if isinstance(detail, Axis)}
"""The axes by name, in the order of the fields."""


def order_axes() -> list[str]:
    """Names of the axes, the outermost first."""
    orders = {name: axis.order for name, axis in AXES.items() if axis.order is not None}
    return sorted(orders, key=orders.__getitem__)


def find_listed_axes() -> list[str]:
    """Names of the axes whose values sweep files list, the outermost first."""
    return [name for name in order_axes() if AXES[name].is_list]


def find_label(name: str) -> str:
    """Heading of an axis on pages; any other name is its own."""
    return AXES[name].label if name in AXES else name


def find_value_label(name: str, value: Any) -> Any:
    """What pages call a value of an axis: the value itself, or its label. Of any other name, the value."""
    return AXES[name].labels.get(value, value) if name in AXES else value


def find_value_name(name: str, value: Any) -> Any:
    """What a sentence calls a value of an axis: its name, or its label."""
    named = AXES[name].names if name in AXES else {}
    return named.get(value, find_value_label(name, value))


def find_value_words(name: str, value: Any) -> str:
    """What readers may call a value of an axis besides its name and its label; "" where there is nothing."""
    return AXES[name].words.get(value, "") if name in AXES else ""


def list_value_names(name: str, value: Any) -> list[str]:
    """All that a value of an axis may be looked for by: as recordings and tables have it, and as readers say it."""
    names = dict.fromkeys(str(said) for said in (value, find_value_label(name, value), find_value_words(name, value)))
    return [said for said in names if said]


def find_type(name: str) -> Any:
    """Type of one value of an axis, with what it must hold."""
    return get_type_hints(Run, include_extras=True)[name]


def find_default(name: str) -> Any:
    """What a run has that does not say; what recordings have that are older than the axis. None where each run says."""
    field = _find_field(name)
    return AXES[name].default if field.is_required() and name in AXES else field.get_default()
