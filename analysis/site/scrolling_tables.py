"""An extension of Python-Markdown: a table may be wider than a phone, so it scrolls in a box that the keyboard reaches.

Material would wrap tables by a script, in boxes that no key reaches.
"""

from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

AFTER_INLINE = 1
"""Priority: after inline markup (20), attributes (8) and the table of contents (5)."""


class WrapTables(Treeprocessor):  # type: ignore[misc]
    """Put each table into a box of its own, and number the boxes of a page."""

    def run(self, root: Element) -> None:
        parents = [(parent, table) for parent in root.iter() for table in parent if table.tag == "table"]
        for number, (parent, table) in enumerate(parents, start=1):
            box = Element(
                "div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": f"Table {number}"}
            )
            box.tail, table.tail = table.tail, None
            table.set("class", "plain")
            parent[list(parent).index(table)] = box
            box.append(table)


class ScrollingTables(Extension):  # type: ignore[misc]
    """Register the tree processor."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.treeprocessors.register(WrapTables(md), "scrolling_tables", AFTER_INLINE)


def makeExtension(**options: object) -> ScrollingTables:
    """Return the extension; Python-Markdown calls this by its name."""
    return ScrollingTables(**options)
