"""Builds the site the way `make site` does, from any recording, below any base path, into any folder."""

import logging
import shutil
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

from analysis import write_site
from tests.browser.serving import BASE_PATH
from tests.synthetic import recording as made_up

SITE_URL = f"https://example.org{BASE_PATH}"
ROOT = Path(__file__).parents[1]
GENERATED = ("report", "index.md")


def build_site(folder: Path, recording=None, site_url: str = "", config: str = "mkdocs.yml", compared=None) -> Path:
    """Build the site below `folder` and give the folder of its HTML. Without a `recording`, those in site/data are
    rendered. compared: a comparison that has pages, too. Raises SystemExit or mkdocs's Abort where a strict build has a
    warning."""
    docs, html = folder / "docs", folder / "html"
    left_out = GENERATED if recording is None else (*GENERATED, "data")
    shutil.copytree(ROOT / "site", docs, ignore=shutil.ignore_patterns(*left_out))
    if recording is None:
        write_site.publish(write_site.recordings_in(docs / "data"), docs, compared)
    else:
        write_site.write(recording, docs, compared=compared)
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    loaded = load_config(str(ROOT / config), docs_dir=str(docs), site_dir=str(html), site_url=site_url, strict=True)
    loaded.plugins.run_event("startup", command="build", dirty=False)
    try:
        build(loaded)
    finally:
        loaded.plugins.run_event("shutdown")
    return html


def build_small_site(folder: Path) -> Path:
    """As `build_site`, of a made-up recording, which takes a tenth of the time of the shipped ones."""
    rec = made_up(("small", "2.7B"), (128, 512, 1024))
    for table in ("kernels", "ranges"):
        frame = getattr(rec, table)
        frame["run_id"] = frame["run_id"].astype("category")
    return build_site(folder, rec, site_url=SITE_URL)
