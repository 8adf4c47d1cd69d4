"""What pydantic found wrong, in the words of this program's messages."""

from pydantic import ValidationError


def describe_invalid(error: ValidationError) -> tuple[str, str]:
    """Return the key of the first problem, with dots, "" for the whole, and what is wrong with it."""
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), format_problem(first["msg"])


def format_problem(message: str) -> str:
    """Return a message of pydantic without its own prefixes: "should be a valid integer"."""
    for prefix in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(prefix)
    return message.replace("Input should be", "should be")
