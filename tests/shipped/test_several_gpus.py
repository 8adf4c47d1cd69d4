"""Two H200s against one, as shipped."""

import json
import re

import pandas as pd
import pytest

from profiler_job.analysis.capture import collective_time
from profiler_job.analysis.comparison.noise import SHIPPED
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.exchange import communication_of, list_operations
from profiler_job.analysis.metrics.timing import select_steps
from profiler_job.analysis.pages.questions import several_gpus, several_gpus_data
from profiler_job.analysis.recording import store
from profiler_job.analysis.render import tables, timeline
from profiler_job.analysis.site import page_context
from profiler_job.jobs.contract import ranges
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long


def test_three_sets_of_gpus_timed_runs_at_the_same_time(shipped):
    """Three pairs of GPUs of one host, each with a run of its own."""
    assert shipped.claims["places"].values["at_once"] == 3


def test_the_whole_timeline_of_a_run_has_both_ranks(recorded):
    run_id = "small-ctx256-bf16-sdpa-train_step-adamw_fused-2gpus-ddp"
    frames = (recorded.ranges, recorded.kernels, recorded.memops)
    trace = timeline.trace_step(run_id, 1, *(frame[frame["run_id"].astype(str) == run_id] for frame in frames))
    assert {track.process for track in trace.tracks} == {
        f"rank {n} · {p}" for n in (0, 1) for p in (f"GPU {n}", "Host")
    }
    named = [profile["name"] for profile in json.loads(timeline.speedscope(trace))["profiles"]]
    assert all(any(f"rank {rank}" in name for name in named) for rank in (0, 1))


@pytest.fixture(scope="module")
def recorded():
    return store.load(locate("gpus"))


@pytest.fixture(scope="module")
def shipped(recorded):
    return page_context.ask(several_gpus.QUESTION, recorded)


def test_what_is_exposed_is_compared_with_longer_steps_only_where_nsys_leaves_them_and_gpus_limit_them(shipped):
    """In BF16 the CPU limits these steps, and nsys makes most of them longer."""
    rows = shipped.tables["communication"].rows
    undisturbed = rows[(rows["profiled_ratio"] - 1).abs() <= several_gpus.AS_UNPROFILED]
    assert len(undisturbed) + len(shipped.claims["disturbed"].rows) == len(rows)
    by_gpu = undisturbed[undisturbed["issue_share"] <= several_gpus_data.MOSTLY_ISSUING]
    apart = (by_gpu["longer_ns"] - by_gpu["slower_ns"] - by_gpu["exposed_ns"]).abs()
    assert len(rows) == 8 and (apart <= several_gpus.EXPLAINS * by_gpu["step_ns"]).all()
    assert shipped.claims["explains"].rows["run_id"].tolist() == by_gpu["run_id"].tolist()
    assert shipped.claims["unexplained"].rows.empty
    by_host = undisturbed.drop(by_gpu.index)
    assert shipped.claims["host"].rows["run_id"].tolist() == by_host["run_id"].tolist()


def test_what_is_critical_is_what_clocks_say_whatever_limits_the_step(shipped):
    """The capture says the one, and unprofiled steps the other."""
    agrees = shipped.claims["critical"]
    assert agrees.holds and shipped.claims["not_critical"].rows.empty
    known = [*shipped.claims["explains"].rows["run_id"], *shipped.claims["host"].rows["run_id"]]
    assert sorted(agrees.rows["run_id"]) == sorted(known)
    apart = (agrees.rows["clock_cost_ns"] - agrees.rows["critical_ns"]).abs()
    assert (apart <= several_gpus.EXPLAINS * agrees.rows["step_ns"]).all()
    rows = shipped.tables["communication"].rows
    assert (rows["critical_ns"] <= rows["exposed_ns"]).all()


def test_waiting_and_transfer_are_the_time_of_communication_kernels(recorded):
    split = communication_of(recorded.kernels, recorded.runs)
    assert len(split) == 8 and (split["unknown"] == "").all()
    assert split["waiting_ns"].add(split["transfer_ns"]).tolist() == pytest.approx(split["kernel_ns"].tolist())


