"""The whole site, built from a made-up recording: its pages, their colours, and what they say."""

import html
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from profiler_job.analysis.pages import benchmarks
from profiler_job.analysis.pages.question import Section
from profiler_job.analysis.pages.questions import ALL_QUESTIONS, QUESTIONS, STUDIES, group_by_section
from profiler_job.analysis.pages.topics import TOPICS
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.site.site_writer import Site, first_sentence
from tests.page_words import read_page
from tests.site_builder import cards_of, run_ids_shown

ROOT = Path(__file__).parents[2]


def test_there_is_a_page_for_every_question_and_every_run(site):
    assert len(list((site / "report" / "runs").glob("*.html"))) == 18
    for slug in ("forward-time", "top-kernel", "beyond-gemm", "training-mix", "attention-cost", "reconciliation"):
        assert (site / "report" / f"{slug}.html").is_file()


MOST_IN_NAVIGATION = 24
"""Pages, the guides not counted."""


def test_the_navigation_is_short_and_leads_to_every_question(site):
    """Itself, by the page of a topic, or by a page that links to it."""
    settings = (ROOT / "mkdocs.yml").read_text()
    paths = re.findall(r": (\S+\.(?:md|ipynb))$", settings.partition("\nnav:\n")[2], re.MULTILINE)
    shown = [path for path in paths if not path.startswith("guide/")]
    assert len(shown) <= MOST_IN_NAVIGATION
    linked = "".join((site / path).with_suffix(".html").read_text().partition("<article")[2] for path in shown)
    for question in ALL_QUESTIONS.values():
        assert question.page in shown or f'href="{question.slug}.html"' in linked, question.slug
    for topic in TOPICS:
        page = (site / topic.page).with_suffix(".html").read_text()
        assert topic.page in shown and not {*topic.letters} - {*ALL_QUESTIONS}
        assert all(f'<a href="{ALL_QUESTIONS[letter].slug}.html">' in page for letter in topic.letters)
    assert not re.search(r"^ +- \w ·", settings, re.MULTILINE)


def test_sections_have_what_there_is_of_their_questions():
    assert [*group_by_section({"a": 1, "j": 3, "u": 2}).items()] == [(Section.CHANGE, [2, 3]), (Section.TIME, [1])]


def test_a_question_is_answered_before_its_details(site):
    """Answer, badge, chart, what to do, why; the rest is folded below its headings."""
    html = (site / "report" / "top-kernel.html").read_text()
    article = html[html.index("<article") : html.index("</article>")]
    above, *folded = article.split('<details class="detail">')
    places = [above.index(part) for part in ('class="verdict"', "how we measured", 'id="chart-', "What to do.", "Why.")]
    assert places == sorted(places)
    assert above.partition("</details>")[2].count("<li>") == 0 and above.count("<figure") == 1
    assert len(folded) > 3 and all(re.match(r"<summary><h2 [^>]*id=", part) for part in folded)
    assert 'id="table-top"' in "".join(folded)


def test_how_it_was_measured_is_on_one_page(site):
    """It was a list of links to seven pages, which the sections lead to."""
    html = (site / "report" / "methods.html").read_text()
    above = html[html.index("<article") : html.index('<details class="detail">')]
    slugs = re.findall(r'<h2 class="open"[^>]*><a href="([a-z-]+)\.html">', above)
    assert slugs == ["warm-up", "second-recording", "clocks", "telemetry", "environment", "reconciliation"]
    sections = [_words_of(part).partition("?")[2].strip("# \n") for part in above.split('<h2 class="open"')[1:]]
    assert not [words for words in sections if len(words.split()) < 4]
    assert above.count('id="table-environment"') == above.count('id="table-summary"') == 1


