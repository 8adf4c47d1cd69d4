"""Training scripts that do not know this program, as they were profiled on an H200: an HF GPT-2 loop, an HF Llama under
the Trainer (gradient accumulation, checkpointing), a Lightning module, inference, a loop in the manner of nanoGPT
(gradient accumulation), a loop whose blocks are CUDA graphs that the script captured, and an HF GPT-2 of two ranks
under `accelerate launch` (gradient accumulation). The scripts are in tests/follow/scripts."""

import shutil
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.analysis.site.write_site import publish
from profiler_job.jobs.contract import ranges
from tests.packed import unpack_all

SCRIPTS = sorted(Path(__file__).parents[1].joinpath("data", "h200_scripts").iterdir())
TWO_RANKS = next(script for script in SCRIPTS if script.name == "acc2")
GRAPHS = next(script for script in SCRIPTS if script.name == "graphs")
TRAINING = [script for script in SCRIPTS if script.name != "infer"]
CLIPPED = [script for script in TRAINING if script != GRAPHS]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the recording of a script, and what `ingest` reported about it."""

    @cache
    def record(script: Path) -> tuple[store.Recording, list[str]]:
        folder = tmp_path_factory.mktemp("scripts")
        results, said = folder / "results", []
        shutil.copytree(script, results)
        unpack_all(results)
        ingest(results, folder / script.name, emit=said.append)
        return store.load(folder / script.name), said

    return record


def time_of(kernels: pd.DataFrame) -> int:
    return int((kernels["end_ns"] - kernels["start_ns"]).sum())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_nearly_all_kernel_time_has_a_phase(recorded, script):
    recording, said = recorded(script)
    assert said == []
    kernels = recording.kernels
    assert kernels["step"].nunique() == recording.runs["profiled_steps"].item()
    assert time_of(kernels[kernels["phase"] != ""]) / time_of(kernels) > 0.997


@pytest.mark.parametrize("script", TRAINING, ids=lambda script: script.name)
def test_all_of_backward_has_a_module_or_is_a_sum_of_gradients(recorded, script):
    """And what has a module was launched by autograd's own thread, which no range of the script reaches."""
    backward = recorded(script)[0].kernels.query("phase == 'backward'")
    backward = backward[~backward["kernel_name"].astype(str).str.startswith("nccl")]  # they wait for the other rank
    assert (backward["module"] != "").all()
    assert set(backward["module_by"]) == {"linked"}
    assert time_of(backward[backward["module"].astype(str).str.startswith("(")]) / time_of(backward) < 0.40


@pytest.mark.parametrize("script", CLIPPED, ids=lambda script: script.name)
def test_gradients_are_clipped_in_a_phase_of_its_own(recorded, script):
    """Lightning does so, and runs forward and backward, within the optimizer's step: in a closure."""
    totals = kernel_time.kernel_totals(recorded(script)[0].kernels).groupby("phase")["time_ns"].sum()
    assert totals["backward"] > totals["forward"] > totals["optimizer"] > totals["clip"] > 0


@pytest.mark.parametrize("script", TRAINING, ids=lambda script: script.name)
def test_batches_are_copied_to_the_gpu_in_the_phase_of_data(recorded, script):
    """`batch.to(device)` is in no range: it is known from what it copies, outside every phase; in the manner of nanoGPT
    between forward and backward."""
    memops = recorded(script)[0].memops
    copies = memops[memops["operation"] == "memcpy Host-to-Device"]
    assert set(copies["phase"]) == {"data"} and set(copies["attribution"]) == {"inferred"}
    assert set(copies["step"]) == set(memops["step"]), "in every step"
    assert "memcpy Device-to-Host" not in set(memops.loc[memops["phase"] == "data", "operation"])


def test_what_a_graph_of_the_script_replays_has_the_module_that_replays_it(recorded):
    """Each of the six blocks is a graph in forward and one in backward; 14 and 39 kernels of a block and step."""
    kernels = recorded(GRAPHS)[0].kernels
    replayed = kernels[kernels["graph_node"] > 0]
    assert time_of(replayed) / time_of(kernels) > 0.5
    counts = replayed.groupby(["phase", "module"], observed=True).size().to_dict()
    blocks = [f"GPT/h.{number}" for number in range(6)]
    assert counts == {("forward", b): 14 * 5 for b in blocks} | {("backward", b): 39 * 5 for b in blocks}


