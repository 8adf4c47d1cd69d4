"""Words that messages and columns share."""

import math

NOT_MEASURED = "not_measured"
"""Column with the reason why other cells of a row are empty ("" in a measured row)."""


def inflect(number: float, noun: str) -> str:
    """Return the noun that follows a number: `run` after 1; `runs`, `passes`, `breaches`, `entries` and `studies` after
    others."""
    if number == 1:
        return noun
    if noun.endswith(("ry", "dy")):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 run`, `2 runs`."""
    return f"{number:,} {inflect(number, noun)}"


def format_parameters(number: float) -> str:
    """Format the parameters of a model with two digits, and all before the point: `0.97B`."""
    shown, unit = (number / 1e9, "B") if number >= 1e8 else (number / 1e6, "M")
    return (f"{shown:#.2g}" if shown < 9.95 else f"{shown:.0f}") + unit


def name_model(size: str, num_parameters: float) -> str:
    """Name a model with its parameters, if they are known and the name has others: `large (0.97B)`, `1.3B`."""
    parameters = "" if math.isnan(num_parameters) or not num_parameters else format_parameters(num_parameters)
    is_said = size.endswith((parameters, parameters.replace(".0", "")))  # 8B
    return size if is_said else f"{size} ({parameters})"
