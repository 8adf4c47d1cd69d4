"""The comparisons between recordings that the shipped site has."""

import json

import pytest

from profiler_job.analysis.comparison.site_comparisons import make_comparisons
from profiler_job.analysis.recording import store
from tests.shipped.recordings import MANIFESTS, RECORDINGS


@pytest.mark.nightly
def test_the_shipped_site_compares_precisions_compiled_steps_and_no_repetition():
    manifests = [json.loads(file.read_text()) for file in MANIFESTS]
    wanted = {"", "again", "precision", "trained"}
    recordings = [store.load(folder) for folder, of in zip(RECORDINGS, manifests) if of.get("study", "") in wanted]
    assert set(make_comparisons(recordings)) == {"precision-bf16", "trained_1-default"}
