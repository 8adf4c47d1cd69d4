"""What the GPU side leaves on disk: names of files, and the record of a run.

RESULTS/<sweep>/sweep.json            the sweep as planned
               /lock                  held by the job that writes, with its pid and host
               /calibration.json      peak rates of the GPU, where the sweep asks for them
               /<run_id>/run.json     the record, written last: a run without it is not finished; it has the size and
                                      SHA-256 of each file beside it, and a digest of itself
                        /timed.json   the record so far, when only the timer has measured; removed in the end
                        /timings.json tables that the first unprofiled process measured; timings-1.json, timings-2.json
                                      of the others; profile.sqlite, log.txt, nsys.log beside them; of a run on
                                      several machines also profile-1.sqlite ... of the others
               /salt                  what identities of GPUs are hashed with
RESULTS/raw/<sweep>/<run_id>.nsys-rep the report of nsys itself; holds the machine's names, never published
                    <run_id>.lost.*   what there is of a capture that was lost, until another one succeeds
RESULTS/recordings/, RESULTS/site/    what is made of them
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from profiler_job.jobs.contract.axes import Count, Number, Run
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import FileFacts, is_intact, load_json

SCHEMA_VERSION = 2
"""Of the results folder; a record says which it was written with (0: before there was a number). From VERIFIED on it
has a digest of itself and the facts of its files."""
VERIFIED = 2

PROTOCOL_VERSION = 2
"""Of how a run is measured. 1: unprofiled steps of one warm process, run after run. 2: of several fresh processes, in a
shuffled order. What was measured by another version is measured again."""

SWEEP = "sweep.json"
LOCK = "lock"
CALIBRATION = "calibration.json"
RECORD = "run.json"
TIMED = "timed.json"
IN_FLIGHT = "in_flight.json"
MANIFEST = "manifest.json"
"""Of a recording: what makes a folder one."""
TIMINGS = "timings.json"
SALT = "salt"
LOG = "log.txt"
REPORT = "profile.nsys-rep"
CAPTURE = "profile.sqlite"
NSYS_LOG = "nsys.log"  # what nsys said of its captures
NSYS_SUMS = "nvtx_kern_sum"  # nsys's own statistics of kernel time by NVTX range and kernel name
NSYS_SUMS_FILE = f"{NSYS_SUMS}.csv"

SCRIPT = "script"
"""Key of sweep.json and of a manifest, where somebody's own script was measured; and its workload."""


def name_changed(name: str, changes: Iterable[str]) -> str:
    """Of the results of a script with some changes, where those without are called `name`."""
    return "-".join((name, *(change.replace("_", "-") for change in changes)))


RAW, RECORDINGS, SITE = "raw", "recordings", "site"
RESERVED_NAMES = (RAW, RECORDINGS, SITE)
"""Folders beside those of the sweeps in a results folder."""

SHARDS = "shard-*-of-*"
ALL_RUNS = "runs_of_all_shards"  # key of a shard's sweep.json
MERGED = "merged.json"
"""Says that a folder was written by `merge`, so that merging again may replace it."""

Status = Literal["ok", "oom", "timeout", "failed", "no_kernels", "machine"]
"""How a run ended; `machine`: what failed was the machine (a lost GPU, a killed process), so another job measures it
again."""
STATUSES: tuple[Status, ...] = get_args(Status)


def name_shard_folder(index: int, count: int) -> str:
    """Where part `index` (from 1) of `count` keeps its results, below those of the sweep; "" where there is one."""
    return f"shard-{index}-of-{count}" if count > 1 else ""


def name_node_file(file: str, node: int) -> str:
    """Name of a file of a run that each machine has: that of the first as it is, profile-1.sqlite of the second."""
    path = Path(file)
    return f"{path.stem}-{node}{path.suffix}" if node else file


def list_captures(run: Path) -> list[Path]:
    """The captures in the folder of a run, by machine: that of the first, which may be absent, and of others."""
    captures = [run / CAPTURE]
    while (capture := run / name_node_file(CAPTURE, len(captures))).is_file():
        captures.append(capture)
    return captures


def name_timings_file(process: int) -> str:
    """Name of the file with what an unprofiled process of a run measured; they are numbered from 0."""
    return f"timings-{process}.json" if process else TIMINGS


