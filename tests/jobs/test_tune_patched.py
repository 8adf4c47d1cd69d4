"""The end of `tune` where the patch makes the winner: the script with the patch and the script without changes run in
processes that nothing follows, and what these show is the result."""

import pytest

from profiler_job.jobs.contract.tuning import NoLossCode, Outcome, TuneRatio
from profiler_job.jobs.executor.tune_confirmation import widen
from profiler_job.jobs.executor.tuned_script import OverBudgetError, VariantFailedError
from tests.jobs.simulated_scripts import MS, CpuLimitedScript, SimulatedScript, list_ladder, outcomes, search

HALF = {"bf16": 0.5}


def test_what_following_costs_is_not_in_the_ratio_of_the_patch():
    """Alone the script takes 100 ms, and 50 with the patch; what follows it adds 40 ms to both."""
    script = SimulatedScript(effects=HALF, is_whole=True, following_ns=40 * MS)
    tuning = search(script, asked=("bf16",))
    winner, confirmed = tuning.winner, tuning.confirmation
    assert set(script.bare_runs) == {(), ("bf16",)} and confirmed.is_bare and script.plans[-1].is_bare
    assert winner.ratio_base.times_as_fast == pytest.approx(2, rel=0.01) and winner.ratio_before == winner.ratio_base
    assert confirmed.by_turns.times_as_fast == pytest.approx(140 / 90, rel=0.02)
    assert tuning.base.step_ns == pytest.approx(100 * MS, rel=0.02) and tuning.is_complete


def test_losses_are_of_the_script_with_the_patch():
    tuning = search(SimulatedScript(effects=HALF, is_whole=True, losses=0.001, patch_loss=0.02), asked=("bf16",))
    assert tuning.winner.losses.largest == pytest.approx(0.01) and tuning.winner.losses.repeated == 0.0


def test_each_step_of_the_ladder_has_the_losses_of_its_patch():
    effects = HALF | {"fused_adamw": 0.2}
    script = SimulatedScript(effects=effects, parts={"matmul": 0.6, "other": 0.3}, is_whole=True, patch_loss=0.02)
    tuning = search(script, asked=("bf16", "fused_adamw"))
    assert list_ladder(tuning) == ["bf16", "fused_adamw"]
    assert [step.losses.largest for step in tuning.ladder] == [pytest.approx(0.01)] * 2
    assert set(script.bare_runs) == {(), ("bf16",), ("bf16", "fused_adamw")}


@pytest.mark.parametrize("room", [0, 6])
def test_what_a_patch_leaves_to_write_is_confirmed_as_a_variant(room):
    script = SimulatedScript(effects=HALF, losses=0.001, patch_loss=0.02, room=room)
    tuning = search(script, asked=("bf16",))
    assert not script.bare_runs and not tuning.confirmation.is_bare and tuning.confirmation.winner_ns
    assert tuning.confirmation.by_turns is None and tuning.winner.losses.largest == pytest.approx(0.0005)


@pytest.mark.parametrize("room", [0, 6])
def test_a_patch_that_breaks_the_script_is_taken_back(room):
    effects = HALF | {"fused_adamw": 0.2}
    script = SimulatedScript(
        effects=effects, is_whole=True, bare_failures={"fused_adamw": VariantFailedError("ended")}, room=room
    )
    tuning = search(script, asked=("bf16", "fused_adamw"))
    assert list_ladder(tuning) == ["bf16"] and outcomes(tuning, "fused_adamw") == [Outcome.FAILED]
    assert tuning.confirmation.is_bare and tuning.confirmation.winner_ns and tuning.is_complete


def test_a_script_that_cannot_be_timed_alone_is_followed():
    script = SimulatedScript(effects=HALF, is_whole=True, bare_failures={"": VariantFailedError("ended")})
    tuning = search(script, asked=("bf16",))
    assert list_ladder(tuning) == ["bf16"] and not tuning.confirmation.is_bare
    assert tuning.confirmation.winner_ns and tuning.winner.losses.reason is None


def test_a_patch_that_is_no_faster_alone_is_taken_back():
    script = SimulatedScript(effects=HALF, is_whole=True)
    time_step = script.time_step
    script.time_step = lambda changes: time_step(() if script.is_bare else changes) * (1.1 if changes else 1.0)
    tuning = search(script, asked=("bf16",))
    assert not tuning.ladder and outcomes(tuning, "bf16") == [Outcome.NOT_FASTER] and script.bare_runs


def cut_off(script):
    """Search until the script's interrupt, and return what was saved."""
    with pytest.raises(KeyboardInterrupt):
        search(script, asked=("cuda_graphs",))
    script.cut_off_after = script.cut_off_at_run = 0
    return script.last


