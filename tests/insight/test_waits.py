"""Lines of a script that the GPU waits for, from samples of Python."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis import show as showing
from profiler_job.analysis.answers.script_findings import format_in_tables
from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.python_samples import PythonFrame, shorten_files
from profiler_job.analysis.capture.trace_stacks import make_samples as make_trace_samples
from profiler_job.analysis.insight.insight import form_sentences
from profiler_job.analysis.insight.stack_places import find_place
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.show.page import render_page
from profiler_job.analysis.show.show_formats import as_markdown, as_text, section_as_csv
from profiler_job.analysis.show.table_columns import fit_table
from profiler_job.analysis.show.wait_stacks import MOST_DRAWN, draw_stacks, tabulate_stacks
from profiler_job.jobs.contract.privacy import find_private
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import GARBAGE_RANGE
from tests.capture.nsys_files import Export
from tests.capture.profiles import profile

MS = 1_000_000
MAIN, AUTOGRAD = 1, 2
TORCH = "/env/lib/python3.12/site-packages/torch"
MODULE = ("<module>", "train.py", 30)
TOKENIZE = ("tokenize", "train.py", 8)
STEP = ("train_step", "train.py", 15)
ADAM = (("_single_tensor_adam", f"{TORCH}/optim/adam.py", 400), ("step", f"{TORCH}/optim/adam.py", 240))
GENERATED = f"/tmp/torchinductor_x/a2/ca2{49 * 'b'}.py"
BACKWARD = ("backward", f"{TORCH}/autograd/__init__.py", 350)
ENGINE = ("_engine_run_backward", f"{TORCH}/autograd/graph.py", 800)


def summarise_export(export: Export, folder: Path, **options):
    return summarise(read(export.sqlite(folder / "x.sqlite")), **options)


def take_samples(export: Export, start_ms: float, end_ms: float, *frames, thread=MAIN) -> None:
    """Sample every half millisecond."""
    for half in range(round(2 * start_ms), round(2 * end_ms)):
        export.sample(half * MS // 2, *frames, MODULE, thread=thread)


def make_late_export() -> Export:
    """10 ms: kernels at 0-1, 5-6 and 9-10 ms; the CPU tokenizes, then steps the optimizer."""
    export = Export()
    for at in (0, 5, 9):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS, thread=AUTOGRAD if at == 9 else MAIN)
    take_samples(export, 0, 5, TOKENIZE, STEP)
    take_samples(export, 5, 8, *ADAM, STEP)
    take_samples(export, 8, 11, ENGINE, STEP)
    return export


def list_lines(summary) -> dict[str, tuple]:
    rows = summary.sections["waits"]
    return {row.where: (round(row.wait_ns / MS, 1), row.below) for row in rows.itertuples()}


def test_idle_time_belongs_to_the_innermost_line_of_the_user(tmp_path):
    summary = summarise_export(make_late_export(), tmp_path)
    assert list_lines(summary) == {
        "train.py:8": (4.0, "own code 100%"),
        "train.py:15": (3.0, "tensor-by-tensor optimizer 67%; autograd engine 33%"),
    }
    facts = summary.capture
    assert (facts["waiting_ns"], facts["waiting_span_ns"], facts["sampled_share"]) == (7 * MS, 10 * MS, 1.0)


def test_threads_without_python_count_for_the_line_that_called_backward(tmp_path):
    """The launch at 9 ms is of autograd's thread, which is not sampled."""
    stacks = summarise_export(make_late_export(), tmp_path).sections["wait_stacks"].set_index("stack")["wait_ns"]
    backward = "<module> (train.py:30);train_step (train.py:15);_engine_run_backward"
    assert [ns for stack, ns in stacks.items() if stack.startswith(backward)] == [1 * MS]


def test_the_thread_that_launches_next_counts_and_no_other(tmp_path):
    export = make_late_export()
    take_samples(export, 0, 5, ("collate", "loader.py", 3), thread=9)
    assert "loader.py:3" not in list_lines(summarise_export(export, tmp_path))