class Protocol(BaseModel):
    """How each run is measured: what must be equal for a finished run to count as done.

    processes: fresh processes that measure unprofiled steps, each warmup_steps and measured_steps. seed: of the order
    of the runs, which is another for each process.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    warmup_steps: Count = 5
    measured_steps: Annotated[int, Field(ge=1), Number] = 10
    processes: Annotated[int, Field(ge=1, le=100), Number] = 3
    seed: Count = 0
    profiled_steps: Count = 5

    @field_validator("profiled_steps")
    @classmethod
    def check_profiled_steps(cls, steps: int) -> int:
        if steps in (1, 2):
            raise ValueError("should be 0 (no capture) or at least 3")
        return steps


class Machine(BaseModel):
    """What a run was measured with. No host, user or path."""

    model_config = ConfigDict(extra="ignore")

    gpu_name: str = ""
    gpu_memory_bytes: int = 0
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    nsys: str = ""
    python: str = ""
    commit: str = ""


MACHINE_FIELDS = tuple(Machine.model_fields)


class Settings(BaseModel):
    """What the worker says of itself: PyTorch's settings in force that change what is launched, and the size of the
    model; None where it did not come to that."""

    num_parameters: int | None = None
    autograd_multithreading: bool | None = None
    float32_matmul_precision: str | None = None


class Detail(BaseModel):
    """Where and why a run ended that is not ok; with whatever else its failure says (memory in bytes, step)."""

    model_config = ConfigDict(extra="allow")

    phase: str | None = None
    message: str = ""
    collector: str | None = None


class TimedProcess(BaseModel):
    """An unprofiled process of a run. position: its place, from 0, in the order in which the runs of the sweep were
    measured by their processes of this number. seconds: how long the parts of its stage took."""

    position: int
    seconds: dict[str, float] = Field(default_factory=dict)


class AnyRecord(Settings):
    """What records of any version of this program have in common. `files` are those beside it, as they were when it was
    written; `hashed_names` is what the machines that measured it are called, and their users, as of
    `privacy.hash_names`, so that what is published can be searched for them anywhere. `shared_id` is the same in the
    records of all machines of one run, each with its own ranks, and "" elsewhere."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = 0
    protocol_version: int = 1
    files: dict[str, FileFacts] = Field(default_factory=dict)
    digest: str = ""
    run_id: str = ""
    status_detail: Detail | None = None
    machine: Machine = Field(default_factory=Machine)
    hashed_names: list[str] = Field(default_factory=list)
    shared_id: str = ""
    started_at: str | None = None
    ended_at: str | None = None


class RunRecord(Protocol, AnyRecord):
    """What is known of a run: timed.json after the timer's stage, run.json in the end.

    `status` is `timed` until the run is finished. Times are UTC, ISO 8601; `wall_s` is what the run took in all, and
    `seconds` and `timed` say where: under nsys by the parts of the stage, for `export`, and in each unprofiled process.
    """

    model_config = ConfigDict(extra="ignore")

    run_id: str
    status: Status | Literal["timed"]
    run: Run
    wall_s: float = 0.0
    seconds: dict[str, Any] = Field(default_factory=dict)
    timed: list[TimedProcess] = Field(default_factory=list)

    @property
    def is_timed(self) -> bool:
        """Whether every unprofiled process has measured it."""
        return len(self.timed) == self.processes

    def is_of(self, run: Run, protocol: Protocol) -> bool:
        """Whether it is of these very parameters, measured as this version does."""
        same = self.run == run and self.protocol_version == PROTOCOL_VERSION
        return same and all(getattr(self, name) == value for name, value in protocol)


class FinishedRecord(AnyRecord):
    """The run.json of any version of this program, for whoever reads results and measures nothing. It is lenient here
    and nowhere else: `run` may have axes that this version does not know, or lack some, and None is what the record
    does not say."""

    status: Status
    run: dict[str, Any]
    wall_s: float | None = None
    warmup_steps: int | None = None
    measured_steps: int | None = None
    processes: int = 1
    seed: int | None = None
    profiled_steps: int | None = None
    timed: list[TimedProcess] = Field(default_factory=list)

    def parameters(self) -> dict[str, Any]:
        """What it says of how the run was measured: its axes, sizes and steps, by name."""
        said = self.model_dump(include=set(Protocol.model_fields), exclude_none=True)
        return said | self.run


class RecordError(ProfilerError, ValueError):
    """A file that holds no record of a run. The message names the file, what is wrong (`reason`), and what to do."""

    exit_code = ExitCode.DAMAGED

    def __init__(self, file: Path, reason: str):
        super().__init__(f"{file} is no record of a run ({reason}): run the sweep again, which measures it anew")
        self.reason = reason


Kind = TypeVar("Kind", bound=AnyRecord)


def read_record(file: Path, kind: type[Kind]) -> Kind:
    """The record in a file. Raises RecordError, also where it is not what was written."""
    try:
        content = load_json(file)
        record = kind.model_validate(content)
        if (record.schema_version >= VERIFIED or record.digest) and not is_intact(content):
            raise ValueError("its digest differs: it is not what was written")
        return record
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    except (OSError, ValueError) as error:
        reason = str(error)
    raise RecordError(file, reason)
