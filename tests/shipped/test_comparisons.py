"""The comparisons between recordings that the shipped site has."""

import json
from collections import defaultdict

import pytest

from profiler_job.analysis.comparison.site_comparisons import make_comparisons
from profiler_job.analysis.pages import comparison as pages
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import comparison_pages
from profiler_job.analysis.site.combine import join_recordings
from profiler_job.analysis.site.site_writer import Site
from tests.page_words import NUMBER, count_words, read_first_words_of_part
from tests.shipped.recordings import MANIFESTS, RECORDINGS


def load_studies(wanted):
    recordings = defaultdict(list)
    for folder, file in zip(RECORDINGS, MANIFESTS):
        if (study := json.loads(file.read_text()).get("study", "")) in wanted:
            recordings[study].append(store.load(folder))
    every = [rec for of_study in recordings.values() for rec in of_study]
    return every, {study: join_recordings(of_study) for study, of_study in recordings.items()}


@pytest.mark.nightly
def test_the_shipped_site_compares_compiled_steps_and_no_repetition():
    recordings, studies = load_studies({"", "again", "trained"})
    assert set(make_comparisons(recordings, studies)) == {"trained-default"}


@pytest.mark.long
def test_every_pair_measured_by_turns_is_compared_in_few_words(tmp_path, undrawn):
    recordings, studies = load_studies({"trained"})
    comparison = make_comparisons(recordings, studies)["trained-default"]
    eager = studies["trained"].runs["compile"].astype(str) == "off"
    compiled = studies["trained"].runs["compile"].astype(str) == "default"
    assert len(comparison.pairs) == compiled.sum() and eager.sum() >= compiled.sum()
    assert all(pair.turns for pair in comparison.pairs)
    _, (sides,) = comparison_pages.assign_pages(studies["trained"], {"trained-default": comparison})
    for answer in (sides.said, *(pages.answer_pair(comparison, pair, sides.links) for pair in comparison.pairs)):
        site = Site(tmp_path, (), {}, ("size", "context_length"))
        part = site.render_part_of_page("report/comparison.md", "part", "comparison.md", answer)
        words = read_first_words_of_part(part.markdown)
        assert count_words(words) <= 150 and len(NUMBER.findall(words)) <= 10, words
    labels = [pair.case.label for pair in comparison.pairs]
    assert len({*labels}) == len(labels) and not any("train_step" in label for label in labels)
