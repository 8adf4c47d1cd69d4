"""Names of the files that the GPU side writes, and the record of a run.

RESULTS/<sweep>/sweep.json            the sweep as planned
               /lock                  held by the job that writes, with its pid and host
               /calibration.json      peak rates of the GPU, if the sweep asks for them
               /<run_id>/run.json     the record, written last: a run without it is not finished; it has the size and
                                      SHA-256 of each file next to it, and its own digest
                        /timed.json   the record so far, when only the timer has measured; removed in the end
                        /timings.json tables that the first unprofiled process measured; the other processes write
                                      timings-1.json, timings-2.json ...
                        /profile.sqlite, log.txt, nsys.log; a run on several machines adds profile-1.sqlite ...
                        /samples.sqlite, a capture of further steps with samples of Python;
                        /host_waits.json, calls by line: what waits for the GPU, copies, allocates, takes batches
                        /profile.stats.txt, the summary tables of `nsys stats` as text, which `ingest` writes
               /salt                  what identities of GPUs are hashed with
RESULTS/raw/<sweep>/<run_id>.nsys-rep the report of nsys itself; holds the machine's names, never published
                    <run_id>.lost.*   what there is of a capture that was lost, until another one succeeds
RESULTS/recordings/, RESULTS/site/    recordings and the site, made from the results
RESULTS/answers/<sweep>/              the class's five questions answered from the recording, as Markdown
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from profiler_job.jobs.contract.axes import Count, Number, Run
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import FileFacts, is_intact, load_json
from profiler_job.jobs.contract.invalid_data import describe_invalid

SCHEMA_VERSION = 2
"""Version of the results folder; each record holds the version that wrote it (0: before versions had numbers). From
VERIFIED on, a record has a digest of itself and the facts of its files."""
VERIFIED = 2

PROTOCOL_VERSION, TURNS_VERSION = 2, 3
"""Versions of how a run is measured. 1: unprofiled steps of one warm process, run after run. 2: several fresh
processes, in a shuffled order. 3: the first process by itself, the others by turns with the runs that differ in the
axes of `turns` alone. Runs that another version measured are measured again."""

SWEEP = "sweep.json"
LOCK = "lock"
CALIBRATION = "calibration.json"
RECORD = "run.json"
TIMED = "timed.json"
IN_FLIGHT = "in_flight.json"
MANIFEST = "manifest.json"
"""A folder with this file is a recording."""
TIMINGS = "timings.json"
SALT = "salt"
LOG = "log.txt"
REPORT = "profile.nsys-rep"
CAPTURE = "profile.sqlite"
TRACE = "profile.json.gz"  # in place of a capture, if torch.profiler recorded the steps
SAMPLES = "samples.sqlite"
"""Capture of steps in which Python was sampled: slower, so that no other time is taken from them."""
HOST_WAITS = "host_waits.json"
"""File of a run of a script: its calls that wait for the GPU, and how the samples of Python were taken."""
COMPILING = "compiling.json"
"""File of a run of a script that compiles: what torch.compile did, as `jobs.contract.compiling` has it."""
NSYS_LOG = "nsys.log"  # what nsys printed about its captures
NSYS_SUMS = "nvtx_kern_sum"  # nsys's own statistics of kernel time by NVTX range and kernel name
NSYS_SUMS_FILE = f"{NSYS_SUMS}.csv"

SCRIPT = "script"
"""Key of sweep.json and of a manifest if somebody's own script was measured; and the name of its workload."""


def name_changed(name: str, changes: Iterable[str]) -> str:
    """Return the name of a script's results with some changes; without changes they are called `name`."""
    return "-".join((name, *(change.replace("_", "-") for change in changes)))


RAW, RECORDINGS, SITE, ANSWERS = "raw", "recordings", "site", "answers"
RESERVED_NAMES = (RAW, RECORDINGS, SITE, ANSWERS)
"""Folders of a results folder that are no sweeps."""

SHARDS = "shard-*-of-*"
ALL_RUNS = "runs_of_all_shards"  # key of a shard's sweep.json
MERGED = "merged.json"
"""Marks a folder that `merge` wrote, so that merging again may replace it."""

Status = Literal["ok", "oom", "timeout", "failed", "no_kernels", "machine"]
"""Outcome of a run. `machine`: the machine failed (a lost GPU, a killed process), so another job measures it again."""
STATUSES: tuple[Status, ...] = get_args(Status)


def name_shard_folder(index: int, count: int) -> str:
    """Return the folder of part `index` (from 1) of `count`, below the folder of the sweep; "" if there is one part."""
    return f"shard-{index}-of-{count}" if count > 1 else ""


def name_node_file(file: str, node: int) -> str:
    """Return the name of a file that each machine writes: unchanged on the first, profile-1.sqlite on the second."""
    stem, _, ending = file.partition(".")
    return f"{stem}-{node}.{ending}" if node else file


def list_captures(run: Path) -> list[Path]:
    """List the captures of a run by machine, or traces by rank. The first may be absent."""
    name = TRACE if (run / TRACE).is_file() else CAPTURE
    captures = [run / name]
    while (capture := run / name_node_file(name, len(captures))).is_file():
        captures.append(capture)
    return captures