def test_home_leads_to_every_question_and_to_the_readers_own_case(site):
    html = (site / "index.html").read_text()
    article = html[html.index("<article") : html.index("</article>")]
    places = [article.index(f'href="report/{slug}.html"') for slug in ("bounds", "precision", "forward-time")]
    assert places == sorted(places)
    assert all(f'href="report/{question.slug}.html"' in article for question in (QUESTIONS | STUDIES).values())
    assert article.index('href="guide/profile.html"') < places[0]


def test_a_shared_page_says_what_was_found_and_shows_it(site):
    html = (site / "report" / "top-kernel.html").read_text()
    description, title, image = (
        re.search(f'<meta property="og:{name}" content="([^"]+)"', html)[1]
        for name in ("description", "title", "image")
    )
    assert title == "Which kernel takes the most GPU time?" and f"<title>{title} - " in html
    assert description.startswith("One kernel takes ") and "<" not in description and len(description) <= 200
    picture = site / image.partition("/project/")[2]
    assert picture.name == "top-kernel.png"
    run = (site / "report" / "runs" / "small-ctx512-fp32-naive-train_step.html").read_text()
    assert 'content="Training step of small at context 512 in FP32, ' in run
    assert re.search(r"[\d.]+\sms a step\. limited by \w", run), "the words are not of the step's figure"
    checks = (site / "report" / "reconciliation.html").read_text()
    assert 'name="description" content="Do the numbers agree? All ' in checks


def test_no_page_shows_the_id_of_a_run_in_place_of_words(site):
    pages = [*(site / "report").rglob("*.html"), site / "index.html"]
    shown = {page.name: run_ids_shown(page) for page in pages}
    assert not {name: ids[:3] for name, ids in shown.items() if ids}


def test_each_page_has_a_card_of_its_own(site):
    cards = cards_of(site)
    assert len({card[""] for card in cards.values()}) == len(cards) > 40
    run = cards["report/runs/small-ctx512-fp32-naive-train_step.html"]
    assert run[""].endswith("/project/report/cards/runs/small-ctx512-fp32-naive-train_step.png")
    assert re.fullmatch(r"small · 512 · training step · FP32: [\d.]+\sms a step", run["alt"])


def test_a_page_names_its_recording_and_itself_in_its_foot(site):
    for path in ("index.html", "report/bounds.html", "report/runs/small-ctx512-fp32-naive-train_step.html"):
        foot = (site / path).read_text().partition('<p class="foot">')[2].partition("</p>")[0]
        assert "recording <em>synthetic</em> of 2026-01-02, made with commit 000000000000" in foot
        assert path in foot or path == "index.html"
        assert 'cite.html">cite and reuse</a>' in foot


def test_the_citation_is_of_this_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert f"version = {{{project['version']}}}" in (ROOT / "site" / "cite.md").read_text()


def test_every_word_of_the_glossary_has_a_page(site):
    glossary = (site / "report" / "glossary.html").read_text()
    terms = re.findall(r'<li class="entry" id="[^"]+"><strong><a href="[^"]+">[^<]+</a></strong>: [^<]+</li>', glossary)
    assert len(terms) > 25 and glossary.count('<li class="entry"') == len(terms)


def test_the_first_sentence_ends_where_it_ends():
    said = first_sentence("It takes **0.5 ms** (2.7B · 128). More follows.")
    assert said == "It takes **0.5 ms** (2.7B · 128)."
    assert first_sentence("Up to 1.5× as fast") == "Up to 1.5× as fast"


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
    assert "small (0.13B), context 128, training step" in spoken


def _words_of(line):
    return html.unescape(re.sub(r"<[^>]+>", "", line))


