"""The error of what cannot be compared."""


class NotComparable(ValueError):
    """The message is one line: what cannot be compared, why, and what to do."""
