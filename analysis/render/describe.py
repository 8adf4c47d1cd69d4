"""A hook of MkDocs: what a search engine or a chat shows of a page."""

import html
import re
import textwrap

from mkdocs.structure.pages import Page

LONGEST = 200
PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)


def on_page_content(content: str, page: Page, **_: object) -> None:
    """Shorten the description of the page, and escape it, which the theme does not. A page without gets its title and
    its first paragraph."""
    said = page.meta.get("description")
    if not said:
        paragraph = PARAGRAPH.search(content)
        said = html.unescape(re.sub("<[^>]+>", "", f"{page.title}: {paragraph[1]}" if paragraph else str(page.title)))
    page.meta["description"] = html.escape(textwrap.shorten(said, LONGEST, placeholder=" …"))
