"""What a break between two graphs of torch.compile costs in a measured step."""

import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.graph_breaks import Break, BrokenLine, find_breaks, measure_idle, read_lines
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.broken_lines import list_captured
from profiler_job.analysis.insight.finding_lines import describe_findings
from profiler_job.analysis.insight.first_advice import format_first_advice
from profiler_job.analysis.insight.summary import summarise
from profiler_job.jobs.contract.changes import LABELS, WHOLE_GRAPHS
from profiler_job.jobs.contract.ranges import BREAK, CALL, FOLLOWED
from tests.capture.nsys_files import Export
from tests.capture.traces import Trace

PROCESS, BACKWARD = 0x1000001, f"{FOLLOWED}backward/"
FIRST, SECOND = "triton_poi_fused_gelu_0", "triton_poi_fused_add_1"
GRAPHS = ("modules:graph 0 forward GPT", (FIRST, FIRST)), ("modules:graph 1 forward GPT", (SECOND,))


def write_step(export, at, kernels, late_ns):
    """Launch kernels one after the other, each 20 ns long; kernels of no graph, and after them, are `late_ns` late."""
    start = at + 20
    for place, name in enumerate(kernels):
        start += 20 + (late_ns if place == 2 else 0)
        export.launch(at + 10 + 2 * place, start=start, end=start + 20, name=name)


def make_export(
    followed=(FIRST, FIRST, "print", SECOND),
    measured=(FIRST, FIRST, "print", SECOND),
    library="",
    parts="h.{}=100",
    lines=(),
):
    """lines: what a script noted of those at which graphs break."""
    export = Export()
    for step, late_ns in enumerate((0, 500)):
        export.span("step", 1000 * step, 1000 * step + 990)
        export.push("forward", 1000 * step + 5, 1000 * step + 100)
        write_step(export, 1000 * step, measured, late_ns)
    export.span("modules:step", 3000, 4990)
    export.push("modules:forward", 3005, 3200)
    export.push("GPT (compiled)", 3008, 3190)
    if library:
        export.push(library, 3009, 3011)  # around the first kernel
    write_step(export, 3000, followed, 0)
    for number, (name, launches) in enumerate(GRAPHS):
        export.push(name, 4000 + 100 * number, 4090 + 100 * number)
        for place, kernel in enumerate(launches):
            at = 4010 + 100 * number + 10 * place
            export.push(f"{kernel}|{parts.format(number)}", at, at + 5)
    for place, line in enumerate(lines):
        export.push(f"{BREAK}{line}", 4200 + 10 * place, 4205 + 10 * place)
    return export


def make_capture(tmp_path, *args, **options):
    return read(make_export(*args, **options).sqlite(tmp_path / "a.sqlite"))


def test_a_break_has_the_idle_time_and_the_kernels_between_its_graphs(tmp_path):
    capture = make_capture(tmp_path)
    assert find_breaks(capture, attribute(capture)) == [
        Break(PROCESS, 0, "forward", "GPT (compiled)", -1, 1, 0),
        Break(PROCESS, 1, "forward", "GPT (compiled)", -1, 1, 500),
    ]
    assert measure_idle(capture, attribute(capture)) == 500
    findings = summarise(capture).sections["findings"].set_index("kind")
    assert findings.loc["graph_breaks", ["time_ns", "count"]].tolist() == [500, 2]
    assert any("2 breaks" in line for line in describe_findings(findings.reset_index()))


LINE = "|train.py:8|forward|Tensor.item(): it | reads a value"


def test_the_lines_that_a_script_noted_are_named_first_in_what_show_advises(tmp_path):
    capture = make_capture(tmp_path, lines=[LINE])
    assert read_lines(attribute(capture).ranges) == [
        BrokenLine(PROCESS, "train.py:8", "forward", "Tensor.item(): it | reads a value", ())
    ]
    summary = summarise(capture)
    table = summary.sections["advice"]
    first = table.iloc[0]
    assert (first["change"], first["where"]) == (WHOLE_GRAPHS, "train.py:8 forward")
    assert first["time_ns"] <= first["ceiling_ns"] <= 500 and "Tensor.item()" in first["do"]
    found = describe_findings(summary.sections["findings"])
    assert any("2 breaks (at train.py:8 forward; GPT" in line for line in found)
    line, *_ = format_first_advice(summary)
    assert line.startswith(f"1. {LABELS[WHOLE_GRAPHS]} (train.py:8 forward), could save up to 500 ns: Tensor.item()")
    assert not summary.sections["ranges"]["name"].str.contains("break").any()


