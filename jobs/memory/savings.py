"""What would free memory of a training step of the reference Transformer, by simulation."""

from profiler_job.jobs.memory.caching_allocator import CachingAllocator
from profiler_job.jobs.memory.sharded_step import ShardedStepper
from profiler_job.jobs.memory.simulated_step import BF16, NUM_STEPS, Device, Relief, Shape, SimulatedStepper

CHANGES = {
    "checkpoint each block": Relief(segment=1),
    "checkpoint every 2 blocks": Relief(segment=2),
    "checkpoint every 4 blocks": Relief(segment=4),
    "fused loss": Relief(is_loss_fused=True),
    "optimizer state in BF16": Relief(state_bytes=BF16),
    "FSDP on 8 GPUs": Relief(gpus=8),
    "FSDP, checkpointing each block": Relief(segment=1, gpus=8),
    "all of these": Relief(1, True, BF16, 8),
}
"""Checkpointing makes a step longer, as the forward pass of each block runs again."""


def predict_relieved_peak(shape: Shape, relief: Relief) -> int:
    """Predict the peak allocated in bytes of the second step; with several `relief.gpus`, of one of them, which has the
    batch of `shape` and accumulates no gradients."""
    stepper_class = ShardedStepper if relief.gpus > 1 else SimulatedStepper
    allocator = CachingAllocator()
    stepper = stepper_class(shape, Device(allocator), relief)
    for _ in range(NUM_STEPS):
        allocator.reset_peak()
        stepper.zero_grad()
        for _, work in stepper.phases:
            work()
    return allocator.peak
