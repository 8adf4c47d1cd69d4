"""Equal runs are called equal, planted differences are found, and the kept bands equal the bands of the shipped
pair."""

import dataclasses
import functools
import itertools
import json
import math
import re

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.comparison import compare_formats, gate, judge, noise, print_comparison, totals, waterfall
from profiler_job.analysis.comparison.align import FIXED, VARIANTS, align
from profiler_job.analysis.comparison.errors import NotComparableError
from profiler_job.analysis.comparison.sides import load_side
from profiler_job.analysis.metrics import differences
from profiler_job.analysis.recording import store
from tests.shipped_data import DATA, RECORDINGS, locate

from .conftest import export
from .shipped import measured, select, side

FIRST, SECOND = "h200-fp32", "again"
FOLDS = 5


def test_identical_recordings_differ_in_nothing():
    same = select("compile", "context_length=128,mode=forward")
    made = judge.compare(same, same, noise.SHIPPED)
    for pair in made.pairs:
        assert {judged.verdict for judged in pair.judgements.values()} == {"within"}
        assert {judged.difference for judged in pair.judgements.values()} == {0}
        assert pair.waterfall.causes == [] and pair.waterfall.difference_ns == 0


def test_identical_captures_differ_in_nothing(capture):
    made = judge.compare(load_side(capture), load_side(capture), noise.SHIPPED)
    assert {judged.verdict for judged in made.pairs[0].judgements.values()} == {"within"}
    assert made.pairs[0].clock == "nsys" and not {"memory", "throughput"} & set(made.pairs[0].judgements)
    assert "how far the steps of each capture lie apart" in made.noise_source


def test_gpu_and_host_are_judged_apart():
    """Half the kernels, and a host as slow as before: the GPU is faster, and waits as much longer."""
    run = select("precision", "size=large,precision=fp32")
    kernels = run.kernels[run.kernels["run_id"].isin(run.runs["run_id"])]
    length = (kernels["end_ns"] - kernels["start_ns"]) // 2
    faster = dataclasses.replace(run, kernels=kernels.assign(end_ns=kernels["start_ns"] + length))
    judged = judge.compare(run, faster, noise.SHIPPED).pairs[0].judgements
    assert (judged["step"].verdict, judged["kernel"].verdict, judged["busy"].verdict) == ("within", "faster", "faster")
    assert judged["idle"].verdict == "more"
    assert judged["memory"].verdict == "within"


def test_a_planted_slowdown_is_seen_and_named():
    run = select("precision", "size=small,precision=fp32")
    kernels = run.kernels[run.kernels["run_id"].isin(run.runs["run_id"])]
    length = ((kernels["end_ns"] - kernels["start_ns"]) * 1.03).astype("int64")
    slower = dataclasses.replace(run, kernels=kernels.assign(end_ns=kernels["start_ns"] + length))
    (pair,) = judge.compare(run, slower, noise.SHIPPED).pairs
    assert pair.judgements["kernel"].verdict == "slower"
    assert pair.judgements["kernel"].share == pytest.approx(0.03, abs=0.001)
    first = next(cause for cause in pair.waterfall.causes if cause.kind != "overlap")  # longer kernels run at once
    assert first.text == "backward, block/ffn: 72 kernels (gemm), 3.0% slower", "two for each of three, in 12 blocks"


def test_repetitions_are_a_band_of_their_own():
    repeated = side("warm_up")
    cases = [case.first for case in align(repeated, repeated).cases]
    made = noise.fit_repetitions([repeated], [cases])
    assert made.source == "20 pairs of repetitions within A and B"
    assert made.wall.num_pairs == 20
    assert noise.fit_repetitions([repeated], [cases[:1]]) is None


@pytest.mark.parametrize("other", [SECOND, FIRST])
def test_repetitions_of_one_session_make_no_band_narrower_than_that_between_sessions(other, monkeypatch):
    """Two recordings of one program, one with 20 pairs of repetitions, as `compare` itself judges them."""
    request = print_comparison.Request(first=locate("warm_up"), second=locate(other), conditions=["step > 5%"])
    made = print_comparison.load(request)
    assert made.noise_source.startswith("the larger of what the processes of a run")
    assert (
        "20 pairs of repetitions within A and B, each of one session, and of h200-fp32 and again" in made.noise_source
    )
    shipped = judge.compare(made.first, made.second, noise.SHIPPED, made.alignment)
    for pair, by_shipped in zip(made.pairs, shipped.pairs, strict=True):
        for metric, judged in pair.judgements.items():
            if metric == "throughput":
                continue  # the step in other words
            assert judged.band >= by_shipped.judgements[metric].band
            assert not judged.is_real, (metric, judged.share)
    monkeypatch.setattr(print_comparison, "load", lambda _: made)  # which takes as long again
    assert print_comparison.run(request, lambda _: None, lambda _: None) == gate.UNKNOWN


