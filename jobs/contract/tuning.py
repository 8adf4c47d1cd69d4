"""The result of `tune`: the ladder of a script, and all that was tried, as JSON in RESULTS/NAME-tune/tune.json.

`tune` writes the file again after each candidate, so that a run that was cut off goes on where it was.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from profiler_job.jobs.contract import integrity
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.json_format import FORMAT_VERSION
from profiler_job.jobs.contract.outputs import is_tuning, write_file

TUNE = "tune.json"
"""Name of the file in the folder of a tuned script."""
TUNED = "tuned"
"""Folder of such folders in the sources of a site, and of their pages in the report."""
TRACE_ENDING = ".trace.json.gz"
"""Ending of the traces of steps in the folder of a tuned script (`name_trace`)."""
SAME_LOSS = 1e-4
"""Relative difference of losses up to which sums in another order are the reason."""


def name_tuned_folder(name: str) -> str:
    """Return the name of the folder of a tuned script, in the results folder."""
    return f"{name}-tune"


def name_trace(changes: Sequence[str]) -> str:
    """Return the name of the trace of a step with these changes, in the folder of a tuned script."""
    return f"{'+'.join(('step', *changes))}{TRACE_ENDING}"


class Method(StrEnum):
    """How a change was measured: variants alternate in one process (`turns`), or whole processes do (`processes`)."""

    TURNS = "turns"
    PROCESSES = "processes"


class Outcome(StrEnum):
    """What became of a candidate. BOUND: it was measured to know what it could save at most, and is never kept, since
    the script would compute or print something else. SKIPPED_BELOW_1_PERCENT: it could not have saved more."""

    KEPT = "kept"
    NOT_FASTER = "not_faster"
    BOUND = "bound"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_POSSIBLE = "not_possible"
    NOT_REACHED = "not_reached"
    SKIPPED_BELOW_1_PERCENT = "skipped_below_1_percent"


class NoLossCode(StrEnum):
    """Why losses are not compared. NO_SEED: two runs of the same variant differ as much. NOT_MEASURED: the budget
    ended before. NOT_FINITE: without changes, too. BROKEN: they are finite
    without changes alone, so that the variant is taken back."""

    NOT_MEASURED = "not_measured"
    NO_LOSS = "no_loss"
    NO_SEED = "no_seed"
    NOT_FINITE = "not_finite"
    BROKEN = "broken"
    FAILED = "failed"


class NoPartsCode(StrEnum):
    """Why nothing is expected of changes. COMPILED: the script compiles its model, so that its step is not the sum of
    operators. NO_TRACE: the GPU's kernels are not known. NOT_MEASURED: parts could not be measured."""

    COMPILED = "compiled"
    SEVERAL_RANKS = "several_ranks"
    NO_TRACE = "no_trace"
    NOT_MEASURED = "not_measured"


class TuningRecord(BaseModel):
    """A part of the result. Unknown keys are ignored: a newer version may write more."""

    model_config = ConfigDict(extra="ignore")


class TuneRatio(TuningRecord):
    """How many times as fast a variant is as another one: the centre of paired rounds (or pairs of processes), with its
    95% interval (`paired_ratio`). Above 1 is faster."""

    times_as_fast: PositiveFloat
    low: float
    high: float
    num_pairs: int


class LossDifference(TuningRecord):
    """Losses of a variant compared with those without changes, in processes of their own from the script's seed.

    num: compared losses. first: relative difference in the first one; None if it is not known. largest: the largest
    relative difference, in step `step` (from 1). repeated: the largest relative difference between two runs without
    changes. reason: why there is no comparison; None if there is one.
    """

    num: int = 0
    first: float | None = None
    largest: float | None = None
    step: int | None = None
    repeated: float | None = None
    reason: NoLossCode | None = None


class Place(TuningRecord):
    """A line of the script at which a change is written. what: `optimizer` (made there), `model_call`, `backward`,
    `loader` (made there), `autocast`. file: relative to the current folder if it is below it. line: from 1. code: its
    text."""

    what: str
    file: str
    line: int
    code: str


class CodeLine(TuningRecord):
    """Code that the user writes for a change: where (line 0: anywhere), what, and why no patch has it."""

    change: str
    label: str = ""
    file: str
    line: int
    code: str
    reason: str = ""


class CodePatch(TuningRecord):
    """What makes the winner's changes in the script. diff: a unified diff; "" if no file changes. to_write: what it
    leaves to the user. present: `file:line` where the script has a change already, by change. written: the files that
    `--write` changed."""

    diff: str = ""
    to_write: tuple[CodeLine, ...] = ()
    present: dict[str, str] = {}
    written: tuple[str, ...] = ()


class Accumulation(TuningRecord):
    """Micro-batches of a step that are made larger by `factor`, so that there are fewer. rows: of one without changes;
    num_passes: backward passes of a step then. command: of the script, as it was given."""

    rows: PositiveInt
    num_passes: PositiveInt
    factor: PositiveInt
    command: tuple[str, ...] = ()


class BaseStep(TuningRecord):
    """The script without changes. step_ns: median of its steps in its rounds (of turns). flops: of the model in one
    step. precision: in which most matmuls ran, `fp32`, `tf32` or `bf16`. kernels: what the GPU does in a step by kind,
    in ns, and `busy`. peak_bytes: most memory that was allocated. is_compiled: whether the script compiles its model
    itself.
    A value that is not known is None."""

    step_ns: PositiveFloat
    tokens_per_step: int | None = None
    sequences_per_step: int | None = None
    flops: float | None = None
    precision: str = ""
    kernels: dict[str, float] | None = None
    peak_bytes: int | None = None
    num_parameters: int | None = None
    is_compiled: bool = False


