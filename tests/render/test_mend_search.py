"""The theme's search, as it is installed, is mended; tests/browser/test_behaviour.py searches with it."""

from pathlib import Path
from types import SimpleNamespace

import material
import pytest
from mkdocs.exceptions import PluginError

from analysis.render import mend_search

WORKERS = Path("assets", "javascripts", "workers")


def mend(folder: Path, text: str) -> str:
    path = folder / WORKERS / "search.0.min.js"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    mend_search.on_post_build(SimpleNamespace(site_dir=str(folder)))
    return path.read_text(encoding="utf-8")


def test_only_the_name_of_a_set_is_changed(tmp_path):
    [installed] = Path(material.__file__).parent.glob(f"templates/{WORKERS}/search.*.js")
    text = installed.read_text(encoding="utf-8")
    mended = mend(tmp_path, text)
    assert len(mended) == len(text) + 4
    assert mended.replace('.id+","}return', ".id}return", 1) == text


def test_another_search_fails_the_build(tmp_path):
    with pytest.raises(PluginError, match=r"search\.0\.min\.js: lunr's TokenSet"):
        mend(tmp_path, "no lunr here")


def test_a_search_that_lies_elsewhere_fails_the_build(tmp_path):
    with pytest.raises(PluginError, match="no worker where it was"):
        mend_search.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
