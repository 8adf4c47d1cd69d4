"""`mkdocs serve` alone shows the report, in a fresh clone, too."""

from types import SimpleNamespace

import pytest
from jinja2 import Environment

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.site import write_first, write_site
from tests.page_words import read_page
from tests.synthetic import recording


@pytest.fixture
def config(tmp_path):
    """Of docs that hold a recording and no report."""
    made = recording(("small",), (128,), num_timed=2, num_profiled=1)
    store.write(tmp_path / "data" / "one", {name: getattr(made, name) for name in table_schema.TABLES}, made.manifest)
    return SimpleNamespace(docs_dir=str(tmp_path))


@pytest.mark.long
def test_where_no_report_was_written_it_is_written_first(config, tmp_path):
    write_first.on_config(config)
    assert "# Where does your GPU's time go?" in read_page(tmp_path / "index.md")
    assert (tmp_path / "report" / "bounds.md").exists()


def test_a_report_that_is_there_stays(config, tmp_path, monkeypatch):
    (tmp_path / "index.md").write_text("mine")
    monkeypatch.setattr(write_site, "publish", None)
    write_first.on_config(config)
    assert read_page(tmp_path / "index.md") == "mine"


def test_tags_of_templates_leave_no_lines():
    env = Environment()
    write_first.on_env(env)
    template = "<nav>\n  {% if link %}\n    <a>\n  {% endif %}\n</nav>{{ article }}"
    article = "<pre>\n    a\n\n    b</pre>"
    assert env.from_string(template).render(link=True, article=article) == f"<nav>\n    <a>\n</nav>{article}"
