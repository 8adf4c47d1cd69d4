"""The results of `show` for unmodified programs, recorded on real GPUs."""

from dataclasses import replace
from functools import cache

import pytest
from rich.cells import cell_len

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.insight.communication_lines import describe_communication as communication_sentences
from profiler_job.analysis.insight.finding_lines import describe_findings as findings_of
from profiler_job.analysis.insight.gpu_limit import PARTS
from profiler_job.analysis.insight.limit_lines import describe_verdict
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.reference.columns import format_heading
from profiler_job.analysis.show.index import tabulate_captures
from profiler_job.analysis.show.page import render_page
from profiler_job.analysis.show.show_formats import as_markdown, as_text
from tests.capture.real_captures import FOLDER, read_capture

NAMES = sorted(path.name.removesuffix(".sqlite.packed") for path in FOLDER.glob("*.packed"))
TOLD_BY_PYTORCH = ("gpt2_emit", "light_autograd")


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    return cache(lambda name: summarise(read_capture(name, folder)))


def shares(summary):
    phases = summary.sections["phases"]
    return dict(zip(phases["phase"], phases["share"], strict=True))


@pytest.mark.parametrize("name", TOLD_BY_PYTORCH)
def test_pytorchs_ranges_give_each_kernel_a_phase(summary, name):
    coverage = summary(name).coverage
    assert coverage["exact"] + coverage["linked"] + coverage["inferred"] == pytest.approx(1)
    assert coverage["inferred"] <= 0.03, "what is launched outside PyTorch's operations, such as clipping"


def test_what_ddp_does_before_the_first_step_is_set_up(summary):
    of_ddp = summary("ddp_autograd")
    phases = of_ddp.sections["phases"].set_index("phase")
    assert "" not in phases.index and of_ddp.coverage["none"] == 0
    assert phases["kernel_ns"].sum() == of_ddp.capture["kernel_ns"]
    assert phases.loc["setup", "kernel_calls"] == 14, "of each process: three broadcasts, a gather, and what fills them"


@pytest.mark.parametrize("name", TOLD_BY_PYTORCH)
def test_backward_is_linked_to_forward_by_number(summary, name):
    phases = summary(name).sections["phases"].set_index("phase")
    assert phases.loc["backward", "linked_share"] >= 0.9


@pytest.mark.parametrize("name, most", [("gpt2_emit", 200), ("light_autograd", 200), ("ddp_autograd", 200)])
def test_ranges_of_operations_are_grouped(summary, name, most):
    assert summary(name).capture["num_ranges"] > 20_000
    assert len(summary(name).sections["ranges"]) <= most


@pytest.mark.parametrize(
    "name, least", [("gpt2_plain", 0.999), ("light_plain", 0.999), ("ddp_plain", 0.97), ("infer_plain", 0.999)]
)
def test_without_a_range_phases_are_inferred_and_labelled_so(summary, name, least):
    coverage = summary(name).coverage
    assert coverage["inferred"] >= least
    assert coverage["exact"] == coverage["linked"] == coverage["phase"] == 0


@pytest.mark.parametrize("plain, told", [("gpt2_plain", "gpt2_emit"), ("light_plain", "light_autograd")])
def test_inferred_phases_are_those_that_the_same_program_tells(summary, plain, told):
    """Two runs of one program; Lightning clips inside of what PyTorch calls the optimizer's step."""
    inferred, known = shares(summary(plain)), shares(summary(told))
    for phase in ("forward", "backward"):
        assert inferred[phase] == pytest.approx(known[phase], abs=0.01), phase


def test_inference_only_runs_forward(summary):
    assert summary("infer_plain").sections["phases"]["phase"].tolist() == ["forward"]


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_the_verdict_add_up(summary, name):
    verdict = summary(name).sections["verdict"]
    assert len(verdict) == (2 if name.startswith("ddp") else 1)
    assert (verdict[[*PARTS]].sum(axis=1) == verdict["elapsed_ns"]).all()
    assert (verdict["elapsed_ns"] == summary(name).capture["events_ns"]).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ddp")])
