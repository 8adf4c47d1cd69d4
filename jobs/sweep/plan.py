"""Plan of a sweep: a validated list of runs from a sweep file."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator
from pydantic_core import ErrorDetails

from profiler_job.jobs.contract.axes import AXES, Number, Run, find_listed_axes
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.invalid_data import format_problem
from profiler_job.jobs.contract.layout import RESERVED_NAMES, Protocol, TurnAxis
from profiler_job.jobs.contract.options import format_options, parse_options
from profiler_job.jobs.contract.studies import Study
from profiler_job.jobs.sweep.block import MOST_RUNS, Block, CustomSize, SweepName
from profiler_job.jobs.sweep.groups import group_runs

DEFAULT_SWEEP = Path(__file__).resolve().parents[1] / "sweep.yaml"
LARGEST_FILE = 2**20  # bytes

BLOCKS, BLOCK = "blocks", "block"
"""The key of a sweep file that lists its blocks, and the key of --only that chooses some of them."""
OF_REFERENCE = ("size", "custom_sizes", "workload", "workload_axes")
"""Keys that a block with `hf` does not take from the top of its file."""

LIKE_A_SHARD = re.compile(r"(^|-)shard-\d+-of-\d+$")  # the recording of a shard is <sweep>-shard-I-of-N
Steps = Annotated[int, Field(le=1_000_000), Number]


class SweepError(ProfilerError, ValueError):
    """A sweep file, filter or shard that cannot be used; the message says where and what is allowed."""


class Sweep(BaseModel):
    """A sweep file: how its runs are measured, and the blocks that list them.

    A file without `blocks` is a single block. Otherwise what its top has of the keys of a block counts for each block
    that does not give that key. study: the question beyond the default sweep's that the runs are for. calibrate:
    whether the machine's peak rates are measured first. turns, rounds, samples: see `Protocol`.
    """

    model_config = ConfigDict(extra="forbid")

    name: SweepName
    calibrate: StrictBool = False
    study: Literal["", Study] = ""
    warmup_steps: Steps = Protocol.model_fields["warmup_steps"].default
    measured_steps: Steps = Protocol.model_fields["measured_steps"].default
    processes: Annotated[int, Number] = Protocol.model_fields["processes"].default
    seed: Steps = Protocol.model_fields["seed"].default
    profiled_steps: Steps = Protocol.model_fields["profiled_steps"].default
    turns: tuple[TurnAxis, ...] = ()
    rounds: Annotated[int, Number] = Protocol.model_fields["rounds"].default
    samples: StrictBool = False
    blocks: Annotated[list[Block], Field(min_length=1, max_length=1000)]

    @model_validator(mode="before")
    @classmethod
    def divide(cls, content: Any) -> Any:
        """Give each block what the top of the file has for all of them."""
        if not isinstance(content, dict):
            return content
        shared = {key: value for key, value in content.items() if key in KEYS_OF_BLOCKS}
        rest = {key: value for key, value in content.items() if key not in shared}
        blocks = content.get(BLOCKS, [{}])
        if isinstance(blocks, list):
            blocks = [fill_block(block, shared) if isinstance(block, dict) else block for block in blocks]
        return rest | {BLOCKS: blocks}

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.name in RESERVED_NAMES:
            raise ValueError(f"name: {self.name} is taken by a folder of the results; any other name is allowed")
        if LIKE_A_SHARD.search(self.name):
            raise ValueError(f"name: {self.name} reads like a shard of a sweep; any other ending is allowed")
        if self.warmup_steps < 2 and not all(block.fresh_process for block in self.blocks):
            raise ValueError("warmup_steps: should be at least 2, except with fresh_process: true")
        self.protocol  # noqa: B018  raises on a bad step count
        if self.samples and not self.profiled_steps:
            raise ValueError("samples: are of profiled steps; give profiled_steps, or leave samples out")
        if len(self.blocks) > 1:
            self._check_blocks()
        if self.turns:
            self._check_turns()
        elif self.rounds != Protocol.model_fields["rounds"].default:
            raise ValueError("rounds: only runs that take turns have rounds; give turns, too, or leave rounds out")
        return self

    def _check_turns(self) -> None:
        """Raise ValueError unless runs can take turns, and some do."""
        if twice := [axis for axis in self.turns if self.turns.count(axis) > 1]:
            raise ValueError(f"turns: names {twice[0]} twice")
        if self.processes < 2:
            raise ValueError("processes: should be at least 2 with turns, which begin in the second one")
        if self.measured_steps % self.rounds:
            raise ValueError(
                f"measured_steps: {self.measured_steps} cannot be divided among {self.rounds} rounds; choose a multiple"
            )
        for block in self.blocks:
            where = f" of block {block.name}" if block.name else ""
            if block.fresh_process:
                raise ValueError(f"turns: runs{where} with fresh_process share no process; leave one of the two out")
            if max(block.values_of("gpus")) > 1:
                raise ValueError(f"turns: are taken on one GPU; leave out gpus and parallel{where}")
        if all(len(group) == 1 for group in group_runs(self.runs, self.protocol)):
            raise ValueError(f"turns: no two runs differ in {' or '.join(self.turns)} alone; give it several values")

    def _check_blocks(self) -> None:
        """Raise ValueError unless the blocks have different names and no run in common."""
        if (num_runs := sum(block.num_runs for block in self.blocks)) > MOST_RUNS:
            raise ValueError(f"{num_runs:,} runs: at most {MOST_RUNS:,} are allowed; shorten an axis or repeats")
        holders: dict[str, str] = {}
        for block in self.blocks:
            if block.name in holders.values():
                raise ValueError(f"blocks: two are called {block.name}; rename one of them")
            ids = [run.run_id for run in block.runs]
            if twice := [run_id for run_id in ids if run_id in holders]:
                others = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
                raise ValueError(
                    f"blocks: {holders[twice[0]]} and {block.name} both have {twice[0]}{others}; a run has its name"
                    " once in a file: take it out of one of the two, or move one to a file of its own"
                )
            holders |= dict.fromkeys(ids, block.name)

    @property
    def protocol(self) -> Protocol:
        return Protocol(**{name: getattr(self, name) for name in Protocol.model_fields})

    @cached_property
    def runs(self) -> list[Run]:
        """All runs, block after block, each in reading order and repeated."""
        return [run for block in self.blocks for run in block.runs]

    def describe(self) -> dict[str, Any]:
        """Return the sweep as it is written to sweep.json: the keys of a single block without a name are at the top."""
        left_out = {
            "name",
            BLOCKS,
            *(() if self.turns else ("turns", "rounds")),
            *(() if self.samples else ("samples",)),
        }
        top = self.model_dump(exclude=left_out)
        blocks = [block.model_dump() for block in self.blocks]
        if [block["name"] for block in blocks] == [""]:
            return {"sweep": self.name} | top | {key: value for key, value in blocks[0].items() if key != "name"}
        return {"sweep": self.name} | top | {BLOCKS: blocks}


KEYS_OF_BLOCKS = set(Block.model_fields) - {"name"}


def fill_block(block: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block with what is shared by all blocks of its file, for keys that it does not give."""
    left_out: set[str] = set()
    if "hf" in block:
        left_out = set(OF_REFERENCE)
    elif "size" in block or "workload" in block:
        left_out = {"hf"}
    return {key: value for key, value in shared.items() if key not in left_out} | dict(block)


