"""Deeper models of fewer parameters next to wider ones."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.metrics import depth
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.pages.questions import host
from profiler_job.analysis.site import page_context
from tests.synthetic import recording

MODES = ("forward", "train_step")
DEEP_NS, WIDE_NS = 400_000_000, 200_000_000
"""Longer than the made-up GPU is busy."""


def recorded(deep_ns: int = DEEP_NS, wide_ns: int = WIDE_NS, num_layers: int = 48, precision: str = "fp32"):
    """Two models of 48 and 32 layers, timed by three processes; the deeper has fewer parameters."""
    rec = recording(("small", "2.7B"), (128,), MODES, (precision,), num_profiled=1, num_timed=2, oom={})
    is_deep = rec.runs["size"] == "small"
    runs = rec.runs.assign(num_layers=is_deep.map({True: num_layers, False: 32}))
    of_deep = rec.steps["run_id"].isin(runs.loc[is_deep, "run_id"])
    timer = rec.steps["collector"] == "timer"
    times = rec.steps[timer].assign(wall_ns=of_deep.map({True: deep_ns, False: wide_ns}))
    steps = pd.concat([rec.steps[~timer], *(times.assign(process=n, wall_ns=times["wall_ns"] + n) for n in range(3))])
    return dataclasses.replace(rec, runs=runs, steps=steps)


def test_a_deeper_model_whose_gpu_does_less_and_that_takes_longer_is_slower():
    rec = recorded()
    found = depth.pairs(depth.list_steps_by_depth(rec))
    assert list(found["mode"]) == list(MODES) and found[["slower", "apart", "differs"]].all(axis=None)
    one = found.iloc[0]
    assert (one["deep_size"], one["wide_size"]) == ("small", "2.7B") and one["deep_busy_ns"] < one["wide_busy_ns"]
    kernels = rec.kernels[rec.kernels["run_id"] == one["deep_run_id"]]
    assert one["deep_launches"] == len(kernels)


@pytest.mark.parametrize("why", [{"deep_ns": WIDE_NS - 1_000}, {"num_layers": 32}, {"num_layers": 0}])
def test_a_faster_one_and_one_that_is_no_deeper_are_not(why):
    found = depth.pairs(depth.list_steps_by_depth(recorded(**why)))
    assert not found["slower"].any()


def test_processes_that_overlap_are_not_apart_and_a_wide_band_holds_both():
    found = depth.pairs(depth.list_steps_by_depth(recorded(wide_ns=DEEP_NS - 1)))
    assert found["slower"].all() and not found["apart"].any()
    band = Band(kind="wall", relative=1.0, ratio=0.0, factor=1.0, num_pairs=20)
    found = depth.pairs(depth.list_steps_by_depth(recorded()), band)
    assert found["apart"].all() and not found["differs"].any()


def summarise_pairs(rec, twin):
    return page_context.ask(host.QUESTION, rec, studies={"bf16": twin})


def test_the_page_tells_it_of_the_precision_in_which_it_is_so():
    answer = summarise_pairs(recorded(deep_ns=WIDE_NS - 1_000), recorded(precision="bf16"))
    said = answer.claims["deeper_slower"].values
    assert (said["most"]["precision"], said["most"]["ratio"]) == ("bf16", pytest.approx(2))
    assert (said["num_slower"], said["num_all"], said["longest"]) == (2, 2, 128)
    assert answer.claims["deeper_never"].values["precisions"] == ["FP32"]
    assert set(answer.tables["depth"].rows["precision"]) == {"bf16"}


def test_without_a_slower_one_nothing_is_told():
    faster = recorded(deep_ns=WIDE_NS - 1_000)
    answer = summarise_pairs(faster, faster)
    assert not answer.claims["deeper_slower"].holds and not answer.claims["deeper_never"].holds
    assert not len(answer.tables["depth"].rows)
