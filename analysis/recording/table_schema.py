"""The tables of a recording: their columns with type, unit and meaning."""

from typing import NamedTuple

from profiler_job.analysis.recording import times
from profiler_job.analysis.reference.columns import find_ending
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import describe_fields, find_default
from profiler_job.jobs.contract.layout import STATUSES

_UNITS = {
    "started_at": "UTC",
    "context_length": "tokens",
    **{name: f"{times.TICK_NS} ns" for name in times.LAUNCHES[2:]},
    **{f"grid_{axis}": "blocks" for axis in "xyz"},
    **{f"block_{axis}": "threads" for axis in "xyz"},
}
"""Units that the names of columns do not say."""
_PHASES = " | ".join(ranges.ALL_PHASES)


class Column(NamedTuple):
    """One column. dtype: category (text with few distinct values) | string | int32 | int64 | float64 | bool.

    optional: older recordings lack it, and are loaded with `before` in every row. nullable: a row may have no value;
    in `runs` any may.
    """

    name: str
    dtype: str
    meaning: str
    optional: bool = False
    before: object = None
    nullable: bool = False

    @property
    def unit(self) -> str:
        """Unit of the values; "" for text and counts."""
        ending = find_ending(self.name)
        return _UNITS.get(self.name, ending[1] if ending else "")


OF_FINISHED_RUNS = (
    *("context_length", "batch_size", "gpus", "num_parameters", "gpu_memory_bytes", "warmup_steps", "measured_steps"),
    *("profiled_steps", "processes", "wall_s"),
)
"""Columns of `runs` with a number in each run that is ok, or in none: captures of others and older versions lack
some."""
AT_LEAST_ONE = ("batch_size", "gpus")
"""Columns of `runs` that pages divide by, in each run that is ok."""

_RUN_ID = Column("run_id", "category", "the run, readable: size, context length, precision, attention, mode")
_RANK = Column(
    "rank",
    "int32",
    "number of the process in its run, from 0: processes with steps first, then by first range; 0 if there is one",
    True,
    0,
)
_PROCESS = Column(
    "process",
    "int32",
    "number of the fresh process among those that measured the run without a profiler, from 0; 0 under nsys",
    True,
    0,
)
_STEP = Column("step", "int32", "measured step, from 0 in each rank; -1 outside every step")
_PHASE = Column("phase", "category", f"{_PHASES}; empty outside every phase")
_MODULE = Column(
    "module", "category", "path of the range below the phase (block_0/attention/softmax); empty at its top"
)
_MODULE_BY = Column(
    "module_by",
    "category",
    "how the module is known: launch (the range around it) | linked (the same launch in a step in which modules were "
    "followed through backward and optimizer); empty where it is not",
    True,
    "",
)
_ATTRIBUTION = Column(
    "attribution",
    "category",
    "how the phase is known: exact (the launching thread was in it) | early (it was, but the operation seems to begin "
    "before its launch) | linked (by number) | phase (by time, across threads) | inferred "
    "(without a range) | none",
)
_DEVICE = Column("device", "int32", "CUDA device as its rank numbers it: a GPU of the run is (rank, device)")
_LAUNCH = Column(
    "launch_ns",
    "int64",
    f"start of the API call that launched it, to the nearest {times.TICK_NS} ns (its own start where that is unknown)",
)
_START = Column("start_ns", "int64", "start, after the start of the run's first step")
_END = Column("end_ns", "int64", "end, after the start of the run's first step")

_RUN_COLUMNS = tuple(
    Column(name, detail.dtype, detail.meaning, optional=before is not None, before=before)
    for name, detail in describe_fields().items()
    for before in [find_default(name)]
)

