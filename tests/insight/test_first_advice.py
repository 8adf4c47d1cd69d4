"""On every recorded capture and script: the first advice has evidence, fits the limit, and nothing contradicts it."""

from pathlib import Path

import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.limit_lines import find_limit
from profiler_job.analysis.insight.summary import Summary
from profiler_job.analysis.prediction.captures import summarise_with_gains
from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.contract.step_limit import COMMUNICATION, CPU, GPU, LAUNCHES, StepLimit
from tests import packed

DATA = Path(__file__).parents[1] / "data"
PATTERNS = ("h200_captures/*.packed", "h200_runs/*/*.packed", "*.packed", "h200_followed/*/*.packed")
OF_SCRIPTS = "h200_scripts/*/*/profile.sqlite.*"
CAPTURES = sorted(path for pattern in (*PATTERNS, OF_SCRIPTS) for path in DATA.glob(pattern))


@pytest.fixture(scope="module", params=CAPTURES, ids=lambda path: f"{path.parent.name}-{path.name}")
def summary(request, tmp_path_factory) -> Summary:
    path = packed.unpack(request.param, tmp_path_factory.mktemp("capture") / "x.sqlite")
    return summarise_with_gains(read(path, details=False), skips_startup=True)


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


def test_the_first_advice_has_evidence_and_fits_the_limit(summary):
    limit, table = need_limit(summary), summary.sections["advice"]
    advised = table[table["reason"] == ""]
    fitting = advised[advised["fits_limit"]]
    if len(advised):
        assert advised["evidence"].iloc[0] and advised["do"].iloc[0] and advised["time_ns"].iloc[0] > 0
    if len(fitting):
        assert advised["fits_limit"].iloc[0]
        assert not limit.targets.isdisjoint(CHANGES[advised["change"].iloc[0]].relieves)
    elif len(advised):
        assert not limit.targets & {LAUNCHES}, "launching less is always advised if launches limit"


def test_nothing_contradicts_the_first_advice(summary):
    limit, table = need_limit(summary), summary.sections["advice"]
    withheld = set(table.loc[table["reason"] != "", "reason_code"])
    if limit.is_launches:
        assert "idle_unexplained" not in withheld and "startup_included" not in withheld
    if CPU not in limit.names:
        assert "cpu_limits" not in withheld
    if limit.names in ((COMMUNICATION,), (GPU,)):
        first = table[table["reason"] == ""].head(1)
        assert not first["fits_limit"].any()
