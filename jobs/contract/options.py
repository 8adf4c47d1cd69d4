"""Options of a workload, as text: `width=64, dropout=0.1`.

The text is a column, a part of the run id and a label of pages; the worker reads it back. Numbers, true and false are
written as in JSON, words as they are. It needs the standard library alone, since the worker has nothing else.
"""

import json
import re
from collections.abc import Mapping

Option = bool | int | float | str

WORD = r"[A-Za-z_][A-Za-z0-9._]*"
"""Pattern of a text value: it becomes a part of a run id, whose parts a dash joins."""


def format_options(options: Mapping[str, Option]) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()
    )


def parse_options(text: str) -> dict[str, Option]:
    """Parse the options that `format_options` wrote."""
    pairs = (part.partition("=") for part in text.split(", ") if part)
    return {name: _parse_value(value) for name, _, value in pairs}


def _parse_value(text: str) -> Option:
    is_word = re.fullmatch(WORD, text) and text not in ("true", "false")
    return text if is_word else json.loads(text)


def build_token(text: str) -> str:
    """Return the options as part of a run id: width64-dropout0.1."""
    return text.replace("=", "").replace(", ", "-")
