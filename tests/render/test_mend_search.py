"""The theme's search, as it is installed, is mended; tests/browser/test_behaviour.py searches with it."""

from pathlib import Path
from types import SimpleNamespace

import material
import pytest
from mkdocs.exceptions import PluginError

from profiler_job.analysis.site import mend_search

SCRIPTS = Path("assets", "javascripts")
WORKER, BUNDLE = "workers/search.*.js", "bundle.*.js"


def installed(pattern: str) -> str:
    [path] = Path(material.__file__).parent.glob(f"templates/{SCRIPTS}/{pattern}")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def mend(tmp_path):
    """Mends a site whose worker and bundle are given, and gives both."""

    def mended(worker: str, bundle: str) -> list[str]:
        paths = [tmp_path / SCRIPTS / pattern.replace("*", "0.min") for pattern in (WORKER, BUNDLE)]
        for path, text in zip(paths, (worker, bundle)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        mend_search.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
        return [path.read_text(encoding="utf-8") for path in paths]

    return mended


def test_only_the_name_of_a_set_and_the_time_of_loading_are_changed(mend):
    before = installed(WORKER), installed(BUNDLE)
    worker, bundle = mend(*before)
    assert len(worker) == len(before[0]) + 4
    assert worker.replace('.id+","}return', ".id}return", 1) == before[0]
    marked = bundle.replace('&&new URLSearchParams(location.search).has("h")', "", 1)
    assert marked.replace('(!1),Je("search"))', '(location.protocol!=="file:"),Je("search"))', 1) == before[1]


@pytest.mark.parametrize(
    ("worker", "bundle", "said"),
    [
        ("no lunr here", None, r"search\.0\.min\.js: lunr's TokenSet"),
        (None, "another theme", r"bundle\.0\.min\.js: when the search loads its index"),
    ],
)
def test_another_search_fails_the_build(mend, worker, bundle, said):
    with pytest.raises(PluginError, match=said):
        mend(worker or installed(WORKER), bundle or installed(BUNDLE))


def test_a_search_that_lies_elsewhere_fails_the_build(tmp_path):
    with pytest.raises(PluginError, match="no worker where it was"):
        mend_search.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