def test_what_backward_computes_again_is_told_apart(recorded):
    script = next(one for one in SCRIPTS if one.name == "llama")
    tree = kernel_time.sum_by_module(kernel_time.kernel_totals(recorded(script)[0].kernels)).set_index("module")
    again, first = f"{ranges.RECOMPUTED}/LlamaForCausalLM/model/layers.*", "LlamaForCausalLM/model/layers.*"
    assert tree["backward_ns"][again] == pytest.approx(tree["forward_ns"][first], rel=0.08)
    assert 0.15 < tree["step_share"][ranges.RECOMPUTED] < 0.25


def test_the_backward_of_a_linear_layer_takes_twice_its_forward(recorded):
    script = next(one for one in SCRIPTS if one.name == "llama")
    tree = kernel_time.sum_by_module(kernel_time.kernel_totals(recorded(script)[0].kernels)).set_index("module")
    layers = "LlamaForCausalLM/model/layers.*"
    for name in ("self_attn/q_proj", "self_attn/o_proj", "mlp/gate_proj", "mlp/up_proj", "mlp/down_proj"):
        assert tree["ratio"][f"{layers}/{name}"] == pytest.approx(2, abs=0.3)


def test_a_step_without_an_optimizer_is_one_call_of_the_model(recorded):
    script = next(one for one in SCRIPTS if one.name == "infer")
    recording, _ = recorded(script)
    assert set(recording.kernels["phase"]) == {"forward", ""}
    assert list(recording.runs["mode"]) == ["forward"]
    scalars = dict(zip(recording.figures["figure"].astype(str), recording.figures["value"]))
    assert scalars == {"sequences_per_step": 8, "tokens_per_step": 8 * 512, "forwards_per_step": 1}


@pytest.mark.parametrize("name, num_batches, batch_size", [("llama", 2, 4), ("nano", 4, 8)])
def test_gradient_accumulation_makes_one_step_of_several_batches(recorded, name, num_batches, batch_size):
    script = next(one for one in SCRIPTS if one.name == name)
    recording, _ = recorded(script)
    scalars = dict(zip(recording.figures["figure"].astype(str), recording.figures["value"]))
    size = num_batches * batch_size
    assert scalars == {"sequences_per_step": size, "tokens_per_step": size * 512, "forwards_per_step": num_batches}


def test_each_rank_has_a_phase_and_a_module_for_all_that_it_launches(recorded):
    """Where NCCL waits for the slower rank, the other's time is its own: 26 and 60 ms of kernels a step."""
    recording, _ = recorded(TWO_RANKS)
    kernels = recording.kernels
    assert (kernels["phase"] != "").all()
    times = {}
    for rank, own in kernels.groupby("rank"):
        assert set(own["device"]) == {rank} and set(own["step"]) == set(range(5))
        backward = own[own["phase"] == "backward"]
        assert (backward["module"] != "").all()
        nccl = own[own["kernel_name"].astype(str).str.startswith("nccl")]
        assert set(zip(nccl["phase"], nccl["module"])) == {("backward", "(gradient accumulation)/ncclAllReduce")}
        times[rank] = [time_of(own) / 5e6, time_of(nccl) / time_of(own)]
    assert times == {0: pytest.approx([25.90, 0.0512], rel=1e-3), 1: pytest.approx([60.12, 0.5828], rel=1e-3)}
    scalars = recording.figures.groupby("rank")["value"].apply(list).to_dict()
    assert scalars == {0: [8, 8 * 512, 2], 1: [8, 8 * 512, 2]}, "of one rank each: two batches of 4"


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, marks=[pytest.mark.long] * (script.name != "nano")) for script in SCRIPTS],
    ids=lambda script: script.name,
)
def test_its_report_has_an_overview_of_the_script_and_no_breach(recorded, script, tmp_path):
    recording, _ = recorded(script)
    folder = tmp_path / "recordings" / script.name
    store.write(folder, {name: getattr(recording, name) for name in table_schema.TABLES}, recording.manifest)
    published = publish([folder], tmp_path / "docs")
    assert published.breaches == 0
    assert "\nWhat to change first:\n- " in published.verdict
    page = (tmp_path / "docs" / "index.md").read_text()
    assert "A step takes" in page and "costs most" in page and "No module is known" not in page
    replayed = page.count("CUDA graphs replay 58.2% of the kernel time"), page.count("CUDA graphs replay")
    assert replayed == ((1, 1) if script == GRAPHS else (0, 0))
    assert not list((tmp_path / "docs" / "report").glob("*-*.md")) or (tmp_path / "docs/report/cuda-calls.md").is_file()
