"""A training step of the reference Transformer (12 layers, context 512, FP32, PyTorch's fused AdamW) on an H200, with
the step in which its modules were followed."""

import lzma
import shutil
from pathlib import Path

import pytest

from analysis.metrics import kernel_time
from analysis.recording import store
from analysis.recording.ingest import ingest
from analysis.reference import kernel_families
from jobs.contract import ranges

FOLLOWED = Path(__file__).parents[1] / "data" / "h200_followed"
NUM_LAYERS = 12


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("followed")
    shutil.copytree(FOLLOWED, folder / "results")
    for file in (folder / "results").rglob("*.xz"):
        file.with_suffix("").write_bytes(lzma.decompress(file.read_bytes()))
        file.unlink()
    said = []
    ingest(folder / "results", folder / "recording", report=said.append)
    assert said == []
    return store.load(folder / "recording").kernels


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
    tree = kernel_time.by_module(totals).set_index("module")
    assert tree["step_share"][ranges.ACCUMULATION] == pytest.approx(0.03, abs=0.01)
    assert tree["ratio"]["block/ffn"] == pytest.approx(2, abs=0.05)
    assert tree.loc["block", "total_ns"] == pytest.approx(tree.query("depth == 1")["total_ns"].sum(), rel=0.02)


def test_times_are_of_measured_steps_alone(kernels):
    assert set(kernels["step"]) == {0, 1, 2}
    per_step = kernels.groupby("step").size()
    assert per_step.nunique() == 1
