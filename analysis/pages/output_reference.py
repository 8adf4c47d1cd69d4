"""What the outputs of the program hold: columns, kinds of findings, names of phases, limits. Each list is the one that
the program works with."""

from collections.abc import Mapping

from markupsafe import Markup

from profiler_job.analysis.capture import limits, phase_names
from profiler_job.analysis.insight import findings
from profiler_job.analysis.insight.loading import COLUMNS
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.render.answer import Answer, assemble
from profiler_job.jobs.contract.json_format import FORMAT_VERSION


def answer() -> Answer:
    """Return the lists that the page of outputs shows."""
    names = [
        {
            "phase": Markup(each.phase),
            "source": Markup(each.source),
            "examples": Markup(", ").join(_as_code(each.examples)),
        }
        for each in phase_names.NAMES
    ]
    facts = {
        "format_version": FORMAT_VERSION,
        "sections": {Markup(name): _explain(columns) for name, columns in SECTIONS.items()},
        "tables": {Markup(name): _explain(columns) for name, columns in COLUMNS.items()},
        "findings": _explain(findings.KINDS),
        "phase_names": names,
        "limits": [limit for limit in vars(limits).values() if isinstance(limit, limits.Limit)],
        "check_s": limits.CHECK_S,
        "checked_mb": limits.CHECKED_BYTES / 1e6,
    }
    return assemble(facts, [], [], [])


def _as_code(names: tuple[str, ...]) -> list[Markup]:
    return [Markup(f"`{name}`") for name in names]


def _explain(meanings: Mapping[str, str]) -> dict[Markup, Markup]:
    """Return names as code, and what each means."""
    return {Markup(f"`{name}`"): Markup(meaning) for name, meaning in meanings.items()}
