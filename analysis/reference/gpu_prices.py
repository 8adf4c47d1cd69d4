"""What GPUs cost for an hour, from `gpu_prices.toml`, and what tokens cost with that."""

import tomllib
from datetime import date
from functools import cache
from importlib import resources
from typing import NamedTuple

from profiler_job.analysis.reference import gpus


class GpuPrice(NamedTuple):
    """Price of one GPU in US dollars an hour. vendor, source, read: who asks it, on which page, and the day on which
    that was read; empty if a user gave the price."""

    usd_per_hour: float
    vendor: str = ""
    source: str = ""
    read: date | None = None

    def compute_usd_per_million(self, tokens_per_s: float) -> float:
        """Return what a million tokens cost on one GPU."""
        return self.usd_per_hour / 3600 / tokens_per_s * 1e6

    def describe(self) -> str:
        """Return the price and its source, in one line."""
        price = f"{self.usd_per_hour:.2f} USD an hour"
        return f"{price}, as given" if self.read is None else f"{price} ({self.vendor}, {self.source}, {self.read})"


@cache
def load_prices() -> dict[str, GpuPrice]:
    """Load the prices by the key of the GPU."""
    text = resources.files(__package__).joinpath("gpu_prices.toml").read_text(encoding="utf-8")
    return {row.pop("gpu"): GpuPrice(**row) for row in tomllib.loads(text)["price"]}


def find_price(gpu_name: str) -> GpuPrice | None:
    """Find the price of the GPU that nvidia-smi calls `gpu_name`; None if it is not listed."""
    gpu = gpus.lookup(gpu_name)
    return load_prices().get(gpu.key) if gpu else None
