"""The pages of topics, which have a part of the page of each of their questions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from markupsafe import Markup

from profiler_job.analysis.pages.question import Question
from profiler_job.analysis.pages.topics import TOPICS, Topic
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.site.page_context import NOTHING, join_versions
from profiler_job.analysis.site.site_writer import Part, Site


class StateAnswer(NamedTuple):
    """An answer to a question. label: which runs it is of, if there are several answers. state: in which it is shown on
    a page with a switch; "" if in all that have no answer of their own."""

    label: str
    state: str
    part: Part


def render_in_topics(site: Site, question: Question, template: str, answer: Answer) -> dict[str, Part]:
    """Render what the topics of a question show of it, by their slugs."""
    return {
        topic.slug: render_in_topic(site, topic, question, template, answer)
        for topic in TOPICS
        if question.letter in topic.letters
    }


def render_in_topic(site: Site, topic: Topic, question: Question, template: str, answer: Answer) -> Part:
    """Render what a topic shows of a question."""
    return site.render_blocks(topic.page, question.slug, template, answer, topic.blocks)


def list_members(topic: Topic, entries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the questions of a topic, as its template takes them, each with its `letter` and the `answers` that its page
    has of it: one. entries: of questions by letter, with title, slug and `parts` (of `render_in_topics`)."""
    return [
        {**entries[letter], "letter": letter, "answers": [StateAnswer("", "", entries[letter]["parts"][topic.slug])]}
        for letter in topic.letters
    ]


def write_topic(
    site: Site,
    topic: Topic,
    template: str,
    members: Sequence[Mapping[str, Any]],
    names: Sequence[str] = (),
    **extra: Any,
) -> None:
    """Write the page of a topic. members: of `list_members`; names: of the states that its switch has, in order;
    extra: what else the template needs."""
    parts = [answer.part for member in members for answer in member["answers"]]
    shown = [{**member, "shown": _place_answers(member["answers"], names)} for member in members]
    versions = [member["recording"] for member in members if member.get("recording")]
    if versions:  # the foot names the recordings of the figures
        site = replace(site, recording=join_versions(versions))
    site.write_with_parts(topic.page, template, NOTHING, parts, topic=topic, members=shown, **extra)


def _place_answers(answers: Sequence[StateAnswer], states: Sequence[str]) -> list[dict[str, Any]]:
    """The label and the Markdown of each answer, and the `places` of the states that it is shown in, counted from 1;
    none if it always is."""
    own = {answer.state for answer in answers}
    shown = []
    for answer in answers:
        known = [answer.state] if answer.state else [state for state in states if state not in own]
        places = [] if len(known) == len(states) else [at for at, state in enumerate(states, 1) if state in known]
        shown.append({"label": answer.label, "markdown": Markup(answer.part.markdown), "places": places})
    return shown
