"""A sentence is printed only where the tables say so, whatever the tables say."""

import dataclasses
import re

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler_job.analysis.changes.evidence import LEAST_IDLE
from profiler_job.analysis.metrics.differences import is_beyond_chance
from profiler_job.analysis.pages import home
from profiler_job.analysis.pages.questions import QUESTIONS, forward_time, top_kernel, training_mix
from profiler_job.analysis.recording.table_schema import TABLES
from profiler_job.analysis.render import charts, text
from profiler_job.analysis.site import combine, page_context, question_pages, write_site
from profiler_job.analysis.site.site_writer import first_sentence
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests.page_words import read_page, read_shown, read_verdict
from tests.synthetic import Recording, nsys_sums, recording

pytestmark = pytest.mark.long

BASE = recording(("small", "xl"), (128, 512), num_profiled=2, num_timed=3, oom={})
RUNS = list(BASE.runs["run_id"])
OPPOSITES = {
    "b": [("same", "partly_same", "other"), ("gemm", "not_gemm")],
    "d": [("gemm_falls", "gemm_rises", "gemm_mixed")],
    "e": [("dearer", "cheaper_somewhere"), ("longer", "never_longer")],
}
modest = settings(suppress_health_check=[HealthCheck.too_slow])


def keep(rec: Recording, runs) -> Recording:
    frames = {name: getattr(rec, name) for name in TABLES}
    return Recording(
        **{name: frame[frame["run_id"].isin(runs)].reset_index(drop=True) for name, frame in frames.items()},
        manifest=rec.manifest,
    )


def stretched(rec: Recording, factors: dict[str, float], wall: float) -> Recording:
    """The kernels of some names made longer or shorter, the timer's and the profiler's steps moved apart."""
    kernels = rec.kernels.copy()
    duration = kernels["end_ns"] - kernels["start_ns"]
    factor = kernels["family"].map(factors).fillna(1.0)
    kernels["end_ns"] = kernels["start_ns"] + (duration * factor).astype(int).clip(lower=1)
    steps = rec.steps.copy()
    timer = steps["collector"] == "timer"
    steps["wall_ns"] = steps["wall_ns"].where(~timer, (steps["wall_ns"] * wall).astype(int))
    return dataclasses.replace(rec, steps=steps, kernels=kernels, nsys_sums=nsys_sums(kernels))


def ask(question, rec):
    return page_context.ask(question, rec)


recordings = st.builds(
    lambda runs, gemm, elementwise, reduce, wall: stretched(
        keep(BASE, runs), {"gemm": gemm, "elementwise": elementwise, "reduce": reduce}, wall
    ),
    runs=st.sets(st.sampled_from(RUNS), min_size=1),
    gemm=st.sampled_from([0.01, 0.3, 1.0, 4.0]),
    elementwise=st.sampled_from([0.01, 0.5, 1.0, 20.0, 300.0]),
    reduce=st.sampled_from([0.1, 1.0, 50.0]),
    wall=st.sampled_from([0.5, 0.97, 1.0, 1.03, 1.5, 6.0]),
)


@modest
@given(recordings)
def test_at_most_one_of_opposite_claims_holds(rec):
    for letter, groups in OPPOSITES.items():
        claims = ask(QUESTIONS[letter], rec).claims
        for group in groups:
            held = [key for key in group if claims[key].holds]
            has_rows = any(len(claims[key].rows) for key in group)
            assert len(held) <= 1, (letter, held)
            assert held or not has_rows or letter == "d", (letter, group)


@modest
@given(recordings)
def test_counts_in_sentences_agree_with_the_table_beside_them(rec):
    timed = ask(forward_time.QUESTION, rec)
    table = timed.tables["times"].rows
    measured = table[(table[NOT_MEASURED] == "") & table["timer_ns"].notna()]
    claim = timed.claims["waits"]
    if claim.holds:
        assert claim.values["high"]["launch_wait"] == measured["launch_wait"].max()
        assert claim.values["num_waiting"] == measured["waits"].sum()
        # "Launch fewer kernels" was the advice for a step that waits 0.7%, which its own page calls limited by compute.
        assert claim.values["num_late"] == (measured["launch_wait"] >= LEAST_IDLE).sum()
    slows = timed.claims["profiler_slows"]
    apart = measured["host_min_ns"] > measured["timer_max_ns"]
    assert slows.holds == is_beyond_chance(apart.sum(), len(measured))
    if slows.holds:
        assert slows.values["num_rows"] == apart.sum()
    differing = apart | (measured["timer_min_ns"] > measured["host_max_ns"])
    agrees = len(measured) > 0 and not is_beyond_chance(differing.sum(), len(measured))
    assert timed.claims["profiler_agrees"].holds == agrees


@modest
@given(recordings)
def test_the_top_kernel_is_the_top_kernel(rec):
    for _, row in ask(top_kernel.QUESTION, rec).tables["top"].rows.dropna(subset="kernel_name").iterrows():
        kernels = rec.kernels[rec.kernels["run_id"] == row["run_id"]]
        time = (kernels["end_ns"] - kernels["start_ns"]).groupby(kernels["kernel_name"]).sum()
        assert time[row["kernel_name"]] == time.max()
        assert row["share"] == pytest.approx(time.max() / time.sum())


