"""A recording whose tables were exchanged, scaled, doubled or lost breaches a check, or other things are said: on
frozen runs."""

import dataclasses
from itertools import chain, pairwise

import pandas as pd
import pytest

from profiler_job.analysis.metrics import timing
from profiler_job.analysis.pages import reconciliation_checks, run_list
from profiler_job.analysis.pages.questions import QUESTIONS
from profiler_job.analysis.site import page_context
from tests import frozen

pytestmark = pytest.mark.long

MEASURED = ("steps", "ranges", "kernels", "api", "memops", "memory", "nsys_sums")
SHORT, LONG = (f"small-ctx{context}-fp32-naive-train_step" for context in (128, 512))


def only(rec, run_ids):
    """`rec` with nothing but some runs. They are categories, as in all that is loaded, but of `runs`."""
    tables = {}
    for name in (*MEASURED, "runs"):
        frame = getattr(rec, name)
        frame = frame[frame["run_id"].isin(run_ids)].astype({"run_id": str}).reset_index(drop=True)
        tables[name] = frame if name == "runs" else frame.astype({"run_id": "category"})
    return dataclasses.replace(rec, **tables)


@pytest.fixture(scope="module")
def two():
    return only(frozen.load_study(""), [SHORT, LONG])


def breached(rec):
    """run_id and name of each check that is breached."""
    table = reconciliation_checks.checks_of(
        rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes
    )
    return table.loc[~table["passed"], ["run_id", "check"]]


def breaches(rec):
    return {*breached(rec)["check"]}


def breaches_of_pairs(rec, pairs):
    """What the two runs of each pair breach where their tables are exchanged, each pair alone. Checks are of one run,
    so pairs that share none are exchanged at once."""
    rounds = []
    for pair in pairs:
        free = next((of_round for of_round in rounds if not {*pair} & {*chain(*of_round)}), None)
        rounds.append([pair]) if free is None else free.append(pair)
    for of_round in rounds:
        seen = breached(exchanged(only(rec, [*chain(*of_round)]), *of_round))
        for pair in of_round:
            yield pair, {*seen.loc[seen["run_id"].isin(pair), "check"]}


def changed(rec, change):
    return dataclasses.replace(rec, **{name: change(getattr(rec, name)) for name in MEASURED})


def scaled(rec, factor, *names):
    """Times of the tables `names` multiplied, and nsys's own sums with them, so that these do not tell."""
    tables = {}
    for name in names:
        columns = [column for column in ("start_ns", "end_ns", "wall_ns") if column in getattr(rec, name)]
        tables[name] = getattr(rec, name).assign(
            **{column: (getattr(rec, name)[column] * factor).astype("int64") for column in columns}
        )
    return dataclasses.replace(rec, nsys_sums=rec.nsys_sums.head(0), **tables)


def exchanged(rec, *pairs):
    """`rec` with the tables of the two runs of each pair exchanged."""
    other = dict(chain.from_iterable((pair, pair[::-1]) for pair in pairs))
    return changed(rec, lambda frame: frame.assign(run_id=frame["run_id"].map(lambda run: other.get(run, run))))


@pytest.fixture(scope="module")
def fused():
    return frozen.load("attention")


def test_tables_of_another_context_or_backend_are_no_tables_of_a_fused_run(fused):
    """Neighbours of one size and mode, which differ in either: `gemm_rate` knows the FLOPs of eager attention alone."""
    runs = fused.runs.astype({"run_id": str, "size": str, "mode": str, "attention": str})
    groups = runs[runs["attention"] != "naive"].groupby(["size", "mode"])["run_id"]
    pairs = [pair for _, ids in groups for pair in pairwise(ids)]
    assert len(pairs) == 6
    for pair, seen in breaches_of_pairs(fused, pairs):
        assert {"embedded_tokens", "fused_backend"} & seen, pair


def test_two_runs_of_a_recording_hold_all_checks(two):
    assert not breaches(two)


def test_exchanged_tables_of_two_runs_are_faster_than_the_gpu(two):
    assert "gemm_rate" in breaches(exchanged(two, (SHORT, LONG)))


def test_times_that_are_too_short_are_faster_than_the_gpu(two):
    found = breaches(scaled(two, 0.05, "steps", "kernels", "memops"))
    assert {"gemm_rate", "mfu"} <= found


def test_matmuls_that_move_bytes_faster_than_memory_are_seen(two):
    assert "gemm_bytes" in breaches(scaled(two, 0.005, "kernels"))


def test_kernels_that_take_longer_than_their_step_are_seen(two):
    assert "span" in breaches(scaled(two, 1.1, "kernels", "memops"))


def test_doubled_rows_are_seen(two):
    found = breaches(dataclasses.replace(two, kernels=pd.concat([two.kernels, two.kernels], ignore_index=True)))
    assert {"forward_matmuls", "backward_matmuls", "busy"} & found and "nsys_sums" in found


