"""A static cache of keys and values: text is generated with shapes that stay the same."""

from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence, ChangeEvidence
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.ranges import DECODE

CODE = 'model.generate(..., cache_implementation="static"), compiled with mode="reduce-overhead"'
ACTION = "Use a static cache"
LINE = 'model.generate(x, cache_implementation="static")'
GROWS = "CatArrayBatchedCopy"
"""In the names of kernels that copy a cache into a longer one."""


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    if DECODE not in set(seen.sections["phases"]["phase"].astype(str)):
        return None
    rows = seen.sections["kernels"]
    growing = rows[rows["name"].astype(str).str.contains(GROWS)]
    copies_ns, calls = float(growing["total_ns"].sum()), float(growing["calls"].sum())
    if copies_ns < LEAST * seen.sum_parts("kernels"):
        return None
    seen.need_steady()
    launches_ns = seen.sum_parts("late_launch", "between") if seen.limit.is_launches else 0.0
    share = format_share(copies_ns / seen.sum_parts("kernels"))
    evidence = f"{calls:,.0f} kernels copy a cache that grows with each token, {share} of kernel time"
    sure = "low: its shapes stay the same, so that CUDA graphs can replay a token; the cache is as long as allowed"
    return ChangeEvidence(copies_ns + launches_ns, copies_ns + seen.waiting_ns, evidence, sure)
