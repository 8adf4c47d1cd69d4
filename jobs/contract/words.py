"""Words of messages, and of columns that say them."""

NOT_MEASURED = "not_measured"
"""Column that says why the other cells of a row are empty ("" in a measured row)."""


def inflect(number: float, noun: str) -> str:
    """The noun as it stands behind a number: `run` behind 1, `runs`, `passes`, `breaches` and `entries` behind
    others."""
    if number == 1:
        return noun
    if noun.endswith("ry"):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def format_count(number: int, noun: str) -> str:
    """A number with its noun: `1 run`, `2 runs`."""
    return f"{number} {inflect(number, noun)}"
