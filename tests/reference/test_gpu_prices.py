"""Prices of GPUs have a source and a day, and price tokens."""

from datetime import date

import pytest

from profiler_job.analysis.reference.gpu_prices import GpuPrice, find_price, load_prices
from profiler_job.analysis.reference.gpus import GPUS


@pytest.mark.parametrize("key", load_prices())
def test_a_price_is_of_a_known_gpu_and_has_a_source_and_a_day(key):
    price = load_prices()[key]
    assert key in {gpu.key for gpu in GPUS}
    assert 0.05 < price.usd_per_hour < 20 and price.vendor and price.source.startswith("https://")
    assert date(2026, 1, 1) <= price.read <= date(2030, 1, 1)
    assert str(price.read) in price.describe() and price.source in price.describe()


def test_a_gpu_is_found_by_its_name():
    assert find_price("NVIDIA H100 80GB HBM3") == load_prices()["H100 SXM5"]
    assert find_price("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None and find_price("") is None


def test_tokens_are_priced():
    assert GpuPrice(3.6).compute_usd_per_million(1000) == pytest.approx(1.0)
    assert GpuPrice(2.5).describe() == "2.50 USD an hour, as given"
