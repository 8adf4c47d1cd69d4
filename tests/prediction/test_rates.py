import pytest

from profiler_job.analysis.prediction import rates


def test_factors_are_what_the_times_were_made_of():
    features = [(1.0, 10.0), (2.0, 5.0), (4.0, 1.0)]
    assert rates.fit(features, [2 * a + 0.5 * b for a, b in features]) == pytest.approx([2, 0.5])


def test_no_factor_is_negative():
    assert rates.fit([(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)], [1.0, 3.0, 5.0])[1] == 0


def test_what_tells_nothing_has_the_factor_0():
    assert rates.fit([(1.0, 0.0), (2.0, 0.0)], [3.0, 6.0]) == pytest.approx([3, 0])


def test_rates_are_read_as_they_were_written(tmp_path):
    rates.save(rates.load(), tmp_path / "rates.json")
    assert rates.load(tmp_path / "rates.json") == rates.load()