def test_time_that_no_sample_covers_is_a_share(tmp_path):
    export = Export()
    for at in (0, 20):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS)
    take_samples(export, 0, 3, TOKENIZE)
    take_samples(export, 20, 22, STEP)  # Python's lock was held for 17 ms
    summary = summarise_export(export, tmp_path)
    assert summary.capture["waiting_ns"] == 19 * MS
    assert list_lines(summary) == {"train.py:8": (3.5, "own code 100%")}
    assert summary.capture["sampled_share"] == pytest.approx(3.5 / 19)


def test_a_line_of_another_thread_than_the_main_one_is_said_to_be_there(tmp_path):
    """The thread that launches runs the steps; the main one waits for it."""
    export = Export()
    for at in (0, 5, 9):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS, thread=3)
    take_samples(export, 0, 10, TOKENIZE, thread=3)
    take_samples(export, 0, 10, ("join", "/usr/lib/python3.12/threading.py", 1149))
    assert list_lines(summarise_export(export, tmp_path)) == {
        "train.py:8": (7.0, "own code 100%; in another thread than the main one")
    }


def test_a_long_call_between_samples_of_one_line_counts_for_it(tmp_path):
    export = Export()
    for at in (0, 20):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS)
    take_samples(export, 0, 3, TOKENIZE)
    take_samples(export, 20, 22, TOKENIZE)
    assert list_lines(summarise_export(export, tmp_path)) == {"train.py:8": (19.0, "own code 100%")}


@pytest.mark.parametrize("kind", [1, 2], ids=["from the host", "to the host"])
def test_copies_that_nothing_hides_are_waiting(kind, tmp_path):
    export = Export()
    export.launch(0, start=0, end=MS)
    export.copy(MS, 5 * MS, export.call(MS, 5 * MS, name="cudaMemcpyAsync_v3020"), kind=kind)
    export.launch(5 * MS, start=5 * MS, end=6 * MS)
    take_samples(export, 0, 7, ("train", "train.py", 12))
    row = summarise_export(export, tmp_path).sections["waits"].iloc[0]
    assert (row["where"], row["wait_ns"], row["copies_ns"]) == ("train.py:12", 4 * MS, 4 * MS)
    assert "pin_memory" in row["do"]


def test_collections_of_garbage_have_a_name(tmp_path):
    export = make_late_export()
    export.push(f"{GARBAGE_RANGE} 2", 2 * MS, 4 * MS)
    rows = summarise_export(export, tmp_path).sections["waits"].set_index("where")
    assert rows.loc["train.py:8", "below"].startswith(("garbage collection 50%", "own code 50%"))


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([TOKENIZE, MODULE], ("train.py", 8, "own code")),
        (
            [("forward", "model.py", 3), ("_call_impl", f"{TORCH}/nn/modules/module.py", 9), MODULE],
            ("model.py", 3, "own code of a module"),
        ),
        ([("item", f"{TORCH}/_tensor.py", 5), STEP], ("train.py", 15, "torch")),
        ([("get", "/usr/lib/python3.12/queue.py", 5), STEP], ("train.py", 15, "Python's standard library")),
        ([("call", GENERATED, 812), ("forward", "train.py", 40)], ("train.py", 40, "compiled code")),
        ([("call", Path(GENERATED).name, 812), ("forward", "train.py", 40)], ("train.py", 40, "compiled code")),
        ([("_make_grads", f"{TORCH}/autograd/__init__.py", 5), BACKWARD, STEP], ("train.py", 15, "autograd engine")),
        ([("__enter__", f"{TORCH}/autograd/grad_mode.py", 5), STEP], ("train.py", 15, "torch")),
        ([("__enter__", f"{TORCH}/autograd/profiler.py", 5), STEP], ("train.py", 15, "torch")),
        ([("apply", f"{TORCH}/autograd/function.py", 5), STEP], ("train.py", 15, "torch")),
        ([("refresh", "/x/site-packages/rich/live.py", 5), STEP], ("train.py", 15, "logging")),
        ([("_str", f"{TORCH}/_tensor_str.py", 5), STEP], ("train.py", 15, "printing of tensors")),
        ([("_call_impl", f"{TORCH}/nn/modules/module.py", 5), STEP], ("train.py", 15, "nn.Module.__call__")),
        ([("zero_grad", f"{TORCH}/nn/modules/module.py", 5), STEP], ("train.py", 15, "walk over modules")),
        (
            [
                ("named_modules", f"{TORCH}/nn/modules/module.py", 5),
                ("clip", f"{TORCH}/nn/utils/clip_grad.py", 5),
                STEP,
            ],
            ("train.py", 15, "walk over modules"),
        ),
        (
            [("group", f"{TORCH}/utils/_foreach_utils.py", 5), ("clip", f"{TORCH}/nn/utils/clip_grad.py", 5), STEP],
            ("train.py", 15, "gradient clipping"),
        ),
        (
            [
                ("get", "/usr/lib/python3.12/queue.py", 5),
                ("__next__", f"{TORCH}/utils/data/dataloader.py", 7),
                ("call", "/opt/profiler_job/jobs/follow/wrapping.py", 7),
                STEP,
            ],
            ("train.py", 15, "data loader"),
        ),
        (
            [("__getitem__", "data.py", 4), ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 50), STEP],
            ("data.py", 4, "data loader without workers"),
        ),
        ([("f", "<string>", 5), ("main", "/x/site-packages/t.py", 9)], ("/x/site-packages/t.py", 9, "own code")),
        ([], ("", 0, "")),
    ],
)
def test_a_stack_is_of_the_users_line_and_of_the_library_below_it(frames, expected):
    place = find_place(tuple(PythonFrame(*frame) for frame in frames))
    assert (place.file, place.line, place.below) == expected


