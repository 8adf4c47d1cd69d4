"""The error of what cannot be compared."""

from enum import StrEnum

from profiler_job.jobs.contract.errors import CodedError
from profiler_job.jobs.contract.exit_codes import ExitCode


class ComparisonProblem(StrEnum):
    """Why two sides cannot be compared."""

    BAD_OPTION = "bad_option"
    NOT_A_RECORDING = "not_a_recording"
    NO_RUN = "no_run"
    SEVERAL_RUNS = "several_runs"
    SAME_RUNS = "same_runs"
    NO_COMMON_RUN = "no_common_run"
    OTHER_MODEL = "other_model"
    OTHER_WORK = "other_work"
    LITTLE_IN_COMMON = "little_in_common"
    NO_TOKENS = "no_tokens"
    NOT_RECORDED = "not_recorded"
    FEW_PAIRS = "few_pairs"


class NotComparableError(CodedError[ComparisonProblem]):
    """The message is one line: what cannot be compared, why, and what to do. code: the reason. why: the line without
    `advice`, the part that names options of `compare`."""

    def __init__(self, code: ComparisonProblem, why: str, advice: str = "", exit_code: ExitCode | None = None):
        super().__init__(code, why + advice, exit_code)
        self.why = why
