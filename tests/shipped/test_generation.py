"""What a token of generated text takes, from the shipped recording of a script that `profile` followed."""

import statistics

import pandas as pd
import pytest

from profiler_job.analysis.metrics import device_memory, run_grid
from profiler_job.analysis.pages.question import Inputs
from profiler_job.analysis.pages.questions import generation
from profiler_job.analysis.pages.titles import description_of, title_of
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.ranges import DECODE, PREFILL
from tests.shipped.recordings import locate


@pytest.fixture(scope="module")
def rec():
    return store.load(locate("generation"))


@pytest.fixture(scope="module")
def answer(rec):
    return generation.answer(Inputs(recording=rec, main=rec))


def test_a_token_is_a_text_over_its_tokens(rec, answer):
    rows = answer.tables["tokens"].rows.set_index("run_id")
    assert len(rows) == 9
    figures = rec.figures.astype({"run_id": str}).set_index(["run_id", "figure"])["value"]
    for run_id in (f"generate-{way}-{batch}" for way in ("dynamic", "static") for batch in (1, 8, 64)):
        text_ns = figures[run_id, "prefill_ns"] + 63 * figures[run_id, "decode_ns"]
        assert rows.at[run_id, "token_ns"] == pytest.approx(text_ns / 64)
    steps = rec.steps[(rec.steps["run_id"] == "generate-compiled-8") & (rec.steps["collector"] == "timer")]
    assert rows.at["generate-compiled-8", "token_ns"] == pytest.approx(steps["wall_ns"].median() / 64)


def test_busy_time_of_a_token_is_of_its_prefill_and_its_decode_steps(rec, answer):
    """Of growing caches at a batch of 64, prefills take 31% of GPU busy."""
    run_id, spans = "generate-dynamic-64", {}
    for table in (rec.kernels, rec.memops):
        rows = table[(table["run_id"] == run_id) & table["phase"].isin([PREFILL, DECODE]) & (table["step"] >= 0)]
        for row in rows.itertuples():
            spans.setdefault((row.phase, row.step), []).append((row.start_ns, row.end_ns))
    busy = {at: measure_union(some) for at, some in spans.items()}
    prefill_ns = sum(time for (phase, _), time in busy.items() if phase == PREFILL)
    decode_ns = statistics.median(time for (phase, _), time in busy.items() if phase == DECODE)
    row = answer.tables["tokens"].rows.set_index("run_id").loc[run_id]
    assert row["busy_ns"] == pytest.approx((prefill_ns + 63 * decode_ns) / 64, rel=0.01)
    assert row["waits_share"] == pytest.approx(1 - row["busy_ns"] / row["token_ns"])
    assert row["decode_waits_share"] == pytest.approx(1 - decode_ns / row["decode_ns"], rel=0.01)


def test_a_decode_step_that_is_slower_without_the_profiler_had_a_slower_cpu(rec, answer):
    """Static caches at a batch of 8 were slowest, for which no page had a reason."""
    claim = answer.claims["slow_cpu"]
    assert claim.holds and claim.rows["run_id"].tolist() == ["generate-static-8"]
    slow, others = claim.values, answer.tables["prefill"].rows.set_index("run_id")
    assert slow["decode_ns"] > 1.1 * slow["traced_decode_ns"]
    assert slow["decode_busy_ns"] < others.at["generate-dynamic-8", "decode_busy_ns"], "its GPU had no more work"


def measure_union(spans):
    total = end = 0
    for begin, stop in sorted(spans):
        total += max(0, stop - max(begin, end))
        end = max(end, stop)
    return total


def test_the_advice_is_what_the_table_shows(answer):
    rows = answer.tables["tokens"].rows
    fastest = rows.loc[rows.groupby("batch_size")["token_ns"].idxmin()]
    assert set(fastest["way"]) == {generation.WAYS["compiled"]}
    said, token_ns = answer.claims["faster"].values, rows.set_index("run_id")["token_ns"]
    assert said["best"]["token_ns"] == token_ns["generate-compiled-1"]
    assert said["base_ns"] == pytest.approx(token_ns["generate-dynamic-1"])
    assert answer.claims["waits"].holds and answer.claims["waits"].values["shares"] == pytest.approx(
        (0.479, 0.846), abs=1e-3
    )


def test_memory_is_predicted_next_to_runs_of_scripts(rec):
    """They have no sizes of a model, so that the columns of all runs hold floats."""
    runs = device_memory.plain_runs(store.load(locate("memory")).runs).head(40)
    alone = device_memory.errors_of(runs.assign(sweep="memory"))
    both = pd.concat([device_memory.plain_runs(part).assign(sweep="memory") for part in (runs, rec.runs)])
    assert len(alone) and device_memory.errors_of(both)["predicted"].tolist() == alone["predicted"].tolist()


def test_a_step_of_generated_text_has_not_the_tokens_of_its_prompts(rec):
    """Explore had 1.7 million tokens a second of runs that make 2,800."""
    assert run_grid.tokens_of(rec.runs).isna().all()
    assert run_grid.tokens_of(rec.runs.assign(mode="train_step")).notna().all()


def test_a_script_is_described_by_what_is_known_of_it(rec):
    run = rec.runs.iloc[0].to_dict()
    assert "compiled" not in description_of(run, has_shape=False)
    assert title_of(run) == "LlamaForCausalLM · 512 · forward pass · BF16 · batch 1"


def test_a_larger_batch_is_advised_for_its_tokens_a_second_though_a_token_takes_longer(answer):
    """A reader who stopped when a token took longer stopped at a batch of 1: 3.28, 4.06 and 9.04 ms."""
    claim = answer.claims["batch_helps"]
    rows = claim.rows
    assert claim.holds and rows["batch_size"].tolist() == [1, 8, 64]
    assert rows["token_ns"].is_monotonic_increasing and rows["text_tokens_per_s"].is_monotonic_increasing
    first, last = claim.values["first"], claim.values["last"]
    assert last["text_tokens_per_s"] / first["text_tokens_per_s"] == pytest.approx(23.2, abs=0.1)
    assert claim.values["times_as_many"] == pytest.approx(7082.84 / 56.35682), (
        "all that is advised, not the batch alone"
    )
    assert not answer.claims["batch_no_help"].holds