def test_every_form_shows_the_lines(tmp_path, capsys):
    path = make_late_export().sqlite(tmp_path / "x.sqlite")
    summary = summarise(read(path))
    said = "4.00 ms: train.py:8 tokenize (own code 100%)"
    assert said in " ".join(as_text(summary, 20, 120).split())
    assert "Lines that the GPU waits for" in as_markdown(summary, 20)
    page = render_page(summary)
    assert said in page and 'class="stacks"' in page
    assert summary.as_json()["waits"][0]["where"] == "train.py:8"
    assert any(line.startswith("4.00 ms") for line in summary.as_json()["sentences"]["waits"])
    assert showing.show([path], "speedscope", 20, print, print) == 0
    speedscope = json.loads(capsys.readouterr().out)
    assert speedscope["profiles"][0]["endValue"] == 7 * MS


def test_a_figure_of_stacks_draws_the_frames_with_most_time():
    """Of 0.5% or more, and at most 200: a page has 300 KB."""
    rows = [
        (";".join(f"f{depth} (a.py:{10 * number + depth})" for depth in range(5)), 100 + number) for number in range(99)
    ]
    stacks = pd.DataFrame(rows, columns=["stack", "wait_ns"])
    drawn = tabulate_stacks(stacks)
    assert len(drawn) == draw_stacks(stacks).count('class="frame"') == MOST_DRAWN
    assert set(drawn["wait_ns"]) == {*range(159, 199)} and drawn["depth"].tolist() == [*range(5)] * 40
    assert set(tabulate_stacks(stacks.tail(3).assign(wait_ns=[1, 100, 300]))["wait_ns"]) == {100, 300}


def test_a_terminal_of_120_columns_shows_what_to_do_and_no_column_that_says_nothing(tmp_path):
    text = as_text(summarise_export(make_late_export(), tmp_path), 20, 120)
    table = text[text.index("Lines that the GPU waits for") :]
    (heading,) = (line for line in table.splitlines() if line.startswith("where "))
    assert heading.split()[-1] == "do"
    assert not {"gpu", "module"} & {*heading.split()}


def test_a_line_is_not_broken_if_another_column_can_be_left_out():
    """It was `mingpt/trainer.p`, and `y:97` below it."""
    row = {"where": "mingpt/trainer.py:97", "function": "run", "wait_ns": 3_830_000, "share": 0.465}
    row |= {"cause": "launches", "ceiling_ns": 7_110_000, "phase": "optimizer 66%; no phase 31%"}
    (_, first, *_), dropped = fit_table("script_waits", pd.DataFrame([row]), 80)
    assert row["where"] in first and dropped == ["phase"]


