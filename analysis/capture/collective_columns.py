"""The columns of the tables of communication, and what each holds."""

GPU_COLUMNS = {
    "gpu": "number of the GPU",
    "rank": "number of its process, in the order of the processes",
    "calls": "communication kernels",
    "kernel_ns": "sum of their durations: waiting_ns + transfer_ns, where these are known",
    "waiting_ns": "part of it before the last rank's kernel of the same collective began; null where not known",
    "transfer_ns": "the rest of it; null where not known",
    "busy_ns": "time in which at least one of them runs: hidden_ns + exposed_ns",
    "hidden_ns": "part of busy_ns in which a compute kernel runs on the same GPU",
    "exposed_ns": "part of busy_ns in which none does: as communication_ns in the verdict",
    "critical_ns": "part of exposed_ns by which the work would have ended earlier without communication, the host "
    "launching as it did; null where its launches, or its waits for the GPU, are not known",
    "exposed_waiting_ns": "part of exposed_ns in which the kernel only waits; null where not known",
    "kept_waiting_ns": "the waiting of the others for this one, where it came last, summed over them; null where not "
    "known",
    "kept_computing_ns": "part of kept_waiting_ns in which this GPU ran compute kernels meanwhile",
    "kept_late_ns": "part in which it ran none, and its host had not launched the collective yet",
    "beside_ns": "time of matmuls that overlap communication for at least half of it, of kinds that also ran alone",
    "alone_ns": "what as many of the same kernels take alone: the median of the kernels that overlap none",
}
COLLECTIVE_COLUMNS = {
    "gpu": "number of the GPU",
    "collective": "as NCCL names it",
    "calls": "kernels",
    "kernel_ns": "sum of their durations",
    "waiting_ns": "part of it before the last rank's kernel began; null where not known",
    "transfer_ns": "the rest of it; null where not known",
    "hidden_ns": "part of kernel_ns in which a compute kernel runs on the same GPU",
    "bytes": "sum of their messages, as NCCL's ranges say; null where they do not",
    "bus_bytes_per_s": "bytes that travel over the GPU's link in transfer_ns, per second; null where not known",
}
LATE_KERNEL_COLUMNS = {
    "gpu": "number of the GPU",
    "name": "the compute kernel that takes most more time on this GPU than on the others in the median",
    "more_ns": "how much more time it takes",
    "more_calls": "how many more of it this GPU runs than the others in the median",
}
"""Columns of what a GPU runs for longer than the others; a row for each GPU that others waited for."""
MESSAGE_COLUMNS = {
    name: meaning for name, meaning in COLLECTIVE_COLUMNS.items() if name not in ("bytes", "bus_bytes_per_s")
} | {
    "message_bytes": "bytes of the message of each of them, as NCCL's ranges say",
    "bus_bytes_per_s": COLLECTIVE_COLUMNS["bus_bytes_per_s"],
}
"""Columns of the messages; a kernel whose message is unknown has no row."""