def test_pages_with_numbers_of_runs_say_what_these_were_measured_in(site):
    """In a badge, which opens without a script, and next to it where all of the way is written."""
    names = ("forward-time", "top-kernel", "bounds", "reconciliation", "runs", "kernels", "cuda-calls", "telemetry")
    badge = re.compile(
        r'<details class="pop conditions"[^>]*>\s*<summary>(.*?)</summary>(.*?)</details>\s*<p[^>]*>(.*?)</p>', re.S
    )
    for page in (site / "report" / f"{name}.html" for name in names):
        [(summary, inside, link)] = badge.findall(page.read_text())
        assert _words_of(summary) == "FP32 · unfused (eager) attention · batch 4 · NVIDIA H200", page
        assert "methods.html" in link and _words_of(link) == "how we measured"
        known = dict(re.findall("<strong>(.*?)</strong>: (.*?)</li>", inside, re.S))
        assert {"GPU", "Software", "Measured", "Precision", "Batch", "Attention", "Compiled", "Optimizer"} <= {*known}
        assert _words_of(known["Precision"]) == "FP32 without tensor cores" and "<a" not in summary
        assert known["Steps"] == "n = 1 process × 10 steps by the timer, 3 steps under nsys"
        assert "Measured in:" not in page.read_text()


def test_a_finished_run_says_what_it_was_measured_in(site):
    pages = {path.stem: _words_of(path.read_text()) for path in (site / "report" / "runs").glob("*.html")}
    settings = "how sure?FP32 without tensor cores, unfused (eager) attention"
    measured = [name for name, page in pages.items() if settings in page]
    assert settings in _words_of((site / "index.html").read_text())
    assert sorted(measured) == sorted(name for name, page in pages.items() if "Python timer" in page)
    assert all(("reference AdamW" in pages[name]) == name.endswith("train_step") for name in measured)


def test_a_table_of_runs_knows_what_they_have_in_common_beside_its_columns(site):
    """Of 60 runs in FP32 a filter said that nothing matches FP32: it was in no column."""
    table = (site / "report" / "runs.html").read_text().split('id="table-runs"')[1].split(">")[0]
    also = html.unescape(re.search('data-also="(.*?)"', table)[1]).split("; ")
    assert {"fp32", "eager attention", "reference AdamW"} <= {*also} and "forward pass" not in also, table
    times = (site / "report" / "forward-time.html").read_text().split('id="table-times"')[1].split(">")[0]
    assert "forward pass; " in times


def test_where_nothing_is_to_be_told_a_sentence_says_so(site):
    words = {name: (site / "report" / f"{name}.html").read_text() for name in ("kernels", "methods")}
    assert "every one matched a rule" in words["kernels"] and "0.0% of the kernel time" not in words["kernels"]
    assert "No kernel of this recording begins before the call" in words["methods"]


@pytest.mark.long
def test_a_run_that_failed_shows_its_log_and_one_without_has_no_heading(tmp_path):
    from profiler_job.analysis.site import write_site
    from tests.pages.question_page import only_questions
    from tests.synthetic import recording

    rec = recording(("small",), (128, 256), ("forward",))
    rec.runs["log"] = ["first\n# <b>last</b> 1 < 2\n", None]
    rec.runs["status"] = ["failed", "ok"]
    with only_questions():
        write_site.write(rec, tmp_path)
    with_log, without = sorted(path.read_text() for path in (tmp_path / "report" / "runs").glob("*.md"))
    with_log, without = (with_log, without) if "## Log" in with_log else (without, with_log)
    assert "first&#10;# &lt;b&gt;last&lt;/b&gt; 1 &lt; 2&#10;</pre>" in with_log
    assert "## Log" not in without


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ours_peak_bytes": 3 * 2**20}, "and 3.00\u202fMiB at its peak."),
        ({"note": "Its peak is missing."}, "missing."),
    ],
    ids=["measured", "left out"],
)
def test_the_peak_of_a_real_capture_is_given_or_missing_with_a_word(tmp_path, more, said):
    timed = {"kernels": 7, "nsys_stats_wall_s": 2.0, "ours_wall_s": 1.0, "agrees": True}
    site = Site(tmp_path, (), {}, ("size",))
    site.write("benchmarks.md", "benchmarks.md", benchmarks.answer({}, {"nsys_stats": timed | more}))
    page = read_page(tmp_path / "benchmarks.md")
    assert said in page and page.count("peak") == 1