class LadderStep(TuningRecord):
    """One change that was kept, on top of those before it, and with it those whose gain the CPU hid.

    change: the one that was measured. changes: all of them, in the order in which they were kept. step_ns: median of
    its last rounds, in which the step before, for `ratio_before`, and the script without changes, for `ratio_base`,
    took part.
    ratio_base: None until it is measured; step_ns cannot be compared with the script without changes until then, since
    a machine is faster at one moment than at another. precision, kernels: as in BaseStep.
    """

    change: str
    changes: tuple[str, ...]
    method: Method
    step_ns: PositiveFloat
    ratio_before: TuneRatio
    ratio_base: TuneRatio | None = None
    precision: str = ""
    kernels: dict[str, float] | None = None
    peak_bytes: int | None = None
    losses: LossDifference = LossDifference(reason=NoLossCode.NOT_MEASURED)


class ExpectedRatio(TuningRecord):
    """How many times as fast a variant was expected to be, from parts of the step that were measured alone before.
    is_of_kernels: whether it is the ratio of the kernels' time alone, since the CPU limited the step."""

    times_as_fast: PositiveFloat
    low: float
    high: float
    is_of_kernels: bool = False


class Tried(TuningRecord):
    """A candidate and what became of it. on_top_of: the changes that both of its variants had. could_save: the largest
    part of a step (0 to 1) that was expected of it; None if it was not known. expected: None if its parts are not
    known. seconds: that it took. message: why, in
    one line, where the outcome alone does not say it."""

    change: str
    on_top_of: tuple[str, ...] = ()
    outcome: Outcome
    method: Method | None = None
    ratio: TuneRatio | None = None
    step_ns: float | None = None
    could_save: float | None = None
    expected: ExpectedRatio | None = None
    seconds: float = 0.0
    peak_bytes: int | None = None
    message: str = ""


class Confirmation(TuningRecord):
    """The winner and the script without changes in fresh processes: the medians of their steps (ns), a process each,
    and their peaks of allocated memory (bytes). num_rounds: rounds in which each process had a turn; 0 if they ran
    one after another. by_turns: what turns in one process had given, if the CPU limits the step, so that these
    processes are the winner's `ratio_base`."""

    base_ns: tuple[PositiveFloat, ...] = ()
    winner_ns: tuple[PositiveFloat, ...] = ()
    base_peak_bytes: int | None = None
    winner_peak_bytes: int | None = None
    num_rounds: int = 0
    by_turns: TuneRatio | None = None


class Tuning(TuningRecord):
    """The whole result of `tune`.

    name: of the script's results. command: as it was given. script: the file of it that is tuned, as written in the
    command; "" if it has none. device_type: on which it ran, `cuda` or `cpu`. num_workers: that a DataLoader is given.
    asked: the changes given by --changes; None for a search. is_complete: whether the search ended by itself, and not
    at its budget or by a signal. ladder: what was kept, in order; its last step is the winner. digests: SHA-256 of the
    script and of the modules next to it when they were measured, by name. patch: None until it is made. no_parts: why
    nothing is expected of changes; None if something is. usd_per_hour: price of the GPU that the user gave; None for
    the listed one. accumulation: the larger micro-batches that are tried; None if none can be.
    """

    format_version: int = FORMAT_VERSION
    name: str
    command: tuple[str, ...]
    script: str = ""
    gpu_name: str = ""
    device_type: str = "cuda"
    num_workers: int = 4
    torch: str = ""
    asked: tuple[str, ...] | None = None
    budget_s: float
    used_s: float = 0.0
    seed: int = 0
    started_at: str = ""
    is_complete: bool = False
    base: BaseStep | None = None
    ladder: list[LadderStep] = []
    tried: list[Tried] = []
    confirmation: Confirmation = Confirmation()
    places: list[Place] = []
    digests: dict[str, str] = {}
    patch: CodePatch | None = None
    no_parts: NoPartsCode | None = None
    accumulation: Accumulation | None = None
    usd_per_hour: float | None = None

    @property
    def winner(self) -> LadderStep | None:
        """The last step of the ladder; None if nothing was kept."""
        return self.ladder[-1] if self.ladder else None


class TuningError(ProfilerError):
    """A file holds no result of `tune` that can be read. The message says why."""


def read_tuning(file: Path) -> Tuning:
    """Read a result. file: tune.json, or the folder that holds it. Raises TuningError, and FileNotFoundError."""
    file = file / TUNE if file.is_dir() else file
    try:
        return Tuning.model_validate(integrity.load_json(file))
    except ValidationError as error:
        key, problem = describe_invalid(error)
        raise TuningError(f"{file} holds another thing than a result of `tune`: {key} {problem}") from None
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise TuningError(f"{file} cannot be read: {error}") from None


def write_tuning(folder: Path, tuning: Tuning) -> None:
    """Write a result to a folder, which is made if it is missing. A reader finds the file before or the file after.
    Raises TargetError."""
    write_file(folder / TUNE, tuning.model_dump_json(indent=1) + "\n", is_tuning, advice="choose another --name")


def is_tuned(folder: Path) -> bool:
    """Return whether a folder holds a result of `tune`."""
    return (folder / TUNE).is_file()