@pytest.mark.parametrize(("width", "num_tables"), [(80, 2), (300, 1)])
def test_a_narrow_terminal_has_all_columns_in_a_second_table(width, num_tables):
    """Phase and module were lost without a word."""
    row = {"where": "mingpt/trainer.py:97", "function": "run", "wait_ns": 3_830_000, "share": 0.465}
    row |= {"cause": "launches", "ceiling_ns": 7_110_000, "phase": "optimizer 66%; no phase 31%", "module": "GPT/h.*"}
    lines = format_in_tables(pd.DataFrame([row, row | {"where": "a.py:1", "module": ""}]), width)
    assert max(map(len, lines)) <= width and lines.count("") == num_tables
    words = " ".join(" ".join(lines).split())
    assert not [text for text in ("run", "optimizer 66%", "GPT/h.*", "7.11 ms") if text not in words]
    assert len([line for line in lines if "mingpt/trainer.py:97" in line]) == num_tables


def test_columns_that_name_nothing_are_in_no_form_for_people(tmp_path):
    """Neither the GPU nor the module of a line is known; programs get both."""
    summary = summarise_export(make_late_export(), tmp_path)
    assert set(summary.sections["waits"]["gpu"]) == {-1} and set(summary.sections["waits"]["module"]) == {""}
    assert {"gpu", "module"} <= summary.as_json()["waits"][0].keys()
    assert {"gpu", "module"} <= {*section_as_csv([summary], "waits", names_profiles=False).splitlines()[0].split(",")}
    forms = (
        (as_text(summary, 0, 500), "\n\n"),
        (as_markdown(summary, 20), "\n## "),
        (render_page(summary), "</table>"),
    )
    for text, end in forms:
        table = text[text.index("Lines that the GPU waits for") :].partition("Lines that")[2].partition(end)[0]
        assert "late launch" in table and "module" not in table and "-1" not in table


def test_a_deep_recursion_is_shown_down_to_a_hundred_frames(tmp_path, capsys):
    export = Export()
    for at in (0, 5):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS)
    take_samples(export, 0, 6, *[("recurse", "train.py", 5)] * 1000)
    path = export.sqlite(tmp_path / "x.sqlite")
    assert showing.show([path], "speedscope", 20, print, print) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert len(profile["events"]) == 2 * 100
    assert render_page(summarise(read(path))).count("recurse (train.py:5)</b>") == 99


def test_a_capture_without_samples_has_no_lines(tmp_path, capsys):
    export = Export()
    export.launch(0)
    export.launch(100)
    path = export.sqlite(tmp_path / "x.sqlite")
    summary = summarise(read(path))
    assert summary.capture["num_samples"] == 0 and summary.capture["waiting_ns"] is None
    assert not len(summary.sections["waits"]) and not summary.insight.sentences.waits
    assert showing.show([path], "speedscope", 20, print, print) != 0
    assert "has no Python samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/home/me/p/train.py"], ["train.py"]),
        (["/home/me/p/train.py", "/home/me/p/data/loader.py"], ["train.py", "data/loader.py"]),
        (["/home/me/p/a.py", "/home/me/p/b.py", "/opt/tool/c.py"], ["a.py", "b.py", "c.py"]),
        (["/home/me/p/a.py", "/home/me/p/x/a.py", "/opt/tool/a.py"], ["a.py", "x/a.py", "a.py (2)"]),
        (["/home/me/train.py", "/home/you/train.py"], ["train.py", "train.py (2)"]),
        (["train.py", "data/x.py", "/srv/train.py", "../me/y.py"], ["train.py", "data/x.py", "train.py (2)", "y.py"]),
        (["/home/me/env/lib/python3.12/site-packages/torch/x.py"], ["site-packages/torch/x.py"]),
        (["site-packages/torch/x.py", "python3.12/queue.py"], ["site-packages/torch/x.py", "python3.12/queue.py"]),
        (["/home/me/lib/python3.12/queue.py", "<string>", ""], ["python3.12/queue.py", "<string>", ""]),
        (["/home/me/work/jobs/follow/wrapping.py"], ["jobs/follow/wrapping.py"]),
        ([GENERATED], [Path(GENERATED).name]),
    ],
)
def test_files_of_stacks_name_no_folder_of_the_machine_and_stay_different(paths, expected):
    [stack] = shorten_files([tuple(PythonFrame("f", path, 1) for path in paths)])
    assert [frame.file for frame in stack] == expected


