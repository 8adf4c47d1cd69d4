"""Each page of a question is Markdown that a person can read where it is shown without the site: on a code host."""

import re
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from profiler_job.analysis.pages.questions import QUESTIONS, STUDIES
from profiler_job.analysis.render.svg_files import Entry, make_file
from profiler_job.analysis.site.front_matter import split
from tests.page_words import MOST_TAGS, NUMBER, count_words, list_pages, measure_tags, read_first_words, read_page
from tests.test_words import MOST, find_idioms

SVG = "{http://www.w3.org/2000/svg}"
MOST_WORDS, MOST_NUMBERS = 150, 10
SLUGS = [question.slug for question in (QUESTIONS | STUDIES).values()]


@pytest.fixture(scope="session")
def report(site):
    """Folder of the generated Markdown."""
    return site.parent / "docs" / "report"


def test_tags_are_at_most_a_tenth_of_each_page(report):
    shares = {path.name: measure_tags(path.read_text()) for path in list_pages(report.parent)}
    assert len(shares) > 50 and not {name: share for name, share in shares.items() if share > MOST_TAGS}


def test_generated_pages_have_few_idioms(report):
    found = [words for path in list_pages(report.parent) for words in find_idioms(read_page(path))]
    assert len(found) <= MOST, found


def test_a_plain_renderer_shows_the_lanes_of_a_timeline(report):
    path = report / "runs" / "small-ctx128-fp32-naive-train_step.md"
    links = re.findall(r"^!\[Under nsys[^\]]+\]\((\S+/chart-\w+\.svg)\)$", path.read_text(), re.MULTILINE)
    assert links
    for link in links:
        root = ElementTree.fromstring((path.parent / link).read_text())
        assert float(root.get("height")) > 20 and len(list(root.iter(f"{SVG}path"))) > 1


def test_explore_reads_as_a_table_without_its_choices(report):
    page = (report / "explore.md").read_text()
    assert "<form" not in page and re.search(r"^\| model +\| ", page, re.MULTILINE)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_plain_renderer_shows_tables_pictures_and_links(report, slug):
    _, body = split((report / f"{slug}.md").read_text())
    shown = MarkdownIt("commonmark").enable("table").render(body)
    assert shown.startswith("<h1>")
    assert shown.count("<table>") == len(re.findall(r"^\| -+[-:| ]+\|$", body, re.MULTILINE))
    assert not re.search(r"^\|", re.sub(r"<pre>.*?</pre>", "", shown, flags=re.DOTALL), re.MULTILINE)
    assert "**" not in shown and "](" not in shown
    for picture in re.findall(r'<img src="([^"]+)"', shown):
        assert (report / picture).is_file()
    links = re.findall(r'<a href="([^"#]+)', shown)
    assert links and all(link.endswith((".md", ".csv")) or link.startswith("https://") for link in links)
    assert not [link for link in links if link.startswith(("csv/", "runs/")) and not (report / link).is_file()]


@pytest.mark.parametrize("slug", SLUGS)
def test_a_question_is_short_before_its_details(report, slug):
    words = read_first_words(read_page(report / f"{slug}.md"))
    assert count_words(words) <= MOST_WORDS and len(NUMBER.findall(words)) <= MOST_NUMBERS, words


def test_the_home_page_names_the_step_that_it_shows(report):
    index = (report.parent / "index.md").read_text()
    assert re.search(
        r"^\*\*\S+ .*, [\d,]+ tokens, batch \d+, .+: .+\*\* · \[CSV\]\(report/csv/index/step\.csv\)$", index, re.M
    )
    [picture] = re.findall(r"^!\[[^\]]+\]\((report/csv/index/chart-step\.svg)\)$", index, re.M)
    words = {text.text for text in ElementTree.parse(report.parent / picture).iter(f"{SVG}text")}
    assert {"matmul", "elementwise"} <= words


def test_a_page_has_its_pictures_in_files_and_the_site_has_them_in_its_pages(site, report):
    page = (report / "forward-time.md").read_text()
    (picture,) = re.findall(r"!\[[^\]]+\]\((csv/[^)]+\.svg)\)", page)
    assert "<svg" not in page and (report / picture).is_file()
    assert not list(site.rglob("chart-*.svg")) and not (site / "report" / "figures").exists()
    assert (site / "report" / "forward-time.html").read_text().count("<svg") >= 2


def test_a_drawing_in_a_file_has_its_legend_and_colours_for_light_and_dark():
    svg = '<svg width="100" height="50"><path fill="var(--family-gemm)"/><text fill="var(--chart-text)">a</text></svg>'
    file = make_file(svg, [Entry("GEMM <x>", "family-gemm"), Entry("b", "series-1", is_round=True)])
    root = ElementTree.fromstring(file)
    assert float(root.get("height")) > 50 and "var(" not in file
    assert "prefers-color-scheme:dark" in file and '[fill="#184c96"]{fill:#64ace9}' in file
    assert [text.text for text in root.iter(f"{SVG}text")][:2] == ["GEMM <x>", "b"]
