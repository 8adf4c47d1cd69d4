"""The steps of a ladder take turns at the end of a search: what is not measurably faster then is left out."""

from dataclasses import dataclass, field

import pytest

from profiler_job.jobs.contract.paired_ratio import FEWEST_PAIRS
from profiler_job.jobs.contract.tuning import Outcome
from profiler_job.jobs.executor.tune_ladder import MOST_ROUNDS, NO_GAIN
from tests.jobs.simulated_scripts import SimulatedScript, list_ladder, outcomes, search

ASKED = ("bf16", "fused_adamw", "compile")


@dataclass
class ScriptWithChance(SimulatedScript):
    """Changes have the effects `later` once more than two variants take turns. together: the effect of two changes that
    are on together."""

    later: dict[str, float] = field(default_factory=dict)
    together: tuple[tuple[str, str], float] = (("", ""), 0.0)

    def time_step(self, changes):
        both, effect = self.together
        return super().time_step(changes) * (1 - effect if {*both} <= {*changes} else 1)

    def ask(self, request, left_s):
        if len(request.get("variants", ())) > 2:
            self.effects = self.effects | self.later
        return super().ask(request, left_s)

    def list_final(self) -> list:
        """List the variants that took turns together, request by request."""
        return [asked for asked in self.asked if len(asked) > 2]


def find_tried(tuning, name):
    return next(tried for tried in tuning.tried if tried.change == name)


def test_a_gain_that_the_last_rounds_do_not_show_is_no_step_of_the_ladder():
    """Its interval held 1, and it stayed in the winner and in the patch."""
    effects = {"bf16": 0.5, "fused_adamw": 0.1}
    script = ScriptWithChance(effects, later={"fused_adamw": 0.007}, noise=0.02)
    tuning = search(script, asked=("bf16", "fused_adamw"))
    assert list_ladder(tuning) == ["bf16"] and tuning.winner.changes == ("bf16",)
    tried = find_tried(tuning, "fused_adamw")
    assert (tried.outcome, tried.message) == (Outcome.NOT_FASTER, NO_GAIN)
    assert tried.ratio.low < 1 < tried.ratio.high and tried.ratio.num_pairs == MOST_ROUNDS, "of the last rounds"
    assert tuning.confirmation.winner_ns and tuning.is_complete


def test_rounds_end_as_soon_as_all_steps_are_decided():
    script = ScriptWithChance({"bf16": 0.5, "fused_adamw": 0.1})
    tuning = search(script, asked=("bf16", "fused_adamw"))
    assert [step.ratio_base.num_pairs for step in tuning.ladder] == [6, 6] and len(script.list_final()) == 1


def test_a_step_in_the_middle_without_a_gain_is_left_out_of_those_after_it():
    script = ScriptWithChance({"bf16": 0.5, "fused_adamw": 0.1, "compile": 0.2}, later={"fused_adamw": 0.0})
    tuning = search(script, asked=ASKED)
    assert list_ladder(tuning) == ["bf16", "compile"] and tuning.winner.changes == ("bf16", "compile")
    assert outcomes(tuning, "fused_adamw") == [Outcome.NOT_FASTER]
    assert script.list_final()[-1] == [(), ("bf16",), ("bf16", "compile"), ASKED], "the winner with it takes part"
    assert tuning.winner.ratio_before.times_as_fast == pytest.approx(1.25, rel=0.01)
    assert tuning.winner.ratio_base.times_as_fast == pytest.approx(2.5, rel=0.01)


def test_a_step_that_a_later_one_needs_is_a_part_of_that_one():
    script = ScriptWithChance(
        {"bf16": 0.5, "fused_adamw": 0.1, "compile": 0.2},
        later={"fused_adamw": 0.0},
        together=(("fused_adamw", "compile"), 0.1),
    )
    tuning = search(script, asked=ASKED)
    assert list_ladder(tuning) == ["bf16", "compile"] and tuning.winner.changes == ASKED
    assert outcomes(tuning, "fused_adamw") == [Outcome.KEPT]
    assert tuning.winner.ratio_before.times_as_fast == pytest.approx(1 / 0.72, rel=0.01), "over BF16 alone"


def test_a_step_without_a_gain_is_a_part_of_the_next_one_if_no_time_is_left_to_measure_that():
    class Slow(ScriptWithChance):
        def ask(self, request, left_s):
            if self.list_final() and "variants" in request:
                self.pass_time(10_000.0, left_s)
            return super().ask(request, left_s)

    script = Slow({"bf16": 0.5, "fused_adamw": 0.1, "compile": 0.2}, later={"fused_adamw": 0.0})
    tuning = search(script, asked=ASKED)
    assert list_ladder(tuning) == ["bf16", "compile"] and tuning.winner.changes == ASKED
    assert tuning.winner.ratio_before.low > 1 and tuning.confirmation.winner_ns


def test_what_a_step_without_a_gain_took_the_place_of_is_there_again():
    script = ScriptWithChance(
        {"tf32": 0.4, "bf16": 0.5, "fused_adamw": 0.1}, later={"bf16": 0.4}, parts={"matmul": 0.6, "other": 0.3}
    )
    first = search(script, asked=("tf32",))
    first.asked = ("tf32", "bf16", "fused_adamw")
    tuning = search(script, first)
    assert list_ladder(tuning) == ["tf32", "fused_adamw"]
    assert (tuning.winner.changes, tuning.winner.precision) == (("tf32", "fused_adamw"), "tf32")
    assert tuning.winner.kernels is None, "those of another variant are not its own"


def test_nothing_is_kept_of_a_ladder_whose_steps_gain_nothing():
    script = ScriptWithChance({"bf16": 0.5, "fused_adamw": 0.1}, later={"bf16": 0.0, "fused_adamw": 0.0})
    tuning = search(script, asked=("bf16", "fused_adamw"))
    assert not tuning.ladder and not tuning.confirmation.winner_ns and tuning.is_complete
    assert {tried.outcome for tried in tuning.tried} == {Outcome.NOT_FASTER}


@pytest.mark.parametrize(("effect", "kept"), [(0.1, ["bf16"]), (0.0, [])])
def test_a_single_step_that_was_believed_after_three_rounds_is_measured_again(effect, kept):
    """It was 1.50 times as fast in three rounds, and 1.03 times in processes of its own."""

    class Chance(SimulatedScript):
        def ask(self, request, left_s):
            if request.get("rounds", 0) >= FEWEST_PAIRS:
                self.effects = {"bf16": effect}
            return super().ask(request, left_s)

    tuning = search(Chance({"bf16": 0.5}), asked=("bf16",))
    assert list_ladder(tuning) == kept
    if kept:
        ratio = tuning.winner.ratio_base
        assert (ratio.times_as_fast, ratio.num_pairs) == (pytest.approx(1 / 0.9, rel=0.01), FEWEST_PAIRS)
