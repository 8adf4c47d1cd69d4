"""Two GPUs against one: on made-up runs that can be worked out by hand, and on a stall on purpose."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.capture import collective_time
from profiler_job.analysis.metrics.exchange import communication_of, estimate_cost, list_operations, sum_by_gpu
from profiler_job.analysis.metrics.timing import select_steps
from profiler_job.analysis.pages.questions import several_gpus, several_gpus_data
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import page_context, question_pages, write_site
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.messages import SILENT
from tests import synthetic
from tests.page_words import read_page, read_shown
from tests.pages.question_page import only_questions

pytestmark = pytest.mark.long

STALLED = Path(__file__).parents[1] / "data" / "h200_stall"
TABLES = ("runs", "steps", "ranges", "kernels")
MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "allocated_before_bytes", "allocated_after_bytes")
UTC = "2026-11-24T16:{:02}:00.000+00:00"
NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
MS = 1_000_000
WAITS, TRANSFERS = 2 * MS, 3 * MS


def all_reduces(kernels: pd.DataFrame) -> pd.DataFrame:
    """One all-reduce at the end of each step of each rank, when nothing else runs; rank 1 comes later."""
    last = kernels.sort_values("end_ns").drop_duplicates(["run_id", "rank", "step"], keep="last")
    last = last[last["step"] >= 0]
    begins = last["end_ns"] + MS + WAITS * last["rank"]
    ends = last["end_ns"] + MS + WAITS + TRANSFERS
    return last.assign(
        kernel_name=NAME, family="communication", phase=ranges.BACKWARD, stream=99, start_ns=begins, end_ns=ends
    )


def with_two_gpus(rec):
    """`rec` with the same training steps on two GPUs, too: the step a quarter longer, half the memory."""
    tables = {}
    for name in TABLES:
        frame = getattr(rec, name)
        both = frame.assign(run_id=frame["run_id"].astype(str) + "-2gpus-fsdp")
        if name == "runs":
            both = both.assign(gpus=2, parallel="fsdp", peak_memory_bytes=both["peak_memory_bytes"] // 2)
            frame = frame.assign(gpus=1, parallel="none")
        else:
            both = pd.concat([both.assign(rank=0), both.assign(rank=1)], ignore_index=True)
        if name == "steps":
            both = both.assign(wall_ns=both["wall_ns"] * 5 // 4)
        if name == "kernels":
            both = pd.concat([both, all_reduces(both)], ignore_index=True)
        tables[name] = pd.concat([frame, both], ignore_index=True)
    return dataclasses.replace(rec, **tables)


@pytest.fixture(scope="module")
def rec():
    rec = with_two_gpus(synthetic.recording(("small", "2.7B"), (512,), modes=("train_step",), oom={}))
    return dataclasses.replace(rec, steps=synthetic.time_twice(rec.steps))


@pytest.fixture(scope="module")
def answer(rec):
    return page_context.ask(several_gpus.QUESTION, rec)


def test_two_gpus_are_held_against_as_many_single_ones(answer):
    rows = answer.tables["steps"].rows
    assert list(zip(rows["size"], rows["gpus"])) == [("small", 1), ("small", 2), ("2.7B", 1), ("2.7B", 2)]
    two = rows[rows["gpus"] == 2]
    assert two["speedup"].tolist() == pytest.approx([2 / 1.25] * 2, rel=1e-6)
    assert two["efficiency"].tolist() == pytest.approx([1 / 1.25] * 2, rel=1e-6)
    assert two["memory_ratio"].tolist() == pytest.approx([0.5] * 2, rel=1e-6)


def test_kernels_that_take_longer_and_steps_that_do_fewer_tokens_are_told(rec):
    steps = rec.steps.copy()
    steps.loc[steps["run_id"].astype(str).str.endswith("fsdp"), "wall_ns"] *= 2
    answer = page_context.ask(
        several_gpus.QUESTION, dataclasses.replace(rec, kernels=with_longer_kernels(rec), steps=steps)
    )
    assert answer.claims["slower"].rows["slower_share"].tolist() == pytest.approx([1, 1], rel=1e-3)
    assert answer.claims["fewer"].rows["speedup"].tolist() == pytest.approx([2 / 2.5] * 2, rel=1e-6)
    assert answer.claims["fewer"].values["limits"] == ["CPU"], "steps twice as long, for hardly more work of the GPU"
    assert answer.claims["fewer"].values["num_beyond"] == 2
    assert page_context.ask(several_gpus.QUESTION, rec).claims["fewer"].rows.empty


def with_longer_kernels(rec) -> pd.DataFrame:
    """Kernels of one GPU that take half of what the same take on two."""
    kernels = rec.kernels
    of_two = kernels["run_id"].astype(str).str.endswith("fsdp")
    half = kernels["start_ns"] + (kernels["end_ns"] - kernels["start_ns"]) // 2
    return kernels.assign(end_ns=kernels["end_ns"].where(of_two, half))


def test_what_computing_kernels_take_longer_is_no_cost_of_communication(rec):
    """They do so without communication, too: a step that is longer by as much has nothing for it to explain."""
    same, longer = (
        page_context.ask(several_gpus.QUESTION, dataclasses.replace(rec, kernels=kernels))
        .tables["steps"]
        .rows.set_index("run_id")
        for kernels in (rec.kernels, with_longer_kernels(rec))
    )
    two = same["gpus"] == 2
    assert (same.loc[two, "slower_ns"] == 0).all() and (longer.loc[two, "slower_ns"] > 0).all()
    for rows in (same, longer):
        rest = rows.loc[two, "longer_ns"] - rows.loc[two, "slower_ns"]
        assert rows.loc[two, "rest_ns"].tolist() == pytest.approx(rest.tolist())
        unexplained = (rest - rows.loc[two, "exposed_ns"]).abs() / rows.loc[two, "step_ns"]
        assert rows.loc[two, "unexplained_share"].tolist() == pytest.approx(unexplained.tolist())


def test_kernels_that_run_at_once_count_once(rec):
    """Copies on their own stream, next to the kernels of the same GPU, make it compute for no longer."""
    kernels = rec.kernels
    of_two = kernels["run_id"].astype(str).str.endswith("fsdp") & (kernels["family"].astype(str) != "communication")
    beside = pd.concat([kernels, kernels[of_two].assign(stream=77)], ignore_index=True)
    rows = page_context.ask(several_gpus.QUESTION, dataclasses.replace(rec, kernels=beside)).tables["steps"].rows
    assert (rows.loc[rows["gpus"] == 2, "slower_ns"] == 0).all()


def test_waiting_and_transfer_are_of_one_step_and_gpu(rec):
    rows = communication_of(rec.kernels, rec.runs).set_index("run_id")
    assert len(rows) == 2 and (rows["unknown"] == "").all()
    assert (rows["waiting_ns"] == WAITS / 2).all(), "one of two ranks waits"
    assert (rows["transfer_ns"] == TRANSFERS).all()
    assert (rows["kernel_ns"] == rows["waiting_ns"] + rows["transfer_ns"]).all()


def timed_steps(*rows: tuple) -> pd.DataFrame:
    """Of (run_id, rank, phase, wall_ns, issue_ns), two steps alike."""
    frame = pd.DataFrame(rows, columns=["run_id", "rank", "phase", "wall_ns", "issue_ns"])
    frame = frame.assign(collector="timer", process=0)
    return pd.concat([frame.assign(step=step) for step in (0, 1)], ignore_index=True)


@pytest.mark.parametrize(
    "alone, ranks, slower, cost",
    [
        pytest.param((100, 40), [(110, 50), (120, 50)], 0, 15, id="GPUs limit both: how much longer they take"),
        pytest.param((100, 40), [(110, 50), (120, 50)], 6, 9, id="kernels that take longer are no part of it"),
        pytest.param(
            (100, 99), [(150, 150), (150, 130)], 6, 10, id="hosts limit both: how long one waits, and the other not"
        ),
        pytest.param((100, 40), [(150, 140), (150, 150)], 6, 5, id="hosts that launch for longer than one GPU takes"),
        pytest.param((100, 40), [(150, None), (150, None)], 0, None, id="not known without their part of it"),
    ],
)
def test_clocks_tell_communication_from_hosts_and_kernels_that_take_longer(alone, ranks, slower, cost):
    rows = [("one", 0, ranges.BACKWARD, *alone)]
    rows += [("two", rank, ranges.BACKWARD, *times) for rank, times in enumerate(ranks)]
    rows += [("two", rank, ranges.OPTIMIZER, 70, 1) for rank in (0, 1)]
    longer = pd.DataFrame({ranges.BACKWARD: [slower]}, index=["two"])
    costs = estimate_cost(timed_steps(*rows), pd.Series({"two": "one"}), longer)
    assert costs.index.tolist() == ["two"] and (costs.isna().all() if cost is None else costs.tolist() == [cost])


def test_of_steps_that_hosts_limit_it_is_said_what_of_exposed_communication_is_critical(rec, answer):
    assert answer.claims["host"].rows.empty
    is_two = rec.steps["run_id"].astype(str).str.endswith("fsdp")
    steps = rec.steps.assign(issue_ns=rec.steps["wall_ns"].where(is_two, rec.steps["wall_ns"] // 2))
    limited = page_context.ask(several_gpus.QUESTION, dataclasses.replace(rec, steps=steps))
    rows = limited.tables["communication"].rows
    assert (rows["issue_share"] > several_gpus_data.MOSTLY_ISSUING).all() and (rows["clock_cost_ns"] == 0).all()
    assert limited.claims["host"].rows["run_id"].tolist() == rows["run_id"].tolist()
    assert not limited.claims["explains"].holds


def with_figures(rec, **by_figure: float):
    """`rec` with these figures of both ranks of the runs of two GPUs."""
    runs = [run for run in rec.runs["run_id"].astype(str) if run.endswith("fsdp")]
    rows = [
        {"run_id": run, "rank": rank, "figure": figure, "unit": "bytes", "value": value}
        for run in runs
        for rank in (0, 1)
        for figure, value in by_figure.items()
    ]
    return dataclasses.replace(rec, figures=pd.DataFrame(rows))


def test_a_collective_is_held_against_the_same_one_alone(rec):
    """Of messages of 6 MB a step that take 3 ms: 2 GB/s, where the link gives 8."""
    num_steps = rec.kernels.loc[rec.kernels["step"] >= 0, "step"].nunique()
    told = with_figures(rec, message_AllReduce=6e6 * num_steps, link_AllReduce=8e9, link_message=2**28)
    answer = page_context.ask(several_gpus.QUESTION, told)
    rows = answer.tables["collectives"].rows
    assert rows["collective"].tolist() == ["AllReduce"] * 2 and rows["transfer_ns"].tolist() == [TRANSFERS] * 2
    assert rows["bytes"].tolist() == [6e6] * 2 and rows["calls"].tolist() == [1] * 2
    assert rows["bus_rate"].tolist() == pytest.approx([2e9] * 2) and rows["link_share"].tolist() == pytest.approx(
        [0.25] * 2
    )
    assert answer.claims["reaches"].holds and not answer.claims["unknown_bytes"].holds
    assert answer.tables["link"].rows["size_bytes"].tolist() == [2**28]


def test_bytes_that_were_not_recorded_are_not_guessed(answer):
    rows = answer.tables["collectives"].rows
    assert len(rows) == 2 and rows["bytes"].isna().all() and rows["bus_rate"].isna().all()
    assert answer.claims["unknown_bytes"].values["num"] == 2 and not answer.claims["reaches"].holds
    assert not len(answer.tables["messages"].rows) and not answer.claims["sizes"].holds
    assert answer.claims["unknown_sizes"].values == {"num_rows": 2, "num_all": 2}


def test_collectives_are_told_apart_by_the_size_of_their_messages(rec):
    """6 MB in every other step and 3 MB in the rest, which take 3 ms each: 2 and 1 GB/s, where the link gives 8."""
    is_exchange = rec.kernels["family"].astype(str) == "communication"
    size = (3e6 + 3e6 * (rec.kernels["step"] % 2 == 0)).astype("int64")
    kernels = rec.kernels.assign(message_bytes=size.where(is_exchange, -1))
    told = with_figures(dataclasses.replace(rec, kernels=kernels), link_AllReduce=8e9, link_message=2**28)
    answer = page_context.ask(several_gpus.QUESTION, told)
    steps = kernels.loc[is_exchange].drop_duplicates("step")["step"]
    rows = answer.tables["messages"].rows.sort_values(["run_id", "message_bytes"])
    assert rows["message_bytes"].tolist() == [3e6, 6e6] * 2
    assert rows["calls"].tolist() == pytest.approx([(steps % 2).mean(), 1 - (steps % 2).mean()] * 2)
    assert rows["waiting_ns"].tolist() == pytest.approx((rows["calls"] * WAITS / 2).tolist())
    assert rows["bus_rate"].tolist() == pytest.approx([1e9, 2e9] * 2)
    assert rows["link_share"].tolist() == pytest.approx([1 / 8, 2 / 8] * 2)
    of_all = answer.tables["collectives"].rows.set_index("run_id")["bytes"]
    sums = rows.groupby("run_id", observed=True)["bytes"].sum()
    assert sums.to_dict() == pytest.approx(of_all.to_dict())
    assert answer.claims["sizes"].holds and not answer.claims["unknown_sizes"].holds


def test_what_is_said_follows_from_the_rows(answer):
    rows = answer.claims["gives"].rows
    assert rows["gpus"].tolist() == [2, 2] and several_gpus._gives(rows)["most"] == 2
    assert answer.claims["memory"].rows["memory_ratio"].max() == pytest.approx(0.5, rel=1e-6)


def test_a_gain_is_said_to_be_rough_if_the_processes_of_a_step_disagree(rec, undrawn, tmp_path):
    study = dataclasses.replace(rec, steps=synthetic.time_twice(rec.steps, times=1.06))
    claims = page_context.ask(several_gpus.QUESTION, study).claims
    assert not claims["gives"].holds and claims["not_quoted"].holds
    assert claims["not_quoted"].values["apart"] == pytest.approx(0.06, abs=0.001)
    assert claims["fewer"].rows.empty or not claims["fewer"].values["others"]
    assert claims["not_quoted"].values["ways"][0]["speedup"][0] == pytest.approx(1.6, abs=0.05)
    first = write_page(rec, study, tmp_path).split("What was measured")[0]
    assert "**1.6×**" in first and "rough" in first


def test_the_way_that_exposes_least_and_longer_contexts_are_advised_from_the_table(rec):
    copied = with_copies(rec, {"times": 1.0, "parallel": "ddp"})
    kernels = copied.kernels
    of_ddp = kernels["run_id"].astype(str).str.endswith("-0") & (kernels["family"].astype(str) == "communication")
    shorter = kernels["end_ns"].where(~of_ddp, kernels["start_ns"] + 1)
    claims = page_context.ask(
        several_gpus.QUESTION, dataclasses.replace(copied, kernels=kernels.assign(end_ns=shorter))
    ).claims
    assert claims["way"].values == {"num_rows": 2, "value": "ddp", "way": "DDP", "num_all": 2}
    assert not claims["more_tokens"].holds, "one context only"


def with_copies(rec, *changes: dict):
    """`rec` with copies of its runs of two GPUs that differ in fields of the run, and in the time of a step."""
    parts = {name: [getattr(rec, name)] for name in TABLES}
    for number, change in enumerate(changes):
        times, fields = change["times"], {name: value for name, value in change.items() if name != "times"}
        for name in TABLES:
            frame = getattr(rec, name)
            frame = frame[frame["run_id"].astype(str).str.endswith("fsdp")]
            frame = frame.assign(run_id=frame["run_id"].astype(str) + f"-{number}")
            if name == "runs":
                frame = frame.assign(**fields)
            if name == "steps":
                frame = frame.assign(wall_ns=(frame["wall_ns"] * times).astype("int64"))
            parts[name].append(frame)
    return dataclasses.replace(rec, **{name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()})


def test_a_batch_that_is_divided_is_compared_with_the_one_gpu_that_has_all_of_it(rec):
    batch = int(rec.runs["batch_size"].iloc[0])
    answer = page_context.ask(several_gpus.QUESTION, with_copies(rec, {"times": 0.6, "batch_size": batch // 2}))
    rows = answer.claims["strong"].rows
    assert rows["batch_size"].tolist() == [batch // 2] * 2
    assert rows["speedup"].tolist() == pytest.approx([1 / (1.25 * 0.6)] * 2, rel=1e-6)
    assert answer.claims["gives"].values["ways"] == [{"way": "FSDP", "speedup": pytest.approx((1.6, 1.6), rel=1e-6)}]
    steps = answer.tables["steps"].rows
    assert steps.loc[steps["batch_size"] == batch // 2, ["longer_ns", "slower_ns"]].isna().all(axis=None)


def test_what_another_exchange_gives_is_the_step_of_the_same_case_without_it(rec, undrawn, tmp_path):
    study = with_copies(rec, {"times": 0.8, "exchange": "keep"}, {"times": 1.1, "exchange": "prefetch"})
    study = dataclasses.replace(study, runs=study.runs.fillna({"exchange": "default"}))
    claim = page_context.ask(several_gpus.QUESTION, study).claims["changed"]
    changes = {change["exchange"]: change["gain"] for change in claim.values["changes"]}
    assert changes == {
        "gathered once a step": pytest.approx((1.25, 1.25), rel=1e-6),
        "two blocks gathered ahead": pytest.approx((1 / 1.1, 1 / 1.1), rel=1e-6),
    }
    page = write_page(rec, study, tmp_path)
    assert "FSDP with gathered once a step is 1.25×" in page and "default ÷ changed" in page


def test_speed_ups_over_the_number_of_gpus_are_lines_of_each_way(rec):
    study = with_copies(
        rec, {"times": 1.1, "gpus": 4}, {"times": 1.0, "parallel": "ddp"}, {"times": 1.2, "gpus": 4, "parallel": "ddp"}
    )
    answer = page_context.ask(several_gpus.QUESTION, study)
    gives = answer.claims["gives"].values
    assert (gives["most"], {way["way"]: way["speedup"][1] for way in gives["ways"]}) == (
        4,
        pytest.approx({"DDP": 4 / 1.5, "FSDP": 4 / 1.375}, rel=1e-6),
    )
    rows = answer.charts["scaling"].rows
    speedups = {
        (way, gpus): speedup for way, gpus, speedup in rows[["clock", "gpus", "speedup"]].itertuples(index=False)
    }
    assert speedups == pytest.approx(
        {(way, 1): 1 for way in ("DDP", "FSDP")}
        | {("FSDP", 2): 2 / 1.25, ("FSDP", 4): 4 / 1.375, ("DDP", 2): 2 / 1.25, ("DDP", 4): 4 / 1.5},
        rel=1e-6,
    )


def test_all_reduces_alone_are_shown_by_size(rec, undrawn, tmp_path):
    """nccl-tests: the bus bandwidth of n ranks is 2 (n - 1) / n times the bytes of the message a second."""
    sizes = {"link_AllReduce/1048576": 40e9, "link_AllReduce/67108864": 290e9}
    study = with_figures(rec, link_AllReduce=300e9, link_message=2**30, **sizes)
    answer = page_context.ask(several_gpus.QUESTION, study)
    rows = answer.tables["link"].rows.set_index("size_bytes")["bus_rate"]
    assert rows.to_dict() == {2**30: 300e9, 2**20: 40e9, 2**26: 290e9}
    assert answer.claims["grid"].values["enough"]["size_bytes"] == 2**26
    assert answer.charts["grid"].rows["mib"].tolist() == [1, 64, 1024]
    assert all(table.rows["link_share"].isna().all() for table in [answer.tables["messages"]])
    page = write_page(rec, study, tmp_path)
    assert "All-reduce of 1.00 MiB".lower() in page.lower() and "300 GB/s" in page


@pytest.mark.parametrize("share, holds", [(0.02, True), (0.05, False)])
def test_steps_without_exchange_confirm_what_is_exposed(rec, share, holds):
    steps = page_context.ask(several_gpus.QUESTION, rec).tables["steps"].rows
    two = steps[steps["gpus"] == 2].set_index("run_id")
    exposed = communication_of(rec.kernels, rec.runs).set_index("run_id")["exposed_ns"]
    silent = two["step_ns"] - two["optimizer_ns"] - two["slower_ns"] - exposed - share * two["step_ns"]
    figures = [
        {"run_id": run, "rank": rank, "figure": SILENT, "unit": "ns", "value": value}
        for run, value in silent.items()
        for rank in (0, 1)
    ]
    # A step under nsys that is as long as the unprofiled one.
    times = rec.steps.astype({"run_id": str, "collector": str})
    timer = times[times["collector"] == "timer"]
    profiled = timer.assign(collector="nsys", issue_ns=pd.NA)
    both = pd.concat([timer, profiled], ignore_index=True)
    study = dataclasses.replace(rec, figures=pd.DataFrame(figures), steps=both)
    answer = page_context.ask(several_gpus.QUESTION, study)
    claim = answer.claims["silent" if holds else "not_silent"]
    assert len(claim.rows) == 2
    assert claim.rows["silent_apart_share"].tolist() == pytest.approx([share] * 2, rel=1e-3)


def test_each_rank_has_its_own_row(rec, answer):
    rows = answer.tables["ranks"].rows
    assert rows["rank"].tolist() == [0, 1] * 2 and rows["waiting_ns"].tolist() == [WAITS, 0] * 2


def test_a_second_gpu_that_brings_no_exposed_communication_is_said_to_hide_it(rec):
    kernels = rec.kernels
    hidden = kernels.assign(
        end_ns=kernels["end_ns"].where(kernels["family"].astype(str) != "communication", kernels["start_ns"] + 1)
    )
    answer = page_context.ask(several_gpus.QUESTION, dataclasses.replace(rec, kernels=hidden))
    assert answer.claims["hidden"].holds and not answer.claims["exposed"].holds


def write_page(rec, study, folder):
    """Write the page of several GPUs, of a study of `rec`, and read it."""
    study = dataclasses.replace(study, manifest=study.manifest | {"study": several_gpus.STUDY})
    with only_questions(several_gpus.QUESTION):
        question_pages.write_questions(rec, folder, {several_gpus.STUDY: study})
    return read_page(folder / "report" / "several-gpus.md")


def test_the_page_says_what_two_gpus_give_and_what_their_memory_is(rec, undrawn, tmp_path):
    page = write_page(rec, rec, tmp_path)
    assert "**1.6×**" in page.split("What was measured")[0] and "80.0%" in page
    assert "FSDP needs 0.500×" in page
    assert "In both cases the size of each message was not recorded." in page and "messages.csv" not in page


def timed_by(rec, gpus: list[str | None]):
    """`rec` with a process for each of `gpus`, one after another, that timed each run with as many steps; each takes
    a tenth longer than the one before."""
    runs = rec.runs["run_id"].astype(str)
    processes = pd.DataFrame(
        [
            {"run_id": run, "rank": 0, "process": number, "started_at": UTC.format(number), "gpu_id": gpu}
            for run in runs
            for number, gpu in enumerate(gpus)
        ]
    )
    processes = processes.reindex(columns=store.empty("processes").columns)
    timer = rec.steps[rec.steps["collector"].astype(str) == "timer"]
    steps = [timer.assign(process=n, wall_ns=timer["wall_ns"] * (10 + n) // 10) for n in range(len(gpus))]
    return dataclasses.replace(rec, processes=processes, steps=pd.concat([rec.steps.drop(timer.index), *steps]))


def test_that_another_set_of_gpus_timed_a_part_is_said_with_what_it_makes(rec):
    claim = page_context.ask(several_gpus.QUESTION, timed_by(rec, ["a", "a", "b"])).claims["places"]
    assert claim.holds
    said = claim.values
    assert (said["num_gpus"], said["counts"], said["num_both"], said["num_all"]) == (2, [4, 2], 2, 2)
    assert said["ratios"] == pytest.approx((12 / 10.5, 12 / 10.5), rel=0.02)
    assert (said["num_elsewhere"], said["num_one"], said["at_once"]) == (2, 6, 1)


def test_sets_of_gpus_that_timed_runs_at_the_same_time_are_no_machine_after_another(rec, undrawn, tmp_path):
    """Three processes of each run, which two sets of GPUs measured at once."""
    study = timed_by(rec, ["a", "b", "a"])
    assert page_context.ask(several_gpus.QUESTION, study).claims["places"].values["at_once"] == 2
    page = write_page(rec, study, tmp_path)
    assert "2 sets of GPUs, up to 2 sets at the same time" in page and "machine goes on" not in page


@pytest.mark.parametrize("gpus", [["a", "a", "a"], ["a", None, None], [None, None, None]])
def test_one_set_of_gpus_or_one_that_is_not_known_is_not_said(rec, gpus):
    assert not page_context.ask(several_gpus.QUESTION, timed_by(rec, gpus)).claims["places"].holds


def test_each_run_has_a_page_that_tells_its_ranks_apart(rec, tmp_path):
    """Linked from the question and from the page of all runs; of one GPU there is a strip of one block."""
    memory = pd.DataFrame(
        [
            {"run_id": run, "rank": rank, "phase": ranges.FORWARD, **dict.fromkeys(MEMORY, (rank + 1) * 2**30)}
            for run, gpus in zip(rec.runs["run_id"].astype(str), rec.runs["gpus"])
            for rank in range(gpus)
        ]
    )
    manifest = rec.manifest | {"study": several_gpus.STUDY}
    study = dataclasses.replace(rec, memory=memory, manifest=manifest)
    with only_questions(several_gpus.QUESTION):
        write_site.write(synthetic.recording(("small",), (512,)), tmp_path, {several_gpus.STUDY: study})
    folder = tmp_path / "report" / "runs-gpus"
    pages = {path.stem: read_shown(tmp_path, f"report/runs-gpus/{path.name}") for path in folder.glob("*.md")}
    assert pages.keys() == set(rec.runs["run_id"].astype(str))
    traces = {path.name.split(".")[0] for path in (tmp_path / "report" / "timelines").glob("*fsdp.perfetto.json.gz")}
    shared = [run_id for run_id in pages if run_id in traces]
    assert len(shared) == 1, "of each way to share the work the smallest"
    for run_id, page in pages.items():
        several = run_id.endswith("fsdp")
        assert ("rank 1, communication" in page) is several and ("sums over 2 GPUs" in page) is several
        assert ("Communication kernels in a step of each rank" in page) is several
        assert ("Trace for Perfetto" in page) is (run_id in shared)
        for table in ("several-gpus", "explore"):
            assert f"runs-gpus/{run_id}" in read_page(tmp_path / "report" / f"{table}.md")


def test_what_a_run_page_says_of_communication_is_of_each_rank(rec):
    rows = sum_by_gpu(rec.kernels, rec.runs)
    columns = ["rank", "calls", "waiting_ns", "transfer_ns", "kept_waiting_ns"]
    assert rows[columns].values.tolist() == [[0, 1, WAITS, TRANSFERS, 0], [1, 1, 0, TRANSFERS, WAITS]] * 2


def steps_of(stall_ms: int) -> tuple[pd.DataFrame, pd.Series]:
    """The loop whose rank 1 sleeps so long before backward: waiting of the first all-reduce of each step, by rank,
    and transfer of each rank and step."""
    rec = store.load(STALLED / f"stall{stall_ms}")
    kernels = select_steps(rec.kernels).sort_values("start_ns", kind="stable")
    family = kernels["family"].astype(str).to_numpy()
    operations = list_operations(kernels, family).assign(step=kernels["step"].to_numpy())
    rows = collective_time.measure(operations).rows
    rows["transfer_ns"] = rows["end_ns"] - rows["start_ns"] - rows["waiting_ns"]
    by = rows.sort_values("start_ns").groupby(["step", "rank"])
    return by["waiting_ns"].first().unstack(), by["transfer_ns"].sum()


def test_a_rank_that_sleeps_5_ms_before_backward_keeps_the_other_waiting_so_long():
    (without, transfer), (with_stall, transfer_too) = steps_of(0), steps_of(5)
    assert len(without) == len(with_stall) == 10
    assert (with_stall[0] >= 5 * MS).all() and (without[0] < 5 * MS).all()
    assert with_stall[0].median() - without[0].median() == pytest.approx(5 * MS, rel=0.2)
    assert (with_stall[1] == 0).all(), "the rank that sleeps comes last"
    assert transfer_too.median() == pytest.approx(transfer.median(), rel=0.05)
