"""`profile --collector torch`: torch.profiler in place of nsys. On the CPU."""

import pytest
import torch
from torch import nn

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.layout import TRACE, list_captures, name_node_file
from tests.jobs.profiled_scripts import DDP, HEAD, TRAIN, ended

SOURCE = TRAIN.replace("WORKERS", "0")
OWN = (
    HEAD
    + """
from torch.autograd.profiler import profile
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with profile(use_kineto=True):
    for step in range(40):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
"""
)


@pytest.mark.long
def test_without_nsys_a_script_leaves_a_trace_of_its_steps_with_phases_and_modules(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without the fake nsys
    printed, code = ended(profile(SOURCE, "--collector", "torch", "--skip", "3", "--steps", "3"))
    assert code == 0, printed
    assert "11 steps were followed" in printed and " alone, " in printed and " captured, " in printed
    trace = tmp_path / "results" / "train" / "train" / TRACE
    ranges = attribute(read(trace)).ranges
    assert ranges.loc[ranges["is_step"], "step"].tolist() == [0, 1, 2]
    phases = set(ranges.loc[ranges["step"] >= 0, "phase"].astype(str)) - {""}
    assert phases == {"data", "forward", "zero_grad", "backward", "clip", "optimizer"}
    modules = set(ranges["module"].astype(str))
    assert {"Sequential/0", "Sequential/2"} <= modules
    assert str(trace.relative_to(tmp_path)) in printed
    runs = store.load(tmp_path / "results" / "recordings" / "train").runs
    assert runs[["status", "profiled_steps"]].values.tolist() == [["ok", 0]]


@pytest.mark.long
def test_a_script_that_runs_the_profiler_itself_is_refused_with_what_to_do(profile):
    printed, code = ended(profile(OWN, "--collector", "torch"))
    assert code == 1
    assert "runs torch.profiler" in printed and "--collector nsys" in printed


@pytest.mark.long
def test_each_rank_has_a_trace_with_its_number(profile, tmp_path):
    source = DDP.replace("STEPS", "40").replace("IN_STEP", "pass")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    printed, code = ended(profile(source, "--collector", "torch", launcher=launcher))
    assert code == 0, printed
    folder = tmp_path / "results" / "train" / "train"
    traces = list_captures(folder)
    assert [trace.name for trace in traces] == [TRACE, name_node_file(TRACE, 1)]
    said = [set(read(trace).ranges["name"].astype(str)) for trace in traces]
    assert [f"modules:rank {rank} of 2" in names for rank, names in enumerate(said)] == [True, True]


def test_names_of_further_captures_have_numbers_before_their_ending():
    assert name_node_file("profile.sqlite", 1) == "profile-1.sqlite"
    assert name_node_file(TRACE, 2) == "profile-2.json.gz" and name_node_file(TRACE, 0) == TRACE


def test_nodes_of_backward_are_linked_to_modules_in_a_trace_of_this_torch(tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
        for _ in range(2):
            model(torch.randn(3, 8)).sum().backward()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "x.json.gz"))
    capture = read(tmp_path / "x.json.gz")
    found = attribute(capture)
    names = found.ranges["name"].astype(str)
    assert any("aten::addmm, seq = " in name and "sizes = [[16], [3, 8], [8, 16], [], []]" in name for name in names)
    backward = found.ranges[found.ranges["plain_name"].astype(str) == "AddmmBackward0"]
    assert len(backward) == 4 and (backward["phase"] == "backward").all()
    modules = found.ranges.loc[names.str.startswith("aten::addmm"), "module"].astype(str)
    assert set(modules) == {"Sequential_0/Linear_0", "Sequential_0/Linear_1"}
    assert any(frame.file.endswith("test_profile_torch.py") for stack in capture.stacks for frame in stack)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x).relu() + x


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.randn(3, 8))])
@pytest.mark.parametrize("record", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_modules_of_torchscript_are_read_in_a_trace_of_this_torch(tmp_path, make, record):
    model = make(nn.Sequential(Block(), nn.Linear(8, 4)))
    with record(with_modules=True) as profiler:
        for _ in range(4):  # the graph is optimized in the third call
            model(torch.randn(3, 8)).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "x.json"))
    ranges = attribute(read(tmp_path / "x.json")).ranges
    found = [
        ranges.loc[ranges["plain_name"] == name, "module"].astype(str).tolist()
        for name in ("aten::linear", "aten::relu")
    ]
    block = "Sequential/0(Block)"
    assert found == [[f"{block}/inner(Linear)", "Sequential/1(Linear)"] * 4, [block] * 4]
