"""Traces of torch.profiler give the tables that captures of nsys give."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.capture import trace_events
from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem, get_process_id, get_thread_id
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.profiles import find_profiles
from profiler_job.analysis.capture.torch_trace import CANNOT_SEE
from profiler_job.analysis.comparison import compare_formats, judge, load_sides, noise
from profiler_job.analysis.insight.limit_lines import describe_verdict
from profiler_job.analysis.insight.matmul_sizes import parse_sizes
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.recording import ingest
from profiler_job.analysis.show.facts import format_facts
from profiler_job.jobs.contract.exit_codes import ExitCode
from tests.capture.nsys_files import Export
from tests.capture.traces import AUTOGRAD, GEMM, MULTIPLY, PID, RANK, Trace, make_followed, make_training

FRAMES = ("kernels", "memops", "api", "ranges", "syncs", "messages", "graphs")


def assert_same(one, two):
    for name in FRAMES:
        frames = [getattr(capture, name) for capture in (one, two)]
        texts = [frame.select_dtypes("category").columns for frame in frames]
        pd.testing.assert_frame_equal(*(frame.astype(dict.fromkeys(of, str)) for frame, of in zip(frames, texts)))
    assert (one.gpus, one.events_ns, one.recorded_at) == (two.gpus, two.events_ns, two.recorded_at)


# ---------------------------------------------------------------------------------------------------------- the tables


def test_tables_have_the_columns_of_an_nsys_export(tmp_path):
    export = Export()
    export.push("step", 0, 1000)
    export.launch(100)
    theirs, ours = read(export.sqlite(tmp_path / "x.sqlite")), read(make_training().write(tmp_path / "x.json"))
    for name in FRAMES:
        assert set(getattr(ours, name).columns) == set(getattr(theirs, name).columns), name
        of_theirs = getattr(theirs, name).dtypes
        for column, dtype in getattr(ours, name).dtypes.items():
            assert isinstance(dtype, pd.CategoricalDtype) == isinstance(of_theirs[column], pd.CategoricalDtype), column


def test_kernels_are_joined_with_the_calls_that_launched_them(tmp_path):
    trace = Trace()
    trace.annotate("forward", 10, 100)
    trace.launch(20, 130, 2.5)
    capture = read(trace.write(tmp_path / "x.json"))
    (kernel,) = capture.kernels.to_dict("records")
    assert (kernel["start_ns"], kernel["end_ns"], kernel["stream"]) == (120_000, 122_500, 7)
    assert (kernel["grid_x"], kernel["grid_y"], kernel["block_x"], kernel["registers"]) == (5, 2, 128, 30)
    assert get_process_id(kernel["process"]) == PID
    place = attribute(capture).kernels
    assert list(place["attribution"]) == ["exact"] and list(place["phase"]) == ["forward"]
    assert list(place["launch_ns"]) == [10_000]


def test_grids_come_without_the_other_details(tmp_path):
    path = make_training().write(tmp_path / "x.json")
    assert {"grid_x", "registers"} & {*read(path, details=False).kernels} == set()
    assert {"grid_x", "registers"} & {*read(path, details=False, grids=True).kernels} == {"grid_x"}


@pytest.mark.parametrize(
    ("start", "end", "between"),
    [
        ("12.345", "13.346", 1001),
        ("1712195495519695.812", "1712195495519697.003", 1191),
        ("1695835542514261", "1695835542514263", 2000),
    ],
)
def test_times_are_exact_to_the_nanosecond(tmp_path, start, end, between):
    trace = Trace()
    trace.launch(0, 1)
    trace.launch(0, 2)
    text = json.dumps(trace.facts | {"traceEvents": trace.events})
    for place, time in ((0, start), (1, start), (2, start), (3, end)):
        event = json.dumps(trace.events[place])
        ts = json.dumps(trace.events[place]["ts"])
        text = text.replace(event, event.replace(f'"ts": {ts}', f'"ts": {time}'), 1)
    (tmp_path / "x.json").write_text(text)
    assert np.diff(read(tmp_path / "x.json").kernels["start_ns"]).tolist() == [between]


def test_copies_and_fills_have_kinds_bytes_and_host_memory(tmp_path):
    trace = Trace()
    for number, name in enumerate(
        ("HtoD (Pinned -> Device)", "DtoH (Device -> Pageable)", "DtoD (Device -> Device)", "PtoP (Device -> Device)")
    ):
        trace.copy(f"Memcpy {name}", 10 * number + 10, 100 + number)
    trace.copy("Memset (Device)", 60, 7, "gpu_memset")
    memops = read(trace.write(tmp_path / "x.json")).memops
    kinds = ["memcpy Host-to-Device", "memcpy Device-to-Host", "memcpy Device-to-Device", "memcpy Peer-to-Peer"]
    assert memops["operation"].astype(str).tolist() == [*kinds, "memset"]
    assert memops["bytes"].tolist() == [100, 101, 102, 103, 7]
    assert memops["host_memory"].astype(str).tolist() == ["pinned", "pageable", "", "", ""]


def test_backward_has_the_modules_of_forward_by_sequence_number(tmp_path):
    capture = read(make_training().write(tmp_path / "x.json"))
    place = attribute(capture).kernels
    assert place["phase"].astype(str).tolist() == ["forward", "forward", "backward", "optimizer"] * 3
    assert place["attribution"].astype(str).tolist()[:4] == ["exact", "exact", "linked", "exact"]
    assert place["module"].astype(str).tolist()[:3:2] == ["Net_0/Linear_0"] * 2
    assert get_thread_id(place["thread"].iloc[2]) == AUTOGRAD
    assert place["step"].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_sizes_of_matmuls_are_kept_with_their_operators(tmp_path):
    names = read(make_training().write(tmp_path / "x.json")).ranges["name"].astype(str)
    assert "aten::addmm, seq = 7, sizes = [[8], [4, 6], [6, 8]]" in set(names)
    assert "aten::linear, seq = 7" in set(names)


def test_matmuls_are_summed_by_recorded_sizes(tmp_path):
    """The GEMM in forward: 3 launches of 5 us; that of backward has no sizes."""
    (row,) = summarise(read(make_training().write(tmp_path / "x.json"))).sections["matmuls"].to_dict("records")
    assert (row["operator"], row["batch"], row["m"], row["n"], row["k"]) == ("addmm", 1, 4, 8, 6)
    assert (row["count"], row["time_ns"], row["flops"]) == (3, 15_000, 3 * 2 * 4 * 8 * 6)
    assert row["flop_per_s"] == pytest.approx(1152 / 15_000e-9) and row["unaligned"] == "m = 4, k = 6"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::bmm, op_id = 0, sizes = [[16, 64, 32], [16, 32, 128]]", ("bmm", 16, 64, 128, 32)),
        ("aten::mm, seq = 3, sizes = [[64, 32], [32, 50257]]", ("mm", 1, 64, 50257, 32)),
        ("aten::baddbmm, sizes = [[2, 4, 8], [2, 4, 6], [2, 6, 8], [], []]", ("baddbmm", 2, 4, 8, 6)),
        ("aten::mm, sizes = [[64, 32], [31, 8]]", None),
        ("aten::mm, sizes = [[64], [31, 8]]", None),
        ("aten::mm, sizes = [[" + "[" * 400, None),
        ("aten::mm, sizes = [['a', 2], [2, 3]]", None),
        ("aten::embedding, sizes = [[64, 32], [32, 8]]", None),
    ],
)
def test_sizes_are_read_from_names_of_operators(name, expected):
    assert parse_sizes(name) == expected


def test_the_trace_shows_gpus_rank_and_date(tmp_path):
    capture = read(make_training(distributedInfo=RANK, cuda_runtime_version=12040).write(tmp_path / "x.json"))
    assert capture.gpus[0]["name"] == "NVIDIA H200" and capture.gpus[0]["sm_count"] == 132
    assert "rank 3 of 8" in capture.schema_version and "CUDA 12.4" in capture.schema_version
    assert capture.recorded_at.startswith("2026-10-01T")


def test_waits_are_calls_or_the_trace_s_own(tmp_path):
    trace = make_training(1)
    assert read(trace.write(tmp_path / "x.json")).syncs["kind"].astype(str).tolist() == ["Stream sync"]
    of = {"cuda_sync_kind": "Event Sync", "stream": 4294967295, "device": 0, "correlation": 5}
    trace.add("cuda_sync", "Event Sync", 1800, 3, pid=0, tid=-1, args=of)
    assert read(trace.write(tmp_path / "x.json")).syncs["kind"].astype(str).tolist() == ["Event Sync"]


def test_collectives_have_their_messages(tmp_path):
    trace = Trace(distributedInfo=RANK)
    of = {"Collective name": "allreduce", "In msg nelems": 250, "Out msg nelems": 250, "dtype": "BFloat16"}
    trace.operate("record_param_comms", 10, 30, **of, **{"Process Group Name": "0"})
    trace.annotate("nccl:all_reduce", 15, 20)
    trace.launch(20, 50, 100, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    messages = summarise(read(trace.write(tmp_path / "x.json"))).sections["messages"]
    assert messages["message_bytes"].tolist() == [500] and messages["collective"].tolist() == ["AllReduce"]


def test_names_of_older_versions_and_of_rocm_are_read(tmp_path):
    trace = Trace(hip_runtime_version=60443483)
    trace.add("Operator", "aten::mul", 1, 10)
    trace.launch(2, 20, call="hipLaunchKernel")
    trace.add("Runtime", "hipDeviceSynchronize", 5, 30, args={"correlation": 77})
    trace.add("Memcpy", "CopyDeviceToHost", 40, 2, pid=0, args={"correlation": 78})
    capture = read(trace.write(tmp_path / "x.json"))
    assert capture.syncs["kind"].astype(str).tolist() == ["Context sync"]
    assert capture.memops["operation"].astype(str).tolist() == ["memcpy Device-to-Host"]
    assert any("ROCm" in what for what in capture.missing)


def test_triton_launches_are_no_ranges(tmp_path):
    trace = Trace()
    trace.operate("triton_poi_fused_add_0", 5, 3, stream=7, kernel_hash="x")
    trace.operate("CompiledFunction", 1, 10, 3)
    trace.launch(6, 9, 1, "triton_poi_fused_add_0")
    assert read(trace.write(tmp_path / "x.json")).ranges["name"].astype(str).tolist() == ["CompiledFunction, seq = 3"]


# ------------------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"separators": (",", ":")}, {"sort_keys": True}])
@pytest.mark.parametrize("piece", [300, 1 << 20])
@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_form_and_pieces_of_a_file_change_nothing(tmp_path, monkeypatch, options, piece, name):
    trace = make_training()
    whole = read(trace.write(tmp_path / "whole.json"))
    monkeypatch.setattr(trace_events, "PIECE_BYTES", piece)
    assert_same(read(trace.write(tmp_path / name, **options)), whole)


@pytest.mark.parametrize("piece", [300, 1 << 20])
def test_facts_may_follow_the_events_and_events_may_hold_objects(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(trace_events, "PIECE_BYTES", piece)
    trace = make_training()
    trace.events[3]["args"]["stack"] = [{"name": "a"}, {"name": "b"}, {"id": [1, 2]}]
    devices = [{"id": number, "name": "GPU"} for number in range(8)]
    text = {"traceEvents": trace.events, "deviceProperties": devices, "distributedInfo": RANK}
    (tmp_path / "x.json").write_text(json.dumps(text))
    capture = read(tmp_path / "x.json")
    assert len(capture.kernels) == 12 and len(capture.gpus) == 8 and "rank 3 of 8" in capture.schema_version
    (tmp_path / "list.json").write_text(json.dumps(trace.events))
    assert len(read(tmp_path / "list.json").kernels) == 12


@pytest.mark.parametrize("piece", [300, 1 << 20])
@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.9])
def test_a_trace_that_is_cut_off_is_refused_with_what_to_do(tmp_path, monkeypatch, piece, name, part):
    monkeypatch.setattr(trace_events, "PIECE_BYTES", piece)
    path = make_training().write(tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ExportError) as caught:
        read(path)
    assert caught.value.code == ExportProblem.UNFINISHED
    assert str(path) in str(caught.value) and "export_chrome_trace" in str(caught.value)


@pytest.mark.parametrize("piece", [300, 1 << 20])
@pytest.mark.parametrize("wild", [b"inf", b"-nan", b'"C:\\Users\\x"', b'"\xff\xfe"', b'"a\nb"'])
def test_json_as_pytorch_wrote_it_is_read(tmp_path, monkeypatch, piece, wild):
    monkeypatch.setattr(trace_events, "PIECE_BYTES", piece)
    trace = make_training()
    trace.events[5]["args"]["blocks per SM"] = "WILD"
    path = trace.write(tmp_path / "x.json")
    whole = read(path)
    path.write_bytes(path.read_bytes().replace(b'"WILD"', wild))
    assert_same(read(path), whole)


def test_an_event_of_another_form_is_left_out_and_counted(tmp_path):
    trace = make_training()
    trace.events[4]["name"] = ["no", "name"]
    capture = read(trace.write(tmp_path / "x.json"))
    assert "1 event could not be read" in capture.problems and len(capture.kernels) == 12


@pytest.mark.parametrize("text", ["{}", '{"a": [1, 2]}', '{"schemaVersion": 1, "nodes": []}'])
def test_other_json_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ExportError) as caught:
        read(tmp_path / "x.json")
    assert caught.value.code == ExportProblem.NOT_AN_EXPORT and caught.value.exit_code == ExitCode.USAGE


def test_a_trace_without_events_says_what_to_record(tmp_path):
    with pytest.raises(ExportError) as caught:
        read(Trace().write(tmp_path / "x.json"))
    assert caught.value.code == ExportProblem.NO_EVENTS and "activities" in str(caught.value)


def test_a_damaged_gzip_is_refused(tmp_path):
    path = make_training().write(tmp_path / "x.json.gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(ExportError) as caught:
        read(path)
    assert caught.value.code in (ExportProblem.DAMAGED, ExportProblem.UNFINISHED)


# -------------------------------------------------------------------------------------------------------- what is shown


def test_a_trace_of_the_cpu_has_no_verdict(tmp_path):
    trace = Trace()
    trace.operate("aten::mul", 1, 10)
    capture = read(trace.write(tmp_path / "x.json"))
    assert any("of the CPU only" in what for what in capture.problems)
    summary = summarise(capture)
    assert describe_verdict(summary)[0].startswith("No kernels") and not len(summary.sections["advice"])


def test_what_torch_profiler_cannot_see_is_listed(tmp_path):
    trace = make_training()
    missing = read(trace.write(tmp_path / "x.json")).missing
    assert set(CANNOT_SEE) <= set(missing) and "calls of modules" not in missing and "sizes of tensors" not in missing
    trace.events = [event for event in trace.events if event["cat"] != "python_function"]
    for event in trace.events:
        event.get("args", {}).pop("Input Dims", None)
    missing = read(trace.write(tmp_path / "x.json")).missing
    assert {"calls of modules", "sizes of tensors"} <= set(missing)


def test_python_calls_show_the_functions_that_the_gpu_waits_for(tmp_path):
    trace = Trace()
    trace.add("python_function", "train.py(12): step", 0, 3000)
    for number in range(4):
        at = 700 * number
        trace.add("python_function", "train.py(40): prepare", at + 10, 600)
        trace.add("python_function", "<built-in function sorted>", at + 20, 500)
        trace.add("python_function", "torch/nn/modules/linear.py(130): forward", at + 620, 60)
        trace.launch(at + 650, at + 660)
    capture = read(trace.write(tmp_path / "x.json"))
    frames = {frame.file: frame for stack in capture.stacks for frame in stack}
    assert set(frames) == {"train.py", "site-packages/torch/nn/modules/linear.py"}
    waits = summarise(capture).sections["waits"]
    assert waits["where"].iloc[0] == "train.py:40" and waits["function"].iloc[0] == "prepare"
    assert waits["wait_ns"].iloc[0] > 0.8 * waits["wait_ns"].sum()


def test_the_verdict_names_the_limit_and_the_parts_add_up(tmp_path):
    summary = summarise(read(make_training().write(tmp_path / "x.json")))
    assert "limited by the CPU" in describe_verdict(summary)[0]
    row = summary.sections["verdict"].iloc[0]
    parts = [name for name in row.index if name.endswith("_ns") and name not in ("elapsed_ns", "compute_ns", "data_ns")]
    assert row["elapsed_ns"] > 0 and parts
    kernels = summary.sections["kernels"].set_index("name")
    assert kernels.loc[GEMM, "total_ns"] == 3 * (5 + 6) * 1000 and kernels.loc[MULTIPLY, "calls"] == 6


def test_no_output_says_that_nsys_made_a_trace(tmp_path):
    path = make_training().write(tmp_path / "x.json")
    assert "nsys" not in format_facts(summarise(read(path)))[0]
    side = load_sides.load_side(path)
    text = compare_formats.as_text(judge.compare(side, side, noise.SHIPPED), [], 0)
    assert text.count("under the profiler") >= 3 and "under nsys" not in text


def test_a_folder_of_ranks_holds_a_profile_for_each(tmp_path):
    for rank in range(2):
        make_training(distributedInfo=RANK | {"rank": rank}).write(tmp_path / f"rank{rank}.pt.trace.json.gz")
    (tmp_path / "times.json").write_text('{"steps": [1, 2]}')
    assert [path.name for path in find_profiles(tmp_path)] == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]


def test_a_trace_of_profile_is_recorded_with_steps_phases_and_modules(tmp_path):
    path = make_followed().write(tmp_path / "profile.json.gz")
    record = SimpleNamespace(profiled_steps=2, run={"workload": "script"})
    status, problem, captured = ingest._read_capture(path, 0, "train", record)
    assert (status, problem) == ("ok", "")
    kernels = captured.tables["kernels"].astype({"phase": str, "module": str})
    assert kernels[["step", "phase", "module"]].values.tolist() == [
        [step, *place]
        for step in (0, 1)
        for place in (("forward", "Net/head"), ("backward", "Net/head"), ("backward", "(gradient accumulation)"))
    ]
    names = captured.tables["ranges"]["name"].astype(str)
    assert not names.str.contains("Compiled|triton").any()
    steps = captured.tables["steps"].astype({"phase": str})
    assert steps.loc[steps["phase"] == "step", "wall_ns"].tolist() == [900_000, 900_000]


def test_steps_that_end_inside_the_optimizer_s_own_range_keep_their_times(tmp_path):
    trace = make_followed()
    for step in range(3):
        at, prefix = 1000.0 * step + 100, "modules:" if step == 2 else ""
        trace.operate("AddmmBackward0", at + 205, 60, 7 + step, AUTOGRAD)
        trace.annotate("Optimizer.step#AdamW.step", at + 800, 150)
        trace.annotate(f"{prefix}optimizer", at + 820, 70)
        trace.operate("aten::_fused_adamw_", at + 822, 66)
        trace.operate("PythonDispatchMode", at + 825, 60)
        if prefix:
            trace.annotate("modules:optimizer/(all parameters)", at + 826, 50)
        trace.launch(at + 830, at + 840, 7)
    path = trace.write(tmp_path / "profile.json.gz")
    record = SimpleNamespace(profiled_steps=2, run={"workload": "script"})
    _, _, captured = ingest._read_capture(path, 0, "train", record)
    steps = captured.tables["steps"].astype({"phase": str}).set_index("phase")["wall_ns"]
    assert steps["backward"].tolist() == [100_000, 100_000]  # the node in autograd's thread lies inside
    assert steps["optimizer"].tolist() == [70_000, 70_000]
    kernels = captured.tables["kernels"].astype({"phase": str, "module": str})
    of_optimizer = kernels[(kernels["phase"] == "optimizer") & (kernels["step"] >= 0)]
    assert of_optimizer["module"].tolist() == ["(all parameters)"] * 2


ODD = [None, True, -1, 2**31, 2**70, 1e300, "", "7", [], {}, "\ud800", "a" * 70_000, float("nan"), float("inf")]


@pytest.mark.parametrize("odd", ODD, ids=lambda value: ascii(value)[:12])
def test_whatever_a_field_holds_a_trace_is_read_or_refused(tmp_path, odd):
    for field in ("cat", "name", "pid", "tid", "ts", "dur", "correlation", "device", "stream", "grid"):
        trace = make_training(1)
        for event in trace.events[::3]:
            place = event if field in event else event["args"] if field in event.get("args", {}) else {}
            place[field] = odd
        text = json.dumps({"traceEvents": trace.events}).encode("utf-8", "surrogatepass")
        (tmp_path / "x.json").write_bytes(text)
        try:
            capture = read(tmp_path / "x.json")
        except ExportError as error:
            assert "x.json" in str(error)
        else:
            assert all(what.isprintable() for what in (*capture.missing, *capture.problems))


def test_a_trace_next_to_a_capture_of_nsys_is_said(tmp_path):
    export = Export()
    export.push("forward", 0, 1000)
    export.launch(100)
    trace = Trace()
    trace.annotate("forward", 0, 1)
    trace.launch(0.1, 0.5)
    paths = export.sqlite(tmp_path / "x.sqlite"), trace.write(tmp_path / "x.json")
    made = judge.compare(*map(load_sides.load_side, paths), noise.SHIPPED)
    assert made.alignment.settings["nsys"][1] == "not used"
    assert "nsys" in compare_formats.as_text(made, [], 0)
