"""Hooks of MkDocs: in a fresh clone no report has been written yet, and `mkdocs serve` alone is to show it; pages get
their figures, and lose the blank lines of the theme."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.pages import Page

from profiler_job.analysis.site.page_figures import show_figures

_INDENT = re.compile(r"\n\s+")


def on_config(config: MkDocsConfig) -> None:
    """Write the report of the recordings in the docs, where there is none. Raises RecordingError."""
    docs = Path(config.docs_dir)
    if not (docs / "index.md").exists():
        from profiler_job.analysis.site import write_site  # pandas and all: of no use to a build whose report is there

        get_plugin_logger("report").info("writing the report of the recordings first (a few minutes)")
        write_site.publish(write_site.recordings_in(docs / "data"), docs)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Return the Markdown of a page with its figures as the site shows them."""
    return show_figures(
        markdown, Path(config.docs_dir), page.file.src_uri, is_question=page.meta.get("shape") == "question"
    )


def on_post_page(output: str, **_: Any) -> str:
    """Return the HTML of a page without the indents and blank lines around its article, 2.5 KB of the theme's."""
    before, article, rest = output.partition("<article")
    content, end, after = rest.partition("</article>")
    return "".join([_INDENT.sub("\n", before), article, content, end, _INDENT.sub("\n", after)])