def test_other_lines_are_counted_next_to_the_one_that_costs_most():
    lines = [BrokenLine(1, f"train.py:{number}", "forward", "r", (number,)) for number in (1, 2)]
    breaks = [Break(1, step, "forward", "GPT", 1 + step, 2, 10 * step) for step in range(2)]
    rows = list_captured(lines, [*breaks, Break(1, 0, "backward", "GPT", 7, 0, 3)])
    assert rows["where"].tolist() == ["train.py:2", "", "train.py:1"] and rows["function"].tolist()[1] == "GPT"
    assert rows["forward_idle_ns"].tolist() == [10, 0, 0] and rows["backward_idle_ns"].tolist() == [0, 3, 0]
    assert rows["kernels"].tolist() == [2, 0, 2]


def test_the_range_of_a_library_divides_no_graph(tmp_path):
    capture = make_capture(tmp_path, library="cub::DeviceRadixSort")
    assert [found.region for found in find_breaks(capture, attribute(capture))] == ["GPT (compiled)"] * 2


def test_notes_of_graphs_are_no_ranges_of_the_script(tmp_path):
    shown = set(summarise(make_capture(tmp_path)).sections["ranges"]["name"])
    assert shown == {"step", "forward", "modules:step", "modules:forward", "GPT (compiled)"}


def test_show_names_the_layers_inside_a_compiled_model(tmp_path):
    modules = summarise(make_capture(tmp_path)).sections["modules"].set_index("name")["total_ns"]
    assert modules.to_dict() == {"GPT/h.*": 60, "GPT (compiled)": 20}, "what no graph has is of the whole"


def test_without_a_break_or_with_other_kernels_in_measured_steps_there_is_no_cost(tmp_path):
    whole = make_capture(tmp_path, (FIRST, FIRST), (FIRST, FIRST))
    assert find_breaks(whole, attribute(whole)) == []
    (tmp_path / "a.sqlite").unlink()
    others = make_capture(tmp_path, measured=(FIRST, FIRST, "other", SECOND))
    assert find_breaks(others, attribute(others)) == []


@pytest.mark.parametrize("with_calls", [False, True])
def test_a_trace_of_torch_profiler_has_the_same_breaks(tmp_path, with_calls):
    trace = Trace()
    for step, late in enumerate((0, 500, 0)):
        at, prefix = 1000 * step, "modules:" if step == 2 else ""
        trace.annotate(f"loop:{prefix}step", at, 990)
        trace.annotate(f"{prefix}forward", at + 5, 95)
        if prefix:
            trace.annotate("GPT (compiled)", at + 8, 90)
        trace.annotate("Torch-Compiled Region: 0/0", at + 9, 40)
        if with_calls and prefix:
            trace.annotate(f"{CALL}0 broken", at + 10, 4)
            trace.annotate(f"{CALL}1", at + 16, 2)
        start = at + 20
        for place, name in enumerate((FIRST, FIRST, "print", SECOND)):
            start += 20 + (late if place == 2 else 0)
            trace.launch(at + 10 + 2 * place, start, 20, name)
    for number, (name, launches) in enumerate(GRAPHS):
        trace.annotate(name, 4000 + 100 * number, 90)
        for place, kernel in enumerate(launches):
            trace.annotate(f"{kernel}|h.{number}=100", 4010 + 100 * number + 10 * place, 5)
    capture = read(trace.write(tmp_path / "x.json"))
    found = find_breaks(capture, attribute(capture))
    assert [(each.step, each.launches, each.idle_ns) for each in found] == [(0, 1, 0), (1, 1, 500_000)]
    assert {(each.region, each.graph) for each in found} == {("GPT (compiled)", 0 if with_calls else -1)}


KERNEL = "triton_poi_fused_gelu_0"
BREAKS = {
    "at a line": ["forward 0 broken", "print", "forward 1"],
    "of a loop": ["forward/blocks.0 0", "print", "forward/blocks.1 1"],
}


