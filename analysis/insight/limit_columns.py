"""The parts of the time of a GPU, and the columns of the tables of them."""

from profiler_job.jobs.contract.ranges import ALL_PHASES

PARTS = {
    "kernels_ns": "at least one compute kernel runs",
    "graphs_ns": "a graph execution traced as a whole runs, whose kernels are hidden, and no kernel that is seen",
    "communication_ns": "communication kernels run, and none of the above",
    "copies_ns": "copies or sets run, and none of the above",
    "late_launch_ns": "idle, because the host had not launched the next operation yet; in no synchronisation call",
    "sync_ns": "idle, because the host had not launched the next operation yet; in a synchronisation call",
    "between_ns": "idle, though the next operation was launched: it waits for another one, or for the GPU to start it",
    "unknown_idle_ns": "idle, and when the next operation was launched is not known",
    "no_work_ns": "before the first operation of the GPU, and after its last",
}
"""The parts of elapsed time, which add up to it."""
OF_PARTS = {
    "compute_ns": "of kernels_ns, the time in which a matmul or attention runs",
    "data_ns": "of late_launch_ns, the time before copies from the host and before operations of the phase data, and "
    "in samples of Python that are in a DataLoader or a tokenizer",
    "nothing_ns": "of late_launch_ns, the time in which the thread that launches next sleeps, saves, or waits for "
    "another program, and makes no data",
    "host_copies_ns": "of copies_ns, the time of copies from and to the host",
}
"""What is known of some parts in addition."""
BUSY = {"kernels_ns": "kernels", "graphs_ns": "graphs", "communication_ns": "communication", "copies_ns": "copies"}
IDLE = {
    "late_launch_ns": "launched late by the host",
    "sync_ns": "in a synchronisation",
    "between_ns": "between operations",
    "unknown_idle_ns": "for an unknown reason",
}
"""What the parts are called, of busy time and of idle time between the first and the last operation."""

COLUMNS = (
    {
        "gpu": "number of the GPU",
        "elapsed_ns": "from the first event of the capture to the end of the last: the sum of what follows",
    }
    | PARTS
    | OF_PARTS
)
PHASE_COLUMNS = (
    {
        "gpu": "number of the GPU",
        "phase": f"{', '.join(ALL_PHASES)}; empty for operations of no phase, and where there is no work",
        "elapsed_ns": "the sum of what follows; idle time belongs to the operation that ends it",
    }
    | PARTS
    | OF_PARTS
)
