"""Training steps on an H200, with the step in which their modules were followed: the reference Transformer (12 layers,
context 512), in FP32, and in BF16 with autograd's own threads; and feed-forward blocks with a Triton kernel of a user,
from site/examples/triton_norm.py."""

import shutil
from pathlib import Path

import pytest

from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract import ranges
from tests.packed import unpack_all

DATA = Path(__file__).parents[1] / "data"
NUM_LAYERS = 12


def record(name: str, folder: Path) -> store.Recording:
    """Return the recording of a folder of results below DATA that ingest had nothing to report about."""
    shutil.copytree(DATA / name, folder / "results")
    unpack_all(folder / "results")
    said = []
    ingest(folder / "results", folder / "recording", emit=said.append)
    assert said == []
    return store.load(folder / "recording")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return lambda name: record(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def kernels(recorded):
    return recorded("h200_followed").kernels


def test_every_kernel_of_backward_and_optimizer_has_a_module(kernels):
    assert set(kernels.query("phase == 'forward'")["module_by"]) == {"launch"}
    rows = kernels[kernels["phase"].isin(["backward", "optimizer"])]
    assert set(rows["module_by"]) == {"linked"} and (rows["module"] != "").all()


def test_backward_launches_twice_the_matmuls_of_forward_module_by_module(kernels):
    names = kernels["kernel_name"].astype("category")
    is_main = names.map({name: bool(kernel_families.is_main_gemm(name)) for name in names.cat.categories}).astype(bool)
    counts = kernels[is_main].groupby(["module", "phase"], observed=True).size().unstack(fill_value=0) / 3
    assert (counts["backward"] == 2 * counts["forward"]).all()
    assert counts["forward"].sum() == 9 * NUM_LAYERS + 1
    assert counts.loc["block_3/attention/qkv_proj"].to_dict() == {"forward": 3, "backward": 6}


def test_what_no_module_launches_in_backward_is_the_loss_and_sums_of_gradients(kernels):
    """Each block joins two branches, and three projections join in the input of attention."""
    rows = kernels[(kernels["phase"] == "backward") & kernels["module"].astype(str).str.startswith("(")]
    assert set(rows["module"]) == {ranges.LOSS_MODULE, ranges.ACCUMULATION}
    totals = kernel_time.kernel_totals(kernels)
    tree = kernel_time.sum_by_module(totals).set_index("module")
    assert tree["step_share"][ranges.ACCUMULATION] == pytest.approx(0.03, abs=0.01)
    assert tree["ratio"]["block/ffn"] == pytest.approx(2, abs=0.05)
    assert tree.loc["block", "total_ns"] == pytest.approx(tree.query("depth == 1")["total_ns"].sum(), rel=0.02)


def test_times_are_of_measured_steps_alone(kernels):
    assert set(kernels["step"]) == {0, 1, 2}
    per_step = kernels.groupby("step").size()
    assert per_step.nunique() == 1


def test_a_triton_kernel_of_the_users_own_has_its_module_in_both_passes(recorded):
    kernels = recorded("h200_triton").kernels
    own = kernels[kernels["kernel_name"].astype(str).str.startswith("rms_norm")]
    counts = own.astype(str).groupby(["module", "phase", "kernel_name"]).size().to_dict()
    norms = [f"Sequential/{block}/0" for block in range(8)]
    passes = ("forward", "backward")
    assert counts == {(norm, phase, f"rms_norm_{phase}"): 3 for norm in norms for phase in passes}, "in three steps"
    assert (kernels["phase"] != "").all()
    assert (kernels.loc[kernels["phase"] != ranges.LOSS, "module"] != "").all()