def ends_of(recorded) -> pd.DataFrame:
    """The collectives of all runs that no rank can end before all have begun, a row for each: run_id, is_second_last
    (rank 1 began last), apart_ns (how much later rank 1 ended than rank 0), exchange_ns (last begin to first end)."""
    tables = []
    kernels = select_steps(recorded.kernels).astype({"run_id": str})
    kernels = kernels[kernels["run_id"].isin(recorded.runs.loc[recorded.runs["gpus"] > 1, "run_id"].astype(str))]
    for run_id, mine in kernels.groupby("run_id"):
        rows = collective_time.measure(list_operations(mine, mine["family"].astype(str).to_numpy())).rows
        rows = rows[rows["collective"].isin(collective_time.ENDS_TOGETHER)]
        times = rows.pivot(index="meeting", columns="rank", values=["start_ns", "end_ns"])
        start, end = times["start_ns"], times["end_ns"]
        columns = {"is_second_last": start[1] > start[0], "apart_ns": end[1] - end[0]}
        tables.append(pd.DataFrame(columns).assign(run_id=run_id, exchange_ns=end.min(axis=1) - start.max(axis=1)))
    return pd.concat(tables)


def test_the_ranks_clocks_agree(recorded):
    """The rank that begins a collective last ends it last, by up to 27 µs in the median of a run, whichever it is: that
    is of the kernels. A clock that is late would be so whichever rank is last, so that half the sum of both is the
    clocks' part; that no rank ends before the last has begun binds them where the same rank is always last."""
    rows = ends_of(recorded)
    shortest = rows.groupby("run_id")["exchange_ns"].min()
    apart = communication_of(recorded.kernels, recorded.runs).set_index("run_id")["exchanged_apart_ns"]
    assert len(shortest) == 8 and (apart < shortest[apart.index] / 2).all(), "a small part of what is exchanged"
    by = rows.groupby(["run_id", "is_second_last"])["apart_ns"]
    medians = by.median()[by.size() >= 10].unstack()
    assert not (medians[False] > 0).any() and not (medians[True] < 0).any()
    of_clocks = medians.sum(axis=1, skipna=False).dropna() / 2
    assert len(of_clocks) == 2 and (of_clocks.abs() < 10_000).all()


def test_both_ranks_have_their_kernels_in_phases_and_those_of_backward_in_modules(recorded):
    kernels = recorded.kernels.astype({"run_id": str, "phase": str, "module": str})
    kernels["time_ns"] = kernels["end_ns"] - kernels["start_ns"]
    by = ["run_id", "rank"]
    of_rank = kernels.groupby(by)["time_ns"].sum()
    in_phase = kernels[kernels["phase"] != ""].groupby(by)["time_ns"].sum()
    backward = kernels[kernels["phase"] == ranges.BACKWARD]
    in_module = backward[backward["module"] != ""].groupby(by)["time_ns"].sum()
    assert len(of_rank) == 4 + 2 * 8 and (in_phase / of_rank >= 0.97).all()
    assert (in_module / backward.groupby(by)["time_ns"].sum() >= 0.97).all()


def test_the_link_gives_each_collective_a_rate_of_its_own(shipped):
    rows = shipped.tables["link"].rows.set_index("collective")
    assert (rows["size_bytes"] == 2**30).all()
    assert rows.index.tolist() == ["AllReduce", "AllGather", "ReduceScatter"] and (rows["num_runs"] == 4).all()
    assert (rows["bus_rate_high"] < 450e9).all(), "18 links of 25 GB/s"
    assert (rows["bus_rate_low"] > 0.9 * rows["bus_rate_high"]).all()


def test_a_rate_over_the_link_is_shown_in_gigabytes_and_kept_in_bytes(shipped):
    html = tables.to_html(shipped.tables["link"], "link.csv", "", {})
    rates = [(float(kept), float(shown)) for kept, shown in re.findall(r'data-v="(\d{12})">([\d.]+)<', html)]
    assert len(rates) == 9 and all(shown == pytest.approx(kept / 1e9, abs=0.5) for kept, shown in rates)


