"""The runs of the tiny sweep, and a fake GPU for them."""

from random import Random

from profiler_job.jobs.executor import gpu_executor

RUNS = [f"tiny-ctx{t}-fp32-naive-{mode}" for t in (8, 16) for mode in ("forward", "train_step")]
FIRST, SECOND, THIRD, LAST = RUNS
ORDER = Random("0-0").sample(RUNS, len(RUNS))
"""Order in which the first unprofiled process of each run is measured (seed 0)."""


class OnGpu:
    """State with which a capture is checked as on a GPU, with workers on the CPU."""

    def __init__(self, one):
        self.runner = one.runner

    def __enter__(self):
        self.init = gpu_executor.GpuExecutor.__init__

        def on_cpu(one, state, gpus, ranks):
            state.device = "cpu"
            self.init(one, state, (), ranks)
            state.device = "cuda"

        gpu_executor.GpuExecutor.__init__ = on_cpu

    def __exit__(self, *_):
        gpu_executor.GpuExecutor.__init__ = self.init
