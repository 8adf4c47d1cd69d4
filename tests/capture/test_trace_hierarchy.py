"""Modules of TorchScript, from the frames that torch.profiler writes with `with_modules`."""

import json

import pytest

from profiler_job.analysis.capture import trace_events
from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.nsys_export import read
from tests.capture.traces import AUTOGRAD, MAIN, Trace

NODE = "AddmmBackward0"
TOP, OPTIMIZED = "TOP(Net)::forward.", "TOP()::<forward op>."
MODULES = {
    "aten::linear": "Net/0(Block)/fc(Linear)",
    "aten::addmm": "Net/0(Block)/fc(Linear)",
    "aten::relu": "Net/0(Block)/act(ReLU)",
    "aten::add": "Net/0(Block)",
    "aten::tanh": "Net",
    "aten::sum": "aten::sum",
}


def make_scripted(backward: int = MAIN, is_shifted: bool = True, **facts) -> Trace:
    """Two steps of a scripted model, with a node of backward on a thread: with frames as PyTorch 2 hands them out if
    `is_shifted`, and as PyTorch 1.11 does if not."""
    rows = []
    for step in range(2):
        at, top = 1000.0 * step, OPTIMIZED if step else TOP
        block = f"{top}0(Block)::forward."
        rows += [
            (MAIN, "forward", at + 10, 100, None, TOP),
            (MAIN, "<forward op>", at + 12, 90, None, top),
            (MAIN, "aten::linear", at + 15, 10, 3 + step, f"{block}fc(Linear)::forward."),
            (MAIN, "aten::addmm", at + 16, 8, 3 + step, f"{block}fc(Linear)::forward."),
            (MAIN, "aten::relu", at + 30, 5, 13 + step, f"{block}act(ReLU)::forward.::relu."),
            (MAIN, "aten::add", at + 40, 5, 23 + step, f"{block}SELF(Block)::join."),
            (MAIN, "aten::tanh", at + 50, 5, 33 + step, top),
            (MAIN, "aten::sum", at + 120, 5, 43 + step, None),
            (backward, f"autograd::engine::evaluate_function: {NODE}", at + 200, 50, 3 + step, None),
            (backward, NODE, at + 205, 40, 3 + step, None),
            (backward, "aten::mm", at + 210, 5, None, None),
        ]
    trace = Trace(**facts)
    queues = {
        thread: iter([row[-1] for row in rows if row[0] == thread and row[1] != NODE]) for thread in (MAIN, AUTOGRAD)
    }
    for thread, name, at, dur, sequence, frames in rows:
        text = next(queues[thread], None) if is_shifted else frames
        trace.operate(name, at, dur, sequence, thread, **({} if text is None else {"Module Hierarchy": text}))
    for step in range(2):
        trace.launch(1000 * step + 17, 1000 * step + 130)
        trace.launch(1000 * step + 211, 1000 * step + 230, tid=backward)
    return trace


def list_modules(capture):
    ranges = attribute(capture).ranges
    names = ranges["plain_name"].astype(str)
    return [(name, str(module)) for name, module in zip(names, ranges["module"]) if name in MODULES]


@pytest.mark.parametrize("piece", [300, 1 << 20])
@pytest.mark.parametrize(
    ("backward", "is_shifted", "facts"),
    [
        (MAIN, True, {"with_modules": 1}),
        (MAIN, True, {}),  # of torch.autograd.profiler
        (MAIN, False, {}),
        (AUTOGRAD, True, {"with_modules": 1}),
    ],
)
def test_operators_have_the_modules_of_their_frames(tmp_path, monkeypatch, piece, backward, is_shifted, facts):
    monkeypatch.setattr(trace_events, "PIECE_BYTES", piece)
    trace = make_scripted(backward, is_shifted, **facts)
    for event in trace.events:
        event["cat"] = "Operator" if event["cat"] == "cpu_op" and not is_shifted else event["cat"]
    capture = read(trace.write(tmp_path / "x.json"))
    found = list_modules(capture)
    assert len(found) == 12 and found == [(name, MODULES[name]) for name, _ in found]
    kernels = attribute(capture).kernels.astype({"phase": str, "module": str})
    fc = MODULES["aten::linear"]
    assert kernels[["phase", "module"]].values.tolist() == [["forward", fc], ["backward", fc]] * 2
    assert "calls of modules" not in capture.missing


@pytest.mark.parametrize("frames", [{}, {"Module Hierarchy": ""}])
def test_a_trace_without_frames_stays_as_it_is(tmp_path, frames):
    trace = make_scripted(with_modules=1)
    for event in trace.events:
        event["args"].pop("Module Hierarchy", None)
        event["args"] |= frames
    capture = read(trace.write(tmp_path / "x.json"))
    assert "calls of modules" in capture.missing and ("aten::tanh", "aten::tanh") in list_modules(capture)


def test_modules_that_nest_too_deep_are_left_out(tmp_path):
    trace = Trace(with_modules=1)
    for number in range(1000):
        frames = TOP + "a(B)::c." * 5000 if number % 2 == 0 else None
        trace.operate("aten::add", 10 + number, 1, **({"Module Hierarchy": frames} if frames else {}))
    assert len(read(trace.write(tmp_path / "x.json")).ranges) == 1000 + 500 * 100


@pytest.mark.parametrize(
    "odd", [7, 1e300, "", ".", "TOP", "TOP().", "(" * 5000, "a(B)::c." * 300, "TOP(A)::b.\ud800(C)::d.", [1], {"a": 1}]
)
def test_whatever_frames_hold_a_trace_is_read_or_refused(tmp_path, odd):
    trace = make_scripted(with_modules=1)
    for event in trace.events[::3]:
        event["args"]["Module Hierarchy"] = odd
    (tmp_path / "x.json").write_bytes(json.dumps(trace.facts | {"traceEvents": trace.events}).encode())
    try:
        assert len(read(tmp_path / "x.json").kernels) > 0
    except ExportError as error:
        assert "x.json" in str(error)


def test_a_scripted_part_of_an_eager_model_marks_no_phase_of_the_rest(tmp_path):
    trace = make_scripted(AUTOGRAD, with_modules=1)
    trace.operate("aten::gelu", 130, 20, 53)
    trace.launch(135, 140)
    phases = attribute(read(trace.write(tmp_path / "x.json"))).kernels["phase"].astype(str).tolist()
    assert phases == ["forward", "forward", "backward", "forward", "backward"]
