"""What a break between two graphs of torch.compile costs in a measured step."""

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.graph_breaks import Break, find_breaks
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.finding_lines import describe_findings
from profiler_job.analysis.insight.summary import summarise
from tests.capture.nsys_files import Export
from tests.capture.traces import Trace

FIRST, SECOND = "triton_poi_fused_gelu_0", "triton_poi_fused_add_1"
GRAPHS = ("modules:graph 0 forward GPT", (FIRST, FIRST)), ("modules:graph 1 forward GPT", (SECOND,))


def write_step(export, at, kernels, late_ns):
    """Launch kernels one after the other, each 20 ns long; those of no graph and after them are `late_ns` late."""
    start = at + 20
    for place, name in enumerate(kernels):
        start += 20 + (late_ns if place == 2 else 0)
        export.launch(at + 10 + 2 * place, start=start, end=start + 20, name=name)


def make_capture(
    tmp_path,
    followed=(FIRST, FIRST, "print", SECOND),
    measured=(FIRST, FIRST, "print", SECOND),
    library="",
    parts="h.{}=100",
):
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
    return read(export.sqlite(tmp_path / "a.sqlite"))


def test_a_break_has_the_idle_time_and_the_kernels_between_its_graphs(tmp_path):
    capture = make_capture(tmp_path)
    assert find_breaks(capture, attribute(capture)) == [
        Break(0, "GPT (compiled)", 1, 0),
        Break(1, "GPT (compiled)", 1, 500),
    ]
    findings = summarise(capture).sections["findings"].set_index("kind")
    assert findings.loc["graph_breaks", ["time_ns", "count"]].tolist() == [500, 2]
    assert any("2 breaks" in line for line in describe_findings(findings.reset_index()))


def test_the_range_of_a_library_divides_no_graph(tmp_path):
    capture = make_capture(tmp_path, library="cub::DeviceRadixSort")
    assert [found.region for found in find_breaks(capture, attribute(capture))] == ["GPT (compiled)"] * 2


def test_notes_of_graphs_are_no_ranges_of_the_script(tmp_path):
    shown = set(summarise(make_capture(tmp_path)).sections["ranges"]["name"])
    assert shown == {"step", "forward", "modules:step", "modules:forward", "GPT (compiled)"}


def test_without_a_break_or_with_other_kernels_in_measured_steps_there_is_no_cost(tmp_path):
    whole = make_capture(tmp_path, (FIRST, FIRST), (FIRST, FIRST))
    assert find_breaks(whole, attribute(whole)) == []
    (tmp_path / "a.sqlite").unlink()
    others = make_capture(tmp_path, measured=(FIRST, FIRST, "other", SECOND))
    assert find_breaks(others, attribute(others)) == []


def test_a_trace_of_torch_profiler_has_the_same_breaks(tmp_path):
    trace = Trace()
    for step, late in enumerate((0, 500, 0)):
        at, prefix = 1000 * step, "modules:" if step == 2 else ""
        trace.annotate(f"loop:{prefix}step", at, 990)
        trace.annotate(f"{prefix}forward", at + 5, 95)
        if prefix:
            trace.annotate("GPT (compiled)", at + 8, 90)
        trace.annotate("Torch-Compiled Region: 0/0", at + 9, 40)
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
    assert found == [Break(0, "GPT (compiled)", 1, 0), Break(1, "GPT (compiled)", 1, 500_000)]
