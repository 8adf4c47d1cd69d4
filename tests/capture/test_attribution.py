"""Each kernel belongs to the range it was launched in, whatever the ranges do."""

import pytest

from profiler_job.analysis.capture.attribution import ATTRIBUTIONS, attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.phase_names import find_phase, guess_phase, is_step, is_warm_up
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.show.facts import describe_coverage, format_facts

from .nsys_files import Export
from .profiles import NAMES, profile


@pytest.fixture
def export():
    return Export()


def _attributed(export, tmp_path):
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    found = attribute(capture)
    return capture, found


def _places(export, tmp_path):
    """(range path, step, phase, module, attribution) of each kernel, by its start."""
    _, found = _attributed(export, tmp_path)
    path = found.ranges["path"].astype(str)
    return [
        (path[row.range_id] if row.range_id >= 0 else None, row.step, row.phase, row.module, row.attribution)
        for row in found.kernels.itertuples()
    ]


def _paths(export, tmp_path):
    return [place[0] for place in _places(export, tmp_path)]


def test_a_kernel_belongs_to_the_innermost_range_of_its_launch(export, tmp_path):
    export.push("step", 0, 1000)
    export.push("forward", 10, 500)
    export.push("block_0", 20, 400)
    export.push("norm", 30, 100)
    export.launch(50)
    export.launch(150)
    export.launch(450)
    export.launch(600)
    assert _places(export, tmp_path) == [
        ("step/forward/block_0/norm", 0, "forward", "block_0/norm", "exact"),
        ("step/forward/block_0", 0, "forward", "block_0", "exact"),
        ("step/forward", 0, "forward", "", "exact"),
        ("step", 0, "", "", "none"),
    ]


def test_a_kernel_that_runs_after_its_range_still_belongs_to_it(export, tmp_path):
    export.push("forward", 0, 100)
    export.push("backward", 100, 200)
    export.launch(50, start=150, end=180)
    assert _paths(export, tmp_path) == ["forward"]


def test_the_moment_a_range_ends_belongs_to_the_next(export, tmp_path):
    export.push("a", 0, 100)
    export.push("b", 100, 200)
    export.launch(0)
    export.launch(100)
    export.launch(200)
    assert _paths(export, tmp_path) == ["a", "b", None]


def test_foreign_threads_get_the_phase_by_time(export, tmp_path):
    export.push("step", 0, 1000)
    export.push("forward", 0, 400)
    export.push("backward", 500, 900)
    export.launch(600, thread=2)
    export.launch(950, thread=2)
    assert _places(export, tmp_path) == [(None, 0, "backward", "", "phase"), (None, 0, "", "", "none")]


def test_what_lies_between_forward_and_backward_of_a_step_is_the_loss(export, tmp_path):
    export.push("step", 0, 1000)
    export.push("forward", 0, 400)
    export.push("backward", 500, 900)
    export.launch(450)
    assert _places(export, tmp_path) == [("step", 0, "loss", "", "phase")]


def test_a_range_of_the_foreign_thread_without_a_phase_keeps_its_name_and_the_phase_is_by_time(export, tmp_path):
    export.push("backward", 0, 900)
    export.push("MulBackward0", 500, 700, thread=2)
    export.launch(600, thread=2)
    assert _places(export, tmp_path) == [("MulBackward0", -1, "backward", "", "phase")]


def test_threads_in_different_phases_leave_a_foreign_kernel_without_one(export, tmp_path):
    export.push("forward", 0, 900)
    export.push("backward", 0, 900, thread=2)
    export.launch(500, thread=3)
    export.launch(600, thread=2)
    assert [place[2:] for place in _places(export, tmp_path)] == [("", "", "none"), ("backward", "", "exact")]


def test_phases_of_another_process_do_not_count(export, tmp_path):
    export.push("forward", 0, 900, process=2)
    export.launch(500, process=1)
    assert _places(export, tmp_path) == [(None, -1, "", "", "none")]


