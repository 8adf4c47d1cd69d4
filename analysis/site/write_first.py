"""Hooks of MkDocs: in a fresh clone no report has been written yet, and `mkdocs serve` alone is to show it; pages get
their figures, templates leave no blank lines, files of the theme that no page loads are left out, and rows that
several figures have are published once."""

import hashlib
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from profiler_job.analysis.site.page_figures import show_figures

INSTALL = re.compile(r"uv tool install (?P<options>.*)'\.(?P<extras>\[\S+\])'  # in a clone of this repository")
"""How the guides install the program: as the README does. If the address of the repository is known when the site is
built, no clone is needed."""
NAME = "profiler-job"
ROWS = re.compile(r"report/csv/([^/]+)/[^/]+\.csv")
"""The rows of a figure, in the folder of the page of this name."""
ROWS_LINK = re.compile(r'(?P<before>href="|\]\()(?P<link>[^")\s]+\.csv)(?P<end>" download)?')
PUBLISHED_AS: dict[str, str] = {}
"""Paths of rows that are published by another path, which has the same."""


def on_config(config: MkDocsConfig) -> None:
    """Write the report of the recordings in the docs, where there is none. Raises RecordingError."""
    docs = Path(config.docs_dir)
    if not (docs / "index.md").exists():
        from profiler_job.analysis.site import write_site  # pandas and all: of no use to a build whose report is there

        get_plugin_logger("report").info("writing the report of the recordings first (a few minutes)")
        write_site.publish(write_site.recordings_in(docs / "data"), docs)


def on_files(files: Files, **_: Any) -> Files:
    """Leave out rows that another figure has, too: the rows of a sentence are often a table on the same page. It saves
    0.7 MB."""
    PUBLISHED_AS.clear()
    known: dict[bytes, str] = {}
    for file in sorted(files, key=lambda file: file.src_uri):
        rows = ROWS.fullmatch(file.src_uri)
        if rows and files.get_file_from_path(f"report/{rows[1]}.md"):
            first = known.setdefault(hashlib.sha256(file.content_bytes).digest(), file.src_uri)
            if first != file.src_uri:
                PUBLISHED_AS[file.src_uri] = first
                files.remove(file)
    return files


def write_install(line: re.Match[str], address: str) -> str:
    """Write the command that installs the program from its repository; as it is if `address` is ""."""
    return f"uv tool install {line['options']}'{NAME}{line['extras']} @ git+{address}'" if address else line[0]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Return the Markdown of a page with its figures as the site shows them, and the address to install from."""
    markdown = INSTALL.sub(lambda line: write_install(line, config.extra["repository"]), markdown)
    path = page.file.src_uri
    shown = show_figures(markdown, Path(config.docs_dir), path, is_question=page.meta.get("shape") == "question")
    return link_published(shown, posixpath.dirname(path))


def link_published(markdown: str, folder: str) -> str:
    """Return the Markdown of a page in this folder with links to the rows that are published; a file keeps its name
    when it is saved."""

    def link(rows: re.Match[str]) -> str:
        path = PUBLISHED_AS.get(posixpath.normpath(posixpath.join(folder, rows["link"])))
        if not path:
            return rows[0]
        name = f'="{posixpath.basename(rows["link"])}"' if rows["end"] else ""
        return f"{rows['before']}{posixpath.relpath(path, folder or '.')}{rows['end'] or ''}{name}"

    return ROWS_LINK.sub(link, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove what the theme brings for those who change it, and for searches in other languages: 2.2 MB."""
    assets = Path(config.site_dir) / "assets"
    for file in assets.rglob("*.map"):
        file.unlink()
    shutil.rmtree(assets / "javascripts" / "lunr", ignore_errors=True)


def on_env(env: Environment, **_: Any) -> None:
    """Leave the lines of the theme's tags out of pages: 1.3 KB of each."""
    env.trim_blocks = env.lstrip_blocks = True