def test_communication_is_told_apart_from_kernels_that_compute(summary, name):
    """NCCL's kernels take about half of all kernel time here, most of it waiting or during backward."""
    families = summary(name).sections["families"].set_index("family")
    verdict = summary(name).sections["verdict"]
    exposed = verdict["communication_ns"].sum()
    assert 0 < exposed <= families.loc["communication", "total_ns"]


def test_an_unpadded_vocabulary_is_seen_where_it_is(summary):
    kinds = {name: set(summary(name).sections["findings"]["kind"]) for name in NAMES}
    assert "unaligned_gemms" in kinds["gpt2_plain"] and "unaligned_gemms" in kinds["ddp_plain"]
    assert "unaligned_gemms" not in kinds["infer_plain"] | kinds["light_plain"]
    assert all("unfused_attention" not in found for found in kinds.values()), "all use fused attention"


def test_the_index_says_what_limits_each(summary):
    table = tabulate_captures([summary(name) for name in ("gpt2_plain", "ddp_plain")])
    assert table["limited_by"].tolist() == ["CPU 87.6%", "CPU 95.9%"]


def test_the_index_does_not_mix_inferred_phases_with_known_ones(summary):
    table = tabulate_captures([summary(name) for name in ("gpt2_plain", "gpt2_emit", "infer_plain")])
    assert table["attributed_share"].tolist() == [0, pytest.approx(0.977, abs=0.002), 0]
    assert table["inferred_share"].tolist() == [1, pytest.approx(0.023, abs=0.002), 1]


def test_a_page_labels_inferred_phases(summary):
    assert "backward (inferred)" in render_page(summary("gpt2_plain"))
    assert "backward (inferred)" not in render_page(summary("gpt2_emit"))