def test_without_phases_a_range_is_exact_and_no_range_is_none(export, tmp_path):
    export.push("my kernel loop", 0, 100)
    export.launch(50)
    export.launch(150)
    assert [place[-1] for place in _places(export, tmp_path)] == ["exact", "none"]


def test_correlation_ids_repeat_in_another_process(export, tmp_path):
    export.push("one", 0, 100, process=1)
    export.push("two", 0, 100, process=2)
    export.call(10, 12, process=1, correlation=5)
    export.call(20, 22, process=2, correlation=5)
    export.kernel(30, 40, 5, process=1, device=0)
    export.kernel(50, 60, 5, process=2, device=1)
    assert _paths(export, tmp_path) == ["one", "two"]


def test_a_thread_number_comes_again_in_another_process(export, tmp_path):
    export.push("of process 1", 0, 100, process=1, thread=77)
    export.push("of process 2", 50, 200, process=2, thread=77)
    export.launch(60, process=1, thread=77)
    export.launch(70, process=2, thread=77)
    export.launch(150, process=1, thread=77)
    assert _paths(export, tmp_path) == ["of process 1", "of process 2", None]


def test_several_gpus_of_one_process_are_told_apart(export, tmp_path):
    export.push("forward", 0, 100)
    export.launch(10, device=0)
    export.launch(20, device=1)
    capture, found = _attributed(export, tmp_path)
    assert list(capture.kernels["device"]) == [0, 1]
    assert list(found.kernels["attribution"]) == ["exact", "exact"]


def test_kernels_of_a_graph_belong_to_the_call_that_launched_it(export, tmp_path):
    export.push("replay", 0, 100)
    graph = export.call(50, 60, name="cudaGraphLaunch_v10000")
    for node in range(3):
        export.kernel(200 + 10 * node, 205 + 10 * node, graph, graph_node=node + 1)
    export.push("later", 150, 400)
    assert _paths(export, tmp_path) == ["replay"] * 3


def test_a_graph_traced_as_a_whole_is_attributed_and_said_to_hide_its_kernels(export, tmp_path):
    export.push("replay", 0, 100)
    export.graph(200, 300, export.call(50, 60, name="cudaGraphLaunch_v10000"))
    capture, found = _attributed(export, tmp_path)
    assert list(found.graphs["attribution"]) == ["exact"]
    assert any("CUDA graph" in name for name in capture.missing)


def test_an_open_range_lasts_to_the_end_of_the_capture(export, tmp_path):
    export.push("forever", 0, None)
    export.push("inner", 10, 20)
    export.launch(15)
    export.launch(5000)
    capture, _ = _attributed(export, tmp_path)
    assert list(capture.ranges["is_open"]) == [True, False]
    assert list(capture.ranges["end_ns"]) == [5015, 20]
    (tmp_path / "x.sqlite").unlink()
    assert _paths(export, tmp_path) == ["forever/inner", "forever"]


def test_registered_strings_name_ranges(export, tmp_path):
    export.push("forward", 0, 100, registered=True)
    export.push("norm", 10, 50, registered=False)
    export.launch(20)
    assert _paths(export, tmp_path) == ["forward/norm"]


def test_ranges_of_one_name_inside_each_other_are_two_ranges(export, tmp_path):
    export.push("layer", 0, 100)
    export.push("layer", 10, 50)
    export.launch(20)
    export.launch(60)
    assert _paths(export, tmp_path) == ["layer/layer", "layer"]


def test_ranges_that_start_and_end_together_nest_in_the_order_of_the_capture(export, tmp_path):
    export.push("outer", 0, 100)
    export.push("inner", 0, 100)
    export.push("after", 100, 200)
    export.launch(50)
    export.launch(150)
    assert _paths(export, tmp_path) == ["outer/inner", "after"]


def test_empty_ranges_hold_nothing(export, tmp_path):
    export.push("outer", 0, 100)
    export.push("empty", 50, 50)
    export.launch(50)
    assert _paths(export, tmp_path) == ["outer"]


