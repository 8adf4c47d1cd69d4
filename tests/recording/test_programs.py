"""Public programs that were profiled unmodified on an H200, against what each prints of itself or has in its file."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from tests.packed import unpack_all

PROGRAMS = Path(__file__).parents[1] / "data" / "h200_programs"


class Program(NamedTuple):
    """model, num_parameters, batch, context: as the program prints them, or has them in its file. precision: what its
    matmuls run in. in_phase: least share of kernel time in a phase. phases: shares of some of them."""

    name: str
    model: str
    num_parameters: int
    batch: int
    context: int
    precision: str
    in_phase: float
    phases: dict[str, float]


RECORDED = (
    # PyTorch's convolutions run in TF32 unless a program forbids it.
    Program("ddpm", "DDPM", 16_867_073, 128, 0, "tf32", 0.9999, {"backward": 0.684}),
    Program("imagenet", "ResNet", 25_557_032, 64, 0, "tf32", 0.998, {"backward": 0.657}),
    # A moving average of its weights is of the optimizer.
    Program("dit", "DiT", 129_713_792, 64, 0, "tf32", 0.998, {"optimizer": 0.108}),
    # Compiled; 32,768 tokens in two batches.
    Program("llama2c", "Transformer", 15_187_968 + 3_744, 128, 256, "bf16", 0.999, {"clip": 0.005}),
    # Sequence first, and updates by hand.
    Program("wlm", "TransformerModel", 3_615_809, 20, 35, "fp32", 0.9999, {"optimizer": 0.043}),
    # Acts under gradients between its updates.
    Program("dqn", "QNetwork", 10_934, 128, 0, "fp32", 0.95, {"loss": 0.027}),
)


@pytest.mark.parametrize("program", RECORDED, ids=lambda program: program.name)
def test_a_recording_shows_what_the_program_says(program, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(PROGRAMS / program.name, results)
    unpack_all(results)
    ingest(results, tmp_path / "recording", emit=lambda _: None)
    recording = store.load(tmp_path / "recording")
    run = recording.runs.iloc[0]
    assert (run["size"], run["num_parameters"]) == (program.model, program.num_parameters)
    assert (run["batch_size"], run["context_length"]) == (program.batch, program.context)
    assert run["precision"] == program.precision
    kernels = recording.kernels
    time_ns = (kernels["end_ns"] - kernels["start_ns"]).groupby(kernels["phase"].astype(str)).sum()
    shares = time_ns / time_ns.sum()
    assert 1 - shares.get("", 0) > program.in_phase
    assert {phase: round(float(shares[phase]), 3) for phase in program.phases} == program.phases
