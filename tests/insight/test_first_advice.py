"""On every recorded capture and script: the first advice has evidence, fits the limit, and nothing contradicts it."""

from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.advice import Advice, make_advice_table
from profiler_job.analysis.insight.first_advice import NOTHING, format_first_advice
from profiler_job.analysis.insight.limit_lines import find_limit
from profiler_job.analysis.insight.summary import Summary, summarise
from profiler_job.jobs.contract.changes import LABELS
from profiler_job.jobs.contract.step_limit import (
    COMMUNICATION,
    COMPUTE,
    CPU,
    GPU,
    LAUNCHES,
    MEMORY,
    PARTS,
    StepLimit,
    name_limits,
)
from tests import packed
from tests.insight.contradictions import find_contradictions

DATA = Path(__file__).parents[1] / "data"
OF_RUNS = ("runs", "followed", "threads", "triton")
PATTERNS = ("*.packed", "h200_captures/*.packed", *(f"h200_{name}/*/*.packed" for name in OF_RUNS))
OF_SCRIPTS = "h200_scripts/*/*/profile.sqlite.*"
CAPTURES = sorted(path for pattern in (*PATTERNS, OF_SCRIPTS) for path in DATA.glob(pattern))


@pytest.fixture(scope="module", params=CAPTURES, ids=lambda path: f"{path.parent.name}-{path.name}")
def summary(request, tmp_path_factory) -> Summary:
    path = packed.unpack(request.param, tmp_path_factory.mktemp("capture") / "x.sqlite")
    return summarise(read(path, details=False), skips_startup=True)


def need_limit(summary: Summary) -> StepLimit:
    limit = find_limit(summary)
    if limit is None or not limit.names:
        pytest.skip("nothing runs in it")
    return limit


def test_the_parts_add_up_to_the_time_from_first_to_last_operation(summary):
    limit, rows = need_limit(summary), summary.sections["verdict"]
    assert limit.step_ns == pytest.approx((rows["elapsed_ns"] - rows["no_work_ns"]).sum())
    assert sum(limit.causes.values()) == pytest.approx(limit.parts[CPU])
    assert summary.insight.sentences.verdict[0].endswith(tuple("abcdefghijklmnopqrstuvwxyz.0123456789%s")) and (
        limit.name.split(" ")[-1] in summary.insight.sentences.verdict[0]
    )


def test_the_first_advice_has_evidence_fits_the_limit_and_nothing_contradicts_it(summary):
    limit, table = need_limit(summary), summary.sections["advice"]
    assert find_contradictions(limit, table) == []
    if limit.names in ((COMMUNICATION,), (GPU,)):
        assert not table.loc[table["reason"] == "", "fits_limit"].any()


def test_the_first_screen_names_the_limit_once(summary):
    limit = need_limit(summary)
    lines = format_first_advice(summary)
    verdict = summary.insight.sentences.verdict[0]
    if len(summary.sections["verdict"]) == 1:
        assert name_limits(limit) in verdict
        others = set(PARTS) - set(limit.names)
        assert not any(f"limited by {name}" in verdict or f"limited by the {name}" in verdict for name in others)
    advised = summary.sections["advice"]
    labels = [LABELS[name] for name in advised.loc[advised["reason"] == "", "change"].head(len(lines))]
    assert (
        lines == []
        or lines == [NOTHING]
        or [label in line for label, line in zip(labels, lines)] == [True] * len(lines)
    )


LAUNCHING = StepLimit({COMPUTE: 20.0, MEMORY: 10.0, CPU: 70.0}, {LAUNCHES: 70.0})
READING = StepLimit({COMPUTE: 20.0, MEMORY: 70.0, CPU: 10.0}, {LAUNCHES: 10.0})


def advise(*entries: dict) -> pd.DataFrame:
    known = {"change": "cuda_graphs", "time_ns": 20, "ceiling_ns": 60, "do": "x", "evidence": "y", "fits_limit": True}
    return make_advice_table([Advice(**{**known, **entry}) for entry in entries])


def withhold(change: str, code: str) -> dict:
    return {"change": change, "reason": "because", "reason_code": code, "fits_limit": False, "time_ns": None, "do": ""}


PLANTED = [
    (LAUNCHING, [{"evidence": ""}], "no evidence"),
    (LAUNCHING, [{"time_ns": 0}], "no evidence"),
    (LAUNCHING, [{}, {}], "a change twice"),
    (LAUNCHING, [{}, withhold("cuda_graphs", "already_made")], "a change twice"),
    (LAUNCHING, [{"change": "tf32", "fits_limit": False}], "launches limit, and nothing launches less"),
    (LAUNCHING, [{"change": "tf32"}, {}], "the first does not fit the limit"),
    (READING, [{}], "a wrong mark of what fits"),
    (LAUNCHING, [{"fits_limit": False}], "a wrong mark of what fits"),
    (LAUNCHING, [{"time_ns": 61}], "more time than could be saved"),
    (LAUNCHING, [{"ceiling_ns": 150}], "more could be saved than there is"),
    (READING, [{"change": "compile"}, withhold("bf16", "cpu_limits")], "the CPU limits, and does not"),
    (LAUNCHING, [{}, withhold("compile", "idle_unexplained")], "it is not known why the GPU waits, and it is"),
    (LAUNCHING, [{}, withhold("compile", "startup_included")], "start-up is why the GPU waits, and launches are"),
    (LAUNCHING, [{}, withhold("compile", "")], "a reason without a code"),
]


@pytest.mark.parametrize(("limit", "entries", "found"), PLANTED, ids=[f"{i}-{row[2]}" for i, row in enumerate(PLANTED)])
def test_a_planted_contradiction_is_found(limit, entries, found):
    assert (
        find_contradictions(LAUNCHING, advise({})) == [] == find_contradictions(READING, advise({"change": "compile"}))
    )
    assert found in find_contradictions(limit, advise(*entries))


def test_what_fits_the_limit_comes_before_what_could_save_more():
    table = advise({"change": "tf32", "fits_limit": False, "time_ns": 50}, {"time_ns": 20})
    assert table["change"].tolist() == ["cuda_graphs", "tf32"] and find_contradictions(LAUNCHING, table) == []


def test_bounds_of_one_rank_come_by_their_size():
    """Home showed that a change could save up to 226 ms, and below it another up to 236 ms."""
    table = advise(
        {"change": "compile", "time_ns": 30, "ceiling_ns": 40},
        {"change": "cuda_graphs", "time_ns": 20, "ceiling_ns": 60},
        {"change": "tf32", "time_ns": 90, "ceiling_ns": 90, "fits_limit": False},
    )
    assert table["change"].tolist() == ["cuda_graphs", "compile", "tf32"]
