"""The version of the JSON that commands print."""

from collections.abc import Mapping
from typing import Any

FORMAT_VERSION = 2
"""Version of all JSON output. It rises when a key is renamed or removed, or changes its meaning; new keys keep it."""


def add_format_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with `format_version` as its first key."""
    return {"format_version": FORMAT_VERSION} | dict(content)