def test_start_end_ranges_may_overlap_and_do_not_nest(export, tmp_path):
    export.push("outer", 0, 100)
    export.span("first", 10, 60)
    export.span("second", 40, 90)
    export.launch(50)
    _, found = _attributed(export, tmp_path)
    assert list(found.ranges["parent_id"]) == [-1, -1, -1]
    assert found.kernels["range_id"].tolist() == [0]


def test_a_phase_marked_by_a_start_end_range_is_found_by_time(export, tmp_path):
    export.span("forward", 0, 100)
    export.launch(50)
    assert _places(export, tmp_path) == [(None, -1, "forward", "", "phase")]


def test_domains_nest_on_their_own(export, tmp_path):
    export.domain(3, "library")
    export.push("user", 0, 100)
    export.push("call", 50, 150, domain=3)  # overlaps, which two domains may
    export.launch(20)
    export.launch(75)
    export.launch(120)
    capture, found = _attributed(export, tmp_path)
    assert sorted(capture.ranges["domain"].astype(str)) == ["", "library"]
    names = found.ranges["name"].astype(str)
    assert [names[i] for i in found.kernels["range_id"]] == ["user", "call", "call"]
    operation, inside = found.pair_with_ranges(found.kernels)
    assert sorted(zip(operation.tolist(), names[inside])) == [(0, "user"), (1, "call"), (1, "user"), (2, "call")]


def test_a_phase_of_another_domain_counts(export, tmp_path):
    export.domain(3, "library")
    export.push("forward", 0, 100)
    export.push("call", 50, 150, domain=3)
    export.launch(75)
    assert [place[2::2] for place in _places(export, tmp_path)] == [("forward", "exact")]


def test_a_library_range_within_a_user_range_is_below_it(export, tmp_path):
    export.domain(3, "library")
    export.push("forward", 0, 100)
    export.push("gemm", 50, 90, domain=3)
    export.launch(75)
    assert _paths(export, tmp_path) == ["forward/gemm"]


def test_steps_are_numbered_by_start_in_each_process(export, tmp_path):
    for process in (1, 2):
        for i in range(3):
            export.push("step", 100 * i, 100 * i + 90, process=process)
            export.launch(100 * i + 10 + process, process=process)
    assert [place[1] for place in _places(export, tmp_path)] == [0, 0, 1, 1, 2, 2]


def test_a_kernel_whose_launch_is_not_in_the_capture_is_not_attributed(export, tmp_path):
    export.push("forward", 0, 1000)
    export.launch(10)
    export.kernel(500, 510, 999)
    _, found = _attributed(export, tmp_path)
    assert list(found.kernels["api"]) == [0, -1]
    assert list(found.kernels["attribution"]) == ["exact", "none"]


def test_no_api_table_attributes_nothing(export, tmp_path):
    export.push("forward", 0, 1000)
    export.launch(10)
    export.drop("CUPTI_ACTIVITY_KIND_RUNTIME")
    capture, found = _attributed(export, tmp_path)
    assert list(found.kernels["attribution"]) == ["none"]
    assert "CUPTI_ACTIVITY_KIND_RUNTIME" in capture.missing


def test_ranges_of_unknown_threads_hold_nothing_exactly(export, tmp_path):
    export.push("forward", 0, 1000)
    export.launch(10)
    export.drop("NVTX_EVENTS", "globalTid")
    capture, found = _attributed(export, tmp_path)
    assert list(found.kernels["attribution"]) == ["none"]
    assert "NVTX_EVENTS.globalTid" in capture.missing


def test_without_a_process_column_one_process_is_the_process(export, tmp_path):
    export.push("forward", 0, 1000)
    export.launch(10)
    export.drop("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid")
    assert _paths(export, tmp_path) == ["forward"]