def test_files_of_a_trace_name_no_folder_of_the_machine():
    texts = ["/home/me/p/train.py(65): step", "torch/nn/modules/module.py(9): _call_impl"]
    times = np.array([[0, 10], [100_000, 90_000]])
    _, stacks = make_trace_samples(*times, np.array([1, 1]), np.array([0, 1]), texts)
    files = {frame.file for stack in stacks for frame in stack}
    assert files == {"train.py", "site-packages/torch/nn/modules/module.py"}


def test_a_page_of_another_machine_s_capture_names_no_folder_of_it(tmp_path, capsys):
    export = Export()
    for at in (0, 5, 9):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS)
    home = "/home/somebody/project"
    take_samples(export, 0, 5, ("encode", f"{home}/data/loader.py", 8), ("main", f"{home}/train.py", 3))
    take_samples(export, 5, 10, ("step", f"{home}/env/lib/python3.12/site-packages/torch/optim/adam.py", 9), STEP)
    path = export.sqlite(tmp_path / "x.sqlite")
    summary = summarise(read(path))
    assert "data/loader.py:8" in list_lines(summary)
    page = render_page(summary)
    assert showing.show([path], "speedscope", 20, print, print) == 0
    assert "somebody" not in page + as_text(summary, 20, 120) + capsys.readouterr().out
    assert not find_private(page)


@pytest.mark.parametrize("has_column", [True, False])
def test_samples_that_were_exported_without_their_stacks_say_how_to_export_them(tmp_path, has_column):
    export = make_late_export()
    for row in export.rows["NVTX_EVENTS"]:
        row["jsonText"] = None
        if not has_column:
            del row["jsonText"]
    summary = summarise_export(export, tmp_path)
    missing = summary.sections["missing"].set_index("what")["consequence"]
    assert "--include-json=true" in missing["stacks of Python samples"]
    (tmp_path / "whole").mkdir()
    whole = summarise_export(make_late_export(), tmp_path / "whole").sections["missing"]
    assert "stacks of Python samples" not in set(whole["what"])


@pytest.mark.parametrize("text", ["{", '{"a": {"Frames": 5}}', '{"a": {"Frames": [5]}}', "[" * 60_000])
def test_stacks_that_no_nsys_writes_are_refused(tmp_path, text):
    export = make_late_export()
    export.rows["NVTX_EVENTS"][-1]["jsonText"] = text
    with pytest.raises(ExportError):
        read(export.sqlite(tmp_path / "x.sqlite"))


def test_a_real_capture_has_the_lines_that_were_found_by_hand():
    summary = summarise(read(profile("python_sampling"), details=False))
    share = dict(zip(summary.sections["waits"]["where"], 100 * summary.sections["waits"]["share"].astype(float)))
    by_hand = {"stall.py:15": 57.3, "stall.py:8": 19.8, "stall.py:14": 10.0, "stall.py:12": 5.7}
    assert {where: share[where] for where in by_hand} == pytest.approx(by_hand, abs=2)
    assert summary.capture["sampled_share"] == pytest.approx(0.939, abs=0.02)


def test_a_piece_of_time_has_the_cpu_time_of_its_samples():
    """Both lines run in the whole capture, for 324 ms together."""
    part = Selection(between=(100 * MS, 200 * MS))
    summary = summarise(read(profile("python_sampling"), details=False), selection=part)
    rows = summary.sections["waits"]
    assert rows["where"].tolist()[:2] == ["stall.py:15", "stall.py:8"]
    assert rows["wait_ns"].iloc[0] < rows["cpu_ns"].sum() <= 100 * MS
    assert summary.capture["sampled_share"] > 0.85


