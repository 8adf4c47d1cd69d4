"""Words of messages."""


def noun_of(number: float, noun: str) -> str:
    """The noun as it stands behind a number: `run` behind 1, `runs`, `passes` and `breaches` behind others."""
    return noun if number == 1 else f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 run`, `2 runs`."""
    return f"{number} {noun_of(number, noun)}"
