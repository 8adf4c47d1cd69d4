"""The whole site, built from a made-up recording: its pages, their colours, and what they say."""

import re
from pathlib import Path

import pytest

from analysis.pages import benchmarks
from analysis.reference import kernel_families
from analysis.render.site import Site

ROOT = Path(__file__).parents[2]


def test_there_is_a_page_for_every_question_and_every_run(site):
    assert len(list((site / "report" / "runs").glob("*.html"))) == 18
    for slug in ("forward-time", "top-kernel", "beyond-gemm", "training-mix", "attention-cost", "reconciliation"):
        assert (site / "report" / f"{slug}.html").is_file()


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


@pytest.mark.long
def test_a_run_shows_its_log_and_one_without_has_no_heading(tmp_path):
    from analysis import write_site
    from tests.synthetic import recording

    rec = recording(("small",), (128, 256), ("forward",))
    rec.runs["log"] = ["first\n# <b>last</b> 1 < 2\n", None]
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
    page = (tmp_path / "benchmarks.md").read_text()
    assert said in page and page.count("peak") == 1