def test_a_gpu_has_the_samples_of_its_processes(tmp_path):
    export = Export()
    for process in (1, 2):
        for at in (0, 5):
            where = {"process": process, "device": process - 1}
            export.launch(at * MS, start=at * MS, end=(at + 1) * MS, **where)
        for half in range(2, 14 * process):
            export.sample(half * MS // 2, TOKENIZE, MODULE, process=process)
    path = export.sqlite(tmp_path / "x.sqlite")
    [row] = summarise(read(path), selection=Selection(gpu=0)).sections["waits"].to_dict("records")
    assert row["cpu_ns"] == 6 * MS


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_the_line_that_makes_one_of_several_ranks_late_is_named(tmp_path, num_gpus):
    """The CPU of the last rank sleeps for 5 ms; the GPUs of the others wait for its GPU in an all-reduce."""
    export, late = Export(), num_gpus - 1
    for rank in range(num_gpus):
        where = {"process": rank + 1, "device": rank}
        export.launch(0, start=0, end=1 * MS, **where)
        begins = 6 * MS if rank == late else 1 * MS
        export.launch(begins, start=begins, end=7 * MS, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", **where)
        export.launch(int(6.9 * MS), start=7 * MS, end=8 * MS, **where)
        for half in range(2, 12):
            frames = [("train_step", "train.py", 48)] if rank == late else [STEP]
            export.sample(half * MS // 2, *frames, MODULE, process=rank + 1)
    summary = summarise_export(export, tmp_path)
    [row] = summary.sections["waits"].to_dict("records")
    assert (row["where"], row["gpu"], round(row["wait_ns"] / MS)) == ("train.py:48", late, 5)
    [said] = [line for line in form_sentences(summary).communication if "Others waited" in line]
    assert f"Others waited {format_time(5 * late * MS)} for GPU {late}" in said and "train.py:48 train_step" in said
    assert not len(summary.sections["late_kernels"]), "all GPUs run the same kernels"


def test_waiting_for_another_thread_to_give_python_s_lock_back_has_a_name(tmp_path):
    """nsys pushes a range of its own for each such wait."""
    export = make_late_export()
    export.domain(5, "GIL Trace")
    for name, start, end, thread in (("Waiting for GIL", 1, 4, MAIN), ("Holding GIL", 1, 4, 9)):
        export.push(name, start * MS, end * MS, thread=thread, domain=5)
    export.push("forward", 0, 5 * MS)
    take_samples(export, 0, 40, ("burn", "train.py", 3), thread=9)
    summary = summarise_export(export, tmp_path)
    rows = summary.sections["waits"].set_index("where")
    assert rows.index.tolist() == ["train.py:8", "train.py:15"], "the thread that launches counts for autograd's"
    assert rows.loc["train.py:8", "do"].startswith("train.py:3 burn of another thread")
    assert rows.loc["train.py:8", "below"] == "waiting for Python's lock 75%; own code 25%"
    assert "process of its own" in rows.loc["train.py:8", "do"]
    assert rows.loc["train.py:15", "below"].startswith("tensor-by-tensor")
    assert not summary.sections["ranges"]["name"].astype(str).str.contains("GIL").any()


@pytest.mark.parametrize(("file", "expected_ms"), [("dataloader.py", 3 + 2), ("_utils/fetch.py", 3)])
def test_without_a_loader_with_threads_no_line_waits_for_the_lock_that_they_hold(file, expected_ms, tmp_path):
    """Batches of minGPT's adder that were on the GPU saved 1.46 ms: 1.12 were the most for its loader and copies. A
    loader without workers has no threads."""
    export = Export()
    export.domain(5, "GIL Trace")
    export.push("step", 0, 10 * MS)
    export.push("Waiting for GIL", 2 * MS, 3 * MS, domain=5)  # in the line of the loader: its time already
    export.push("Waiting for GIL", 5 * MS, 7 * MS, domain=5)
    for at in (0, 9):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS)
    take_samples(export, 0, 3, ("__next__", f"{TORCH}/utils/data/{file}", 700), STEP)
    take_samples(export, 3, 10, TOKENIZE, ("main", "train.py", 20))
    cpu = summarise_export(export, tmp_path).sections["waits"].set_index("where")["cpu_ns"] / MS
    assert cpu.to_dict() == pytest.approx({"train.py:15": expected_ms, "train.py:8": 7})


def test_copies_and_allocations_have_the_line_that_makes_them(tmp_path):
    """Warm-up before the steps does not count."""
    export = Export()
    for number, line in ((0, 3), (1, 12), (2, 12)):
        at = number * 4 * MS
        export.copy(at + MS, at + 2 * MS, export.call(at, at + MS, name="cudaMemcpyAsync_v3020"), bytes=10)
        export.call(at + MS, at + 2 * MS, name="cudaMalloc_v3020")
        export.copy(at + 2 * MS, at + 3 * MS, export.call(at + 2 * MS, at + 2 * MS + 10), host=1, bytes=5)
        take_samples(export, at / MS, at / MS + 2, ("load", "data.py", line))
        take_samples(export, at / MS + 2, at / MS + 4, ("train", "train.py", 20))
        if number:
            export.push("step", at, at + 4 * MS)
    summary = summarise_export(export, tmp_path)
    copies = summary.sections["copy_lines"]
    assert copies[["where", "host_memory", "count", "bytes", "copy_ns", "time_ns"]].values.tolist() == [
        ["data.py:12", "pageable", 2, 20, 2 * MS, 2 * MS],
        ["train.py:20", "pinned", 2, 10, 2 * MS, 20],
    ]
    allocations = summary.sections["allocation_lines"]
    assert allocations.values.tolist() == [["data.py:12", "load", "cudaMalloc", 2, 2 * MS]]


def count_by_line(table) -> dict[tuple[str, str], int]:
    return table.groupby(["where", "call" if "call" in table else "operation"])["count"].sum().to_dict()


def test_recorded_calls_that_are_shorter_than_a_period_have_their_line():
    """Ten steps, each with `.cuda()` in line 12 and `.item()` in line 16; two of these forty calls hold a sample."""
    summary = summarise(read(profile("python_sampling"), details=False))
    assert count_by_line(summary.sections["copy_lines"]) == {
        ("stall.py:12", "memcpy Host-to-Device"): 10,
        ("stall.py:16", "memcpy Device-to-Host"): 10,
    }
    syncs = count_by_line(summary.sections["sync_lines"])
    waits = {line: count for (line, call), count in syncs.items() if call == "cudaStreamSynchronize"}
    assert waits == {"stall.py:12": 10, "stall.py:16": 10}
    assert syncs["", "cudaDeviceSynchronize"] == 1, "it is after the last sample"


def make_copies(lines: dict[int, int], num: int = 4, step: bool = True) -> Export:
    """Steps of 10 ms: `x.to()` takes 5 µs at 5.1 ms, between samples of two lines. lines: that of the sample in the
    call of a step."""
    export = Export()
    for number in range(num):
        at = number * 10 * MS
        export.launch(at, start=at, end=at + MS)
        call = export.call(at + 5_100_000, at + 5_105_000, name="cudaMemcpyAsync_v3020")
        export.copy(at + 5_110_000, at + 5_120_000, call, bytes=10)
        take_samples(export, at / MS, at / MS + 5.5, ("train", "train.py", 3))
        if number in lines:
            export.sample(at + 5_102_000, ("load", "data.py", lines[number]), MODULE, thread=MAIN)
        take_samples(export, at / MS + 5.5, at / MS + 10, ("train", "train.py", 5))
        if step:
            export.push("step", at, at + 10 * MS)
    return export


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        pytest.param({2: 12}, {"data.py:12": 4}, id="one sample is in a call"),
        pytest.param({}, {"": 4}, id="the lines before and after differ"),
        pytest.param({0: 12, 2: 14}, {"data.py:12": 1, "data.py:14": 1, "": 2}, id="the samples differ"),
    ],
)
def test_calls_at_the_same_place_of_a_step_share_their_samples(lines, counts, tmp_path):
    copies = summarise_export(make_copies(lines), tmp_path).sections["copy_lines"]
    assert copies.groupby("where")["count"].sum().to_dict() == counts