def test_a_run_whose_measurements_are_gone_is_seen(two):
    found = changed(two, lambda frame: frame[frame["run_id"] != LONG])
    assert {"timed_steps", "profiled_steps"} <= breaches(found)


CASES = [("small", 128), ("small", 512)]
MODES = ("forward", "forward_backward", "train_step")


def run_of(size, context, mode):
    return f"{size}-ctx{context}-fp32-naive-{mode}"


@pytest.fixture(scope="module")
def several():
    return only(frozen.load_study(""), [run_of(*case, mode) for case in CASES for mode in MODES])


def read_sentences(rec):
    """What the sentences of the default sweep's questions, the list of runs and the page of the run that is hurt say,
    each number to three digits."""
    answers = {letter: page_context.ask(question, rec) for letter, question in QUESTIONS.items()}
    sentences = {
        (letter, key): rounded(claim.values)
        for letter, answer in answers.items()
        for key, claim in answer.claims.items()
        if claim.holds
    }
    listed = (
        run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry).tables["runs"].rows
    )
    phases = timing.host_times(rec.steps, "timer", "timer").sort_values(["run_id", "phase"])
    return sentences, rounded(listed.to_dict("list")), rounded(phases.to_dict("list"))


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@pytest.fixture(scope="module")
def first_sentences(several):
    return read_sentences(several)


def list_exchanged(cases):
    """List pairs of (size, context, mode): two cases of one mode, or two modes of one case."""
    return [
        *(((*first, mode), (*second, mode)) for first, second in pairwise(cases) for mode in MODES),
        *(((*case, first), (*case, second)) for case in cases for first, second in pairwise(MODES)),
    ]


def test_any_two_runs_that_are_exchanged_breach_a_check(several):
    pairs = [(run_of(*first), run_of(*second)) for first, second in list_exchanged(CASES)]
    assert not [pair for pair, seen in breaches_of_pairs(several, pairs) if not seen], "whatever their order of size"


def change_one_run(rec, names, change, run):
    """`rec` with the rows that the tables `names` have of a run changed."""
    tables = {}
    for name in names:
        frame = getattr(rec, name)
        mine = frame["run_id"] == run
        tables[name] = pd.concat([frame[~mine], change(frame[mine])], ignore_index=True)
    return dataclasses.replace(rec, **tables)


def times(factor):
    def change(frame):
        columns = [name for name in ("start_ns", "end_ns", "wall_ns") if name in frame]
        return frame.assign(**{name: (frame[name] * factor).astype("int64") for name in columns})

    return change


def renamed(first, second):
    other = {first: second, second: first}
    return lambda frame: frame.assign(phase=frame["phase"].astype(str).map(lambda phase: other.get(phase, phase)))


def without(column, value):
    return lambda frame: frame[frame[column].astype(str) != str(value)]


def twice(frame):
    return pd.concat([frame, frame])


GPU = ("kernels", "memops", "nsys_sums")
HURT = {
    "kernels 3% longer": (("kernels",), times(1.03)),
    "kernels a fifth shorter": (("kernels", "memops"), times(0.8)),
    "steps a fifth longer": (("steps",), times(1.2)),
    "steps a fifth shorter": (("steps",), times(0.8)),
    "everything ten times": (("steps", "kernels", "memops"), times(10)),
    "kernels of forward and backward exchanged": (("kernels",), renamed("forward", "backward")),
    "times of forward and backward exchanged": (("steps",), renamed("forward", "backward")),
    "everything of forward and backward exchanged": (("steps", "kernels", "memops"), renamed("forward", "backward")),
    "kernels of the optimizer lost": (("kernels",), without("phase", "optimizer")),
    "kernels of forward lost": (("kernels",), without("phase", "forward")),
    "times of forward lost": (("steps",), without("phase", "forward")),
    "a profiled step lost": (("kernels",), without("step", 1)),
    "a timed step lost": (("steps",), without("step", 2)),
    "matmuls lost": (("kernels",), without("family", "gemm")),
    "copies lost": (("memops",), lambda frame: frame.head(0)),
    "kernels twice": (("kernels",), twice),
    "copies twice": (("memops",), twice),
    "times twice": (("steps",), twice),
    "calls lost": (("api",), without("phase", "forward")),
}


@pytest.fixture(scope="module", params=["train_step", "forward"])
def run(request):
    return run_of("small", 512, request.param)


@pytest.fixture(scope="module")
def few(several, run):
    """The run and a smaller one: enough for checks, which are of one run, where any run has rows of a table."""
    return only(several, [run, run_of(*CASES[0], MODES[0])])


@pytest.mark.parametrize("name", HURT)
def test_whatever_is_done_to_the_tables_of_a_run_breaches_a_check_or_says_another_thing(
    several, first_sentences, run, few, name
):
    tables, change = HURT[name]
    seen = breaches(change_one_run(few, tables, change, run))
    if "optimizer" in name and "train_step" not in run:
        assert not seen, "it has none, so nothing was done"
        return
    assert seen or read_sentences(change_one_run(several, tables, change, run)) != first_sentences
