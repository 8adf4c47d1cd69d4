"""`mkdocs serve` alone shows the report, in a fresh clone, too."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import Environment
from mkdocs.structure.files import File, Files

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.site import write_first, write_site
from tests.page_words import read_page
from tests.synthetic import recording

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("address", ["https://example.org/one/tool", ""])
@pytest.mark.parametrize("name", ["profile", "rented"])
def test_guides_name_the_repository_where_it_is_known(config, address, name):
    config.extra = {"repository": address}
    page = SimpleNamespace(file=SimpleNamespace(src_uri=f"guide/{name}.md"), meta={})
    words = (ROOT / "site" / "guide" / f"{name}.md").read_text()
    install = next(line for line in write_first.on_page_markdown(words, page, config).splitlines() if "uv tool" in line)
    assert "URL" not in install, "a placeholder looks like code"
    of_clone = next(line for line in (ROOT / "README.md").read_text().splitlines() if "uv tool" in line)
    assert install.endswith(f"'profiler-job[site] @ git+{address}'") if address else install == of_clone


def test_tags_of_templates_leave_no_lines():
    env = Environment()
    write_first.on_env(env)
    template = "<nav>\n  {% if link %}\n    <a>\n  {% endif %}\n</nav>{{ article }}"
    article = "<pre>\n    a\n\n    b</pre>"
    assert env.from_string(template).render(link=True, article=article) == f"<nav>\n    <a>\n</nav>{article}"


def test_rows_of_several_figures_are_published_once_under_the_name_of_each(tmp_path):
    """A site had 0.7 MB of the same rows twice and more often."""

    def make(path, content=b"x"):
        made_by = SimpleNamespace(_current_plugin="test")
        config = SimpleNamespace(site_dir=str(tmp_path), use_directory_urls=False, plugins=made_by)
        return File.generated(config, path, content=content)

    paths = ["report/p.md", "report/csv/p/a.csv", "report/csv/p/b.csv", "report/csv/q/a.csv", "report/csv/p/a.svg"]
    files = write_first.on_files(Files([*map(make, paths), make("report/csv/p/other.csv", b"y")]))
    kept = {file.src_uri for file in files}
    assert {*paths} - kept == {"report/csv/p/b.csv"}, "links of q cannot be changed: there is no such page"
    words = '<a href="csv/p/b.csv" download>CSV</a> [CSV](csv/p/b.csv) <a href="csv/p/other.csv" download>'
    assert write_first.link_published(words, "report") == (
        '<a href="csv/p/a.csv" download="b.csv">CSV</a> [CSV](csv/p/a.csv) <a href="csv/p/other.csv" download>'
    )
    assert write_first.link_published("[x](report/csv/p/b.csv)", "") == "[x](report/csv/p/a.csv)"
