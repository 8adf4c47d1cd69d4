"""The result of `tune`: the ladder of a script, and all that was tried, as JSON in RESULTS/NAME-tune/tune.json.

`tune` writes the file again after each candidate, so that a run that was cut off goes on where it was.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import median

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
MEASURED = ("used_s", "is_complete", "base", "ladder", "tried", "confirmation", "pairs", "places", "patch", "no_parts")
"""What a search finds out of a script on a machine, in Tuning."""


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
    95% interval (`paired_ratio`). Above 1 is faster. widened_by: how far fresh processes differ, if its ends were moved
    by that."""

    times_as_fast: PositiveFloat
    low: float
    high: float
    num_pairs: int
    widened_by: float = 0.0


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
    `--write` changed. digest: SHA-256 of the texts of the files that it changes; "" for none."""

    diff: str = ""
    to_write: tuple[CodeLine, ...] = ()
    present: dict[str, str] = {}
    written: tuple[str, ...] = ()
    digest: str = ""


class Accumulation(TuningRecord):
    """Micro-batches of a step that are made larger by `factor`, so that there are fewer. rows: of one without changes;
    num_passes: backward passes of a step then."""

    rows: PositiveInt
    num_passes: PositiveInt
    factor: PositiveInt


class BaseStep(TuningRecord):
    """The script without changes. step_ns: median of its steps in its rounds (of turns). flops: of the model in one
    step. precision: in which most matmuls ran, `fp32`, `tf32` or `bf16`. kernels: what the GPU does in a step by kind,
    in ns, and `busy`. peak_bytes: most memory that was allocated. is_compiled: whether the script compiles its model
    itself. keeps_gradients: whether gradients are there when a backward pass begins, which are added to.
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
    keeps_gradients: bool = False


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


class VariantRun(TuningRecord):
    """A process of one variant. times_ns: medians of its timed steps, one for each of its turns; one alone if it took
    none. peak_bytes: most memory that was allocated from its start, captures of CUDA graphs included; 0 without a GPU.
    losses: of its backward passes, from the first one. num_losses_per_step: how many a step has."""

    times_ns: tuple[float, ...]
    peak_bytes: int
    losses: list[float | str | None]
    num_losses_per_step: float

    @property
    def step_ns(self) -> float:
        return median(self.times_ns)


class ProcessPairs(TuningRecord):
    """Processes of two variants, as many of each. changes: of the second. num_rounds: rounds of turns that they took;
    0 if they ran one after another. is_bare, patch_digest: as of Confirmation. is_cut_off: the budget ended before
    there were as many as there was room for."""

    changes: tuple[str, ...]
    before: list[VariantRun]
    after: list[VariantRun]
    num_rounds: int = 0
    is_bare: bool = False
    patch_digest: str = ""
    is_cut_off: bool = False


class Confirmation(TuningRecord):
    """The winner and the script without changes in fresh processes: the medians of their steps (ns), a process each,
    and their peaks of allocated memory (bytes). num_rounds: rounds in which each process had a turn; 0 if they ran
    one after another. by_turns: what turns in one process had given, if these processes are the winner's `ratio_base`:
    as the CPU limits the step, or is_bare. is_bare: the winner's processes ran the script with its patch, and nothing
    followed a process but the times and losses of its steps. patch_digest: of that patch; "" if it is not known."""

    base_ns: tuple[PositiveFloat, ...] = ()
    winner_ns: tuple[PositiveFloat, ...] = ()
    base_peak_bytes: int | None = None
    winner_peak_bytes: int | None = None
    num_rounds: int = 0
    by_turns: TuneRatio | None = None
    is_bare: bool = False
    patch_digest: str = ""


class Tuning(TuningRecord):
    """The whole result of `tune`.

    name: of the script's results. command: as it was given. script: the file of it that is tuned, as written in the
    command; "" if it has none. device_type: on which it ran, `cuda` or `cpu`. num_workers: that a DataLoader is given.
    asked: the changes given by --changes; None for a search. is_complete: whether the search ended by itself, and not
    at its budget or by a signal. ladder: what was kept, in order; its last step is the winner. digests: SHA-256 of the
    script and of the modules next to it when they were measured, by name. patch: None until it is made. no_parts: why
    nothing is expected of changes; None if something is. usd_per_hour: price of the GPU that the user gave; None for
    the listed one. accumulation: the larger micro-batches that are tried; None if none can be. pairs: processes of the
    script without changes and of the winner that were measured until now; None without any. options: that `tune` was
    given to find its results, and --changes. skip, step: as of `tune`; None and "" if they are not known. driver: of
    NVIDIA's GPUs, its version; "" without one.
    """

    format_version: int = FORMAT_VERSION
    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    script: str = ""
    gpu_name: str = ""
    device_type: str = "cuda"
    num_workers: int = 4
    torch: str = ""
    driver: str = ""
    skip: int | None = None
    step: str = ""
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
    pairs: ProcessPairs | None = None
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

    def list_other(self, **now: str | int) -> list[str]:
        """List what differs from what was noted: `was and is` of each. What is not known on either side is equal."""
        noted = {name: getattr(self, name) for name in now}
        known = [name for name in now if now[name] != "" and noted[name] not in (None, "")]
        return [f"{name} was {noted[name]} and is {now[name]}" for name in known if noted[name] != now[name]]

    def begin_anew(self) -> None:
        """Keep what was asked for, and nothing that was measured."""
        fresh = Tuning(name=self.name, command=self.command, budget_s=self.budget_s)
        for name in MEASURED:
            setattr(self, name, getattr(fresh, name))
        self.started_at = name_now()

    @property
    def is_other_patch(self) -> bool:
        """Whether the patch is known to be another one than the one that the confirmation ran."""
        measured = self.confirmation.patch_digest
        return bool(measured) and self.patch is not None and self.patch.digest != measured

    def find_pairs(self, patch_digest: str | None = None) -> ProcessPairs | None:
        """Return the processes of the winner that were measured, if any. patch_digest: of the patch that they ran, ""
        for none; None for any."""
        pairs, winner = self.pairs, self.winner
        if pairs is None or winner is None or pairs.changes != winner.changes:
            return None
        is_same = (pairs.is_bare, pairs.patch_digest) == (bool(patch_digest), patch_digest)
        return pairs if patch_digest is None or is_same else None


def name_now() -> str:
    """Return the time for `started_at`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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
