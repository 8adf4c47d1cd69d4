"""Hooks of MkDocs: in a fresh clone no report has been written yet, and `mkdocs serve` alone is to show it; pages get
their figures, templates leave no blank lines, and files of the theme that no page loads are left out."""

import shutil
from pathlib import Path
from typing import Any

from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.pages import Page

from profiler_job.analysis.site.page_figures import show_figures


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


def on_post_build(config: MkDocsConfig) -> None:
    """Remove what the theme brings for those who change it, and for searches in other languages: 2.2 MB."""
    assets = Path(config.site_dir) / "assets"
    for file in assets.rglob("*.map"):
        file.unlink()
    shutil.rmtree(assets / "javascripts" / "lunr", ignore_errors=True)


def on_env(env: Environment, **_: Any) -> None:
    """Leave the lines of the theme's tags out of pages: 1.3 KB of each."""
    env.trim_blocks = env.lstrip_blocks = True
