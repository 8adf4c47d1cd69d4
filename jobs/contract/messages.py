"""Messages between the job and its worker over their socket. The worker begins with `Hello`.

    job                                  worker
                                         Hello
    RunTask                              Ready, when it is warm
    GO                                   Timed, if a busy block is requested
    GO                                   Measured, or Failed (at any time), and then RELEASED
    TurnsTask                            Turn, before it builds a run, and at each turn of one
                                         Ready, when all are warm
    GO                                   Turned, or Failed (at any time), and then RELEASED
    CalibrateTask                        Calibrated, and then RELEASED
    None, or the connection closes       ends

Plain dictionaries, since the worker imports torch and the standard library, and nothing else.
"""

from typing import Any, Literal, NotRequired, TypedDict

GO = "go"
BATCHES = "batches_"
"""Beginning of the names of scalars about the batches of DataLoaders in a step without a profiler. Of several, those of
each follow, with its number among the lines of NEXT_BATCH: `batches_1_num_workers`."""
COLLECTED = "garbage_"
"""Beginning of the names of scalars about Python's collections of garbage in a captured step: their number and time of
the CPU."""
NEXT_BATCH = "__next__ of a DataLoader"
"""Call in the table `sync_calls`: a batch is taken."""
SAMPLED = "python_samples_"
"""Beginning of the names of scalars about the steps in which Python was sampled."""
COUNTED_CALLS = ("synchronize", "reads a value or copies")
"""The calls that wait for the GPU as a script that is followed counts them, without nsys."""
AT_PEAK, KEPT_IN, SAVED, COULD_FREE = "at_peak_", "kept_in_", "saved_", "could_free_"
"""Beginnings of the names of scalars in bytes about a script's memory at its peak: by owner, activations by module,
kinds of tensors that are saved for backward, and what changes would free at most."""
UNKNOWN_MODULE = "(module not known)"
"""After KEPT_IN: activations of which the module is not known, as of all in a script that compiles."""
OVER_STEP = "over_step_"
"""Beginning of the names of scalars in bytes that are requested of the allocator over a step; a number and the phase
follow: `over_step_017_backward`."""
COMPILE = "compile_"
"""Beginning of the names of scalars about torch.compile in a script: see `analysis.insight.recorded_compiling`."""
LINK_RATE = "link_"
"""Prefix of figures of the link between GPUs, before the name of a collective."""
LINK_MESSAGE = f"{LINK_RATE}message"
"""Bytes of such a collective, the parts of all ranks together."""
LINK_SIZE = "/"
"""Separator of the collective's name and its bytes, in figures of the link for other sizes than LINK_MESSAGE."""
SILENT = "silent_ns"
"""Figure of a rank: time of a step without its optimizer in which ranks exchange nothing."""


class RunTask(TypedDict):
    """Measure `steps` steps of a run. run: the fields of `jobs.contract.axes.Run`. probe: measure memory, numerics
    and the speed of the host, too. compare: compare its loss after training with the loss of the plain model. busy_s:
    least seconds for which further steps keep the GPU busy, for its energy; 0 for none. waits: send `compiled`, and
    wait, before the first step runs. log: file for the worker's output."""

    collector: str
    run: dict[str, Any]
    warmup_steps: int
    steps: int
    probe: bool
    compare: bool
    busy_s: float
    waits: bool
    log: str


class TurnsTask(TypedDict):
    """Let runs of one model take turns on its weights. runs, warmup_steps: as in RunTask, of each. rounds: turns of
    each run. steps: measured steps of a turn. seed: of the order in each round. logs: a file for the output of each
    run."""

    runs: list[dict[str, Any]]
    warmup_steps: int
    rounds: int
    steps: int
    seed: str
    logs: list[str]


class CalibrateTask(TypedDict):
    """Measure the peak rates of the GPU."""

    calibrate: Literal[True]
    log: str


Task = RunTask | TurnsTask | CalibrateTask


class Facts(TypedDict):
    """Facts of the worker's machine; fields of `jobs.contract.layout.Machine`."""

    gpu_name: str
    gpu_memory_bytes: int
    cuda: str
    torch: str
    python: str


class Hello(TypedDict):
    event: Literal["hello"]
    pid: int
    facts: Facts


class Compiled(TypedDict):
    """The run is built and compiled, and its first step is about to run."""

    event: Literal["compiled"]


class Ready(TypedDict):
    event: Literal["ready"]


class Timed(TypedDict):
    """The steps are measured, and the busy block may begin."""

    event: Literal["timed"]


class Settings(TypedDict, total=False):
    """Fields of `jobs.contract.layout.Settings`."""

    autograd_multithreading: bool
    float32_matmul_precision: str
    num_parameters: int


class Turn(TypedDict):
    """A run is being built, or its turn begins: what fails from here on fails with this run. number: its place in the
    task."""

    event: Literal["turn"]
    number: int


class StepTime(TypedDict):
    """Wall time of a phase of a step, or of the step. issue_ns: without waits for the device at the ends of phases.
    round: in which round of turns it was, from 0."""

    step: int
    phase: str
    wall_ns: int
    issue_ns: int
    round: NotRequired[int]


class Seconds(TypedDict):
    build: float
    warm_up: float
    measure: float


class Busy(TypedDict):
    """The steps of the busy block, and how long they took."""

    steps: int
    wall_ns: int


class Measured(TypedDict):
    """Message of a worker that has measured a run: the tables of timings.json. host_loop_ns: measured by
    `jobs.worker.host_speed` before the measured steps, by turns before each round, if probes run. busy: if
    requested."""

    event: Literal["measured"]
    steps: list[StepTime]
    memory: list[dict[str, Any]]
    figures: list[dict[str, Any]]
    module_memory: list[dict[str, Any]]
    host_loop_ns: NotRequired[int]
    busy: NotRequired[Busy]
    settings: Settings
    seconds: Seconds


class MemoryOf(TypedDict, total=False):
    """Bytes of the device's memory when it ran out."""

    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int
    allocated_before_bytes: int


class Failed(MemoryOf):
    """A run could not be measured. step: from 0, warm-up included."""

    event: Literal["oom", "failed"]
    phase: str
    step: int
    message: str
    settings: Settings


class Turned(TypedDict):
    """The runs took turns. runs: what each run measured; Failed for one that ran out of memory, without which the
    others went on."""

    event: Literal["turned"]
    runs: list[Measured | Failed]


class Rate(TypedDict):
    """A peak rate: median, lowest and highest of its repetitions."""

    figure: str
    unit: str
    value: float
    low: float
    high: float
    repeats: int
    gpu_name: NotRequired[str]


class Calibrated(TypedDict):
    event: Literal["calibrated"]
    rates: list[Rate]


class Released(TypedDict):
    """The task's memory is released: the worker waits for the next task."""

    event: Literal["released"]


Answer = Hello | Compiled | Ready | Timed | Turn | Measured | Turned | Failed | Calibrated | Released
