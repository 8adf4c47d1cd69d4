"""The pages of topics, which have a part of the page of each of their questions."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from profiler_job.analysis.pages.question import Question
from profiler_job.analysis.pages.topics import TOPICS, Topic
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.site.page_context import NOTHING
from profiler_job.analysis.site.site_writer import Part, Site


def render_in_topics(site: Site, question: Question, template: str, answer: Answer) -> dict[str, Part]:
    """Render what the topics of a question show of it, by their slugs."""
    return {
        topic.slug: site.render_blocks(topic.page, question.slug, template, answer, topic.blocks)
        for topic in TOPICS
        if question.letter in topic.letters
    }


def list_members(topic: Topic, entries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the questions of a topic, as its template takes them, each with the `answers` that its page has of it: one,
    or of FP32 and of BF16. entries: of questions by letter, with title, slug, `parts` (of `render_in_topics`) and, if
    BF16 is recorded, `twin` with its parts."""
    members = []
    for entry in (entries[letter] for letter in topic.letters):
        parts = [("", entry["parts"][topic.slug])]
        if "twin" in entry and not topic.has_figures:
            parts = [("FP32", parts[0][1]), ("BF16", entry["twin"]["parts"][topic.slug])]
        members.append({**entry, "answers": parts})
    return members


def write_topic(site: Site, topic: Topic, template: str, members: Sequence[Mapping[str, Any]], **extra: Any) -> None:
    """Write the page of a topic. members: of `list_members`; extra: what else the template needs."""
    parts = [part for member in members for _, part in member["answers"]]
    shown = [
        {**member, "shown": [(state, Markup(part.markdown)) for state, part in member["answers"]]} for member in members
    ]
    site.write_with_parts(topic.page, template, NOTHING, parts, topic=topic, members=shown, **extra)
