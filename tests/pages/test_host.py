"""When the GPU waits for the host: gaps have a cause, and the queue is on one clock."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.metrics import queue
from profiler_job.analysis.pages.questions import host, host_data
from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.site import page_context
from profiler_job.jobs.contract.studies import TRAINED
from tests import frozen, synthetic


def operations(*rows, phase="forward") -> pd.DataFrame:
    """(launch, start, end) or (launch, start, end, phase): one step."""
    frame = pd.DataFrame([(*row, phase)[:4] for row in rows], columns=["launch_ns", "start_ns", "end_ns", "phase"])
    return frame.assign(run_id="r", rank=0, device=0, step=0, launch_end_ns=frame["launch_ns"] + 4)


def walls(wall_ns: int) -> pd.DataFrame:
    rows = {"run_id": ["r"], "rank": 0, "collector": "nsys", "step": 0, "phase": "step", "wall_ns": wall_ns}
    return pd.DataFrame(rows)


def test_a_gap_before_a_late_launch_is_the_hosts_and_one_before_an_early_launch_the_gpus():
    ops = queue.place_operations(operations((0, 10, 50), (90, 100, 150), (91, 155, 200)))
    assert list(ops["gap_ns"]) == [0, 50, 5]
    assert list(ops["late_ns"]) == [0, 50, 0]


def test_a_clock_that_is_early_changes_no_gap():
    ops = operations((0, 10, 50), (90, 100, 150), (91, 155, 200))
    early = ops.assign(start_ns=ops["start_ns"] - 30, end_ns=ops["end_ns"] - 30)
    columns = ["gap_ns", "late_ns", "busy_ns"]
    pd.testing.assert_frame_equal(queue.place_operations(ops)[columns], queue.place_operations(early)[columns])
    assert (
        queue.depths(queue.place_operations(ops))["depth"].tolist()
        == queue.depths(queue.place_operations(early))["depth"].tolist()
    )


def test_gaps_inside_a_cuda_graph_are_the_gpus_own():
    ops = queue.place_operations(operations((0, 10, 20), (30, 60, 70), (30, 72, 80), (30, 85, 90)))
    assert list(ops["gap_ns"]) == [0, 40, 2, 5]
    assert list(ops["late_ns"])[2:] == [0, 0] and ops["late_ns"].iloc[1] > 0


def test_the_four_causes_add_up_to_the_step():
    ops = queue.place_operations(operations((0, 10, 50), (90, 100, 150), (91, 155, 200), (240, 250, 260, "loss")))
    one = queue.causes(ops, walls(300)).iloc[0]
    assert [one[f"{cause}_captured_ns"] for cause in queue.CAUSES] == [145, 50, 100, 5]
    assert sum(one[f"{cause}_share"] for cause in queue.CAUSES) == pytest.approx(1)


def test_the_queue_is_as_deep_as_what_was_launched_and_has_not_begun():
    ops = queue.place_operations(operations((0, 10, 100), (1, 100, 200), (2, 200, 300), (3, 300, 400)))
    assert queue.depths(ops)["depth"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("column", ["device", "rank"])
def test_a_gpu_that_is_busy_fills_no_gap_of_another(column):
    one, other = operations((0, 10, 50), (90, 100, 150)), operations((0, 10, 150)).assign(**{column: 1})
    ops = queue.place_operations(pd.concat([one, other], ignore_index=True))
    assert (list(ops["gap_ns"]), list(ops["busy_ns"])) == ([0, 50, 0], [40, 50, 140])
    found = queue.causes(ops, pd.concat([walls(200), walls(200).assign(rank=1)])).iloc[0]
    assert (found["busy_captured_ns"], found["busy_share"], found["wall_ns"]) == (115, 115 / 200, 200)
    assert sum(found[f"{cause}_share"] for cause in queue.CAUSES) == pytest.approx(1)


def test_no_kernels_no_causes():
    assert not len(queue.causes(queue.place_operations(operations((0, 10, 50)).head(0)), walls(1)))


@pytest.fixture(scope="module")
def recorded():
    """Forward passes with and without compile, as if they were training steps, which the page is about."""
    rec = frozen.load_study("host")
    return dataclasses.replace(rec, runs=rec.runs.assign(mode="train_step"))


@pytest.fixture(scope="module")
def answer(recorded):
    return page_context.ask(host.QUESTION, recorded, main=frozen.load_study(""))


def test_the_queue_is_drawn_where_the_gpu_waits_longest_and_shortest(answer):
    assert len([key for key in answer.charts if key.startswith("queue")]) == 2


def test_without_a_step_without_compile_bars_are_times(recorded):
    rec = frozen.keep_runs(recorded, recorded.runs["compile"].astype(str) != "off")
    chart = page_context.ask(host.QUESTION, rec, main=rec).charts["times"]
    assert chart.options["value"] == "time_ns" and len(chart.rows) == 2 * 3 and "of_base" not in chart.rows


def test_shares_add_up(answer):
    for key in ("causes", "grid"):
        rows = answer.tables[key].rows
        rows = rows[rows["run_id"] != ""].dropna(subset="busy_share")
        total = rows[[f"{cause}_share" for cause in queue.CAUSES]].sum(axis=1)
        assert len(rows) and ((total - 1).abs() < 1e-9).all()
        assert (rows[[f"{cause}_share" for cause in queue.CAUSES]] >= 0).all().all()


def test_savings_are_less_work_and_less_idling(answer):
    rows = answer.tables["saved"].rows
    assert ((rows["saved_busy_ns"] + rows["saved_idle_ns"] - rows["saved_ns"]).abs() < 1).all()


def test_graphs_launch_less_than_they_run(answer):
    rows = answer.tables["steps"].rows
    assert (rows["calls"] <= rows["operations"]).all()
    assert (rows["calls"] < 0.9 * rows["operations"])[rows["compile"] == host_data.GRAPHS].all()
    assert answer.claims["launches"].holds


def test_opposite_claims_do_not_both_hold(answer):
    for group in (("no_allocation", "allocation"), ("graphs_add", "graphs_add_nothing"), ("helped", "idle_only")):
        assert sum(answer.claims[key].holds for key in group) == 1, group


def test_runs_without_compile_and_an_empty_main_recording_are_answered():
    rec = synthetic.recording(("small",), (128,), num_profiled=2, num_timed=2, oom={})
    rec = dataclasses.replace(rec, runs=rec.runs.assign(compile="off"))
    empty = store.Recording(manifest=rec.manifest, **{name: store.empty(name) for name in table_schema.TABLES})
    found = page_context.ask(host.QUESTION, rec, main=empty)
    assert not any(found.claims[key].holds for key in ("helped", "faster", "slower", "same", "grid", "full"))
    assert found.claims["idle_only"].holds


def test_what_graphs_add_is_judged_without_the_optimizer():
    phases = [("forward", 10), ("backward", 20)]
    rows = [("a", name, wall) for name, wall in [*phases, ("optimizer", 90), ("step", 120)]]
    rows += [("b", name, wall) for name, wall in [*phases, ("optimizer", 50), ("step", 80)]]
    steps = pd.DataFrame(rows, columns=["run_id", "phase", "wall_ns"]).assign(
        rank=0, process=0, collector="timer", step=0
    )
    measured = pd.DataFrame({"run_id": ["a", "b"], "compile": [host_data.DEFAULT, host_data.GRAPHS], "size": "small"})
    measured = measured.assign(timer_ns=[120, 80], timer_min_ns=[120, 80], timer_max_ns=[120, 80])
    rows = [(run, name, 10) for run in ("a", "b") for name, _ in phases]
    kernels = pd.DataFrame(rows, columns=["run_id", "phase", "end_ns"]).assign(rank=0, step=0, device=0, start_ns=0)
    compiled = host_data._list_compiled(steps, kernels, kernels.head(0))
    assert compiled["timer_parts"].tolist() == [10, 10], "30 ns less two phases in which the GPU is busy for 10"
    pair = host_data._compare_with_default(measured.assign(timer_parts=0), compiled, ["size"], None).iloc[0]
    assert pair["speedup"] == 1 and not pair["differs"]


def test_steps_as_people_train_are_drawn_in_a_chart_of_their_state(recorded):
    assert "times-trained" not in page_context.ask(host.QUESTION, recorded, main=recorded).charts
    runs = recorded.runs.assign(precision="bf16")
    trained = dataclasses.replace(recorded, runs=runs)
    charts = page_context.ask(host.QUESTION, recorded, main=recorded, studies={TRAINED: trained}).charts
    assert [charts[key].state for key in ("times", "times-trained")] == ["FP32", "BF16"]
    assert charts["times-trained"].rows["of_base"].tolist() == charts["times"].rows["of_base"].tolist()
    other = dataclasses.replace(recorded, runs=runs.assign(batch_size=64))
    assert "times-trained" not in page_context.ask(host.QUESTION, recorded, studies={TRAINED: other}).charts
