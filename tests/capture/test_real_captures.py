"""What `show` says of unmodified programs, recorded on real GPUs."""

from functools import cache

import pytest

from analysis.capture.summary import summarise
from tests.capture.real_captures import FOLDER, read_capture

NAMES = sorted(path.name.removesuffix(".sqlite.xz") for path in FOLDER.glob("*.xz"))
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
    assert coverage["inferred"] <= 0.03, "what is launched beside PyTorch's operations, such as clipping"


@pytest.mark.parametrize("name", TOLD_BY_PYTORCH)
def test_backward_is_linked_to_forward_by_number(summary, name):
    phases = summary(name).sections["phases"].set_index("phase")
    assert phases.loc["backward", "linked_share"] >= 0.9


@pytest.mark.parametrize("name, most", [("gpt2_emit", 200), ("light_autograd", 200), ("ddp_autograd", 200)])
def test_ranges_of_operations_are_grouped(summary, name, most):
    assert summary(name).capture["num_ranges"] > 20_000
    assert len(summary(name).sections["ranges"]) <= most


@pytest.mark.parametrize("name, least", [("gpt2_plain", 0.999), ("light_plain", 0.999), ("ddp_plain", 0.97)])
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


def test_inference_has_no_traces_of_training_and_no_phase(summary):
    assert summary("infer_plain").coverage["none"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_the_verdict_add_up(summary, name):
    verdict = summary(name).sections["verdict"]
    assert len(verdict) == (2 if name.startswith("ddp") else 1)
    assert (verdict.drop(columns=["gpu", "elapsed_ns"]).sum(axis=1) == verdict["elapsed_ns"]).all()
    assert (verdict["elapsed_ns"] == summary(name).capture["events_ns"]).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ddp")])
def test_communication_is_told_apart_from_kernels_that_compute(summary, name):
    """NCCL's kernels take about half of all kernel time here, most of it waiting or beside backward."""
    families = summary(name).sections["families"].set_index("family")
    verdict = summary(name).sections["verdict"]
    exposed = verdict["communication_ns"].sum()
    assert 0 < exposed <= families.loc["communication", "total_ns"]


def test_an_unpadded_vocabulary_is_seen_where_it_is(summary):
    kinds = {name: set(summary(name).sections["findings"]["kind"]) for name in NAMES}
    assert "unaligned_gemms" in kinds["gpt2_plain"] and "unaligned_gemms" in kinds["ddp_plain"]
    assert "unaligned_gemms" not in kinds["infer_plain"] | kinds["light_plain"]
    assert all("unfused_attention" not in found for found in kinds.values()), "all use fused attention"
