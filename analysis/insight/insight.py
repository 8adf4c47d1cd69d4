"""What a capture, or one step of a run, means: one result, from which every form is printed."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.insight.advice_lines import NOTE, format_advice, format_run_advice
from profiler_job.analysis.insight.communication_lines import NO_CAUSES, Causes, describe_communication, describe_ranks
from profiler_job.analysis.insight.finding_lines import describe_findings
from profiler_job.analysis.insight.limit_lines import (
    FROM_CAPTURE,
    describe_phases,
    describe_step,
    describe_together,
    describe_verdict,
)
from profiler_job.analysis.insight.results import Insight, InsightSentences
from profiler_job.analysis.insight.section_columns import SummaryTables
from profiler_job.analysis.insight.wait_lines import describe_waits
from profiler_job.jobs.contract.step_limit import StepLimit


def form_sentences(summary: SummaryTables) -> InsightSentences:
    """Say in sentences what is selected of a capture."""
    return InsightSentences(
        verdict=describe_verdict(summary),
        communication=describe_communication(summary),
        findings=describe_findings(summary.sections["findings"]),
        advice=format_advice(summary),
        advice_note=NOTE,
        waits=describe_waits(summary),
    )


def interpret_run(
    elapsed: pd.DataFrame,
    communication: pd.DataFrame,
    findings: pd.DataFrame,
    advice: Sequence[Mapping[str, Any]],
    limit: StepLimit | None = None,
    causes: Causes = NO_CAUSES,
    tokens: float | None = None,
) -> Insight:
    """Interpret one step of a run. elapsed: rows of `run_limit.split_steps`; communication: of
    `exchange.sum_by_gpu`; findings: of `run_limit.find`; advice: as `run_advice.rank_changes` gives it; limit: of
    `step_limits.find_limits`, None if the run has no step without nsys; causes: what may make a GPU late;
    tokens: of a step, None if not known."""
    gpus = elapsed.drop(columns=["run_id", "phase"], errors="ignore").groupby("gpu", as_index=False).sum()
    under_nsys = describe_phases(elapsed)
    if limit is not None and limit.names:
        verdict = describe_step(limit)
    else:
        verdict = [] if gpus.empty else [describe_together(gpus)]
        under_nsys += [FROM_CAPTURE] * bool(len(gpus))
    step_ns = limit.step_ns if limit is not None else None
    verdict += [f"Under the profiler, {line[0].lower()}{line[1:]}" if limit else line for line in under_nsys]
    return Insight(
        gpus=gpus,
        phases=elapsed,
        communication=communication,
        findings=findings,
        advice=pd.DataFrame(advice),
        sentences=InsightSentences(
            verdict=verdict,
            communication=describe_ranks(communication, causes),
            findings=describe_findings(findings),
            advice=[[line] for line in format_run_advice(advice, step_ns, tokens)],
        ),
    )
