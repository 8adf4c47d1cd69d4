"""What is the same is called the same, and what was planted is seen."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.comparison import compare_formats, gate, judge, noise
from profiler_job.analysis.comparison.align import align
from profiler_job.analysis.comparison.errors import ComparisonProblem
from profiler_job.analysis.comparison.load_sides import load_side
from profiler_job.analysis.comparison.pair_answers import advise_pair, describe_pair, explain_pair
from profiler_job.analysis.comparison.waterfall import Cause
from profiler_job.jobs.contract.tuning import TuneRatio
from tests.comparison.refusals import refuse
from tests.frozen import ATTENTION

from .conftest import export
from .recorded_sides import load_recorded_side, repeat_run, select

FORWARD = "compile=off,context_length=128,mode=forward"
TRAIN = "context_length=512,mode=train_step,precision=fp32"


def test_identical_recordings_differ_in_nothing():
    same = select("context_length=128,mode=forward")
    made = judge.compare(same, same, noise.SHIPPED)
    for pair in made.pairs:
        assert {judged.verdict for judged in pair.judgements.values()} == {"within"}
        assert {judged.difference for judged in pair.judgements.values()} == {0}
        assert pair.waterfall.causes == [] and pair.waterfall.difference_ns == 0


def test_identical_captures_differ_in_nothing(capture):
    made = judge.compare(load_side(capture), load_side(capture), noise.SHIPPED)
    assert {judged.verdict for judged in made.pairs[0].judgements.values()} == {"within"}
    assert made.pairs[0].clock == "nsys" and not {"memory", "throughput"} & set(made.pairs[0].judgements)
    assert made.noise_source.startswith(judge.STEPS_OF_CAPTURE)


def test_gpu_and_host_are_judged_apart():
    """Half the kernels, and a host as slow as before: the GPU is faster, and waits as much longer."""
    run = select(TRAIN)
    kernels = run.kernels[run.kernels["run_id"].isin(run.runs["run_id"])]
    length = (kernels["end_ns"] - kernels["start_ns"]) // 2
    faster = dataclasses.replace(run, kernels=kernels.assign(end_ns=kernels["start_ns"] + length))
    judged = judge.compare(run, faster, noise.SHIPPED).pairs[0].judgements
    assert (judged["step"].verdict, judged["kernel"].verdict, judged["busy"].verdict) == ("within", "faster", "faster")
    assert judged["idle"].verdict == "more"
    assert judged["memory"].verdict == "within"


def test_a_planted_slowdown_is_seen_and_named():
    run = select(TRAIN)
    kernels = run.kernels[run.kernels["run_id"].isin(run.runs["run_id"])]
    length = ((kernels["end_ns"] - kernels["start_ns"]) * 1.03).astype("int64")
    slower = dataclasses.replace(run, kernels=kernels.assign(end_ns=kernels["start_ns"] + length))
    (pair,) = judge.compare(run, slower, noise.SHIPPED).pairs
    assert pair.judgements["kernel"].verdict == "slower"
    assert pair.judgements["kernel"].share == pytest.approx(0.03, abs=0.001)
    first = next(cause for cause in pair.waterfall.causes if cause.kind != "overlap")  # longer kernels run at once
    assert first.text == "backward, block/ffn: 72 kernels (gemm), 3.0% slower", "two for each of three, in 12 blocks"


@pytest.fixture(scope="module")
def repeated():
    """Two runs, each as five processes measured it."""
    return repeat_run(select("compile=off,size=small,mode=forward"), 5)


@pytest.fixture(scope="module")
def cases(repeated):
    return [case.first for case in align(repeated, repeated).cases]


def test_repetitions_are_a_band_of_their_own(repeated, cases):
    made = noise.fit_repetitions([repeated], [cases])
    assert made.source == "20 pairs of repetitions within A and B"
    assert made.wall.num_pairs == 20
    assert noise.fit_repetitions([repeated], [cases[:1]]) is None


def test_repetitions_of_one_session_make_no_band_narrower_than_that_between_sessions(repeated):
    """A side of 20 pairs of repetitions, and one of the same program from another session."""
    other = dataclasses.replace(select("compile=off,size=small,mode=forward"), recorded_at="2001-01-01T00:00:00Z")
    alignment = align(repeated, other)
    bands = noise.choose_noise(None, [repeated, other], alignment.runs)
    made, shipped = (judge.compare(repeated, other, one, alignment) for one in (bands, noise.SHIPPED))
    assert made.noise_source.startswith(judge.STEPS_OF_RUN)
    assert (
        "20 pairs of repetitions within A and B, each of one session, and of h200-fp32 and again" in made.noise_source
    )
    for pair, by_shipped in zip(made.pairs, shipped.pairs, strict=True):
        for metric, judged in pair.judgements.items():
            assert judged.band >= by_shipped.judgements[metric].band
            assert not judged.is_real, (metric, judged.share)


def test_repetitions_of_both_sides_of_one_session_need_no_other_band(repeated, cases):
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
    run = select(FORWARD)
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
            "noise band of energy: the larger of two: how much the processes of a side differ, and the noise band of "
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
    with refuse(ComparisonProblem.BAD_OPTION, "MiB", "mJ, J, kJ"):
        gate.parse_condition("energy > 3 MiB")


def test_at_most_one_in_twenty_identical_processes_differ_in_energy():
    """Made-up processes that vary as energy does, since the shipped recordings have none."""
    draws = np.random.default_rng(0).normal(5, 0.1, (4000, 2, 3))
    apart = [abs(np.median(a) - np.median(b)) > noise.compute_spread_width(a, b) for a, b in draws]
    assert np.mean(apart) <= 0.05


def test_noise_needs_enough_runs_of_the_same_name():
    with refuse(ComparisonProblem.FEW_PAIRS, "20", "15"):
        noise.fit_recordings(load_recorded_side(), load_recorded_side())
    with refuse(ComparisonProblem.NO_COMMON_RUN, "one_gpu", "attention"):
        noise.fit_recordings(select("precision=fp32"), load_recorded_side(ATTENTION))


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
    assert judge.compare(three, three, noise.SHIPPED).noise_source.startswith(judge.STEPS_OF_RUN)


def test_steps_of_one_process_say_how_far_they_lie_apart(one_run):
    timed = one_run.steps["collector"].astype(str) == "timer"
    uneven = one_run.steps["wall_ns"] + 100_000_000 * (one_run.steps["step"] % 2) * timed
    noisy = dataclasses.replace(one_run, steps=one_run.steps.assign(wall_ns=uneven))
    (pair,) = judge.compare(noisy, noisy, noise.SHIPPED).pairs
    assert pair.judgements["step"].band > 20_000_000
    (outcome,) = gate.check(gate.parse_condition("step > 10 ms"), [pair])
    assert outcome.code == gate.UNKNOWN
    assert re.search(r"and about \d+ unprofiled steps of each \(`measured_steps` of a sweep\) would", outcome.text)


@pytest.mark.long
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
    judged = judge.compare(one_run, one_run, noise.SHIPPED).pairs[0].judgements["step"]
    (processes,) = (width for width in judged.widths if width.of == "processes")
    assert int(re.match(r"about (\d+) processes", said)[1]) == processes.num_for(0.009 * judged.first) > 100
    limit = float(re.search(r"; with fewer, give a limit above ([\d.]+)%", said)[1])
    assert limit == pytest.approx(100 * judged.band / judged.first, abs=0.1)
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


def test_a_large_difference_within_a_wide_band_is_not_called_the_same(one_run):
    (pair,) = judge.compare(one_run, one_run, noise.SHIPPED).pairs
    wide = {
        name: dataclasses.replace(judged, first=100.0, second=110.0, band=12.5)
        for name, judged in pair.judgements.items()
    }
    pair = dataclasses.replace(pair, judgements=wide)
    said = compare_formats.format_headline(pair)
    assert "same" not in said and said.startswith("The step: +10 ns, within the noise band of 12.5%")
    assert compare_formats.format_counts([pair], "kernel").endswith(": 1 within the noise band")


def test_of_several_pairs_the_answer_comes_first_with_its_counts_and_sizes(one_run):
    (pair,) = judge.compare(one_run, one_run, noise.SHIPPED).pairs

    def with_second(second):
        judged = dataclasses.replace(pair.judgements["step"], first=100.0, second=second, band=5.0)
        kernel = dataclasses.replace(pair.judgements["kernel"], first=100.0, second=100.0, band=5.0)
        return dataclasses.replace(pair, judgements=pair.judgements | {"step": judged, "kernel": kernel})

    pairs = [with_second(second) for second in (50.0, 25.0, 40.0, 120.0, 101.0)]
    answer = compare_formats.format_answer(pairs)
    assert answer == (
        "B is 2.0× to 4.0× (median 2.5×) as fast in 3 of 5 pairs; B takes 1.2× as long in 1 of 5 pairs;"
        " B is not measurably faster or slower in 1 of 5 pairs."
        " Its kernels take as long, as far as can be measured, in all 5 pairs."
    )
    assert compare_formats.format_answer(pairs[:1]) == compare_formats.format_headline(pairs[0])


@pytest.mark.parametrize(
    ("second", "band", "said"),
    [
        (50.0, 0.5, "is 2.00× as fast as A (before) [1.98, 2.02]: "),
        (50.0, 10.0, "is 2.0× as fast as A (before) [1.7, 2.5]: "),
        (200.0, 40.0, "takes 2.0× as long as A (before) [1.6, 2.4]: "),
        (101.0, 5.0, "is not measurably faster or slower than A (before): "),
        (101.0, float("inf"), "how much of that is noise is not known."),
    ],
)
def test_a_pair_has_its_ratio_with_its_interval_and_as_many_digits_as_are_certain(one_run, second, band, said):
    (pair,) = judge.compare(one_run, one_run, noise.SHIPPED).pairs
    step = dataclasses.replace(pair.judgements["step"], first=100.0, second=second, band=band)
    pair = dataclasses.replace(pair, judgements=pair.judgements | {"step": step}, turns=None)
    words = describe_pair(pair, "before", "after")
    assert words.startswith("B (after)") and said in words
    assert explain_pair(pair).startswith("No part")
    assert advise_pair(pair).startswith(
        {"faster": "Use B", "slower": "Keep A", "within": "Do not"}.get(step.verdict, "Measure")
    )


def test_steps_of_turns_are_those_that_were_measured_and_the_verdict_is_of_their_ratio(one_run):
    """A page had 34.0 ms in A and 13.6 in B, which is 34.0 over the ratio: B's own page had 19.0."""
    (pair,) = judge.compare(one_run, one_run, noise.SHIPPED).pairs
    a, b = (dataclasses.replace(pair.first, fastest_ns=ns, num_tokens=4096) for ns in (34e6, 19e6))
    turns = TuneRatio(times_as_fast=2.49, low=2.12, high=2.86, num_pairs=10)
    made = judge._compare_pair(pair.case, a, b, noise.SHIPPED, False, False, turns)
    step, throughput = (made.judgements[name] for name in ("step", "throughput"))
    assert (step.first, step.second, step.verdict, step.times_as_fast) == (34e6, 19e6, "faster", 2.49)
    assert throughput.second == pytest.approx(4096 / 0.019) and throughput.verdict == "faster"
    assert throughput.is_clear == step.is_clear
    same = turns.model_copy(update={"times_as_fast": 1.0, "low": 0.9, "high": 1.1})
    apart = judge._compare_pair(pair.case, a, b, noise.SHIPPED, False, False, same)
    assert {apart.judgements[name].verdict for name in ("step", "throughput")} == {"within"}
    for words in (describe_pair(made), compare_formats.format_metric(step), compare_formats.format_headline(made)):
        assert "34" in words and "19" in words and "2." in words and "14 ms" not in words and "13.6" not in words


