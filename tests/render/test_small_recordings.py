"""A recording of little: one run, or one mode, or a sweep with a run missing. Its pages read as sentences and say what
is not there."""

import html
import re

import pandas as pd
import pytest

from analysis import write_site
from tests.synthetic import recording

PLURALS = r"(?:run|case|step|kernel|pass|model|size|context length|row|check|call|time|layer|core)(?:e?s)\b"
BAD = re.compile(
    rf"\b(?:all|none of|each of) 1\b|\b0 (?:\w+ )?steps\b|(?<![\w.,\u2013-])1 (?:[a-z-]+ )?{PLURALS}", re.IGNORECASE
)


def words(folder):
    """Text of each page as a reader sees it, on one line."""
    found = {}
    for path in sorted(folder.rglob("*.md")):
        text = re.sub(r"<figure.*?</figure>|<dl.*?</dl>", "", path.read_text(), flags=re.DOTALL)
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


@pytest.mark.parametrize(
    "rec",
    [one_run("forward"), one_run("forward_backward"), one_run("train_step"), train_steps_only(), a_run_missing()],
    ids=["forward", "forward_backward", "train_step", "train steps only", "a run missing"],
)
def test_one_is_not_many_and_none_is_not_zero_steps(rec, tmp_path):
    write_site.write(rec, tmp_path)
    wrong = [f"{page}: …{text[m.start() - 30 : m.end() + 20]}…" for page, text in words(tmp_path).items()
             for m in BAD.finditer(text)]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_one_forward_pass_has_no_shortest_and_no_longest(tmp_path):
    write_site.write(one_run("forward"), tmp_path)
    pages = words(tmp_path)
    said = pages["report/forward-time.md"].partition("How this was measured")[0]
    assert "A forward pass takes 0.631" in said and "shortest" not in said and "median of" not in said
    assert pages["index.md"].count("1 run of a Transformer language model, 1 size at 1 context length (forward)") == 1


def test_without_forward_passes_their_question_says_so(tmp_path):
    write_site.write(train_steps_only(), tmp_path)
    pages = words(tmp_path)
    assert "Not measured." in pages["report/forward-time.md"]
    assert re.search(r"How long does a forward pass take\? Not measured\.", pages["index.md"])


def test_runs_of_the_sweep_that_were_never_run_are_named(tmp_path):
    write_site.write(a_run_missing(), tmp_path)
    text = (tmp_path / "index.md").read_text()
    assert "1 run of the sweep was never run." in text and "4 of 5" in text
    assert "medium-ctx128-fp32-naive-forward" in text
    assert "finished." not in words(tmp_path)["index.md"]


def test_several_recordings_miss_only_what_none_of_them_has():
    first, second = (recording((size,), (128,), ("forward",)) for size in ("small", "medium"))
    first.manifest["not_run"] = ["medium-ctx128-fp32-naive-forward", "xl-ctx128-fp32-naive-forward"]
    for rec in (first, second):
        rec.runs["run_id"] = pd.Categorical(rec.runs["run_id"])
    assert write_site.together([first, second]).manifest["not_run"] == ["xl-ctx128-fp32-naive-forward"]
