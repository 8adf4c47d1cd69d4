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
    """List the questions of a topic, as its template takes them. entries: of questions by letter, with title, slug and
    `parts` (of `render_in_topics`)."""
    return [{**entries[letter], "part": entries[letter]["parts"][topic.slug]} for letter in topic.letters]


def write_topic(site: Site, topic: Topic, template: str, members: Sequence[Mapping[str, Any]], **extra: Any) -> None:
    """Write the page of a topic. members: of `list_members`; extra: what else the template needs."""
    parts = [member["part"] for member in members]
    shown = [{**member, "shown": Markup(member["part"].markdown)} for member in members]
    site.write_with_parts(topic.page, template, NOTHING, parts, topic=topic, members=shown, **extra)