def test_a_call_between_samples_of_one_line_is_of_that_line(tmp_path):
    export = make_late_export()
    export.copy(MS, 2 * MS, export.call(600_000, 605_000, name="cudaMemcpyAsync_v3020"), bytes=10)
    copies = summarise_export(export, tmp_path).sections["copy_lines"]
    assert copies[["where", "count"]].values.tolist() == [["train.py:8", 1]]


def test_without_steps_calls_between_the_same_operations_share_their_samples(tmp_path):
    """Another kernel next to it is another place."""
    export = make_copies({5: 12}, num=20, step=False)
    (tmp_path / "other").mkdir()
    copies = summarise_export(export, tmp_path).sections["copy_lines"]
    assert copies.groupby("where")["count"].sum().to_dict() == {"data.py:12": 20}
    export.launch(103 * MS, start=103 * MS, end=104 * MS, name="other")
    copies = summarise_export(export, tmp_path / "other").sections["copy_lines"]
    known = copies.set_index("where")["count"]
    assert 0 < known.get("", 0) < 20


def test_what_hides_in_several_lines_is_named_if_it_costs_a_hundredth(tmp_path):
    export = Export()
    for at in (0, 5, 10):
        export.launch(at * MS, start=at * MS, end=(at + 1) * MS)
    logging = ("emit", "/usr/lib/python3.12/logging/__init__.py", 9)
    for line, start in ((3, 0), (4, 5)):
        take_samples(export, start, start + 4.5, ("f", "train.py", line))
        take_samples(export, start + 4.5, start + 5, logging, ("f", "train.py", line))
    summary = summarise_export(export, tmp_path)
    parts = summary.sections["wait_parts"].set_index("part")["wait_ns"].to_dict()
    assert parts == {"own code": 7 * MS, "logging": MS}
    assert summary.insight.sentences.waits[-2] == "In all lines together: logging 1.00 ms"


