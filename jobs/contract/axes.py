"""A run, and the axes in which runs differ. Each axis is defined once, as a field of `Run`.

The field gives an axis its name, type and default; its `Axis` gives the rest. Everything else derives from them: the
keys of sweep files and of `--only`, run ids, the columns of the `runs` table, and the headings and labels of
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
    """Meaning of a field of `Run`. dtype: of its column, as in the data dictionary."""

    meaning: str
    dtype: Literal["category", "string", "int64", "float64", "bool"] = "category"


@dataclass(frozen=True, kw_only=True)
class Axis(Detail):
    """An axis of a sweep.

    order: its place in reading order: the lower, the further out it varies; None if it does not distinguish cases.
    label: its heading on pages. labels: names of its values on pages, if they differ from the values. names: names of
    its values in sentences. words: other words by which readers may look for a value. token: text of a value in the
    run id. is_list: sweep files list its values; otherwise a sweep has one value. default: value that sweep files may
    omit, for an axis that every run id names; if its field has a default, run ids name only other values.
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
"""Name of a model size; without a dash, which joins the parts of a run id."""
Positive = Annotated[int, Field(gt=0), Number]
Count = Annotated[int, Field(ge=0), Number]
ContextLength = Annotated[int, Field(gt=0, le=10_000_000), Number]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Number]


def _check_workload(value: str) -> str:
    if not re.fullmatch(r"transformer|llama|hf|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", value, re.ASCII):
        raise ValueError("should be transformer, llama, or MODULE:FUNCTION such as my_models:build")
    return value


Workload = Annotated[str, Field(max_length=200), AfterValidator(_check_workload)]
"""`transformer`, `llama`, `hf` (set by the key hf of a sweep file), or the dotted path of a function."""


def _read_off(value: object) -> object:
    """Return "off" for false: YAML reads a bare `off` as false."""
    return "off" if value is False else value


Mode = Literal["forward", "forward_backward", "train_step"]
if TYPE_CHECKING:
    Precision = str
else:
    Precision = Literal[tuple(PRECISIONS)]
Attention = Literal["naive", "sdpa", "flash", "efficient", "cudnn"]
Compile = Annotated[Literal["off", "default", "blocks", "cudagraphs"], BeforeValidator(_read_off)]
Checkpointing = Annotated[Literal["off", "blocks"], BeforeValidator(_read_off)]
Optimizer = Literal["own", "loop", "foreach", "fused"]
Parallel = Literal["none", "ddp", "fsdp", "tp"]
Exchange = Literal["default", "buckets", "prefetch", "keep", "half"]
GpuCount = Annotated[int, Field(ge=1, le=64), Number]


