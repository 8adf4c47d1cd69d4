"""Words that messages and columns share."""

NOT_MEASURED = "not_measured"
"""Column with the reason why other cells of a row are empty ("" in a measured row)."""


def inflect(number: float, noun: str) -> str:
    """Return the noun that follows a number: `run` after 1; `runs`, `passes`, `breaches` and `entries` after others."""
    if number == 1:
        return noun
    if noun.endswith("ry"):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 run`, `2 runs`."""
    return f"{number:,} {inflect(number, noun)}"
