"""How fast the machine does what a change leads to: coefficients that were fitted to recorded pairs.

A group of operations takes, after a change, a sum of parts that each are known before it, with factors of 0 or more:

    time = f0 x its time before + f1 x FLOPs / measured peak + f2 x bytes / measured bandwidth + f3 x operations

Only factors that the recorded pairs back are not 0. They are fitted by least squares of relative errors.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).resolve().parent / "rates.json"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """times: factors of `features` by change, phase, leaf or class. launches: operations that a layer has more after a
    change. host: ns of the host for each operation, by phase. peaks: measured rates, as of a calibration. errors:
    measured over predicted of the pairs that these rates were developed on, each with the rates of the other sizes.
    tested: the same of predictions that were kept before they were measured, where no such pair has the run."""

    gpu: str
    peaks: Mapping[str, float]
    times: Mapping[str, Sequence[float]] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()
    tested: Sequence[Mapping[str, Any]] = ()
    made_from: Sequence[Mapping[str, Any]] = ()

    def time_ns(self, key: str, features: Sequence[float]) -> float:
        """Raises KeyError where no pair covers `key`."""
        return float(np.dot(self.times[key], features))


def load(file: Path = FILE) -> Rates:
    return Rates(**json.loads(file.read_text(encoding="utf-8")))


def save(rates: Rates, file: Path = FILE) -> None:
    file.write_text(json.dumps(round_numbers(asdict(rates)), indent=1) + "\n", encoding="utf-8")


def round_numbers(value: Any) -> Any:
    """Every number of a nest of mappings and lists to five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: round_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [round_numbers(inner) for inner in value]
    return value


def fit(features: Iterable[Sequence[float]], times: Iterable[float]) -> list[float]:
    """Factors of 0 or more that make `features` give `times`, least squares of relative errors. Factors that would be
    negative are left out, the most negative first."""
    target = np.asarray(list(times), float)
    rows = np.asarray(list(features), float) / target[:, None]
    used = [column for column in range(rows.shape[1]) if rows[:, column].any()]
    while used:
        # Columns of one size: otherwise lstsq takes the small ones for noise.
        scale = np.abs(rows[:, used]).max(axis=0)
        factors_of_used, *_ = np.linalg.lstsq(rows[:, used] / scale, np.ones(len(target)), rcond=1e-6)
        if (factors_of_used >= 0).all():
            factors = np.zeros(rows.shape[1])
            factors[used] = factors_of_used / scale
            return [float(factor) for factor in factors]
        used.pop(int(factors_of_used.argmin()))
    return [0.0] * rows.shape[1]
