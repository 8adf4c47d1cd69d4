"""The whole site, built from a made-up recording: links, sizes, third parties, colours."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from analysis.knowledge import kernel_families

ROOT = Path(__file__).parents[2]
LARGEST_PAGE = 300 * 1024


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loads = [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if values.get("id"):
            self.ids.append(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        self.loads += [values[name] for name in ("src", "data") if values.get(name) and tag != "a"]
        if tag == "link" and values.get("rel") != "canonical":
            self.loads.append(values.get("href", ""))


@pytest.fixture(scope="module")
def pages(site):
    found = {}
    for path in site.rglob("*.html"):
        page = Page()
        page.feed(path.read_text())
        found[path] = page
    return found


def test_there_is_a_page_for_every_question_and_every_run(site):
    assert len(list((site / "report" / "runs").glob("*.html"))) == 18
    for slug in ("forward-time", "top-kernel", "beyond-gemm", "training-mix", "attention-cost", "reconciliation"):
        assert (site / "report" / f"{slug}.html").is_file()


def test_every_link_and_anchor_leads_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links + page.loads:
            target, anchor = urldefrag(link)
            if urlsplit(target).scheme or target.startswith("//"):
                continue
            file = (path.parent / unquote(target)).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if anchor.startswith("profileURL="):
                file, anchor = (file.parent / unquote(anchor.removeprefix("profileURL="))).resolve(), ""
            if not file.is_file() or (anchor and file.suffix == ".html" and unquote(anchor) not in pages[file].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert not [load for page in pages.values() for load in page.loads if urlsplit(load).netloc]
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*\)", styles)


def test_pages_stay_small(site, pages):
    assert not [path.name for path in pages if path.stat().st_size > LARGEST_PAGE]


def test_ids_are_unique_on_each_page(site, pages):
    for path, page in pages.items():
        twice = {one for one in page.ids if page.ids.count(one) > 1}
        assert not twice, path.name


def test_every_family_has_a_colour_and_an_ink_in_both_schemes():
    css = (ROOT / "site" / "assets" / "report.css").read_text()
    for family in kernel_families.FAMILIES:
        for name in (f"--family-{family}:", f"--on-{family}:"):
            assert css.count(name) == 2, name


def test_every_colour_that_charts_ask_for_is_defined(site):
    css = (ROOT / "site" / "assets" / "report.css").read_text()
    asked = set(re.findall(r"var\((--(?:chart|series|family|on)-[a-z0-9-]+)\)", (site / "index.html").read_text()))
    assert asked
    assert not [name for name in asked if f"{name}:" not in css]


def test_a_run_without_numbers_says_why_on_its_page(site):
    page = (site / "report" / "runs" / "2.7B-ctx1024-fp32-naive-train_step.html").read_text()
    assert "OOM in forward" in page and "CUDA out of memory" in page
    assert "Python timer" not in page


def test_links_to_rows_have_their_csv(site):
    assert (site / "report" / "csv" / "forward-time" / "times.csv").read_text().startswith("size,context_length,run_id")
    assert list((site / "report" / "csv" / "forward-time").glob("rows-*.csv"))


def test_a_link_to_a_run_is_read_out_with_its_case(site):
    page = (site / "report" / "runs.html").read_text()
    spoken = re.findall(r'<a href="runs/[^"]+" aria-label="([^"]+)">', page)
    assert len(spoken) == len(set(spoken)) == 18
    assert "small, context 128, train_step" in spoken


def test_where_nothing_is_to_be_told_a_sentence_says_so(site):
    words = {name: (site / "report" / f"{name}.html").read_text() for name in ("kernels", "methods")}
    assert "every one matched a rule" in words["kernels"] and "0.0% of the kernel time" not in words["kernels"]
    assert "No kernel of this recording begins before the call" in words["methods"]


def test_a_run_shows_its_log_and_one_without_has_no_heading(tmp_path):
    from analysis import publish
    from tests.synthetic import recording

    rec = recording(("small",), (128, 256), ("forward",))
    rec.runs["log"] = ["first\n# <b>last</b> 1 < 2\n", None]
    publish.write(rec, tmp_path)
    with_log, without = sorted(path.read_text() for path in (tmp_path / "report" / "runs").glob("*.md"))
    with_log, without = (with_log, without) if "## Log" in with_log else (without, with_log)
    assert "first&#10;# &lt;b&gt;last&lt;/b&gt; 1 &lt; 2&#10;</pre>" in with_log
    assert "## Log" not in without