def test_repetitions_of_both_sides_of_one_session_need_no_other_band():
    repeated = side("warm_up")
    cases = [case.first for case in align(repeated, repeated).cases]
    assert noise.choose_noise(None, [repeated, repeated], [cases, cases]).is_of_these
    later = dataclasses.replace(repeated, recorded_at="2001-01-01T00:00:00Z")
    assert noise.choose_noise(None, [repeated, later], [cases, cases]).least is noise.SHIPPED


def with_energy(run, millijoules, num_ranks=1):
    """A side whose processes each needed so many mJ for 10 steps, on each of its ranks; None where it was not read."""
    rows = [
        {"run_id": run_id, "rank": rank, "process": process, "energy_mj": energy, "energy_steps": 10}
        for run_id in run.runs["run_id"]
        for rank in range(num_ranks)
        for process, energy in enumerate(millijoules)
    ]
    frame = pd.DataFrame(rows).astype({"run_id": "category", "energy_mj": "Int64", "energy_steps": "Int64"})
    return dataclasses.replace(run, processes=frame)


@pytest.fixture(scope="module")
def one_run():
    """A run as if one process had timed it, with nothing known of its energy."""
    run = select("compile", "compile=off,context_length=128,mode=forward")
    of_one = run.steps["process"].fillna(0) == 0
    return dataclasses.replace(run, steps=run.steps[of_one], processes=None)


def energy_of(first, second, per_token=False):
    made = judge.compare(first, second, noise.SHIPPED, align(first, second, per_token))
    return made.pairs[0].judgements.get("energy"), made


@pytest.mark.parametrize(
    ("second", "said"),
    [([50_100, 50_900, 51_800], "within"), ([80_000, 81_000, 80_500], "more"), ([30_000, 31_000, 30_500], "less")],
)
def test_energy_is_judged_by_how_far_processes_lie_apart(one_run, second, said):
    judged, made = energy_of(with_energy(one_run, [50_000, 51_000, 52_000]), with_energy(one_run, second))
    assert (judged.first, judged.second) == (5.1, np.median(second) / 10_000) and judged.verdict == said
    assert any(
        line.startswith(
            "noise band of energy: the larger of how far the processes of a side lie apart, and those of h200"
        )
        for line in compare_formats.describe_sides(made)
    )


