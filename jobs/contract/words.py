"""Words of messages."""


def counted(number: int, noun: str, plural: str = "s") -> str:
    """A number with its noun: `1 run`, `2 runs`; `plural` is the ending."""
    return f"{number} {noun}{'' if number == 1 else plural}"
