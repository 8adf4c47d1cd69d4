"""`analysis.load`: three lines to the tables of a capture."""

import subprocess
import sys

import pandas as pd
import pytest

from profiler_job.analysis import load
from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.insight.loading import COLUMNS

from .nsys_files import Export
from .profiles import profile


@pytest.fixture
def capture(tmp_path):
    export = Export()
    export.gpu(number=3, process=1, device=0)
    export.push("step", 1_000, 9_000)
    export.push("forward", 2_000, 5_000)
    export.push("block", 2_500, 4_000)
    export.launch(3_000, name="void gemm<float>(int)", end=3_050)
    export.push("backward", 6_000, 8_000)
    export.launch(7_000, name="void add<float>(int)", thread=2)
    export.copy(7_500, 7_600, export.call(7_400, 7_450, name="cudaMemcpyAsync_v3020"))
    return export.sqlite(tmp_path / "x.sqlite")


def test_a_range_of_the_user_s_own_marks_a_phase(capture):
    assert set(load(capture).kernels["phase"].astype(str)) == {"forward", "backward"}
    marked = load(capture, phases=["optimizer=block"]).kernels
    assert marked["phase"].astype(str).tolist() == ["optimizer", "backward"]
    with pytest.raises(ValueError, match="--phase update: write PHASE=RANGE"):
        load(capture, phases=["update"])


def test_three_lines_give_the_tables(capture):
    found = load(capture)
    for table, columns in COLUMNS.items():
        assert list(getattr(found, table)) == list(columns)
    first, second = found.kernels.astype({"phase": str}).to_dict("records")
    assert first["name"] == "void gemm<float>(int)" and first["family"] == "gemm"
    assert (first["start_ns"], first["end_ns"], first["duration_ns"], first["launch_ns"]) == (2010, 2050, 40, 2000)
    assert (first["phase"], first["attribution"], first["module"], first["gpu"]) == ("forward", "exact", "block", 3)
    assert (second["phase"], second["attribution"], second["range_id"]) == ("backward", "phase", -1)
    assert found.ranges["path"].tolist() == ["step", "step/forward", "step/forward/block", "step/backward"]
    assert found.ranges["name"][first["range_id"]] == "block"
    assert found.api["name"].tolist() == ["cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync"]
    assert found.memops["bytes"].tolist() == [1024]
    assert found.phases["phase"].tolist() == ["forward", "backward"]
    assert found.summary.capture["num_kernels"] == 2 and found.source == "x.sqlite"


def test_a_part_keeps_its_times(capture):
    part = load(capture, range="forward")
    assert part.kernels["start_ns"].tolist() == [2010]
    assert part.ranges["name"].tolist() == ["forward", "block"]
    assert part.ranges["name"][part.kernels["range_id"][0]] == "block"
    assert part.api["phase"].tolist() == ["forward"]
    assert load(capture, between_ns=(5_000, 8_000)).kernels["phase"].tolist() == ["backward"]
    assert len(load(capture, gpu=3).kernels) == 2


def test_times_are_integers_and_words_are_categories(capture):
    found = load(capture)
    for table in COLUMNS:
        frame = getattr(found, table)
        assert all(frame[name].dtype == "int64" for name in frame if name.endswith("_ns"))
        assert isinstance(frame.iloc[:, 0].dtype, pd.CategoricalDtype)


def test_captures_without_some_events_have_empty_tables(tmp_path):
    export = Export()
    export.push("only", 0, 10)
    found = load(export.sqlite(tmp_path / "x.sqlite"))
    assert [len(getattr(found, table)) for table in ("kernels", "api", "memops", "ranges", "phases")] == [0, 0, 0, 1, 0]
    assert list(found.kernels) == list(COLUMNS["kernels"])


def test_what_cannot_be_read_is_an_error_of_one_line(tmp_path, capture):
    with pytest.raises(ExportError) as refused:
        load(tmp_path / "none.sqlite")
    assert refused.value.code is ExportProblem.MISSING
    with pytest.raises(ExportError) as refused:
        load(capture, range="x")
    assert refused.value.code is ExportProblem.NOTHING_SELECTED


def test_a_users_own_rules_win(capture, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "mine"\nfamily = "attention"\npattern = "add<"\n')
    kernels = load(capture, rules=rules).kernels
    assert list(zip(kernels["family"], kernels["rule"]))[1] == ("attention", "mine")


def test_the_package_is_light_until_it_is_used():
    wanted = "[name for name in ('pandas', 'numpy', 'pyarrow') if name in sys.modules]"
    program = f"import sys, profiler_job.analysis; print({wanted})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
    with pytest.raises(ImportError):
        from profiler_job.analysis import nothing  # noqa: F401


def test_sums_are_those_of_the_summary():
    found = load(profile("train"))
    assert found.kernels["duration_ns"].sum() == found.summary.capture["kernel_ns"]
    by_phase = found.kernels.groupby("phase", observed=True)["duration_ns"].sum()
    assert by_phase.to_dict() == dict(zip(found.phases["phase"], found.phases["kernel_ns"]))
    by_family = found.kernels.groupby("family", observed=True)["duration_ns"].sum()
    families = found.summary.sections["families"]
    assert by_family.to_dict() == dict(zip(families["family"], families["total_ns"]))