def test_energy_of_one_process_has_no_noise_band(one_run):
    judged, made = energy_of(with_energy(one_run, [50_000]), with_energy(one_run, [90_000]))
    assert judged.verdict == "unknown" and not judged.is_real and judged.share == pytest.approx(0.8)
    assert "no noise band known, since there is one process of each" in compare_formats.describe_sides(made)[-1]
    (outcome,) = gate.check(gate.parse_condition("energy > 3%"), made.pairs)
    assert outcome.code == gate.UNKNOWN and "no noise band is known: not enough data to tell; about " in outcome.text
    text = compare_formats.as_text(made, [], 0)
    assert re.search(r"^energy +5.00 J +9.00 J +\+4.00 J +\+80.0% +not known +unknown$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80
    (pair,) = json.loads(compare_formats.as_json(made, [], 0))["pairs"]
    assert pair["metrics"]["energy"]["band"] is None
    assert "| not known | unknown |" in compare_formats.as_markdown(made, [], 0)


def test_energy_is_left_out_where_a_side_lacks_it_and_summed_over_ranks(one_run):
    assert energy_of(one_run, with_energy(one_run, [50_000]))[0] is None
    assert energy_of(with_energy(one_run, [None, None]), with_energy(one_run, [50_000]))[0] is None
    assert energy_of(*[with_energy(one_run, [50_000, 50_000, None], num_ranks=2)] * 2)[0].first == 10
    per_token, _ = energy_of(*[with_energy(one_run, [51_200])] * 2, per_token=True)
    assert per_token.first == pytest.approx(10) and per_token.per_token


@pytest.mark.parametrize(("condition", "code"), [("energy > 3%", 1), ("energy > 4 J", 0), ("energy > 800mJ", 1)])
def test_the_gate_knows_energy(one_run, condition, code):
    _, made = energy_of(with_energy(one_run, [50_000, 50_100, 50_200]), with_energy(one_run, [80_000, 80_100, 80_200]))
    (outcome,) = gate.check(gate.parse_condition(condition), made.pairs)
    assert outcome.code == code and " J" in outcome.text
    with pytest.raises(NotComparableError, match="MiB is not a unit of energy; use % or mJ, J, kJ"):
        gate.parse_condition("energy > 3 MiB")


def test_at_most_one_in_twenty_identical_processes_differ_in_energy():
    """Made-up processes that vary as energy does, since the shipped recordings have none."""
    draws = np.random.default_rng(0).normal(5, 0.1, (4000, 2, 3))
    apart = [abs(np.median(a) - np.median(b)) > noise.compute_spread_width(a, b) for a, b in draws]
    assert np.mean(apart) <= 0.05


def test_noise_needs_enough_runs_of_the_same_name():
    with pytest.raises(NotComparableError, match="needs 20 pairs of times of the same runs, and there are 15"):
        noise.fit_recordings(side("precision"), side("precision"))
    with pytest.raises(NotComparableError, match="compile and warm_up share no run"):
        noise.fit_recordings(side("compile"), side("warm_up"))


def test_more_processes_make_a_narrower_band():
    widths = [noise.SHIPPED.width("kernel", 1e8, 40, (num, num)) for num in (1, 2, 5, 20)]
    assert widths == sorted(widths, reverse=True) and widths[0] / widths[3] == pytest.approx((20 / noise.MEDIAN) ** 0.5)
    needed = noise.Width(of="repeats", half=widths[0]).num_for(widths[0] / 3)
    assert noise.SHIPPED.width("kernel", 1e8, 40, (needed, needed)) <= widths[0] / 3
    assert noise.SHIPPED.width("kernel", 1e8, 40, (needed - 1, needed - 1)) > widths[0] / 3


def test_a_band_of_runs_that_several_processes_timed_is_that_of_as_many():
    of_one, of_three = (dataclasses.replace(noise.SHIPPED, num_timed=(num, num)) for num in (1, 3))
    assert of_three.width("wall", 1e8, 0, (3, 3)) == of_one.width("wall", 1e8, 0, (1, 1))
    assert of_three.width("wall", 1e8, 0, (1, 1)) > of_one.width("wall", 1e8, 0, (1, 1))
    assert of_three.width("kernel", 1e8, 9, (1, 1)) == of_one.width("kernel", 1e8, 9, (1, 1))


@pytest.mark.parametrize("num", [2, 3, 10, 40])
def test_more_of_what_lies_apart_makes_a_band_narrower(num):
    """As many as are said make it as narrow, where they lie as far apart, and one less does not."""
    half = noise.compute_spread_width([0, 2] * num, [0, 2] * num)
    wide = noise.Width(of="measured_steps", half=half, num=(2 * num, 2 * num), is_from_spread=True)
    needed = wide.num_for(half / 2)
    spread = half / noise._look_up_student(4 * num - 2) / noise._compute_deviation((2 * num, 2 * num))
    widths = [
        spread * noise._look_up_student(2 * n - 2) * noise._compute_deviation((n, n)) for n in (needed - 1, needed)
    ]
    assert widths[0] > half / 2 >= widths[1]


def fresh_processes(run, *offsets_ns):
    """The run, its unprofiled steps as if as many fresh processes had measured them, each so much slower."""
    timed = run.steps["collector"].astype(str) == "timer"
    processes = [
        run.steps[timed].assign(process=number, wall_ns=run.steps[timed]["wall_ns"] + offset)
        for number, offset in enumerate(offsets_ns)
    ]
    return dataclasses.replace(run, steps=pd.concat([*processes, run.steps[~timed].assign(process=0)]))


def test_fresh_processes_are_counted_and_say_how_far_they_lie_apart(one_run):
    three = fresh_processes(one_run, 0, 20_000_000, 80_000_000)
    (pair,) = judge.compare(three, three, noise.SHIPPED).pairs
    assert pair.first.num_processes == 3 and pair.first.num_runs == 1
    assert pair.first.num_steps == 3 * judge.compare(one_run, one_run, noise.SHIPPED).pairs[0].first.num_steps
    alone = judge.compare(one_run, one_run, noise.SHIPPED).pairs[0].first
    assert pair.first.clocks["timer"] == alone.clocks["timer"] + 20_000_000
    step, kernel = (pair.judgements[name] for name in ("step", "kernel"))
    assert {width.of for width in step.widths} == {"processes"} and step.band > 50_000_000
    assert {width.of for width in kernel.widths} == {"repeats", "profiled_steps"}
    of_these = dataclasses.replace(noise.SHIPPED, is_of_these=True)
    assert judge.compare(three, three, of_these).pairs[0].judgements["step"].band < 50_000_000
    assert judge.compare(three, three, noise.SHIPPED).noise_source.startswith("the larger of what the processes")


def test_steps_of_one_process_say_how_far_they_lie_apart(one_run):
    timed = one_run.steps["collector"].astype(str) == "timer"
    uneven = one_run.steps["wall_ns"] + 100_000_000 * (one_run.steps["step"] % 2) * timed
    noisy = dataclasses.replace(one_run, steps=one_run.steps.assign(wall_ns=uneven))
    (pair,) = judge.compare(noisy, noisy, noise.SHIPPED).pairs
    assert pair.judgements["step"].band > 20_000_000
    (outcome,) = gate.check(gate.parse_condition("step > 10 ms"), [pair])
    assert outcome.code == gate.UNKNOWN
    assert re.search(r"and about \d+ unprofiled steps of each \(`measured_steps` of a sweep\) would", outcome.text)


def test_the_gate_says_what_each_kind_of_band_needs(one_run, capture):
    def remedy(first, second, condition):
        (outcome,) = gate.check(gate.parse_condition(condition), judge.compare(first, second, noise.SHIPPED).pairs)
        assert outcome.code == gate.UNKNOWN
        return outcome.text.split("to tell; ")[1]

    assert remedy(one_run, one_run, "kernel > 0.2%").startswith("about ")
    assert "profiled repetitions of each (`repeats` of a sweep)" in remedy(one_run, one_run, "kernel > 0.2%")
    assert "processes of each (`processes` of a sweep)" in remedy(one_run, one_run, "step > 1%")
    single, triple = with_energy(one_run, [50_000]), with_energy(one_run, [50_000, 51_000, 52_000])
    of_single = remedy(single, single, "energy > 3%")
    assert int(re.match(r"about (\d+) processes of each", of_single)[1]) > 3 and "inf" not in of_single
    assert int(re.match(r"about (\d+) processes", remedy(triple, triple, "energy > 3%"))[1]) > 3
    side_of_capture = load_side(capture)
    said = remedy(side_of_capture, side_of_capture, "kernel > 300ns")
    assert re.match(r"a capture is one process: recordings of about \d+ profiled repetitions of each \(`repeats`", said)
    said = remedy(one_run, one_run, "step > 0.1%")
    assert re.match(r"10,000 .* would not be enough: give a limit above \d+\.\d%", said)
    assert "or measure larger steps" in said and "limit `kernel`" not in said, "whose band is wider than the limit"
    said = remedy(one_run, one_run, "step > 0.9%")
    assert re.match(r"about 958 processes", said) and "; with fewer, give a limit above 22.2%" in said
    assert re.search(r", or limit `kernel`, whose band is 0\.\d%", said)
    assert remedy(one_run, one_run, "step > 0%") == "no more data makes it 0: give a limit"


def test_steps_of_a_capture_that_lie_apart_are_not_helped_by_more_steps(tmp_path):
    made = export()
    made.push("step", 40_000, 49_000)
    made.push("forward", 40_100, 45_000)
    made.launch(40_200, start=40_300, end=44_300, name="gemm")
    uneven = load_side(made.sqlite(tmp_path / "uneven.sqlite"))
    (outcome,) = gate.check(gate.parse_condition("kernel > 1 us"), judge.compare(uneven, uneven, noise.SHIPPED).pairs)
    assert outcome.code == gate.UNKNOWN and "leave uneven ones out with --skip N" in outcome.text


def test_a_capture_whose_steps_lie_apart_has_a_band_as_wide(tmp_path):
    steady = load_side(export().sqlite(tmp_path / "steady.sqlite"))
    made = export()
    made.push("step", 40_000, 49_000)
    made.push("forward", 40_100, 45_000)
    made.launch(40_200, start=40_300, end=44_300, name="gemm")
    uneven = load_side(made.sqlite(tmp_path / "uneven.sqlite"))
    judged = judge.compare(steady, uneven, noise.SHIPPED).pairs[0].judgements
    assert judged["kernel"].band == pytest.approx(0.95 * 3950, rel=0.05)
    assert judged["step"].verdict == "within"


@pytest.mark.long
def test_the_kept_bands_are_those_of_the_shipped_pair():
    made = noise.fit_recordings(side(FIRST), side(SECOND))
    for kind in ("kernel", "wall"):
        fitted, kept = getattr(made, kind), getattr(noise.SHIPPED, kind)
        for name in ("relative", "ratio", "factor", "num_pairs"):
            assert getattr(kept, name) == pytest.approx(getattr(fitted, name), rel=1e-6), (kind, name)
    assert made.memory_share == noise.SHIPPED.memory_share == noise.MEMORY
    assert made.num_timed == noise.SHIPPED.num_timed


def peaks_of_the_same_axes():
    """Peak allocated of each two shipped runs of the same axes which held as much before their step: a process that
    kept what the run before it made is another measurement."""
    runs = []
    for folder in RECORDINGS:
        of_all, memory = (store.load_table(folder, name) for name in ("runs", "memory"))
        finished = of_all[of_all["status"].astype(str) == "ok"]
        before = memory.groupby(memory["run_id"].astype(str), sort=False)["allocated_before_bytes"].first()
        runs.append(finished.assign(before=finished["run_id"].astype(str).map(before).astype(float)))
    together = pd.concat([of.astype({name: str for name in SAME_AXES if name in of}) for of in runs])
    for _, same in together.groupby(SAME_AXES):
        pairs = itertools.combinations(same[["peak_memory_bytes", "before"]].itertuples(index=False), 2)
        yield from ((a[0], b[0]) for a, b in pairs if abs(a[1] - b[1]) <= 0.01 * a[1])


SAME_AXES = [*FIXED, *(name for name in VARIANTS if name != "fresh_process"), "num_parameters"]


@pytest.mark.long
def test_the_kept_band_of_memory_is_that_of_shipped_runs_of_the_same_axes():
    apart = np.sort([abs(a - b) / max(a, b) for a, b in peaks_of_the_same_axes()])
    held = apart[math.ceil((len(apart) + 1) * differences.HELD) - 1]
    assert len(apart) == 216 and held <= noise.MEMORY < 1.001 * held
    assert np.mean(apart > noise.MEMORY) <= 0.05 < np.mean(apart > 0)


@pytest.mark.parametrize(("second", "said"), [(2_342_252_544, "within"), (2_344_000_000, "more")])
def test_memory_is_judged_by_what_runs_of_the_same_axes_differ_by(one_run, second, said):
    """491,520 bytes of 2.2 GiB: two shipped recordings of one run."""
    first, other = (
        dataclasses.replace(one_run, runs=one_run.runs.assign(peak_memory_bytes=peak))
        for peak in (2_341_761_024, second)
    )
    (pair,) = judge.compare(first, other, noise.SHIPPED).pairs
    assert pair.judgements["memory"].verdict == said
    assert gate._check_pair(gate.parse_condition("memory > 1%"), pair).code == gate.WITHIN


@pytest.mark.parametrize(("compiled", "is_judged"), [(("cudagraphs", "off"), False), (("cudagraphs",) * 2, True)])
def test_a_peak_under_cuda_graphs_is_held_against_another_such_alone(one_run, compiled, is_judged):
    """It leaves out what the graphs hold: against a step without them it looks like half."""
    sides = (dataclasses.replace(one_run, runs=one_run.runs.assign(compile=how)) for how in compiled)
    (pair,) = judge.compare(*sides, noise.SHIPPED).pairs
    assert ("memory" in pair.judgements) == is_judged


@pytest.fixture(scope="module")
def held_out():
    """Each run with the noise of the runs of other folds: no run judges itself."""
    runs = sorted(side(FIRST).runs["run_id"])
    fits = []
    for number in range(FOLDS):
        others = [run for i, run in enumerate(runs) if i % FOLDS != number]
        first, second = (
            dataclasses.replace(one, runs=one.runs[one.runs["run_id"].isin(others)])
            for one in (side(FIRST), side(SECOND))
        )
        fits.append(noise.fit_recordings(first, second))
    return [(run, fits[i % FOLDS]) for i, run in enumerate(runs)]


def energies_of(name):
    """J of a step of each of three processes, and the part of it in which the GPU waits, of the runs of a recording."""
    for run in side(name).runs["run_id"]:
        of_run = measured(name, run)
        if len(of_run.energies) == 3:
            yield of_run, max(0.0, 1 - of_run.busy_ns / of_run.num_devices / of_run.clocks["timer"])


def other_processes(name):
    """Return for each process, compared with the two others of its run, whether its energy is called different."""
    for of_run, _ in energies_of(name):
        for place, alone in enumerate(of_run.energies):
            others = (*of_run.energies[:place], *of_run.energies[place + 1 :])
            sides = [dataclasses.replace(of_run, energies=of) for of in ((alone,), others)]
            made = judge.judge(*sides, "timer", noise.SHIPPED, False)
            yield next(judged for judged in made if judged.metric == "energy").is_real


@pytest.mark.long
def test_the_kept_band_of_energy_is_that_of_shipped_processes():
    pairs = [
        {"first_ns": a, "second_ns": b, "mean_ns": (a + b) / 2, "parts": waiting * (a + b) / 2}
        for name in (FIRST, "h200-bf16")
        for of_run, waiting in energies_of(name)
        for a, b in itertools.combinations(of_run.energies, 2)
    ]
    fitted = differences.fit_band(pd.DataFrame(pairs), "wall")
    for name in ("relative", "ratio", "factor", "num_pairs"):
        assert getattr(noise.ENERGY, name) == pytest.approx(getattr(fitted, name), rel=1e-6), name


@pytest.mark.long
@pytest.mark.parametrize("name", [FIRST, "h200-bf16", "precision"])
def test_at_most_one_in_twenty_processes_differs_from_its_others_in_energy(name):
    assert np.mean([*other_processes(name)]) <= 0.05


@pytest.mark.long
def test_runs_that_were_measured_twice_with_energy_are_called_the_same():
    """Five runs that two recordings of the same day have, three processes of each: few, but of another hour."""
    alignment = align(side(FIRST), side("precision"))
    pairs = [(measured(FIRST, case.first[0]), measured("precision", case.second[0])) for case in alignment.cases]
    judged = [made for pair in pairs for made in judge.judge(*pair, "timer", noise.SHIPPED, False)]
    assert len(pairs) == 5 and {made.metric for made in judged} == set(judge.METRICS)
    assert not [made for made in judged if made.is_real]


def share_called_different(held_out, metric, change=0.0):
    """Part of the runs whose second recording is called different, its kernels longer by `change`."""
    num = 0
    for run, band in held_out:
        first, second = measured(FIRST, run), measured(SECOND, run)
        longer = {name: getattr(second, name) * (1 + change) for name in ("kernel_ns", "busy_ns")}
        clocks = {"timer": second.clocks["timer"] * (1 + change)}
        planted = dataclasses.replace(second, **longer, clocks=clocks)
        judged = {made.metric: made for made in judge.judge(first, planted, "timer", band, False)}
        num += judged[metric].is_real
    return num / len(held_out)


@pytest.mark.long
def test_at_most_one_in_twenty_identical_runs_is_called_different(held_out):
    shares = {
        metric: share_called_different(held_out, metric) for metric in ("step", "kernel", "busy", "idle", "memory")
    }
    assert max(shares.values()) <= 0.05


@pytest.mark.long
@pytest.mark.parametrize(("change", "least"), [(0.01, 0.6), (0.02, 0.9), (0.03, 0.99)])
def test_planted_changes_of_kernel_time_are_seen(held_out, change, least):
    for metric in ("kernel", "busy"):
        for sign in (1, -1):
            assert share_called_different(held_out, metric, sign * change) >= least


def with_longer_part(of, part, change):
    """Totals with all kernels of a part (waterfall.GROUP) longer by `change`, and their steps by as much."""
    kernels, is_of = of.kernels, 1
    for name, value in zip(waterfall.GROUP, part):
        is_of = is_of & (kernels[name] == value)
    more = (kernels["time_ns"] * is_of * change).round().astype("int64")
    return dataclasses.replace(
        of, kernels=kernels.assign(time_ns=kernels["time_ns"] + more), wall_ns=of.wall_ns + int(more.sum())
    )


def with_largest_part(first, second):
    """Totals of two runs, as both know modules, and the phase, module and family of most kernel time."""
    kernels = totals.match_modules(first.totals.kernels, second.totals.kernels)
    sides = [dataclasses.replace(run.totals, kernels=known) for run, known in zip((first, second), kernels)]
    return *sides, kernels[0].groupby(waterfall.GROUP)["time_ns"].sum().idxmax()


def first_parts(pairs, change=None):
    """Of pairs of totals that measured the same, each with its largest part and its noise: part of those that have a
    part beyond noise; where the largest part of the second is longer by `change`, part of those whose first it is."""
    num = 0
    for first, second, part, band in pairs:
        cause = waterfall.explain(first, with_longer_part(second, part, change or 0.0), band).causes[0]
        is_it = (cause.phase, cause.module, cause.families) == (*part[:2], part[2:])
        num += cause.is_real and (is_it or change is None)
    return num / len(pairs)


@pytest.fixture(scope="module")
def judge_repetitions(held_out):
    """Return a function of a change: `first_parts` of the shipped pair, each run with the noise of others. Each takes
    seconds, and the guide has the results."""
    pairs = [(*with_largest_part(measured(FIRST, run), measured(SECOND, run)), band) for run, band in held_out]
    return functools.cache(lambda change=None: first_parts(pairs, change))


@pytest.fixture(scope="module")
def first_parts_of_processes(processes):
    return first_parts([(*with_largest_part(*pair), noise.SHIPPED) for pair in processes])


@pytest.mark.long
def test_at_most_one_in_twenty_identical_pairs_has_a_part_beyond_noise(judge_repetitions, first_parts_of_processes):
    assert judge_repetitions() <= 0.05
    assert first_parts_of_processes <= 0.05


@pytest.mark.long
@pytest.mark.parametrize(("change", "least"), [(0.03, 0.95)])
def test_a_change_planted_in_one_part_is_the_first_one_named(judge_repetitions, change, least):
    for sign in (1, -1):
        assert judge_repetitions(sign * change) >= least


def verdicts(first, second):
    """The metrics that are called different, by the shipped noise band."""
    judged = judge.judge(first, second, "timer", dataclasses.replace(noise.SHIPPED, is_of_these=True), False)
    return {made.metric for made in judged if made.is_real}


def longer_kernels(measured, change):
    return dataclasses.replace(
        measured, **{name: getattr(measured, name) * (1 + change) for name in ("kernel_ns", "busy_ns")}
    )


@pytest.fixture(scope="module")
def processes():
    """Each two processes of the warm-up study that measured the same, both ways round."""
    cases = [case.first for case in align(side("warm_up"), side("warm_up")).cases]
    pairs = [pair for runs in cases for pair in itertools.permutations(runs, 2)]
    return [tuple(measured("warm_up", run) for run in pair) for pair in pairs]


@pytest.mark.long
def test_processes_of_the_warm_up_study_are_called_the_same(processes):
    assert len(processes) == 40
    assert not [pair for pair in processes if verdicts(*pair)]


@pytest.mark.long
@pytest.mark.parametrize(("change", "least"), [(0.01, 0.6), (0.02, 0.9), (0.03, 0.99)])
def test_changes_planted_in_one_process_are_seen(processes, change, least):
    for sign in (1, -1):
        found = [verdicts(first, longer_kernels(second, sign * change)) for first, second in processes]
        for metric in ("kernel", "busy"):
            assert sum(metric in one for one in found) >= least * len(found)


def halves_of(name, run_id, clocks):
    """Each split of a process's unprofiled steps into halves, with one of the profiled steps against the others."""
    whole = measured(name, run_id)
    profiled = whole.totals.steps
    number_of = profiled["step"].to_numpy()
    of_step = [number_of == number for number in number_of]
    medians = [[profiled[rows][["kernel_ns", "busy_ns"]].median() for rows in (one, ~one)] for one in of_step]
    for number, half in enumerate(itertools.combinations(range(len(clocks)), len(clocks) // 2)):
        sides = [list(half), [place for place in range(len(clocks)) if place not in half]]
        yield [
            dataclasses.replace(whole, clocks={"timer": float(np.median(clocks[steps]))}, **gpu)
            for steps, gpu in zip(sides, medians[number % len(medians)])
        ]


@pytest.fixture(scope="module")
def halves():
    """Of every split of the steps of the shipped pair, the metrics that are called different."""
    found = []
    for name in (FIRST, SECOND):
        steps = side(name).steps
        steps = steps[(steps["collector"] == "timer") & (steps["phase"] == "step")]
        steps = steps[steps["process"] == 0]
        for run_id in side(name).runs["run_id"]:
            clocks = steps.loc[steps["run_id"] == run_id, "wall_ns"].to_numpy()
            found += [verdicts(*pair) for pair in halves_of(name, run_id, clocks)]
    return found


@pytest.mark.long
def test_at_most_one_in_twenty_splits_of_the_same_steps_is_called_different(halves):
    assert len(halves) == 2 * 60 * 252
    for metric in judge.METRICS:
        assert sum(metric in one for one in halves) <= 0.05 * len(halves)


@pytest.mark.long
def test_the_guide_says_how_many_changes_are_seen_and_how_many_are_none(
    held_out, processes, halves, judge_repetitions, first_parts_of_processes
):
    guide = (DATA.parent / "guide" / "compare.md").read_text()

    def row(what, *shares):
        said = ["none" if not share else "all" if share == 1 else f"{100 * share:.2g}%" for share in shares]
        return f"| {what} | {', '.join(dict.fromkeys(said))} |"

    as_it_is = [share_called_different(held_out, metric) for metric in ("step", "kernel", "busy", "idle")]
    assert row("second recording, as it is: step, kernel time, GPU busy, GPU idle", *as_it_is) in guide
    of_processes = [sum(metric in verdicts(*pair) for pair in processes) for metric in judge.METRICS]
    assert row("another process of the warm-up study, as it is: all metrics", *of_processes) in guide
    of_halves = [sum(metric in one for one in halves) / len(halves) for metric in ("kernel", "busy", "step")]
    assert row("half of the steps of a run against the other half: kernel time, GPU busy", *of_halves[:2]) in guide
    assert row("half of the steps of a run against the other half: step, GPU idle", of_halves[2]) in guide
    of_energy = [np.mean([*other_processes(name)]) for name in (FIRST, "h200-bf16", "precision")]
    assert row("one process of a run against its two others: energy, of three recordings", *of_energy) in guide
    assert row("second recording, as it is: any part of the difference", judge_repetitions()) in guide
    any_part = "another process of the warm-up study, as it is: any part of the difference"
    assert row(any_part, first_parts_of_processes) in guide
    for change in (0.01, 0.02, 0.03):
        shares, what = [judge_repetitions(sign * change) for sign in (1, -1)], f"{change:.0%} longer, or shorter"
        assert row(f"second recording, its largest part {what}: is named first", *shares) in guide
        for metric, words in (("kernel", "kernel time"), ("busy", "GPU busy"), ("step", "step")):
            shares = [share_called_different(held_out, metric, sign * change) for sign in (1, -1)]
            assert row(f"second recording, {words} {change:.0%} longer, or shorter", *shares) in guide
        found = [[verdicts(a, longer_kernels(b, sign * change)) for a, b in processes] for sign in (1, -1)]
        shares = [sum("kernel" in one for one in of_sign) / len(processes) for of_sign in found]
        assert row(f"another process, kernel time {change:.0%} longer, or shorter", *shares) in guide


def test_a_large_difference_within_a_wide_band_is_not_called_the_same(one_run):
    (pair,) = judge.compare(one_run, one_run, noise.SHIPPED).pairs
    wide = {
        name: dataclasses.replace(judged, first=100.0, second=110.0, band=12.5)
        for name, judged in pair.judgements.items()
    }
    pair = dataclasses.replace(pair, judgements=wide)
    said = compare_formats.format_headline(pair)
    assert "same" not in said and said.startswith("The step: +10 ns, not beyond the noise band of 12.5%")
    assert compare_formats.format_counts([pair], "kernel").endswith(": 1 within the noise band")