def test_rounds_of_a_confirmation_that_was_cut_off_are_its_result():
    script = CpuLimitedScript(effects={}, is_whole=True, following_ns=40 * MS, cut_off_after=3)
    begun = cut_off(script)
    assert list_ladder(begun) == ["cuda_graphs"] and not begun.confirmation.winner_ns
    assert begun.winner.losses.reason is NoLossCode.NOT_MEASURED and not begun.is_complete
    num_plans = len(script.plans)
    tuning = search(script, begun)
    assert tuning.confirmation.is_bare and tuning.is_complete and tuning.winner.losses.reason is None
    assert tuning.confirmation.num_rounds == 3 and len(script.plans) == num_plans
    assert [run.step_ns for run in begun.pairs.after] == [*tuning.confirmation.winner_ns]
    again = search(script, tuning)
    assert again.confirmation == tuning.confirmation and again.winner == tuning.winner


class Crashing(CpuLimitedScript):
    """With the patch it crashes after three rounds, or alone."""

    def take_turns(self, variants, plan, left_s, note):
        kept, self.bare_failures = self.bare_failures, {}
        super().take_turns(variants, plan, left_s, lambda runs: len(runs[0][0].times_ns) > 3 or note(runs))
        self.bare_failures = kept
        raise VariantFailedError("it ended")


def test_rounds_before_a_crash_are_no_result_of_a_search_that_was_cut_off():
    script = Crashing(effects={}, is_whole=True, bare_failures={"cuda_graphs": VariantFailedError("ended")})
    script.cut_off_at_run = 1
    begun = cut_off(script)
    assert list_ladder(begun) == ["cuda_graphs"] and begun.pairs is None
    script.is_bare, script.num_run = False, 0
    tuning = search(script, begun)
    assert not tuning.ladder and outcomes(tuning, "cuda_graphs") == [Outcome.FAILED]


def test_one_round_is_too_few_for_a_result():
    script = CpuLimitedScript(effects={}, is_whole=True, cut_off_after=1)
    tuning = search(script, cut_off(script))
    assert tuning.confirmation.num_rounds == 10 and len(script.plans) == 2


@pytest.mark.parametrize("num_run, num_kept", [(1, 0), (2, 0), (4, 1), (6, 2)])
def test_pairs_of_a_confirmation_that_was_cut_off_are_not_run_again(num_run, num_kept):
    script = CpuLimitedScript(effects={}, is_whole=True, room=1, cut_off_at_run=num_run)
    begun = cut_off(script)
    kept = begun.pairs.after if begun.pairs else []
    assert len(kept) == num_kept
    script.num_run = 0
    tuning = search(script, begun)
    assert script.num_run == 2 * (6 - num_kept) and len(tuning.confirmation.winner_ns) == 6
    assert [run.step_ns for run in kept] == [*tuning.confirmation.winner_ns[:num_kept]] and tuning.is_complete


class Late(CpuLimitedScript):
    """At its end a search of ten minutes has `left` seconds for the winner's processes."""

    left = 0.0

    def write(self, changes):
        self.now = max(self.now, self.began + 600 - self.left) if self.left else self.now
        return super().write(changes)

    def go_on(self, tuning, left):
        self.left, self.began = left, self.now
        return search(self, tuning, asked=("cuda_graphs",))


@pytest.mark.parametrize("room, left, few, most", [(6, 20, 1, 3), (1, 25, 2, 6)])
def test_a_confirmation_that_the_budget_ended_goes_on_with_more_time(room, left, few, most):
    """It was complete: a second search with more time printed it again."""
    script = Late(effects={}, is_whole=True, following_ns=40 * MS, room=room)
    first = script.go_on(None, left)
    assert len(first.confirmation.winner_ns) == few and not first.is_complete and first.pairs.is_cut_off
    num_asked = len(script.asked)
    again = script.go_on(first, 12 if room > 1 else 3)
    assert again.confirmation == first.confirmation and again.winner == first.winner and not again.is_complete
    last = script.go_on(again, 0)
    assert len(last.confirmation.winner_ns) == most and last.is_complete and not last.pairs.is_cut_off
    assert len(script.asked) == num_asked, "nothing else is measured again"
    assert room > 1 or last.confirmation.winner_ns[:few] == first.confirmation.winner_ns
    assert last.confirmation.by_turns == first.confirmation.by_turns


def test_an_interval_is_widened_once():
    """One pair is no result: with each search that had no time for the second one the interval became wider."""
    tuning = search(SimulatedScript(effects=HALF), asked=("bf16",))
    tuning.winner.ratio_base = TuneRatio(times_as_fast=2, low=1.8, high=2.4, num_pairs=12)
    for _ in range(2):
        widen(tuning, tuning.winner.ratio_base)
        assert (tuning.winner.ratio_base.low, tuning.winner.ratio_base.high) == pytest.approx((1.5, 2.88))


@pytest.mark.parametrize(
    "failure, room, is_complete",
    [(OverBudgetError("over"), 6, False), (VariantFailedError("full"), 6, True), (None, 1, True)],
)
def test_processes_that_were_measured_stay_if_more_of_them_cannot_be(failure, room, is_complete):
    script = Late(effects={}, is_whole=True)
    first = script.go_on(None, 20)
    script.at_gate, script.room = failure, room
    last = script.go_on(first, 0)
    assert last.confirmation == first.confirmation and last.is_complete == is_complete


