"""No graph breaks: torch.compile makes one graph where Python runs between two of them now."""

import pandas as pd

from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence, ChangeEvidence
from profiler_job.analysis.changes.waiting_lines import ScriptLine
from profiler_job.jobs.contract.changes import WHOLE_GRAPHS
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import PASSES
from profiler_job.jobs.contract.words import format_count

CODE = "torch.compile(model, fullgraph=True) names what breaks a graph; move it out of the model"
ACTION = "Remove graph breaks"
LINE = "torch.compile(model, fullgraph=True)"
DO = "move it out of the model, or write it in operations of PyTorch"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    """The GPU is idle at a break until Python has launched the next graph. Without the break it idles less by no more
    than that, and by no more than it waits in a step without a profiler. What fusing more would save is not known."""
    rows = seen.breaks
    idle = {phase: float(rows[f"{phase}_idle_ns"].sum()) for phase in PASSES}
    idle_ns = sum(idle.values())
    if not idle_ns or idle_ns < LEAST * seen.whole_ns:
        return None
    seen.need_steady()
    share = min(idle_ns / max(seen.captured_waiting_ns, 1.0), 1.0)
    ceiling_ns = min(idle_ns, seen.waiting_ns)
    times = " and ".join(f"{format_time(ns)} in {phase}" for phase, ns in idle.items() if ns)
    kernels = format_count(round(float(rows["kernels"].sum())), "kernel")
    under = "" if seen.is_slowed else ", in a step under nsys"
    evidence = f"where torch.compile breaks graphs the GPU idles {times}, around {kernels} of no graph{under}"
    line = ScriptLine(
        where=name_lines(rows),
        wait_ns=min(share * seen.waiting_ns, ceiling_ns),
        ceiling_ns=ceiling_ns,
        share=share,
        sync_share=0.0,
        do=_describe_what_to_do(seen),
        changes=(WHOLE_GRAPHS,),
        evidence=evidence,
    )
    sure = "medium: what Python does there is still to be done, before or after the graph"
    return ChangeEvidence(line.wait_ns, ceiling_ns, evidence, sure, line)


def name_lines(breaks: pd.DataFrame) -> str:
    """Name the line that costs most, and how many others there are: all of them are in the bound. breaks: as
    `insight.broken_lines` lists them."""
    first = breaks.iloc[0]
    others = len(breaks) - 1
    name = make_printable(f"{first['where']} {first['function']}".strip())
    return f"{name} and {format_count(others, 'other line')}" if others else name


def _describe_what_to_do(seen: CaptureEvidence) -> str:
    reason = make_printable(str(seen.breaks.iloc[0]["reason"])).rstrip(". ")
    return f"{reason}. So {DO}" if reason else CODE