TABLES: dict[str, tuple[Column, ...]] = {
    "runs": (
        _RUN_ID,
        Column("status", "category", " | ".join(STATUSES)),
        Column("status_phase", "string", "where a run that is not ok ended"),
        Column("status_message", "string", "why a run is not ok"),
        *_RUN_COLUMNS,
        Column("gpu_name", "category", "GPU that the run was measured on"),
        Column("gpu_memory_bytes", "int64", "memory of that GPU"),
        Column("driver", "category", "NVIDIA driver"),
        Column("cuda", "category", "CUDA version that torch was built for"),
        Column("torch", "category", "torch version"),
        Column("nsys", "category", "Nsight Systems version"),
        Column("python", "category", "Python version"),
        Column("commit", "category", "commit of this project that measured the run"),
        Column("autograd_multithreading", "bool", "whether autograd launched backward kernels from its own threads"),
        Column("float32_matmul_precision", "category", "torch's setting: highest (FP32) | high (TF32 allowed)"),
        Column("warmup_steps", "int64", "steps before measuring"),
        Column("measured_steps", "int64", "steps timed without a profiler, by each process"),
        Column("profiled_steps", "int64", "steps recorded under nsys"),
        Column(
            "protocol_version",
            "int64",
            "1: timed in one warm process | 2: in fresh ones, shuffled | 3: all but the first by turns",
            True,
            1,
        ),
        Column("processes", "int64", "fresh processes that timed the run without a profiler", True, 1),
        Column("seed", "int64", "seed of the order of the runs", True),
        Column("peak_memory_bytes", "int64", "peak allocated by torch's allocator, over all phases"),
        Column("started_at", "string", "when the run started, ISO 8601"),
        Column("wall_s", "float64", "how long the whole run took, set-up included"),
        Column("log", "string", "last lines of what the run printed, without folders and hosts", optional=True),
    ),
    "steps": (
        _RUN_ID,
        _RANK,
        _PROCESS,
        Column(
            "collector",
            "category",
            "timer (unprofiled, device synchronised) | nsys (host range under nsys or torch.profiler)",
        ),
        _STEP,
        Column("phase", "category", f"{_PHASES} | {ranges.STEP} (the whole step)"),
        Column("wall_ns", "int64", "wall time on the host"),
        Column(
            "issue_ns",
            "int64",
            "of that, without the waits for the device at the ends of phases: the host issuing work; timer only",
            True,
            nullable=True,
        ),
        Column("round", "int32", "round in which the run took its turn, from 0 in each process; -1 alone", True, -1),
    ),
    "processes": (
        _RUN_ID,
        _RANK,
        _PROCESS,
        Column(
            "group",
            "category",
            "the process itself, if runs took turns in it: the same in all of them; empty if the run had it alone",
            True,
            "",
        ),
        Column("position", "int32", "place, from 0, in the shuffled order of the runs for processes of this number"),
        Column("started_at", "string", "when the process was started, ISO 8601"),
        Column("cpu_model", "category", "what the processor calls itself", nullable=True),
        Column("cpu_cores", "int32", "cores that the job may use", nullable=True),
        Column("host_loop_ns", "int64", "a loop of plain Python before the steps or rounds, median", nullable=True),
        Column("gpu_id", "category", "tells the GPUs of a recording apart: a salted hash", nullable=True),
        Column("energy_mj", "int64", "energy of the GPU during further steps, by NVML's counter", nullable=True),
        Column("energy_steps", "int64", "how many steps these were", nullable=True),
        Column("energy_wall_ns", "int64", "how long they took, at least 1 s", nullable=True),
        Column("not_read", "string", "what could not be read, and why", nullable=True),
    ),
    "telemetry": (
        _RUN_ID,
        _RANK,
        _PROCESS,
        Column("moment", "category", "before or after the timed steps | busy: during the steps for the energy"),
        Column("at_ns", "int64", "when, after the process was started"),
        Column("sm_clock_mhz", "int32", "clock of the SMs", nullable=True),
        Column("memory_clock_mhz", "int32", "clock of the GPU's memory", nullable=True),
        Column("temperature_celsius", "int32", "temperature of the GPU", nullable=True),
        Column("power_mw", "int64", "power of the GPU, as NVML averages it", nullable=True),
        Column(
            "throttle_reasons",
            "category",
            "why the clocks are not higher: none | gpu_idle | sw_power_cap | ..., several with dashes between",
            nullable=True,
        ),
    ),
    "ranges": (
        _RUN_ID,
        _RANK,
        Column("range_id", "int32", "number of the range in its run, by machine and start"),
        Column("parent_id", "int32", "range_id of the range around it; -1 none"),
        _STEP,
        _PHASE,
        Column("name", "category", "NVTX name"),
        Column("path", "category", "names from the outermost range inwards, joined by /"),
        Column("thread", "int32", "thread of the run, numbered from 0 by first range"),
        _START,
        _END,
    ),
    "kernels": (
        _RUN_ID,
        _RANK,
        Column("range_id", "int32", "innermost range it was launched in; -1 none"),
        _STEP,
        _PHASE,
        _MODULE,
        _MODULE_BY,
        _ATTRIBUTION,
        Column("kernel_name", "category", "full demangled name"),
        _LAUNCH,
        Column(
            "launch_end_ns",
            "int64",
            f"end of the API call that launched it, to the nearest {times.TICK_NS} ns",
        ),
        _START,
        _END,
        _DEVICE,
        Column("stream", "int32", "CUDA stream"),
        Column("grid_x", "int32", "grid size"),
        Column("grid_y", "int32", "grid size"),
        Column("grid_z", "int32", "grid size"),
        Column("block_x", "int32", "block size"),
        Column("block_y", "int32", "block size"),
        Column("block_z", "int32", "block size"),
        Column("registers", "int32", "registers of a thread"),
        Column("static_shared_bytes", "int32", "shared memory of a block fixed when compiled"),
        Column("dynamic_shared_bytes", "int32", "shared memory of a block asked for at launch"),
        Column("graph_node", "int64", "CUDA graph node; 0 launched outside a graph"),
        Column(
            "message_bytes",
            "int64",
            "message of a communication kernel, as NCCL's ranges say; -1 where they do not, and of other kernels",
            True,
            -1,
        ),
        Column(
            "node",
            "int32",
            "machine of its rank, from 0: times of different ones are of different clocks",
            True,
            0,
        ),
    ),
    "api": (
        _RUN_ID,
        _RANK,
        _STEP,
        _PHASE,
        Column(
            "name",
            "category",
            "CUDA runtime or driver function by its documented name; older files have a version after some",
        ),
        Column("calls", "int64", "number of calls"),
        Column("total_ns", "int64", "host time inside them"),
    ),
    "memops": (
        _RUN_ID,
        _RANK,
        _STEP,
        _PHASE,
        _MODULE,
        _MODULE_BY,
        _ATTRIBUTION,
        Column("operation", "category", "memcpy with its direction, or memset"),
        Column("bytes", "int64", "bytes copied or set"),
        _LAUNCH,
        _START,
        _END,
        _DEVICE,
        Column("stream", "int32", "CUDA stream"),
    ),
    "nsys_sums": (
        _RUN_ID,
        Column("range", "category", f"{ranges.STEP} | {_PHASES}: the NVTX range that the kernels were launched in"),
        Column("kernel_name", "category", "full demangled name"),
        Column("calls", "int64", "launches inside all instances of the range, as nsys's own statistics count them"),
        Column("total_ns", "int64", "sum of their durations, by nsys's own statistics (nvtx_kern_sum)"),
    ),
    "memory": (
        _RUN_ID,
        _RANK,
        Column("phase", "category", "phase of the step, as in steps"),
        Column("peak_allocated_bytes", "int64", "peak allocated by torch's allocator during the phase"),
        Column("peak_reserved_bytes", "int64", "peak reserved by torch's allocator during the phase"),
        Column("allocated_before_bytes", "int64", "allocated when the phase began"),
        Column("allocated_after_bytes", "int64", "allocated when the phase ended"),
    ),
    "module_memory": (
        _RUN_ID,
        _RANK,
        _PHASE,
        _MODULE,
        Column("kept_bytes", "int64", "what the range left allocated: activations that backward needs"),
    ),
    "figures": (
        _RUN_ID,
        _RANK,
        Column(
            "figure",
            "category",
            "memory by use when a step has ended (memory_*) and left by what came before it (allocated_before_build); "
            "loss and logits (numerics); the loss after three training steps, of the run and of the same model "
            "in FP32 with nothing fused (loss_trained*); messages of a collective alone on the link between the GPUs "
            "(link_*), and in profiled steps (message_*; older recordings only); what torch.compile did in a "
            "script (compile_*): graphs, graphs of measured steps (late) or of a cache, time in ns; of a captured step "
            "the breaks in forward and in backward, the GPU's idle time at them and the kernels between",
        ),
        Column("unit", "category", "bytes, bytes/s, or empty"),
        Column("value", "float64", "the number"),
    ),
    "waits": (
        _RUN_ID,
        Column("where", "category", "file and line of a script that the GPU waits for, below the script's folder"),
        Column("function", "category", "the function that it is in"),
        Column("below", "category", "parts of libraries that the line was in, and for how much of its time"),
        Column("phase", "category", "its phase, or several with their shares; with most of it in older recordings"),
        Column("module", "category", "module in whose forward it is; empty if none is known", True, ""),
        Column("do", "category", "what to do about it; empty where nothing is known"),
        Column("share", "float64", "part of the time in which the GPU waits in a step"),
        Column(
            "wait_ns",
            "int64",
            "that time in a captured step without samples, less what nsys adds to CUDA calls; in the mean over steps "
            "with samples, which are slower, in older recordings",
        ),
        Column("late_launch_ns", "int64", "part in which the next operation was not launched yet"),
        Column("data_ns", "int64", "of that, while data is made, loaded or copied; -1 if not known", True, -1),
        Column("nothing_ns", "int64", "of that, while the script sleeps or saves; -1 if not known", True, -1),
        Column("sync_ns", "int64", "part that calls which wait for the GPU cost"),
        Column("copies_ns", "int64", "part in which the GPU only copies from or to the host"),
        Column("between_ns", "int64", "part in which the next operation was launched and had not started"),
        Column("gpu", "int64", "GPU that waits for it twice as long as the others; -1 if there is none", True, -1),
        Column("cpu_ns", "int64", "time of the CPU in the line in a step with samples; -1 if not known", True, -1),
    ),
    "sync_calls": (
        _RUN_ID,
        _RANK,
        Column("where", "category", "file and line of a script that calls what makes the CPU wait"),
        Column("function", "category", "the function that it is in"),
        Column(
            "call",
            "category",
            "synchronize | reads a value or copies, with what, and the copies that it waits for (both counted exactly) "
            "| waits for a copy | a copy from or to the host that the CPU does not wait for, with the kind of "
            "its memory | a CUDA function that allocates or frees (both in followed steps, or by samples of all ranks) "
            "| __next__ of a DataLoader, in steps without a profiler",
        ),
        Column("count", "float64", "calls in a step"),
        Column(
            "time_ns",
            "int64",
            "time of the CPU in them in a step: of __next__ without a profiler, of others in captured steps, with "
            "samples in older recordings; -1 if not known",
            True,
            -1,
        ),
    ),
    "wait_stacks": (
        _RUN_ID,
        Column("stack", "category", "frames of a Python stack, outermost first, separated by semicolons"),
        Column("wait_ns", "int64", "time in which the GPU waits in it, as in the table `waits`"),
    ),
    "compile_notes": (
        _RUN_ID,
        _RANK,
        Column(
            "kind",
            "category",
            "graph break: a line at which torch.compile ends a graph | compiled again: a function, in a measured step "
            "| given up: a function that was compiled too often, so that Python runs it where no guard holds "
            "| modules not known: of launches of graphs",
        ),
        Column("where", "category", "file and line of a script, below the script's folder; empty if not known"),
        Column("function", "category", "the function that it is in"),
        Column("reason", "category", "what PyTorch says: why a graph broke, the guard that failed, or what is missing"),
        *(
            Column(f"{phase}_{name}", "int64", f"{what} in {phase} of a captured step; -1 if not known", True, -1)
            for phase in ranges.PASSES
            for name, what in (
                ("breaks", "how often it breaks graphs"),
                ("kernels", "kernels between these graphs"),
                ("idle_ns", "time in which the GPU is idle between them"),
            )
        ),
    ),
}

OPTIONAL_TABLES = (
    *("module_memory", "figures", "processes", "telemetry", "waits", "sync_calls", "wait_stacks", "compile_notes"),
)
"""Tables that older recordings lack; they are loaded empty."""

FAMILY = Column("family", "category", "kernel family, told from the name when a recording is loaded; not stored")
