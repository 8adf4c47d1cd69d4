"""A part of a page as HTML in a file of its own, for a script that shows the part that a reader chooses.

The file is a script that calls a function: a page that was opened from a file may load a script, and may not fetch.
"""

import json
import re

import markdown

from profiler_job.analysis.site.page_figures import place_figures
from profiler_job.analysis.site.site_writer import Part

EXTENSIONS = (
    "attr_list",
    "md_in_html",
    "tables",
    f"{__package__}.raw_figures",
    f"{__package__}.scrolling_tables",
)
"""Those of mkdocs.yml that parts need."""
_PAGE = re.compile(r'href="(?![a-z]+:)([^"#?]*)\.md([#?][^"]*)?"')


def to_html(part: Part) -> str:
    """Return the HTML of a part, as the page that has it would show it."""
    shown = markdown.markdown(place_figures(part.markdown, part.figures, False), extensions=list(EXTENSIONS))
    return _PAGE.sub(r'href="\1.html\2"', shown)


def to_script(function: str, **values: object) -> bytes:
    """Return a script that calls `function` with an object of the values."""
    return f"{function}({json.dumps(values, ensure_ascii=False)});\n".encode()


def to_redirect(address: str) -> bytes:
    """Return a page that leads on to an address, which holds no character that HTML would read."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>This page has moved</title>'
        f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">This page has moved</a></html>\n'
    ).encode()