def test_without_a_process_column_other_threads_still_find_their_phase(export, tmp_path):
    export.push("step", 0, 1000)
    export.push("backward", 500, 900)
    export.launch(600, thread=2)
    export.drop("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid")
    capture, found = _attributed(export, tmp_path)
    assert list(found.kernels["attribution"]) == ["phase"]
    assert summarise(capture, found).capture["processes"] == [1]
    assert "only process" in capture.missing["CUPTI_ACTIVITY_KIND_KERNEL.globalPid"]


def test_without_a_process_column_two_processes_are_not_guessed(export, tmp_path):
    for process in (1, 2):
        export.push("forward", 0, 1000, process=process)
        export.launch(10, process=process)
    export.drop("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid")
    capture, found = _attributed(export, tmp_path)
    assert list(found.kernels["attribution"]) == ["none", "none"]
    assert summarise(capture, found).capture["processes"] == [1, 2]
    assert "unknown" in capture.missing["CUPTI_ACTIVITY_KIND_KERNEL.globalPid"]


def test_memory_operations_are_attributed_like_kernels(export, tmp_path):
    export.push("forward", 0, 100)
    export.copy(200, 210, export.call(10, 20, name="cudaMemcpyAsync_v3020"))
    export.memset(300, 310, export.call(150, 160, name="cudaMemsetAsync_v3020"))
    capture, found = _attributed(export, tmp_path)
    assert list(capture.memops["operation"]) == ["memcpy Host-to-Device", "memset"]
    assert list(found.memops["phase"]) == ["forward", ""]


def test_rows_in_any_order_give_the_same(export, tmp_path):
    export.push("inner", 20, 80)
    export.push("outer", 0, 100)
    export.launch(60)
    export.launch(30)
    export.launch(10)
    assert _paths(export, tmp_path) == ["outer", "outer/inner", "outer/inner"]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forward", "forward"),
        ("Forward pass", "forward"),
        ("fwd", "forward"),
        ("backward", "backward"),
        ("bwd_step", "backward"),
        ("optimizer", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("loss", "loss"),
        ("forward()", "forward"),
        ("loss.backward()", "backward"),
        ("zero-grad", "zero_grad"),
        ("clip_grad_norm_", "clip"),
        ("scaler.step", "optimizer"),
        ("Calculate Loss/Sync", "loss"),
        ("phase/backward", "backward"),
        ("train/optimizer", "optimizer"),
        ("data_to_gpu", "data"),
        ("copy_to_device", "data"),
        ("prefill", "forward"),
        ("decode", "forward"),
        ("Forward_Pass", "forward"),
        ("Model Forward Pass", "forward"),
        ("forward_micro3", "forward"),
        ("## forward ##", "forward"),
        ("## item_forward ##", "forward"),
        ("## next_batch ##", "data"),
        ("data_fetch", "data"),
        ("data_staging", "data"),
        ("H2D copy", "data"),
        ("0 - prefill", "forward"),
        ("rank0/forward", "forward"),
        ("step_10_forward", "forward"),
        ("loss_func", "loss"),
        ("Loss Calculation", "loss"),
        ("ce_loss", "loss"),
        ("Loss Backward", "backward"),
        ("loss1.backward()", "backward"),
        ("BackwardPass", "backward"),
        ("backpropagation", "backward"),
        ("clip_norm", "clip"),
        ("Muon.step", "optimizer"),
        ("zeroing gradients", "zero_grad"),
        ("val_loss", "evaluation"),
        ("gpt2_forward", "forward"),
        ("gpt2_backward_and_reduce", "backward"),
        ("gpt2_calculate_grad_norm", "clip"),
        ("gpt2_update", "optimizer"),
        ("step 3 - forward", "forward"),
        ("gpu0/forward", "forward"),
        ("training_step/forward", "forward"),
        ("1_forward", "forward"),
        ("2. backward", "backward"),
        ("forward:", "forward"),
        ("val/forward", "evaluation"),
        ("optim/step", "optimizer"),
        ("to_device", "data"),
        ("compute ce loss", "loss"),
        ("fwd_bwd", ""),
        ("forward_and_backward", ""),
        ("feed_forward", ""),
        ("scheduler.step", ""),
        ("optimized_paged_attention", ""),
        ("forward-backward", ""),
        ("batch_norm_3", ""),
        ("backward_hook", ""),
        ("flash_fwd_kernel", ""),
        ("lossless compression", ""),
        ("", ""),
    ],
)
def test_phases_of_other_programs_are_recognised(name, phase):
    assert find_phase(name) == phase


