"""A hook of MkDocs: what the theme brings and no reader of the site loads."""

import shutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig


def on_post_build(config: MkDocsConfig) -> None:
    """Maps to the theme's sources, 1.2 MB, are of use only to who debugs its scripts; what searches other languages,
    0.9 MB, is never loaded by a site in English."""
    shutil.rmtree(Path(config.site_dir, "assets", "javascripts", "lunr"), ignore_errors=True)
    for path in Path(config.site_dir, "assets").rglob("*.map"):
        path.unlink()
