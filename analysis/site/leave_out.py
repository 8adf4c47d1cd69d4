"""A hook of MkDocs: what the theme brings and no reader of the site loads."""

import re
import shutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

KEPT = re.compile(r"(<(pre|textarea|script|style)\b.*?</\2>)", re.DOTALL)
"""Elements in which an indentation or an empty line is content."""
INDENTATION = re.compile(r"\s*\n\s*")


CELL_END = re.compile(r"</t[dh]>(?=<t[dh][ >]|</tr>)")
"""Where the next tag ends a cell anyway, in any browser."""

MENU_ENTRY = re.compile(r'<span class="md-ellipsis"> ([^<>]*) </span>')
"""What would cut off the name of an entry of the menu: names go on in the next line."""


def on_post_page(output: str, **_: object) -> str:
    """Indentation and empty lines of the theme's templates, which no browser shows: 1.6 kB of each page; the ends of
    cells that the next tag says, too: 1.1 MB of this site; and elements around names in the menu: 2.5 kB of each."""
    parts = KEPT.split(output)  # text, element, its name, text ...
    parts[::3] = [MENU_ENTRY.sub(r"\1", CELL_END.sub("", INDENTATION.sub("\n", text))) for text in parts[::3]]
    return "".join(part for at, part in enumerate(parts) if at % 3 < 2)


def on_post_build(config: MkDocsConfig) -> None:
    """Maps to the theme's sources, 1.2 MB, are of use only to who debugs its scripts; what searches other languages,
    0.9 MB, is never loaded by a site in English."""
    shutil.rmtree(Path(config.site_dir, "assets", "javascripts", "lunr"), ignore_errors=True)
    for path in Path(config.site_dir, "assets").rglob("*.map"):
        path.unlink()