def test_what_is_exposed_is_held_against_the_step_that_it_was_seen_in(shipped):
    rows = shipped.claims["exposed"].rows
    assert rows["exposed_share"].tolist() == pytest.approx((rows["exposed_ns"] / rows["profiled_ns"]).tolist())
    drawn = shipped.charts["parts"].rows
    assert drawn.loc[drawn["scope"] == "exposed", "share"].max() == rows["exposed_share"].max()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_what_a_collective_transfers_takes_no_less_than_the_link_allows(recorded, shipped, parallel):
    """A DDP step reduces four bytes of each parameter once, whatever the precision; FSDP transfers more."""
    runs = recorded.runs[recorded.runs["parallel"].astype(str) == parallel].astype({"run_id": str})
    fastest = shipped.tables["link"].rows.set_index("collective").loc["AllReduce", "bus_rate_high"]
    transfer = communication_of(recorded.kernels, recorded.runs).set_index("run_id")["transfer_ns"]
    for run_id, parameters in zip(runs["run_id"], runs["num_parameters"]):
        assert transfer[run_id] * 1e-9 >= 4 * parameters / fastest


def test_where_two_gpus_do_less_than_one_the_page_has_what_limits_the_step(shipped):
    fewer = shipped.claims["fewer"]
    assert set(fewer.rows["parallel"].astype(str)) == {"fsdp"} and fewer.values["limits"] == ["communication"]


def test_what_two_gpus_give_is_said_to_be_rough_if_the_processes_of_a_step_disagree(shipped):
    claims = shipped.claims
    assert not claims["gives"].holds and claims["not_quoted"].holds and claims["fewer"].values["others"] == []
    said = claims["not_quoted"].values
    assert said["apart"] == pytest.approx(0.62, abs=0.005) and said["most"] == 2
    speedups = {way["way"]: way["speedup"] for way in said["ways"]}
    assert speedups["DDP"] == pytest.approx((1.40, 1.60), abs=0.01)
    assert speedups["FSDP"] == pytest.approx((0.80, 0.97), abs=0.01)


def test_the_way_to_share_the_work_is_advised_from_what_is_exposed(shipped):
    assert shipped.claims["way"].values == {"num_rows": 4, "value": "ddp", "way": "DDP", "num_all": 4}


def test_longer_contexts_are_not_advised_if_efficiency_falls_with_them(shipped):
    """Under nsys less was exposed at 1,024 tokens, while the unprofiled steps of DDP were less efficient."""
    claim = shipped.claims["more_tokens"]
    assert not claim.holds and (claim.rows["last"] < claim.rows["first"]).all()
    of_ddp = claim.rows[claim.rows["parallel"] == "ddp"]
    assert (of_ddp["efficiency_last"] < of_ddp["efficiency_first"]).all()


def test_fewer_tokens_within_the_noise_band_of_the_step_are_said_to_be_so(recorded):
    """Two GPUs are compared with two steps of one, which do as many tokens."""
    bands = Bands(kernel=SHIPPED.kernel, wall=SHIPPED.wall)
    answer = page_context.ask(several_gpus.QUESTION, recorded, bands=bands)
    rows = answer.tables["steps"].rows
    rows = rows[rows["gpus"] > 1]
    is_fewer = rows["speedup"] < 1
    assert is_fewer.sum() == 4 and (rows["tokens_differ"] != is_fewer).all()
    assert answer.claims["fewer"].values["num_beyond"] == 0


def test_ddp_reduces_four_bytes_of_each_parameter_and_fsdp_scatters_half_of_that_to_each_rank(shipped, recorded):
    rows = shipped.tables["collectives"].rows
    rows = rows.merge(recorded.runs.astype({"run_id": str})[["run_id", "num_parameters"]], on="run_id")
    known = rows[rows["bytes"].notna()]
    assert known["run_id"].nunique() == 8 and not shipped.claims["unknown_bytes"].holds
    for collective, of_parameter in (("AllReduce", 4), ("ReduceScatter", 2)):
        mine = known[known["collective"] == collective]
        assert len(mine) == 4 and (mine["bytes"] == of_parameter * mine["num_parameters"]).all()


def test_a_collective_of_a_step_reaches_no_more_than_the_link_gives(shipped):
    reached = shipped.tables["collectives"].rows["link_share"].dropna()
    assert len(reached) == 12 and reached.between(0.35, 1).all()
