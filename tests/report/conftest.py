"""The whole site, built once from a made-up recording."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import publish
from tests.synthetic import recording

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    rec = recording(("small", "2.7B"), (128, 512, 1024))
    for table in ("kernels", "ranges"):
        frame = getattr(rec, table)
        frame["run_id"] = frame["run_id"].astype("category")
    docs = folder / "docs"
    shutil.copytree(ROOT / "site", docs, ignore=shutil.ignore_patterns("data", "report", "index.md"))
    publish.write(rec, docs)
    config = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: site", f"docs_dir: {docs}")
    config = config.replace("custom_dir: ", f"custom_dir: {ROOT}/")
    config = config.replace("site_dir: build/html", f"site_dir: {folder / 'html'}")
    (folder / "mkdocs.yml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(folder / "mkdocs.yml")],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"