def test_the_answer_is_the_first_line_of_text_and_markdown(one_run):
    made = judge.compare(one_run, one_run, noise.SHIPPED)
    first = compare_formats.format_headline(made.pairs[0])
    assert compare_formats.as_text(made, [], 0).replace("\n  ", " ").startswith(first)
    assert compare_formats.as_markdown(made, [], 0).split("\n")[2].startswith("**")


def test_processes_of_turns_are_compared_with_others_by_the_same_statistic():
    """One side has the same processes as the other, and took turns in all but the first: not its fastest counts."""
    plain = select("context_length=128,mode=forward,precision=fp32")
    timed = plain.steps[plain.steps["collector"].astype(str) == "timer"]
    first = timed[timed["process"] == timed["process"].min()]
    slower = [first.assign(process=number, wall_ns=first["wall_ns"] * (1 + number)) for number in range(3)]
    rest = plain.steps[plain.steps["collector"].astype(str) != "timer"]
    plain, turned = (
        dataclasses.replace(plain, steps=pd.concat([rest.assign(round=-1), *(of.assign(round=turn) for of in slower)]))
        for turn in (-1, 0)
    )
    for pair in judge.compare(plain, turned, noise.SHIPPED).pairs:
        assert pair.turns is None and pair.judgements["step"].difference == 0
        assert pair.second.fastest_ns == pytest.approx(pair.second.clocks["timer"] / 2)


@pytest.mark.parametrize(
    ("waiting_ns", "band_ns", "is_regrouped", "order"),
    [
        (-90, 10.0, False, ["waiting in backward"]),
        (-90, 100.0, True, ["waiting in backward"]),
        (-90, 100.0, False, ["waiting in backward", "forward, norm"]),
        (-20, 10.0, False, ["forward, norm"]),
    ],
)
def test_why_names_the_largest_part_with_waiting_among_them(one_run, waiting_ns, band_ns, is_regrouped, order):
    """It named kernels under a figure whose longest bar was waiting, of which noise is wide."""
    (pair,) = judge.compare(one_run, one_run, noise.SHIPPED).pairs
    kernels = Cause(kind="replaced", text="forward, norm: 3 kernels became 1", ns=-50, band_ns=5.0, phase="forward")
    more = {"phase": "backward", "band_ns": band_ns, "is_regrouped": is_regrouped}
    waits = Cause(kind="idle", text="idle, backward: the GPU waits", ns=waiting_ns, **more)
    words = explain_pair(
        dataclasses.replace(pair, waterfall=dataclasses.replace(pair.waterfall, causes=[kernels, waits]))
    )
    assert re.findall("waiting in backward|forward, norm", words) == order