class Run(BaseModel):
    """One point of a sweep. Every field becomes a column of the `runs` table, in this order. Sizes of the model are 0
    if its workload does not tell them."""

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
            meaning="sequences of one step for each GPU; with parallel tp each GPU computes a part of all of them",
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
            labels={
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
            labels={value: record.label for value, record in PRECISIONS.items()},
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
            labels={
                "off": "not compiled",
                "default": "compiled",
                "blocks": "blocks compiled",
                "cudagraphs": "CUDA graphs",
            },
            names={
                "off": "not compiled",
                "default": "torch.compile",
                "blocks": "torch.compile of each block",
                "cudagraphs": "torch.compile with CUDA graphs",
            },
            token="compile_{}".format,
            meaning="torch.compile: off | default | blocks (each Transformer block by itself) | cudagraphs",
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
            labels={"none": "none", "ddp": "DDP", "fsdp": "FSDP", "tp": "tensor parallel"},
            names={
                "none": "one GPU",
                "ddp": "DistributedDataParallel",
                "fsdp": "fully sharded (FSDP)",
                "tp": "tensor parallel",
            },
            meaning="how several GPUs share the work: none (one GPU) | ddp (DistributedDataParallel) | "
            "fsdp (fully_shard) | tp (tensor parallel: each GPU has a part of every matrix of a block)",
        ),
    ] = "none"
    exchange: Annotated[
        Exchange,
        Axis(
            order=14,
            label="exchange",
            names={
                "default": "PyTorch's defaults",
                "buckets": "buckets of 100 MB",
                "prefetch": "two blocks gathered ahead",
                "keep": "gathered once a step",
                "half": "sent in BF16",
            },
            meaning="what GPUs exchange and when: default | buckets (DDP: of 100 MB, not 25) | prefetch (FSDP: two "
            "blocks are gathered ahead) | keep (FSDP: a block gathered in forward stays for backward) | half (DDP: "
            "gradients, FSDP: parameters are sent in BF16)",
        ),
    ] = "default"
    checkpointing: Annotated[
        Checkpointing,
        Axis(
            order=15,
            label="checkpointing",
            names={"off": "all activations kept", "blocks": "checkpointing of each block"},
            words={"off": "no checkpointing", "blocks": "activation checkpointing"},
            token="checkpoint_{}".format,
            meaning="activations that backward computes again: off (none) | blocks (inside each Transformer block)",
        ),
    ] = "off"
    num_parameters: Annotated[Count, Detail(dtype="int64", meaning="parameters of the model")] = 0
    workload: Annotated[
        Workload,
        Axis(
            order=2,
            label="workload",
            token=lambda value: value.replace(":", "."),
            is_list=False,
            meaning="transformer (the reference Transformer) | llama (Llama 3) | hf (Hugging Face, by configuration) | "
            "MODULE:FUNCTION",
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
            meaning="options of the workload, such as width=64, dropout=0.1",
        ),
    ] = ""
    workload_config: Annotated[
        str, Detail(dtype="string", meaning="configuration of a Hugging Face model: its file, and its SHA-256 (part)")
    ] = ""

    @property
    def run_id(self) -> str:
        """Readable and unique name: every axis without a default, in reading order; then all values that differ from
        their default, in the order of the fields."""
        optional = [name for name in AXES if not _find_field(name).is_required()]
        named = [name for name in order_axes() if name not in optional]
        named += [name for name in optional if getattr(self, name) != _find_field(name).default]
        return "-".join(AXES[name].token(getattr(self, name)) for name in named)


def _find_field(name: str) -> FieldInfo:
    return Run.model_fields[name]


def describe_fields() -> dict[str, Detail]:
    """Return what each field of `Run` means, in the order of the fields."""
    return {
        name: detail
        for name, field in Run.model_fields.items()
        for detail in field.metadata
        if isinstance(detail, Detail)
    }


AXES: dict[str, Axis] = {name: detail for name, detail in describe_fields().items() if isinstance(detail, Axis)}
"""The axes by name, in the order of the fields."""


def order_axes() -> list[str]:
    """Return the names of the axes, the outermost first."""
    orders = {name: axis.order for name, axis in AXES.items() if axis.order is not None}
    return sorted(orders, key=orders.__getitem__)


def find_listed_axes() -> list[str]:
    """Return the names of the axes whose values sweep files list, the outermost first."""
    return [name for name in order_axes() if AXES[name].is_list]


def find_label(name: str) -> str:
    """Return the heading of an axis on pages; other names are returned unchanged."""
    return AXES[name].label if name in AXES else name


def find_value_label(name: str, value: Any) -> Any:
    """Return the label of an axis's value, or the value if it has no label."""
    return AXES[name].labels.get(value, value) if name in AXES else value


def find_value_name(name: str, value: Any) -> Any:
    """Return the name of an axis's value in sentences, or its label."""
    named = AXES[name].names if name in AXES else {}
    return named.get(value, find_value_label(name, value))


def find_value_words(name: str, value: Any) -> str:
    """Return other words for an axis's value; "" if there are none."""
    return AXES[name].words.get(value, "") if name in AXES else ""


def list_value_names(name: str, value: Any) -> list[str]:
    """Return all texts by which a reader may look for an axis's value: the value, its label, and other words."""
    names = dict.fromkeys(str(text) for text in (value, find_value_label(name, value), find_value_words(name, value)))
    return [text for text in names if text]


def find_type(name: str) -> Any:
    """Return the type of one value of an axis, with its constraints."""
    return get_type_hints(Run, include_extras=True)[name]


def find_default(name: str) -> Any:
    """Return the default of an axis, which recordings older than the axis have, too. None if there is no default."""
    field = _find_field(name)
    return AXES[name].default if field.is_required() and name in AXES else field.get_default()
