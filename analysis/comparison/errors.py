"""The error of what cannot be compared."""

from profiler_job.jobs.contract.errors import ProfilerError


class NotComparableError(ProfilerError, ValueError):
    """The message is one line: what cannot be compared, why, and what to do. why: the line without `advice`, the part
    that names options of `compare`."""

    def __init__(self, why: str, advice: str = ""):
        super().__init__(why + advice)
        self.why = why