@pytest.mark.parametrize(
    "name",
    [
        *("step", "Step 12", "iter_3", "Batch_3", "global_step_12", "train/step 4", "Step::3", "iteration[0,32)"),
        *("train_step_003", "timed_step", "epoch_0_batch_3", "batch_idx=3", "train_batch_12", "mini_batch_4"),
        *("step 1/10", "Step 3 of 10", "iter=5", "epoch 0 step 3", "epoch0/step3", "epoch_1_step_20"),
    ],
)
def test_steps_of_other_programs_are_recognised(name):
    assert is_step(name)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("llama_backward_and_reduce_all", "backward"),
        ("fwd_of_mine", "forward"),
        ("fwd_bwd", ""),
        ("ema_update_all", "optimizer"),
        ("part 1", ""),
    ],
)
def test_the_phase_that_is_suggested_is_in_the_name_of_the_range(name, phase):
    assert guess_phase(name) == phase


@pytest.mark.parametrize(
    "name", ["Warm-up Step 1", "warmup", "warm_up_3", "train/warmup iteration 2", "warmup/step_0", "BACKWARD (warmup)"]
)
def test_steps_of_warm_up_are_no_steps_to_count(name):
    assert is_warm_up(name) and not is_step(name)


def test_steps_inside_a_range_of_warm_up_are_no_steps(tmp_path, export):
    export.push("warmup", 0, 400)
    for at in (10, 200, 500, 700):
        export.push("step", at, at + 100)
        export.launch(at + 10)
    _, attribution = _attributed(export, tmp_path)
    assert attribution.kernels["step"].tolist() == [-1, -1, 0, 1]


def test_a_range_of_forward_and_backward_is_neither_and_it_is_shown(tmp_path, export):
    export.push("forward-backward", 0, 400)
    export.launch(10)
    summary = summarise(*_attributed(export, tmp_path))
    assert any("orward and backward together" in line for line in format_facts(summary))


def test_autograds_own_threads_lose_nothing():
    """Backward disappears in nsys's own nvtx_kern_sum of this capture: its kernels are launched by another thread."""
    threads, single = read(profile("train_threads")), read(profile("train"))
    found, reference = attribute(threads).kernels, attribute(single).kernels
    assert (found["phase"] != "").all()
    backward = (threads.kernels["end_ns"] - threads.kernels["start_ns"])[found["phase"] == "backward"].sum()
    expected = (single.kernels["end_ns"] - single.kernels["start_ns"])[reference["phase"] == "backward"].sum()
    assert backward == pytest.approx(expected, rel=0.03)
    assert set(found["attribution"][found["phase"] == "backward"]) == {"exact", "phase"}
    assert set(reference["attribution"][reference["phase"] == "backward"]) == {"exact"}


def _coverage(**known):
    return dict.fromkeys(ATTRIBUTIONS, 0) | known


def _problems(export, tmp_path):
    summary = summarise(*_attributed(export, tmp_path))
    return summary, list(summary.sections["problems"]["what"])


def test_a_correlation_id_of_several_calls_attributes_nothing(tmp_path, export):
    export.push("forward", 0, 400)
    export.push("backward", 500, 900)
    for at in (10, 20, 600):
        export.launch(at, correlation=5)
    export.launch(30)
    export.launch(700, correlation=7)
    summary, problems = _problems(export, tmp_path)
    assert summary.coverage == _coverage(exact=0.4, none=0.6)
    assert problems == ["3 of 5 kernels have the correlation id of several API calls"]
    assert not len(summary.sections["missing"]) or "launches" not in "".join(summary.sections["missing"]["what"])