SURPRISES = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Numbers that YAML 1.1 reads otherwise than they look: 010 is 8, 1:20 is 80, and 08 is a text."""


class SweepLoader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Loader of YAML without duplicate keys, without numbers in base 8 or 60, and without aliases: a few aliases can
    expand to more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()
            problem = f"*{alias.anchor}: aliases are not allowed; write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=alias.start_mark)
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.style is None and SURPRISES.fullmatch(node.value):
            problem = f"{node.value}: YAML does not read this as it looks; write a plain number, or a text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.tag == "tag:yaml.org,2002:merge":
                problem = "<<: merging is not allowed; write the keys out"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if key.value in lines:
                problem = f"{key.value}: given twice, first in line {lines[key.value]}; keep one of them"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def find_sweep(path: Path) -> Path:
    """Return the file of a sweep that comes with the program if `path` is its name, such as tiny; else `path`."""
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    known = (DEFAULT_SWEEP.parent / folder / f"{path}.yaml" for folder in ("", "sweeps"))
    return next((file for file in known if file.is_file()), path)


def load_sweep(path: Path) -> Sweep:
    """Read a sweep file; also by the name of one that comes with the program.

    Raises SweepError naming the file, the key and the allowed values.
    """
    path = find_sweep(path)
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
        raise SweepError(f"{path}: expected keys and values such as in {DEFAULT_SWEEP.name}")
    listed = content.get(BLOCKS)
    for keys in (content, *(listed if isinstance(listed, list) else [])):
        if isinstance(keys, dict) and isinstance(keys.get("size"), list):
            keys["size"] = [str(size) if isinstance(size, (int, float)) else size for size in keys["size"]]
    try:
        if isinstance(listed, list):
            _check_names(listed)
        return Sweep.model_validate(content, context={"folder": path.parent})
    except ValidationError as error:
        lines = [f"{path}: {_explain(detail, content)}" for detail in error.errors()]
        raise SweepError("\n".join(dict.fromkeys(lines))) from None
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from None


def _check_names(blocks: Sequence[Any]) -> None:
    """Raise SweepError if a block has no name, by which messages and --only call it."""
    for number, block in enumerate(blocks, 1):
        if isinstance(block, dict) and not block.get("name"):
            raise SweepError(f"block {number}: has no name; give each block one, such as name: long")


def _explain(detail: ErrorDetails, content: Mapping[str, Any]) -> str:
    """Return what is wrong in one line, with the key, and the block if the file has several."""
    place, where = list(detail["loc"]), ""
    if place[:1] == [BLOCKS] and len(place) > 1:
        where, place = _find_block(int(place[1]), content, place[2:]), place[2:]
    key = " ".join(".".join(map(str, place)).split())
    if detail["type"] == "extra_forbidden":
        return f"{where}{key}: {_explain_unknown(place, is_in_block=bool(where))}"
    if detail["type"] == "missing":
        lacks = "not given, and has no default" if not where else "given neither here nor at the top of the file"
        return f"{where}{key}: {lacks}"
    message = format_problem(detail["msg"])
    if not key:
        return where + message
    is_of_keys = detail["type"] == "value_error" and isinstance(detail["input"], dict)  # the message says which
    return f"{where}{key}: {message}" + ("" if is_of_keys else f", not {BRIEF.repr(detail['input'])}")


def _find_block(index: int, content: Mapping[str, Any], place: Sequence[Any]) -> str:
    """Return how a message begins that is about a block; "" if the file has none, or for a key at its top."""
    if BLOCKS not in content:
        return ""
    block = content[BLOCKS][index]
    if not isinstance(block, dict):
        return f"block {index + 1}: "
    is_shared = bool(place) and place[0] in content and place[0] not in block
    return "" if is_shared else f"block {block.get('name', index + 1)}: "


def _explain_unknown(place: Sequence[Any], is_in_block: bool) -> str:
    """Return what is allowed in place of an unknown key."""
    of_block = list(Block.model_fields)
    if place[0] == "custom_sizes":
        allowed = list(CustomSize.model_fields)
    elif is_in_block:
        if place[0] in Sweep.model_fields:
            return "counts for the whole file; give it at its top, or move the block to a file of its own"
        allowed = of_block
    else:
        allowed = list(dict.fromkeys(["name", *of_block, *Sweep.model_fields]))
    return f"unknown key; allowed: {', '.join(allowed)}"


BRIEF = Repr()
BRIEF.maxstring = BRIEF.maxother = 80


def select_runs(sweep: Sweep, only: str | None) -> list[Run]:
    """Return the runs of a sweep that match a filter, as `select`; `block=NAME` chooses the runs of a block.

    Raises SweepError as `select`, and for a block that the sweep has not.
    """
    parts = [part.partition("=") for part in (only or "").split(",")]
    chosen = [name for key, _, name in parts if key == BLOCK]
    named = [block.name for block in sweep.blocks if block.name]
    if unknown := [name for name in chosen if name not in named]:
        has = f"this sweep has: {', '.join(named)}" if named else "this sweep has no blocks"
        raise SweepError(f"--only {BLOCK}={unknown[0]}: no block is called so; {has}")
    runs = [run for block in sweep.blocks if not chosen or block.name in chosen for run in block.runs]
    return select(runs, ",".join("".join(part) for part in parts if part[0] != BLOCK))


def select(runs: Sequence[Run], only: str | None) -> list[Run]:
    """Return the runs that match a filter such as `size=small,mode=forward`; a key may be repeated for more values.

    Raises SweepError for an unknown key or a value that no run has.
    """
    wanted: dict[str, set[str]] = {}
    options = dict.fromkeys(name for text in {run.workload_options: 0 for run in runs} for name in parse_options(text))
    axes = [*find_listed_axes(), "batch_size", "repeat", *options]
    for part in (only or "").split(","):
        if not part:
            continue
        key, _, value = part.partition("=")
        if key not in axes:
            raise SweepError(f"--only {part}: unknown key {key!r}; allowed: {', '.join(axes)}")
        values = list(dict.fromkeys(filter(None, (_find_value(run, key) for run in runs))))
        if value not in values:
            raise SweepError(f"--only {part}: no run has this {key}; this sweep has: {', '.join(values)}")
        wanted.setdefault(key, set()).add(value)
    return [run for run in runs if all(_find_value(run, key) in values for key, values in wanted.items())]


def _find_value(run: Run, key: str) -> str | None:
    """Return the value of an axis, or of an option of the workload, as a filter gives it; None if a run has none."""
    if key in AXES:
        return str(getattr(run, key))
    options = parse_options(run.workload_options)
    return format_options({"": options[key]}).removeprefix("=") if key in options else None
