"""Numbers that sentences of several questions print, taken from the rows behind a claim."""

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics.differences import Bands, is_beyond_chance


def find_lowest(rows: pd.DataFrame, value: str) -> dict[str, Any]:
    """The row with the smallest `value`."""
    facts: dict[str, Any] = rows.loc[rows[value].idxmin()].to_dict()
    return facts


def find_highest(rows: pd.DataFrame, value: str) -> dict[str, Any]:
    """The row with the largest `value`."""
    facts: dict[str, Any] = rows.loc[rows[value].idxmax()].to_dict()
    return facts


def extremes(value: str) -> Callable[[pd.DataFrame], dict[str, Any]]:
    """Facts of a claim: `low` and `high`, the rows with the smallest and the largest `value`."""
    return lambda rows: {"low": find_lowest(rows, value), "high": find_highest(rows, value)}


def give_largest(value: str) -> Callable[[pd.DataFrame], dict[str, Any]]:
    """Facts of a claim: the row with the largest `value`."""
    return lambda rows: find_highest(rows, value)


def noise_of(bands: Bands | None) -> dict[str, Any] | None:
    """Facts about the noise bands; None if none is known."""
    if bands is None:
        return None
    return {"gpu": bands.gpu} | {
        kind: {"of_time": band.time_half, "of_parts": band.parts_half, "num_pairs": band.num_pairs}
        for kind, band in (("kernel", bands.kernel), ("wall", bands.wall))
    }


def many(every: pd.DataFrame) -> Callable[[pd.DataFrame], bool]:
    """Predicate of a claim on the rows of `every` that differ: more than chance calls different where none does."""
    return lambda rows: is_beyond_chance(len(rows), len(every))


def count_all(
    rows: pd.DataFrame, facts: Callable[[pd.DataFrame], dict[str, Any]] = lambda claimed: {}
) -> Callable[..., Any]:
    """Facts of a claim that holds of some of `rows`: how many these are (`num_all`), next to its other `facts`."""
    return lambda claimed: {"num_all": len(rows), **facts(claimed)}


def name_calibrated_gpu(calibration: pd.DataFrame) -> str:
    """The GPU that the peak rates were measured on; older recordings do not say."""
    return ", ".join(sorted(set(calibration["gpu_name"]) - {""})) or "GPU not recorded"


def span(values: pd.Series) -> tuple[float, float]:
    """The smallest and the largest of `values`, in their unit."""
    return values.min(), values.max()


def bound(value: float, step: float) -> float:
    """`value` rounded up to a multiple of `step`: what is at most that, is at most what is printed."""
    return math.ceil(value / step) * step


def ratios_of(ratios: pd.Series) -> str:
    """For the title of a figure, least and most: `2.38 to 2.84 times`."""
    return " to ".join(dict.fromkeys(f"{ratio:.3g}" for ratio in (ratios.min(), ratios.max()))) + " times"


def format_percent_span(shares: pd.Series) -> str:
    """For the title of a figure, least and most: `16% to 25%`, or one of them where they read alike."""
    return " to ".join(dict.fromkeys(f"{share:.0%}" for share in (shares.min(), shares.max())))