def test_correlation_ids_far_apart_are_checked_as_well(tmp_path, export):
    export.push("forward", 0, 400)
    for at in (10, 20):
        export.launch(at, correlation=5)
    export.launch(30, correlation=2**31)
    summary, problems = _problems(export, tmp_path)
    assert summary.coverage["exact"] == pytest.approx(1 / 3)
    assert problems == ["2 of 3 kernels have the correlation id of several API calls"]


def test_kernels_that_share_the_launch_of_one_are_not_attributed(tmp_path, export):
    export.push("forward", 0, 400)
    launch = export.launch(10)
    export.kernel(100, 105, launch)
    export.launch(30)
    summary, problems = _problems(export, tmp_path)
    assert summary.coverage["exact"] == pytest.approx(1 / 3)
    assert problems == [
        "2 of 3 kernels have the correlation id of a call that launches one kernel, as other kernels do"
    ]


def test_kernels_long_before_their_launch_are_not_attributed(tmp_path, export):
    export.push("forward", 0, 20_000_000)
    export.push("later", 20_000_000, 100_000_000)
    export.launch(15_000_000, start=9_999_999, end=10_000_004)
    export.launch(15_000_000, start=10_000_001, end=10_000_006)
    summary, problems = _problems(export, tmp_path)
    assert summary.coverage == _coverage(early=0.5, none=0.5)
    early, clocks = problems
    assert early == "1 of 2 kernels begin more than 5.00 ms before the call that launched them"
    assert clocks == "1 of 2 kernels begin before the call that launched them, by up to 4999999 ns"
    assert summary.launches["kernels"] == 1


def test_a_kernel_that_seems_to_begin_before_its_launch_keeps_its_place_and_is_not_exact(tmp_path, export):
    export.push("forward", 0, 1000)
    export.push("norm", 0, 1000)
    export.launch(100, start=100)
    export.launch(200, start=199)
    capture, found = _attributed(export, tmp_path)
    places = found.kernels[["phase", "module", "attribution"]].astype(str).to_numpy().tolist()
    assert places == [["forward", "norm", "exact"], ["forward", "norm", "early"]]
    summary = summarise(capture, found)
    assert summary.coverage == _coverage(exact=0.5, early=0.5)
    assert list(summary.sections["problems"]["what"]) == [
        "1 of 2 kernels begin before the call that launched them, by up to 1 ns"
    ]
    assert "50.0% to a launch after its start" in describe_coverage(summary.coverage, summary.capture)
    phases = summary.sections["phases"].set_index("phase")
    assert phases.loc["forward", ["exact_share", "early_share"]].tolist() == [0.5, 0.5]


def test_what_is_known_by_less_than_the_launching_thread_is_never_early(tmp_path, export):
    export.push("backward", 0, 1000, thread=1)
    export.launch(200, start=199, thread=2)
    assert _places(export, tmp_path)[0][-1] == "phase"


def test_in_a_short_capture_no_clock_is_that_wrong(tmp_path, export):
    export.push("forward", 0, 1000)
    export.launch(500, start=300)
    summary, problems = _problems(export, tmp_path)
    assert summary.coverage["exact"] == 0
    assert problems == ["1 of 1 kernels begin more than 100 ns before the call that launched them"]


def test_copies_of_a_doubtful_launch_are_not_attributed(tmp_path, export):
    export.push("forward", 0, 1000)
    for at in (10, 20):
        export.copy(at + 50, at + 60, export.call(at, at + 2, correlation=5, name="cudaMemcpyAsync_v3020"))
    _, found = _attributed(export, tmp_path)
    assert list(found.memops["attribution"]) == ["none", "none"]
    assert list(found.problems) == ["2 of 2 copies and fills have the correlation id of several API calls"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_real_captures(name):
    capture = read(profile(name))
    assert not len(summarise(capture).sections["problems"])