def test_an_advice_says_for_how_much_of_its_line_it_is(tmp_path):
    rows = summarise_export(make_late_export(), tmp_path).sections["waits"].set_index("where")["do"]
    assert rows["train.py:15"] == (
        "give the optimizer fused=True, or foreach=True (67% of it); torch.compile or CUDA graphs launch less in "
        "backward (33% of it)"
    )
    assert rows["train.py:8"].startswith("move it out of the step") and "of it)" not in rows["train.py:8"]


@pytest.mark.parametrize("options", [(), ("waits",)])
def test_times_with_samples_are_said_to_be_of_slower_steps(options, tmp_path):
    export = make_late_export()
    for at in (0, 5):
        export.push("step", at * MS, (at + 5) * MS)
    summary = summarise_export(export, tmp_path, selection=Selection(sections=options))
    assert "2 steps with samples, which are slower than alone" in " ".join(as_text(summary, 20, 120).split())


def test_launching_takes_no_python_away_that_launches_nothing(tmp_path):
    """Of 10 ms a tokenizer takes 4: CUDA graphs were said to save all but nothing."""
    export = make_late_export()
    advice = summarise_export(export, tmp_path).sections["advice"].set_index("change")
    ceilings = advice.loc[["cuda_graphs", "larger_batch"], "ceiling_ns"].tolist()
    assert ceilings == [6 * MS, 5 * MS], "twice the batch saves at most half for the same tokens"
    assert (advice["time_ns"].dropna() <= advice["ceiling_ns"].dropna()).all()
    short = Export()
    for at in range(10):
        short.launch(at * MS, start=at * MS, end=at * MS + MS // 2)
    take_samples(short, 0, 10, TOKENIZE, STEP)
    (tmp_path / "short").mkdir()
    advice = summarise_export(short, tmp_path / "short").sections["advice"].set_index("change")
    assert advice.loc["cuda_graphs", "ceiling_ns"] == 9.5 * MS, "own code that launches all the time may be captured"
