"""Quantities as text: one choice of unit and digits for terminals, pages, charts and messages.

A quantity alone gets the unit that suits it and three digits. Several that are read together, as in a column, get one
form: the unit of the largest, and decimals that leave three digits to the smallest.
"""

import math
import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

Kind = Literal[
    "time",
    "bytes",
    "share",
    "count",
    "number",
    "ratio",
    "bytes/s",
    "FLOP/s",
    "FLOP",
    "FLOP/byte",
    "W",
    "J",
    "Hz",
    "tokens/s",
    "USD",
]

DIGITS = 3
"""Significant digits of a quantity, at least; digits before the decimal point are all kept."""
MOST_DECIMALS = 3
PRICE_DECIMALS = 6
"""Most decimals of prices: those of a token are small."""
WHOLE_COUNTS = 10_000
"""Means of counts have a decimal; those that reach this have none."""
UNITS: dict[Kind, dict[str, float]] = {
    "time": {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0},
    "bytes": {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "B": 1.0},
    "share": {"%": 0.01},
    "count": {"": 1.0},
    "number": {"": 1.0},
    "ratio": {"×": 1.0},
    "bytes/s": {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0},
    "FLOP/s": {"TFLOP/s": 1e12, "GFLOP/s": 1e9, "MFLOP/s": 1e6, "FLOP/s": 1.0},
    "FLOP": {"TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6, "FLOP": 1.0},
    "FLOP/byte": {"FLOP/byte": 1.0},
    "W": {"W": 1.0, "mW": 1e-3},
    "J": {"kJ": 1e3, "J": 1.0, "mJ": 1e-3},
    "Hz": {"MHz": 1e6, "Hz": 1.0},
    "tokens/s": {"tokens/s": 1.0},
    "USD": {"USD": 1.0},
}
"""The units of each kind, the largest first, and their size. Times are nanoseconds inside, shares fractions of 1."""
BASE_UNITS: dict[Kind, str] = {"time": "ns", "bytes": "bytes", "share": "fraction", "bytes/s": "bytes/s"}
"""The units of values in files, if they differ from the kind's name."""
_SPELLINGS = {"us": "µs"}
_ATTACHED = ("%", "×")
"""Units without a space before them."""
_QUANTITY = re.compile(r"\s*([<+-]?)(\d[\d,]*(?:\.\d*)?|\.\d+)\s*(\S*)\s*")


class Form(NamedTuple):
    """How quantities are written: the unit, its size in base units, and the number of decimals."""

    unit: str
    size: float
    decimals: int


MILLISECONDS = Form("ms", UNITS["time"]["ms"], MOST_DECIMALS)
"""The form of parts of a step, which are seen to sum."""


def choose_form(kind: Kind, values: Iterable[float], unit: str = "") -> Form:
    """Choose one form for all `values`, in base units. unit: one that a heading already gives."""
    known = [abs(value) for value in values if value and math.isfinite(value)]
    units = UNITS[kind]
    unit = unit or _choose_unit(units, max(known, default=0.0))
    size = units[unit]
    if kind == "share":
        return Form(unit, size, 1)
    if kind == "tokens/s":
        return Form(unit, size, 0)
    if kind == "count":
        is_whole = all(value.is_integer() for value in map(float, known)) or max(known) >= WHOLE_COUNTS
        return Form(unit, size, 0 if is_whole else 1)
    if kind == "USD":
        return Form(unit, size, choose_decimals(known, PRICE_DECIMALS))
    is_smallest = len(units) > 1 and unit == [*units][-1]
    if is_smallest and all(float(value).is_integer() for value in known):
        return Form(unit, size, 0)  # whole nanoseconds and bytes
    return Form(unit, size, choose_decimals(value / size for value in known))


def choose_decimals(values: Iterable[float], most: int = MOST_DECIMALS) -> int:
    """Choose the decimals that leave DIGITS to the smallest value, `most` at most; 0 without values."""
    smallest = min((abs(value) for value in values if value and math.isfinite(value)), default=0.0)
    if not smallest:
        return 0
    return min(most, max(0, DIGITS - 1 - math.floor(math.log10(_round_to_digits(smallest)))))


def _choose_unit(units: dict[str, float], largest: float) -> str:
    """Choose the largest unit in which a value reads as 1 or more; of nothing the smallest, of 0 the smallest that is
    no fraction of the base unit."""
    if not largest:
        return next((unit for unit, size in units.items() if size == 1), next(iter(units)))
    return next((unit for unit, size in units.items() if _round_to_digits(largest / size) >= 1), [*units][-1])


def _round_to_digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def format_number(value: float, decimals: int) -> str:
    """Format a number with thousands separated and without a negative zero."""
    return f"{value:z,.{decimals}f}"


def format_quantity(kind: Kind, value: float, form: Form | None = None, *, is_signed: bool = False) -> str:
    """Format a quantity given in base units. form: the one of all quantities that are read together. is_signed: a
    change, with its sign. A share that is not 0 but would read so is `<0.1%`."""
    unit, size, decimals = form or choose_form(kind, [value])
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if kind == "share" and not is_signed and 0 < value < 0.5 * 10.0**-decimals * size:
        return f"<{10.0**-decimals:.{decimals}f}%"
    text = format_number(value / size, decimals)
    if is_signed and value > 0:
        text = f"+{text}"
    return f"{text}{'' if unit in _ATTACHED or not unit else ' '}{unit}"


def format_quantities(kind: Kind, *values: float) -> list[str]:
    """Format quantities that are read together, all in one form."""
    form = choose_form(kind, values)
    return [format_quantity(kind, value, form) for value in values]


def format_time(ns: float) -> str:
    return format_quantity("time", ns)


def format_rounded(kind: Kind, value: float, unit: str = "") -> str:
    """Format a quantity with two significant digits, and all digits before the point. unit: one that is given."""
    units = UNITS[kind]
    unit = unit or _choose_unit(units, value)
    scaled = abs(value) / units[unit]
    decimals = max(0, 1 - math.floor(math.log10(float(f"{scaled:.2g}")))) if scaled else 0
    return format_quantity(kind, value, Form(unit, units[unit], min(decimals, 2 * MOST_DECIMALS)))


def format_thousands(value: float) -> str:
    """Format a rate with three digits: `17.9k`, `17.0k`."""
    scaled, unit = (value / 1e3, "k") if value >= 1e3 else (value, "")
    rounded = _round_to_digits(scaled)
    decimals = choose_decimals([rounded]) if unit or not rounded.is_integer() else 0
    return f"{rounded:.{decimals}f}{unit}"


def format_size(num_bytes: float) -> str:
    return format_quantity("bytes", num_bytes)


def format_share(fraction: float, decimals: int = 1) -> str:
    """Format a share. Each is rounded by itself, so that it reads alike wherever it appears: the shares of a whole may
    read as 99% or 101% together."""
    return format_quantity("share", fraction, Form("%", 0.01, decimals))


def format_relative_change(fraction: float) -> str:
    """Format a relative change, with its sign."""
    return format_quantity("share", fraction, is_signed=True)


def parse_quantity(kind: Kind, text: str) -> float:
    """Parse what a quantity reads as, and what users write (`3%`, `250us`, `1.5 GiB`); return it in base units. Raises
    ValueError for another text or unit."""
    match = _QUANTITY.fullmatch(text.replace("\u2212", "-").replace("\u202f", " "))
    unit = _SPELLINGS.get(match[3], match[3]) if match else ""
    if not match or unit not in UNITS[kind]:
        raise ValueError(f"{text!r} is not a {kind} in {', '.join(UNITS[kind])}")
    value = float(match[2].replace(",", "")) * UNITS[kind][unit]
    return -value if match[1] == "-" else value