def test_losses_of_the_ladder_that_the_budget_left_out_are_compared_with_more_time():
    effects = HALF | {"fused_adamw": 0.2}
    script = SimulatedScript(effects=effects, parts={"matmul": 0.6, "other": 0.3}, is_whole=True, patch_loss=0.02)
    script.bare_failures = {"bf16": OverBudgetError("over")}
    script.fail, fail = lambda changes: changes == ("bf16",) and fail(changes), script.fail
    first = search(script, asked=("bf16", "fused_adamw"))
    assert [step.losses.reason for step in first.ladder] == [NoLossCode.NOT_MEASURED, None] and not first.is_complete
    script.bare_failures = {}
    last = search(script, first)
    assert [step.losses.reason for step in last.ladder] == [None, None] and last.is_complete
    assert last.confirmation == first.confirmation


@pytest.mark.parametrize("noted", [{"gpu_name": "NVIDIA H100"}, {"torch": "1"}])
def test_a_search_of_another_machine_begins_anew(noted, capsys):
    """Its pairs, three times as slow, and its ladder were taken for those of this machine."""
    script = CpuLimitedScript(effects={}, is_whole=True, room=1, cut_off_at_run=4)
    begun = cut_off(script).model_copy(update=noted)
    begun.base.step_ns *= 3
    begun.ladder[0].changes = ("tf32", "cuda_graphs")
    for run in begun.pairs.before + begun.pairs.after:
        run.times_ns = tuple(3 * time for time in run.times_ns)
    script.num_run = 0
    tuning = search(script, begun)
    assert "begins anew" in capsys.readouterr().out and script.num_run == 12 and tuning.is_complete
    assert (tuning.gpu_name, tuning.torch) == ("GPU", "2") and tuning.winner.changes == ("cuda_graphs",)
    assert max(tuning.confirmation.base_ns) < 110 * MS and tuning.base.step_ns == pytest.approx(100 * MS, rel=0.02)


def test_a_search_whose_machine_was_not_noted_goes_on():
    script = CpuLimitedScript(effects={}, is_whole=True, cut_off_after=3)
    begun = cut_off(script).model_copy(update={"gpu_name": "", "torch": ""})
    assert search(script, begun).confirmation.num_rounds == 3


def test_pairs_of_another_winner_are_measured_again():
    script = CpuLimitedScript(effects={}, is_whole=True, cut_off_after=3)
    begun = cut_off(script)
    begun.pairs.changes = ("compile",)
    assert search(script, begun).confirmation.num_rounds == 10


def test_a_winner_that_was_followed_is_measured_again_with_its_patch():
    script = CpuLimitedScript(effects={}, cut_off_after=3)
    begun = cut_off(script)
    assert not begun.pairs.is_bare
    script.is_whole = True
    tuning = search(script, begun)
    assert tuning.confirmation.is_bare and tuning.confirmation.num_rounds == 10


def test_pairs_of_another_patch_are_measured_again():
    """After an upgrade the patch may be another one: the old one's pairs were taken for its own."""
    script = CpuLimitedScript(effects={}, is_whole=True, cut_off_after=3)
    begun = cut_off(script)
    assert begun.pairs.patch_digest == "1"
    script.patch_digest = "2"
    tuning = search(script, begun)
    assert tuning.confirmation.num_rounds == 10 and tuning.confirmation.patch_digest == "2"
    assert tuning.pairs.patch_digest == "2" and tuning.is_complete


def test_pairs_of_a_patch_that_was_not_noted_are_measured_again():
    script = CpuLimitedScript(effects={}, is_whole=True, cut_off_after=3)
    begun = cut_off(script)
    begun.pairs.patch_digest = ""
    assert search(script, begun).confirmation.num_rounds == 10


def test_a_confirmation_of_another_patch_is_forgotten_if_no_time_is_left():
    script = CpuLimitedScript(effects={}, is_whole=True, following_ns=40 * MS)
    begun = search(script, asked=("cuda_graphs",))
    turned = begun.confirmation.by_turns
    script.patch_digest = "2"

    def end(*given):
        raise OverBudgetError("the time was over")

    script.take_turns = end
    tuning = search(script, begun)
    assert not tuning.confirmation.winner_ns and not tuning.confirmation.is_bare and not tuning.is_complete
    assert tuning.winner.losses.reason is NoLossCode.NOT_MEASURED
    assert tuning.winner.ratio_base.times_as_fast == turned.times_as_fast


@pytest.mark.parametrize("minutes", [1, 1.5, 2, 4])
def test_a_patch_is_confirmed_within_the_budget(minutes):
    script = SimulatedScript(effects=HALF | {"compile": 0.2}, is_whole=True)
    tuning = search(script, minutes=minutes)
    assert script.now <= 60 * minutes and tuning.confirmation.is_bare
