"""Two recordings of one program from two sessions are called the same, as `compare` itself judges them."""

import pytest

from profiler_job.analysis.comparison import gate, judge, noise, print_comparison
from tests.shipped.recordings import locate


@pytest.mark.long
@pytest.mark.parametrize("other", ["again", "h200-fp32"])
def test_repetitions_of_one_session_make_no_band_narrower_than_that_between_sessions(other, monkeypatch):
    """Of one of both there are 20 pairs of repetitions."""
    request = print_comparison.Request(first=locate("warm_up"), second=locate(other), conditions=["step > 5%"])
    made = print_comparison.load(request)
    assert made.noise_source.startswith(judge.STEPS_OF_RUN)
    assert (
        "20 pairs of repetitions within A and B, each of one session, and of h200-fp32 and again" in made.noise_source
    )
    shipped = judge.compare(made.first, made.second, noise.SHIPPED, made.alignment)
    for pair, by_shipped in zip(made.pairs, shipped.pairs, strict=True):
        for metric, judged in pair.judgements.items():
            if metric == "throughput":
                continue  # the step in other words
            assert judged.band >= by_shipped.judgements[metric].band
            assert not judged.is_real, (metric, judged.share)
    monkeypatch.setattr(print_comparison, "load", lambda _: made)  # which takes as long again
    assert print_comparison.run(request, lambda _: None, lambda _: None) == gate.UNKNOWN
