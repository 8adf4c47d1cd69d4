"""A recording of little: one run, or one mode, or a sweep with a run missing. Its pages read as sentences and say what
is not there."""

import functools
import html
import re

import pandas as pd
import pytest

from profiler_job.analysis.site import combine, write_site
from tests.page_words import OF_PROGRAM, read_page
from tests.synthetic import recording

PLURALS = r"(?:run|case|step|kernel|pass|model|size|context length|row|check|call|time|layer|core)(?:e?s)\b"
BAD = re.compile(
    rf"\b(?:all|none of|each of) 1\b|\b0 (?:\w+ )?steps\b|(?<![\w.,\u2013-])1 (?:[a-z-]+ )?{PLURALS}", re.IGNORECASE
)


def words(folder):
    """Text of each page about the recording as a reader sees it, on one line."""
    found = {}
    for path in sorted(path for path in folder.rglob("*.md") if path.name not in OF_PROGRAM):
        text = re.sub(r"<figure.*?</figure>|<dl.*?</dl>", "", read_page(path), flags=re.DOTALL)
        text = re.sub(r"<[^>]*>", "", text)
        found[str(path.relative_to(folder))] = " ".join(html.unescape(text).replace("**", "").split())
    return found


def one_run(mode):
    return recording(("small",), (128,), (mode,), num_profiled=1, num_timed=1)


def train_steps_only():
    return recording(("small", "medium"), (128, 256), ("train_step",))


def a_run_missing():
    rec = recording(("small",), (128, 256), ("forward", "train_step"))
    rec.manifest["not_run"] = ["medium-ctx128-fp32-naive-forward"]
    return rec


SMALL = {
    "forward": lambda: one_run("forward"),
    "forward_backward": lambda: one_run("forward_backward"),
    "train_step": lambda: one_run("train_step"),
    "train steps only": train_steps_only,
    "a run missing": a_run_missing,
}
ALIKE = ("forward_backward", "train_step")  # to one forward pass


@pytest.fixture(scope="module")
def written(undrawn, tmp_path_factory):
    """written(name): the folder of the report of a recording of SMALL."""

    @functools.cache
    def write(name):
        docs = tmp_path_factory.mktemp("small")
        write_site.write(SMALL[name](), docs)
        return docs

    return write


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ALIKE else []) for name in SMALL]
)
def test_one_is_not_many_and_none_is_not_zero_steps(written, name):
    wrong = [f"{page}: …{text[m.start() - 30 : m.end() + 20]}…" for page, text in words(written(name)).items()
             for m in BAD.finditer(text)]  # fmt: skip
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
def test_one_forward_pass_has_no_shortest_and_no_longest(written):
    pages = words(written("forward"))
    said = pages["report/forward-time.md"].partition("How this was measured")[0]
    assert "A forward pass takes 631 µs" in said and "shortest" not in said and "median of" not in said
    assert pages["index.md"].count("1 run of a Transformer language model, 1 size at 1 context length (forward)") == 1


@pytest.mark.long
def test_without_forward_passes_their_question_says_so(written):
    pages = words(written("train steps only"))
    assert "Not measured." in pages["report/forward-time.md"]
    assert "[How long does a forward pass take?](report/forward-time.md) Not measured." in pages["index.md"]


@pytest.mark.long
def test_runs_of_the_sweep_that_were_never_run_are_named(written):
    docs = written("a run missing")
    text = read_page(docs / "index.md")
    assert "The sweep also has 1 run that was never started." in text and "4 of 5 runs finished" in text
    assert "medium-ctx128-fp32-naive-forward" in text
    assert "finished." not in words(docs)["index.md"]


def test_several_recordings_miss_only_what_none_of_them_has():
    first, second = (recording((size,), (128,), ("forward",)) for size in ("small", "medium"))
    first.manifest["not_run"] = ["medium-ctx128-fp32-naive-forward", "xl-ctx128-fp32-naive-forward"]
    for rec in (first, second):
        rec.runs["run_id"] = pd.Categorical(rec.runs["run_id"])
    assert combine.join_recordings([first, second]).manifest["not_run"] == ["xl-ctx128-fp32-naive-forward"]