@modest
@given(recordings)
def test_changes_are_between_what_the_two_runs_say(rec):
    for _, row in ask(training_mix.QUESTION, rec).tables["compared"].rows.dropna(subset="change").iterrows():
        shares = []
        for mode in ("forward", "train_step"):
            kernels = rec.kernels[
                rec.kernels["run_id"] == f"{row['size']}-ctx{row['context_length']}-fp32-naive-{mode}"
            ]
            time = (kernels["end_ns"] - kernels["start_ns"]).groupby(kernels["family"]).sum()
            shares.append(time.get(row["family"], 0) / time.sum())
        assert row["change"] == pytest.approx(shares[1] - shares[0], abs=1e-12)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    def render(rec):
        monkey.setattr(charts, "render", lambda *arguments, **options: '<svg width="1" height="1"></svg>')
        docs = tmp_path_factory.mktemp("docs")
        question_pages.write_questions(rec, docs)
        return {path.stem: read_page(path) for path in docs.rglob("*.md")}

    with pytest.MonkeyPatch.context() as monkey:
        yield render


@pytest.fixture(scope="module")
def whole(words):
    """The pages of all runs."""
    return words(BASE)


@pytest.fixture(scope="module")
def forward_only(words):
    """The pages where nothing but the forward pass was run."""
    return words(keep(BASE, [run for run in RUNS if run.endswith("-forward")]))


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(run, marks=() if run.startswith("xl") else pytest.mark.nightly)
        for run in RUNS
        if run.startswith(("small-ctx128", "xl-ctx512"))
    ],
)
def test_a_deleted_run_is_not_measured_and_no_page_breaks(lost, words):
    pages = words(keep(BASE, [run for run in RUNS if run != lost]))
    mode = lost.rsplit("-", 1)[1]
    assert f"runs/{lost}.html" not in "".join(pages.values())
    page = {"forward": "forward-time", "forward_backward": "top-kernel", "train_step": "training-mix"}[mode]
    assert "not measured" in pages[page]


def test_no_runs_of_a_mode_leave_no_sentence_behind(words):
    pages = words(keep(BASE, [run for run in RUNS if run.endswith("train_step")]))
    assert "Not measured." in pages["forward-time"]
    assert "Python without a profiler, the shortest" not in pages["forward-time"]


def test_failed_runs_everywhere_still_make_a_report(words):
    failed = keep(BASE, [])
    failed.runs = BASE.runs.assign(status="failed", status_phase="warmup", status_message="boom")
    pages = words(failed)
    assert "failed in warmup" in pages["index"]
    assert not re.search(r"\d (ms|%)", re.sub(r"<[^>]+>", "", pages["forward-time"].split("How this was measured")[0]))


@pytest.mark.nightly
def test_no_number_comes_from_a_run_that_ran_out_of_memory_even_where_some_were_recorded(tmp_path):
    runs = [run for run in RUNS if not run.endswith("forward_backward")]
    lost = "xl-ctx512-fp32-naive-train_step"
    rec = keep(BASE, runs)
    of_lost = rec.runs["run_id"] == lost
    ended = {"status": "oom", "status_phase": "backward", "status_message": "CUDA out of memory"}
    rec.runs = rec.runs.assign(**{name: rec.runs[name].astype(object).mask(of_lost, ended[name]) for name in ended})
    write_site.write(rec, tmp_path / "partly")
    write_site.write(combine.select_finished_runs(rec), tmp_path / "without")

    def words_of(folder: str, page: str) -> str:
        return read_page(tmp_path / folder / page)

    pages = ["index.md", *(f"report/{question.slug}.md" for question in QUESTIONS.values()), "report/cuda-calls.md"]
    for page in pages:
        assert words_of("partly", page) == words_of("without", page)
    assert "falls in all 3 cases" in words_of("partly", "report/training-mix.md")
    assert "OOM in backward" in words_of("partly", "report/training-mix.md")
    shown = read_shown(tmp_path / "partly", "report/forward-time.md")
    inside = shown.split('id="table-inside"')[1].split("</figure>")[0]
    row = next(one for one in inside.split("<tr>") if lost in one)
    assert "OOM in backward" in row and "data-v" not in row.split("train_step</td>")[1]


def test_the_verdict_says_how_long_the_gpu_waits_for_launches(whole):
    words = re.sub(r"&lt;", "<", whole["forward-time"])
    assert re.search(r"The GPU waits for launches for up to \*\*<?[\d.]+%\*\* of it", words)
    assert "busy for less than" not in words


def test_no_mean_of_no_training_steps(whole, forward_only):
    assert "Mean over 4 cases;" in whole["training-mix"]
    assert "Mean over" not in forward_only["training-mix"]


def test_the_home_page_takes_its_verdicts_from_the_questions(whole):
    facts = home.answer(BASE.runs, BASE.manifest).facts
    assert facts["num_ok"] == len(RUNS)
    for slug in ("forward-time", "top-kernel"):
        first = text.remove_links(first_sentence(read_verdict(whole[slug])))
        assert first in text.remove_links(whole["index"])


def test_a_missing_fact_stops_the_build(tmp_path):
    from profiler_job.analysis.render.answer import assemble
    from profiler_job.analysis.site.site_writer import Site

    (tmp_path / "bad.md").write_text("{{ facts.absent | duration }}")
    site = Site(tmp_path / "docs", (tmp_path,), {}, ("size",))
    with pytest.raises(Exception, match="absent"):
        site.write("bad.md", "bad.md", assemble({}, [], [], []))


@pytest.mark.parametrize("value", [3, 2.5, "name", pd.Timestamp("2026-01-01")])
def test_a_template_prints_nothing_that_no_filter_formatted(tmp_path, value):
    from profiler_job.analysis.render.answer import assemble
    from profiler_job.analysis.render.text import FormatError
    from profiler_job.analysis.site.site_writer import Site

    (tmp_path / "bad.md").write_text("{{ facts.value }}")
    site = Site(tmp_path / "docs", (tmp_path,), {}, ("size",))
    with pytest.raises(FormatError):
        site.write("bad.md", "bad.md", assemble({"value": value}, [], [], []))