def make_called(tmp_path, calls, num_passes=1, region="GPT (compiled)"):
    """A measured and a followed step, both with passes of forward and backward. calls: of forward: PATH NUMBER and
    whether the graph ends at a break, or an eager kernel (with a path, of a module that Python calls); backward has
    them in reverse, with the next numbers, and what adds to gradients before its last. Each kernel is 20 ns long, 30
    after the one before."""
    export, at = Export(), 0
    for prefix in ("", FOLLOWED):
        begin = at
        for _ in range(num_passes):
            for phase in ("forward", "backward"):
                thread, first = 1 + (phase == "backward"), at
                each = calls if phase == "forward" else [*calls[:0:-1], "add", calls[0]]
                for called in each:
                    path, *call = called.split(" ", 1)
                    export.launch(at + 10, start=at + 20, end=at + 40, name=KERNEL if call else path, thread=thread)
                    if prefix and call and phase == "backward":
                        number, *broken = call[0].split()
                        name = " ".join([f"{CALL}{int(number) + 2}", *broken])
                        export.push(f"{BACKWARD}{region}{path.removeprefix('forward')}", at + 2, at + 28, thread=2)
                        export.push(name, at + 4, at + 26, thread=2)
                    elif prefix and phase == "forward":
                        if call:
                            export.push(f"{CALL}{call[0]}", at + 6, at + 26)
                        if "/" in path:
                            export.push(path.partition("/")[2], at + 4, at + 28)
                    elif prefix and "/" in path:
                        export.push(f"{BACKWARD}{region}{path.removeprefix('forward')}", at + 2, at + 28, thread=2)
                    elif prefix and called == "add":
                        export.push(f"{BACKWARD}(gradient accumulation)", at + 2, at + 28, thread=2)
                    at += 50
                export.push(f"{prefix}{phase}", first, at)
                if prefix and phase == "forward":
                    export.push(region, first + 1, at - 1)
                at += 10
        export.span(f"{prefix}step", begin, at)
        at += 10
    for number in range(4):
        export.push(f"modules:graph {number} {('forward', 'backward')[number // 2]} GPT", at, at + 20)
        export.push(f"{KERNEL}|h.{number % 2}=100", at + 5, at + 10)
        at += 30
    return read(export.sqlite(tmp_path / "a.sqlite"))


@pytest.mark.parametrize("num_passes", [1, 2])
@pytest.mark.parametrize("kind", BREAKS)
def test_calls_of_graphs_say_where_breaks_are_in_both_passes(tmp_path, kind, num_passes):
    capture = make_called(tmp_path, BREAKS[kind], num_passes)
    forward, backward = (0, 2) if kind == "at a line" else (-1, -1)
    assert find_breaks(capture, attribute(capture)) == [
        *[Break(PROCESS, 0, "forward", "GPT (compiled)", forward, 1, 60)] * num_passes,
        *[Break(PROCESS, 0, "backward", "GPT (compiled)", backward, 1, 90)] * num_passes,
    ]


def test_the_last_break_of_a_loop_has_what_python_runs_after_it(tmp_path):
    calls = ["forward/blocks.0 0", "print", "forward/blocks.1 1", "forward/norm", "forward/head"]
    capture = make_called(tmp_path, calls)
    region = "GPT (compiled)"
    assert find_breaks(capture, attribute(capture)) == [
        Break(PROCESS, 0, "forward", region, -1, 1, 60),
        Break(PROCESS, 0, "forward", region, -1, 2, 60),
        Break(PROCESS, 0, "backward", region, -1, 1, 90),
        Break(PROCESS, 0, "backward", region, -1, 2, 60),
    ]


def test_a_loop_of_one_graph_has_one_break(tmp_path):
    capture = make_called(tmp_path, ["forward/blocks.0 0", "forward/head"])
    found = find_breaks(capture, attribute(capture))
    assert [(each.phase, each.launches) for each in found] == [("forward", 1), ("backward", 1)]


def test_a_break_after_which_nothing_of_the_module_runs_is_counted_in_forward(tmp_path):
    capture = make_called(tmp_path, ["forward 0 broken", "print", "forward 1 broken"])
    found = find_breaks(capture, attribute(capture))
    assert [(each.phase, each.graph, each.launches, each.idle_ns) for each in found] == [
        ("forward", 0, 1, 60),
        ("forward", 1, 0, 0),
        ("backward", 2, 1, 90),
    ]


def test_parts_that_are_compiled_by_themselves_have_no_break(tmp_path):
    whole = make_called(tmp_path, ["forward 0", "print", "forward 1"], region="GPT")
    assert find_breaks(whole, attribute(whole)) == []
    shown = set(summarise(whole).sections["ranges"]["name"])
    assert not [name for name in shown if name.startswith(CALL)]