@pytest.mark.parametrize("name, differs", [("gpt2_emit", True), ("ddp_plain", False), ("gpt2_plain", False)])
def test_the_table_of_ranges_says_why_phases_have_more(summary, name, differs):
    words = "A range has what its own thread launched"
    for text in (as_text(summary(name), 20, 200), as_markdown(summary(name), 20), render_page(summary(name))):
        assert (words in text) == differs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(summary, name, width):
    assert max(map(cell_len, as_text(summary(name), 20, width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", ["ddp_autograd", pytest.param("gpt2_plain", marks=pytest.mark.long)])
def test_no_line_of_a_section_alone_is_wider_than_the_terminal(summary, name, section, width):
    text = as_text(replace(summary(name), shown=(section,)), 20, width)
    assert max(map(cell_len, text.splitlines())) <= width


def test_headings_have_no_unit_that_values_have_already():
    headings = {format_heading(column) for columns in SECTIONS.values() for column in columns}
    assert not [words for words in headings if words.endswith((" ns", " bytes"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_few_gpus_have_their_causes_of_idle_time_each(summary, name):
    num_gpus = summary(name).capture["num_gpus"]
    lines = describe_verdict(summary(name))
    assert sum("CPU: " in line and "launches " in line for line in lines) == num_gpus


@pytest.mark.parametrize("name", ["gpt2_plain", "light_plain", "ddp_plain"])
def test_inferred_phases_have_a_verdict_that_is_labelled_so(summary, name):
    by_phase = next(line for line in describe_verdict(summary(name)) if line.startswith("By phase"))
    of_phases, _, of_none = by_phase.partition(", in no phase ")
    assert of_phases.count(", inferred)") == of_phases.count("(") >= 3
    assert of_none and "inferred" not in of_none
    parts = summary(name).sections["verdict_phases"]
    totals = parts.groupby("gpu")["elapsed_ns"].sum()
    assert totals.tolist() == summary(name).sections["verdict"]["elapsed_ns"].tolist()


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    capture = read_capture("gpt2_emit", tmp_path_factory.mktemp("emitted"))
    return capture, attribute(capture)


@pytest.mark.parametrize("name", ["aten::mm", "Optimizer.step#AdamW.step", "aten::_foreach_add_"])
def test_a_range_of_pytorch_is_chosen_by_the_name_that_the_table_has(summary, emitted, name):
    row = summary("gpt2_emit").sections["ranges"].set_index("name").loc[name]
    part = summarise(*emitted, selection=Selection(range=name))
    assert (part.capture["num_kernels"], part.capture["kernel_ns"]) == (row["kernel_calls"], row["kernel_ns"])


def test_of_a_range_no_idle_time_is_told(emitted):
    """What else the GPU did meanwhile counted as idle: 87% of an optimizer's time was the host's."""
    part = summarise(*emitted, selection=Selection(range="aten::mm"))
    assert not any(len(part.sections[name]) for name in ("verdict", "verdict_phases", "advice"))
    assert part.launches["dry_ns"] is None and part.sections["gpus"]["idle_share"].isna().all()
    assert not {"idle", "tiny_kernels"} & {*part.sections["findings"]["kind"]}
    text = as_text(part, 20, 120)
    assert (
        "Only the work of this range is known" in text
        and "limited by" not in text
        and "idle" not in text.split("Kernels")[0]
    )


@pytest.mark.parametrize("name", NAMES)
def test_start_up_of_a_whole_process_is_said_with_how_to_leave_it_out(summary, name):
    assert any("--between " in line for line in describe_verdict(summary(name)))
    assert any("without work" in line for line in describe_verdict(summary(name)))


@pytest.mark.parametrize("name", NAMES)
def test_findings_take_about_two_lines(summary, name):
    lines = findings_of(summary(name).sections["findings"])
    assert 1 <= len(lines) <= 5
    assert all(len(line) <= 260 for line in lines)


DDP = ["ddp_plain", "ddp_autograd"]


@pytest.mark.parametrize("name", DDP)
def test_waiting_and_transfer_are_all_of_the_communication_kernels(summary, name):
    rows, families = summary(name).sections["communication"], summary(name).sections["families"].set_index("family")
    assert rows["gpu"].tolist() == [0, 1]
    assert (rows["waiting_ns"] + rows["transfer_ns"] == rows["kernel_ns"]).all()
    assert rows["kernel_ns"].sum() == families.loc["communication", "total_ns"]
    by_gpu = summary(name).sections["collectives"].groupby("gpu")[["kernel_ns", "waiting_ns", "hidden_ns"]].sum()
    assert by_gpu["kernel_ns"].tolist() == rows["kernel_ns"].tolist()
    assert by_gpu["waiting_ns"].tolist() == rows["waiting_ns"].tolist()


@pytest.mark.parametrize("name", DDP)
def test_exposed_communication_is_that_of_the_verdict(summary, name):
    rows = summary(name).sections["communication"]
    assert (rows["hidden_ns"] + rows["exposed_ns"] == rows["busy_ns"]).all()
    assert rows["exposed_ns"].tolist() == summary(name).sections["verdict"]["communication_ns"].tolist()


@pytest.mark.parametrize("name", DDP)
def test_of_exposed_communication_hosts_that_start_up_leave_the_smaller_part_critical(summary, name):
    """They load code between launches: a GPU whose host is late would have ended no earlier without communication."""
    rows = summary(name).sections["communication"]
    assert (rows["critical_ns"] < 0.6 * rows["exposed_ns"]).all() and rows["critical_ns"].max() > 10_000_000
    assert rows["critical_ns"].min() < 0.001 * rows["exposed_ns"].max()
    assert any("critical" in line for line in communication_sentences(summary(name)))


@pytest.mark.parametrize("name", DDP)
def test_both_ranks_transfer_as_long_though_one_waits_far_longer(summary, name):
    """Rank 1 has two to eleven times the kernel time of rank 0. What is left without the waiting is the same data over
    the same link."""
    rows = summary(name).sections["communication"]
    assert rows["kernel_ns"].max() > 2 * rows["kernel_ns"].min()
    assert rows["transfer_ns"].max() < 1.1 * rows["transfer_ns"].min()
    assert rows["kept_waiting_ns"].tolist() == rows["waiting_ns"].tolist()[::-1]
    assert summary(name).capture["ranks_apart_ns"] < 30_000
    assert any("waiting for other ranks" in line for line in communication_sentences(summary(name)))


@pytest.mark.parametrize("name", ["gpt2_plain", "light_plain"])
def test_one_gpu_communicates_with_nobody(summary, name):
    assert not len(summary(name).sections["communication"]) and communication_sentences(summary(name)) == []
