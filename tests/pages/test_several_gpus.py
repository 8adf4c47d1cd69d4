"""Two GPUs against one: on made-up runs that can be worked out by hand."""

import dataclasses

import pandas as pd
import pytest

from analysis import write_site
from analysis.metrics.exchange import communication_of
from analysis.pages.questions import several_gpus
from jobs.contract import ranges
from tests import synthetic

TABLES = ("runs", "steps", "kernels")
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
    return with_two_gpus(synthetic.recording(("small", "2.7B"), (512,), modes=("train_step",), oom={}))


@pytest.fixture(scope="module")
def answer(rec):
    return write_site.ask(several_gpus, rec)


def test_two_gpus_are_held_against_as_many_single_ones(answer):
    rows = answer.tables["steps"].rows
    assert list(zip(rows["size"], rows["gpus"])) == [("small", 1), ("small", 2), ("2.7B", 1), ("2.7B", 2)]
    two = rows[rows["gpus"] == 2]
    assert two["speedup"].tolist() == pytest.approx([2 / 1.25] * 2, rel=1e-6)
    assert two["efficiency"].tolist() == pytest.approx([1 / 1.25] * 2, rel=1e-6)
    assert two["memory_ratio"].tolist() == pytest.approx([0.5] * 2, rel=1e-6)


def test_waiting_and_transfer_are_of_one_step_and_gpu(rec):
    rows = communication_of(rec.kernels).set_index("run_id")
    assert len(rows) == 2 and (rows["unknown"] == "").all()
    assert (rows["waiting_ns"] == WAITS / 2).all(), "one of two ranks waits"
    assert (rows["transfer_ns"] == TRANSFERS).all()
    assert (rows["kernel_ns"] == rows["waiting_ns"] + rows["transfer_ns"]).all()


def test_what_is_said_follows_from_the_rows(answer):
    rows = answer.claims["gives"].rows
    assert rows["gpus"].tolist() == [2, 2] and several_gpus._gives(rows)["most"] == 2
    assert answer.claims["memory"].rows["memory_ratio"].max() == pytest.approx(0.5, rel=1e-6)


def test_a_second_gpu_that_brings_no_exposed_communication_is_said_to_hide_it(rec):
    kernels = rec.kernels
    hidden = kernels.assign(
        end_ns=kernels["end_ns"].where(kernels["family"].astype(str) != "communication", kernels["start_ns"] + 1)
    )
    answer = write_site.ask(several_gpus, dataclasses.replace(rec, kernels=hidden))
    assert answer.claims["hidden"].holds and not answer.claims["exposed"].holds


def test_the_page_says_what_two_gpus_give_and_what_their_memory_is(rec, tmp_path):
    study = dataclasses.replace(rec, manifest=rec.manifest | {"study": several_gpus.STUDY})
    write_site.write_questions(rec, tmp_path, {several_gpus.STUDY: study})
    page = (tmp_path / "report" / "several-gpus.md").read_text()
    assert "With 2 GPUs a training step does **1.60" in page and "80.0%" in page
    assert "FSDP needs 0.500×" in page