def name_timings_file(process: int) -> str:
    """Return the name of the file that an unprofiled process of a run writes; processes are numbered from 0."""
    return f"timings-{process}.json" if process else TIMINGS


TurnAxis = Literal["precision", "attention", "compile", "optimizer", "checkpointing", "repeat"]
"""An axis that variants of one model in one process may differ in. repeat: the same variant again, to see what the
measurement makes of no difference."""


class Protocol(BaseModel):
    """Protocol of measurement of each run. A finished run counts as done if its protocol is equal.

    processes: fresh processes that measure unprofiled steps, each warmup_steps and measured_steps; runs that take turns
    have up to MOST_EXTRA more if the host was slow (see `jobs.contract.slow_processes`). seed: seed of the
    order of the runs, which differs between processes. turns: runs that differ in these axes alone share each process
    but the first, and take turns in it. rounds: in each such process every run has so many turns of equally many steps.
    samples: whether runs that the CPU limits have profiled_steps with samples of Python, too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    warmup_steps: Count = 5
    measured_steps: Annotated[int, Field(ge=1), Number] = 10
    processes: Annotated[int, Field(ge=1, le=100), Number] = 3
    seed: Count = 0
    profiled_steps: Count = 5
    turns: tuple[TurnAxis, ...] = ()
    rounds: Annotated[int, Field(ge=1, le=1000), Number] = 5
    samples: bool = False

    @property
    def version(self) -> int:
        """The version of the protocol that a run is measured by."""
        return TURNS_VERSION if self.turns else PROTOCOL_VERSION

    @field_validator("profiled_steps")
    @classmethod
    def check_profiled_steps(cls, steps: int) -> int:
        if steps in (1, 2):
            raise ValueError("should be 0 (no capture) or at least 3")
        return steps


class Machine(BaseModel):
    """Hardware and software of a measured run. It holds no host, user or path."""

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
    """PyTorch's settings that change what is launched, and the size of the model. None if the run ended before they
    were known."""

    num_parameters: int | None = None
    autograd_multithreading: bool | None = None
    float32_matmul_precision: str | None = None


class Detail(BaseModel):
    """Place and reason of a run's failure, with the other fields of the failure (memory in bytes, step)."""

    model_config = ConfigDict(extra="allow")

    phase: str | None = None
    message: str = ""
    collector: str | None = None


class TimedProcess(BaseModel):
    """An unprofiled process of a run. position: its place, from 0, in the order in which the sweep measured its runs
    with processes of this number. group: the process itself, the same in all runs that took turns in it; "" if the run
    had it alone. seconds: how long the parts of its stage took."""

    position: int
    group: str = ""
    seconds: dict[str, float] = Field(default_factory=dict)


class AnyRecord(Settings):
    """Fields that records of any version of this program share.

    files: facts of the other files of the folder, when the record was written. hashed_names: names of the measuring
    machines and their users, hashed by `privacy.hash_names`; published files can be searched for them. shared_id: equal
    in the records of all machines of one run; "" if one machine measured it.
    """

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
    """The record of a run: timed.json after the timer's stage, run.json in the end.

    status: `timed` until the run is finished. Times are UTC, ISO 8601. wall_s: seconds of the whole run; `seconds`
    splits them by the parts of the nsys stage and the export, `timed` by unprofiled process.
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
        """Return whether every planned unprofiled process has measured it."""
        return len(self.timed) >= self.processes

    def is_of(self, run: Run, protocol: Protocol) -> bool:
        """Return whether it has exactly these parameters and this version's protocol."""
        same = self.run == run and self.protocol_version == protocol.version
        return same and all(getattr(self, name) == value for name, value in protocol)


class FinishedRecord(AnyRecord):
    """The run.json of any version of this program, for readers of results.

    Only this class is lenient: `run` may have unknown axes, or lack some, and missing fields are None.
    """

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
        """Return how the run was measured: its axes, sizes and steps, by name."""
        protocol = self.model_dump(include=set(Protocol.model_fields), exclude_none=True)
        return protocol | self.run


class RecordError(ProfilerError, ValueError):
    """A file without a valid record. The message names the file, the `reason`, and what to do."""

    exit_code = ExitCode.DAMAGED

    def __init__(self, file: Path, reason: str):
        super().__init__(f"{file} is not a valid record of a run ({reason}): run the sweep again to measure it anew")
        self.reason = reason


Kind = TypeVar("Kind", bound=AnyRecord)


def read_record(file: Path, kind: type[Kind]) -> Kind:
    """Return the record in a file. Raises RecordError, also if the file changed after it was written."""
    try:
        content = load_json(file)
        record = kind.model_validate(content)
        if (record.schema_version >= VERIFIED or record.digest) and not is_intact(content):
            raise ValueError("its digest differs: the file was changed")
        return record
    except ValidationError as error:
        reason = ": ".join(filter(None, describe_invalid(error)))
    except (OSError, ValueError) as error:
        reason = str(error)
    raise RecordError(file, reason)
