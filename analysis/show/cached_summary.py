"""Summaries of captures, kept next to these: what a second `show` of a capture prints."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from profiler_job.analysis.capture.cached_tables import CachedResult
from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.insight.results import InsightSentences, Summary


def list_options(
    phases: Mapping[str, str],
    selection: Selection,
    *,
    rules: Path | None,
    with_moments: bool,
    skips_startup: bool,
) -> dict[str, Any]:
    """List all that changes the summary of a capture. Raises OSError if the rules cannot be read."""
    return {
        "result": "summary",
        "phases": dict(phases),
        "selection": selection.as_json(),
        "rules": hashlib.sha256(rules.read_bytes()).hexdigest() if rules else "",
        "with_moments": with_moments,
        "skips_startup": skips_startup,
    }


def pack_summary(summary: Summary) -> CachedResult:
    """Return a summary as what the cache keeps."""
    facts = {
        "capture": summary.capture,
        "coverage": summary.coverage,
        "launches": summary.launches,
        "shown": summary.shown,
        "busy": {str(gpu): shares.tolist() for gpu, shares in summary.busy.items()},
        "sentences": summary.insight.sentences.as_json(),
    }
    return CachedResult(facts, summary.sections)


def unpack_summary(result: CachedResult) -> Summary:
    """Return the summary that was kept."""
    facts = dict(result.facts)
    facts["shown"] = tuple(facts["shown"])
    facts["busy"] = {int(gpu): np.array(shares) for gpu, shares in facts["busy"].items()}
    sentences = InsightSentences(**facts.pop("sentences"))
    return Summary(**facts, sections=result.tables, form_sentences=lambda summary: sentences)
