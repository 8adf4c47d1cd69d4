"""Why there is no prediction: codes for programs and tests, and the error with one line for readers."""

from enum import StrEnum

from profiler_job.jobs.contract.errors import CodedError


class AbstentionCode(StrEnum):
    """Reason for which there is no prediction."""

    UNKNOWN_CHANGE = "unknown_change"
    NO_CHANGE = "no_change"
    ONE_CHOICE = "one_choice"
    NO_MODEL = "no_model"
    ALREADY_MADE = "already_made"
    SAVES_LITTLE = "saves_little"
    NO_PAIR = "no_pair"
    FEW_PAIRS = "few_pairs"
    OTHER_GPU = "other_gpu"
    SEVERAL_GPUS = "several_gpus"
    OTHER_WORKLOAD = "other_workload"
    OTHER_PRECISION = "other_precision"
    OTHER_OPTIMIZER = "other_optimizer"
    OTHER_MODE = "other_mode"
    MODULES_UNKNOWN = "modules_unknown"
    PHASES_UNKNOWN = "phases_unknown"
    MATMULS_UNKNOWN = "matmuls_unknown"
    MEMORY_UNKNOWN = "memory_unknown"
    MEMORY_FULL = "memory_full"
    CPU_LIMITS = "cpu_limits"
    STARTUP_INCLUDED = "startup_included"
    PART_OF_STEP = "part_of_step"
    KERNELS_HIDDEN = "kernels_hidden"
    NO_GPU_WORK = "no_gpu_work"
    HOST_UNKNOWN = "host_unknown"
    MAY_GIVE_NOTHING = "may_give_nothing"


class AbstentionError(CodedError[AbstentionCode]):
    """Why there is no prediction: a code, and one line."""


class NoModelError(AbstentionError):
    """A change is known, and no model covers it."""

    def __init__(self, message: str):
        super().__init__(AbstentionCode.NO_MODEL, message)
