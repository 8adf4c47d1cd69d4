"""The end of the search of `tune` on simulated scripts: processes of the winner, and of what needs its own process."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from profiler_job.jobs.contract.tuning import Method, NoLossCode, Outcome
from profiler_job.jobs.executor import tuned_script
from profiler_job.jobs.executor.tuned_script import OverBudgetError, TurnsProcess, VariantFailedError
from tests.jobs.simulated_scripts import EFFECTS, MS, CpuLimitedScript, SimulatedScript, list_ladder, outcomes, search


@dataclass
class TracedScript(CpuLimitedScript):
    """Launches take longer in the process of turns, whose GPU was traced: steps of 140 ms, and 70 in CUDA graphs."""

    noise: float = 0.05

    def ask(self, request, left_s):
        answer = super().ask(request, left_s)
        if request["kind"] == "rounds":
            answer["rounds"] = [
                [time + (10 if time < 70 * MS else 40) * MS for time in row] for row in answer["rounds"]
            ]
        return answer


class LoadingScript(SimulatedScript):
    """Steps wait for data."""

    def ask(self, request, left_s):
        answer = super().ask(request, left_s)
        return answer | {"phases": {"data": 40 * MS}} if request["kind"] == "profile" else answer


@pytest.mark.parametrize(
    ("room", "num_processes", "num_rounds", "num_pairs"),
    [(6, 3, 8, 24), (5, 2, 10, 20), (3, 1, 10, 10), (1, 6, 0, 6)],
)
def test_where_the_cpu_limits_processes_are_the_result(room, num_processes, num_rounds, num_pairs):
    """Where no two fit, they run one after another."""
    script = TracedScript({}, compile_s=10.0, room=room)
    tuning = search(script, asked=("cuda_graphs",))
    winner, confirmed = tuning.winner, tuning.confirmation
    assert len(confirmed.base_ns) == len(confirmed.winner_ns) == num_processes
    assert confirmed.num_rounds == num_rounds and winner.ratio_base.num_pairs == num_pairs
    assert confirmed.by_turns.times_as_fast == pytest.approx(140 / 70, rel=0.1)
    assert winner.ratio_base.times_as_fast == pytest.approx(100 / 60, rel=0.1)
    assert winner.ratio_base.low < 100 / 60 < winner.ratio_base.high
    assert tuning.base.step_ns == pytest.approx(100 * MS, rel=0.1)
    assert tuning.base.step_ns / winner.step_ns == pytest.approx(winner.ratio_base.times_as_fast)


def test_a_search_that_goes_on_keeps_what_turns_said_of_the_same_winner():
    tuning = search(TracedScript({}, compile_s=10.0), asked=("cuda_graphs",))
    again = search(TracedScript({}, compile_s=10.0), tuning)
    assert again.winner.ratio_base == tuning.winner.ratio_base and again.confirmation == tuning.confirmation


def test_processes_that_take_turns_need_the_time_of_one_start():
    """Six one after another would take the time of six starts."""
    spent = {}
    for room in (6, 1):
        script = TracedScript({}, compile_s=10.0, room=room)
        tuning = search(script, asked=("cuda_graphs",))
        spent[room] = script.now - 5.0 - tuning.tried[-1].seconds
    assert spent[6] < 5 + 20 < 12 * 5 == spent[1]


@pytest.mark.parametrize(
    "at_gate",
    [
        VariantFailedError("it ended (exit code 1): CUDA out of memory", is_oom=True),
        VariantFailedError("a process took too long to its next step"),
        VariantFailedError("it ended (exit code 0)", is_short=True),
    ],
)
def test_processes_that_cannot_take_turns_run_one_after_another(at_gate):
    tuning = search(SimulatedScript(EFFECTS, at_gate=at_gate))
    assert len(tuning.confirmation.winner_ns) == 2 and not tuning.confirmation.num_rounds
    assert tuning.winner.losses.reason is None and tuning.is_complete


def test_fewer_processes_take_turns_if_the_time_is_short():
    plans = {}
    for minutes in (0.45, 0.6, 10.0):
        script = SimulatedScript({"bf16": 0.5})
        tuning = search(script, minutes=minutes, asked=("bf16",))
        assert script.now <= 60 * minutes and tuning.confirmation.winner_ns, minutes
        plans[minutes] = script.plans[0].num_each
    assert plans[0.45] < plans[0.6] == plans[10.0] == 3


def test_a_pair_that_may_take_too_long_is_tried_for_the_losses_of_the_winner():
    """Nothing else needs the time that is left: 36 s of 240 were, and no losses were compared."""

    class Overestimated(SimulatedScript):
        def ask(self, request, left_s):
            answer = super().ask(request, left_s)
            self.starts_s = 40.0 if request["kind"] == "rounds" else 5.0
            return answer

    script = Overestimated({"bf16": 0.5})
    tuning = search(script, minutes=0.75, asked=("bf16",))
    assert script.plans[0].num_each == 1 and tuning.winner.losses.reason is None and script.now <= 45
    assert len(tuning.confirmation.winner_ns) == 1


def test_a_start_ends_before_the_first_answer_which_may_take_compilations(monkeypatch):
    """A script that ended was started with a ladder to compile, so that a start seemed to take a minute."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.__setitem__(0, now[0] + 1.0))
    monkeypatch.setattr(tuned_script, "time", clock)
    requests = SimpleNamespace(
        send=lambda request: None,
        is_read=lambda: now[0] >= 5,
        read_answer=lambda: "rounds" if now[0] >= 60 else None,
    )
    running = SimpleNamespace(requests=requests, has_ended=False)
    turns = TurnsProcess(SimpleNamespace(start=lambda *given, **plan: running), [])
    assert turns.ask({"kind": "rounds"}) == "rounds" and turns.starts_s == 5 and now == [60]


@dataclass
class EndingScript(SimulatedScript):
    """It takes its last step when the ladder has been compiled; started again, it compiles for `again_s`."""

    again_s: float = 60.0
    has_ended: bool = False

    def ask(self, request, left_s):
        if len(request.get("variants", ())) > 2:
            self.pass_time(self.compile_s if not self.has_ended else self.again_s, left_s)
            if not self.has_ended:
                self.has_ended, self.is_running = True, False
                raise VariantFailedError("it ended", is_short=True)
        return super().ask(request, left_s)


@pytest.mark.parametrize("seconds", [100, 120, 140, 160, 200, 240])
def test_a_script_that_ends_while_its_ladder_is_compiled_leaves_the_winner_its_losses(seconds):
    """What was left was counted from before it ended, so that the ladder took what was kept for the winner."""
    script = EndingScript(EFFECTS)
    tuning = search(script, minutes=seconds / 60)
    assert list_ladder(tuning)[:2] == ["bf16", "fused_adamw"] and script.now <= seconds
    assert tuning.winner.losses.reason is None and tuning.confirmation.winner_ns


def test_few_cores_take_longer_to_start_processes():
    script = SimulatedScript({"bf16": 0.5}, cores=2)
    search(script, minutes=0.6, asked=("bf16",))
    assert script.plans[0].num_each == 2


def test_nothing_is_measured_for_which_no_time_is_left_to_confirm_it():
    script = SimulatedScript({"bf16": 0.5}, cold_s=5.0)
    tuning = search(script, minutes=0.3, asked=("bf16",))
    assert not tuning.ladder and not script.plans and script.now <= 18
    assert outcomes(tuning, "bf16") == [Outcome.NOT_REACHED] and not tuning.is_complete


@pytest.mark.parametrize("compile_s", [30.0, 40.0, 80.0])
def test_what_compiles_is_kept_only_if_a_process_of_it_can_compile_again(compile_s):
    class Compiling(SimulatedScript):
        def take_turns(self, variants, plan, left_s, note):
            if "compile" in variants[1]:
                self.pass_time(0.6 * self.compile_s, left_s)
            return super().take_turns(variants, plan, left_s, note)

    script = Compiling({"compile": 0.5}, compile_s=compile_s)
    tuning = search(script, minutes=100 / 60, asked=("compile",))
    assert script.now <= 100
    if compile_s == 80.0:
        assert not tuning.ladder and outcomes(tuning, "compile") == [Outcome.NOT_REACHED]
    else:
        assert list_ladder(tuning) == ["compile"] and tuning.confirmation.winner_ns


def test_steps_of_seconds_take_fewer_rounds():
    class Long(SimulatedScript):
        def time_step(self, changes):
            return 20 * super().time_step(changes)

    script = Long({"bf16": 0.5})
    tuning = search(script, asked=("bf16",))
    assert script.plans[0].num_rounds == tuning.confirmation.num_rounds == 2


def test_an_interval_by_turns_is_made_wider_if_no_time_was_left_for_processes():
    class Slow(TracedScript):
        def take_turns(self, variants, plan, left_s, note):
            raise OverBudgetError("the time was over")

    tuning = search(Slow({}, compile_s=10.0), asked=("cuda_graphs",))
    assert not tuning.confirmation.winner_ns and tuning.winner.losses.reason is NoLossCode.NOT_MEASURED
    assert not tuning.is_complete, "the same command goes on with the losses"
    again = search(TracedScript({}, compile_s=10.0), tuning.model_copy(deep=True))
    assert again.winner.losses.reason is None and again.is_complete
    ratio = tuning.winner.ratio_base
    assert ratio.low < ratio.times_as_fast / 1.2 and ratio.high > ratio.times_as_fast * 1.2


def test_a_winner_that_took_no_turns_with_the_script_as_it_is_gets_its_ratio_from_processes():
    class Short(SimulatedScript):
        def ask(self, request, left_s):
            if request["kind"] == "rounds" and len(request["variants"]) > 2:
                raise VariantFailedError("it ended")
            return super().ask(request, left_s)

    tuning = search(Short({"bf16": 0.5, "fused_adamw": 0.1}), asked=("bf16", "fused_adamw"))
    assert tuning.winner.ratio_base.times_as_fast == pytest.approx(1 / 0.45, rel=0.01)


@pytest.mark.parametrize("room", [6, 1])
def test_what_is_slower_in_processes_of_its_own_is_taken_back(room):
    class Slower(TracedScript):
        def note_run(self, changes, num_turns):
            times = tuple((120 if changes else 100) * MS for _ in range(num_turns))
            return super().note_run(changes, num_turns).model_copy(update={"times_ns": times})

    tuning = search(Slower({}, compile_s=10.0, room=room), asked=("cuda_graphs",))
    assert not tuning.ladder and outcomes(tuning, "cuda_graphs") == [Outcome.NOT_FASTER]
    assert "not in processes of its own" in tuning.tried[-1].message


def test_a_result_of_processes_that_are_no_faster_is_taken_back():
    """Their interval holds 1, and their centre is below: it was printed as 0.97 times as fast, with a patch."""

    class Even(TracedScript):
        def note_run(self, changes, num_turns):
            times = tuple((103 if changes else 100) * MS * self.draw.lognormvariate(0, 0.2) for _ in range(num_turns))
            return super().note_run(changes, num_turns).model_copy(update={"times_ns": times})

    tuning = search(Even({}, compile_s=10.0), asked=("cuda_graphs",))
    assert not tuning.ladder and outcomes(tuning, "cuda_graphs") == [Outcome.NOT_FASTER]
    assert tuning.tried[-1].ratio is None, "the one by turns is not what came of it"


def test_what_took_the_place_of_another_change_leaves_it_on_the_ladder_when_a_later_step_is_taken_back():
    class Failing(SimulatedScript):
        def take_turns(self, variants, plan, left_s, note):
            if "fused_attention" in variants[1]:
                raise VariantFailedError("it ended", is_oom=True)
            return super().take_turns(variants, plan, left_s, note)

        def run(self, changes, left_s, *more):
            if "fused_attention" in changes:
                raise VariantFailedError("it ended", is_oom=True)
            return super().run(changes, left_s, *more)

    cut_off = search(SimulatedScript({"compile": 0.5}), asked=("compile",))
    cut_off.asked = ("compile", "cuda_graphs", "fused_attention")
    tuning = search(
        Failing({"compile": 0.5, "cuda_graphs": 0.7, "fused_attention": 0.2}, parts={"matmul": 0.2}), cut_off
    )
    assert list_ladder(tuning) == ["compile", "cuda_graphs"], outcomes(tuning, "fused_attention")
    assert [outcomes(tuning, name)[-1] for name in tuning.asked] == [
        Outcome.KEPT,
        Outcome.KEPT,
        Outcome.OUT_OF_MEMORY,
    ]


def test_the_step_before_a_winner_that_was_taken_back_is_confirmed():
    class Slower(SimulatedScript):
        def note_run(self, changes, num_turns):
            times = tuple((120 if "fused_adamw" in changes else 80 if changes else 100) * MS for _ in range(num_turns))
            return super().note_run(changes, num_turns).model_copy(update={"times_ns": times})

    tuning = search(Slower({"bf16": 0.5, "fused_adamw": 0.1}), asked=("bf16", "fused_adamw"))
    assert list_ladder(tuning) == ["bf16"] and outcomes(tuning, "fused_adamw") == [Outcome.NOT_FASTER]
    assert tuning.confirmation.winner_ns == (80 * MS,) * 3


@pytest.mark.parametrize(("broken", "kept"), [(("bf16",), []), (("fused_adamw",), ["bf16"])])
def test_what_makes_losses_infinite_is_taken_back(broken, kept):
    class Infinite(SimulatedScript):
        def note_run(self, changes, num_turns):
            losses = [3.0, "nan" if {*broken} & {*changes} else 2.0]
            return super().note_run(changes, num_turns).model_copy(update={"losses": losses})

    tuning = search(Infinite({"bf16": 0.5, "fused_adamw": 0.1}), asked=("bf16", "fused_adamw"))
    assert list_ladder(tuning) == kept and outcomes(tuning, broken[0]) == [Outcome.FAILED]
    assert "losses are not finite from step 2 on" in next(t.message for t in tuning.tried if t.change == broken[0])


@pytest.mark.parametrize(("first", "kept"), [(3.1, ["bf16", "fused_adamw"]), (3.2, ["bf16"])])
def test_what_makes_the_first_loss_another_is_taken_back(first, kept):
    """It was printed, with a patch to write: 157% in one script."""

    class Other(SimulatedScript):
        def note_run(self, changes, num_turns):
            losses = [first if "fused_adamw" in changes else 3.0, 2.0]
            return super().note_run(changes, num_turns).model_copy(update={"losses": losses})

    tuning = search(Other({"bf16": 0.5, "fused_adamw": 0.1}), asked=("bf16", "fused_adamw"))
    assert list_ladder(tuning) == kept
    assert outcomes(tuning, "fused_adamw") == [Outcome.KEPT if len(kept) == 2 else Outcome.BOUND]


@pytest.mark.parametrize(("is_oom", "outcome"), [(False, Outcome.FAILED), (True, Outcome.OUT_OF_MEMORY)])
def test_what_fails_in_a_process_of_its_own_is_taken_back(is_oom, outcome):
    """Also if processes cannot take turns; one that fails without changes says nothing of these."""

    class Failing(SimulatedScript):
        culprit = "fused_adamw"

        def run(self, changes, left_s, *more):
            if self.culprit in (*changes, "" if changes else "none"):
                raise VariantFailedError("it ended", is_oom=is_oom)
            return super().run(changes, left_s, *more)

    effects, asked = {"bf16": 0.5, "fused_adamw": 0.1}, ("bf16", "fused_adamw")
    tuning = search(Failing(effects, room=1), asked=asked)
    assert list_ladder(tuning) == ["bf16"] and outcomes(tuning, "fused_adamw") == [outcome]
    assert len(tuning.confirmation.winner_ns) == 2 and tuning.winner.losses.reason is None
    Failing.culprit = "none"
    tuning = search(Failing(effects, room=1), asked=asked)
    assert len(tuning.ladder) == 2 and tuning.winner.losses.reason is NoLossCode.FAILED


def test_losses_that_are_infinite_without_changes_end_nothing():
    class Infinite(SimulatedScript):
        def note_run(self, changes, num_turns):
            return super().note_run(changes, num_turns).model_copy(update={"losses": [3.0, "nan"]})

    tuning = search(Infinite({"bf16": 0.5}), asked=("bf16",))
    assert list_ladder(tuning) == ["bf16"] and tuning.winner.losses.reason is NoLossCode.NOT_FINITE


def test_losses_of_the_winner_are_compared_with_the_spread_of_equal_runs():
    tuning = search(SimulatedScript(EFFECTS, losses=0.02))
    losses = tuning.winner.losses
    assert (losses.largest, losses.step, losses.first, losses.repeated) == (pytest.approx(0.01), 2, 0.0, 0.0)
    confirmed = tuning.confirmation
    assert len(confirmed.base_ns) == len(confirmed.winner_ns) == 3
    assert (confirmed.base_peak_bytes, tuning.winner.peak_bytes) == (10, 7)


@dataclass
class DifferingScript(SimulatedScript):
    """The second loss differs by a percent for each change. alone: variants that had a process one after another."""

    alone: list = field(default_factory=list)

    def run(self, changes, left_s, *more):
        self.alone.append(changes)
        return super().run(changes, left_s, *more)

    def note_run(self, changes, num_turns):
        losses = [3.0, 2.0 * (1 + 0.01 * len(changes))]
        return super().note_run(changes, num_turns).model_copy(update={"losses": losses})


def test_each_step_of_the_ladder_has_its_losses_compared_in_a_process_of_its_own():
    """In one each, after the winner is known; the budget counts them."""
    script = DifferingScript(EFFECTS)
    tuning = search(script)
    assert [step.losses.largest for step in tuning.ladder] == pytest.approx([0.01, 0.02, 0.03])
    assert [step.peak_bytes for step in tuning.ladder] == [9, 8, 7]
    assert script.alone == [("bf16",), ("bf16", "fused_adamw")] and tuning.is_complete
    assert tuning.used_s == pytest.approx(script.now, abs=0.2)


def test_steps_for_whose_losses_no_time_is_left_say_so():
    class Slow(DifferingScript):
        def run(self, changes, left_s, *more):
            run = super().run(changes, left_s, *more)
            self.pass_time(10_000.0, left_s - self.starts_s)
            return run

    script = Slow(EFFECTS)
    tuning = search(script)
    reasons = [step.losses.reason for step in tuning.ladder]
    assert reasons == [NoLossCode.NOT_MEASURED, NoLossCode.NOT_MEASURED, None] and script.now == pytest.approx(600)
    assert script.alone == [("bf16",)] and not tuning.is_complete


def test_processes_that_ran_for_another_reason_have_losses_to_compare():
    class Loading(LoadingScript, DifferingScript):
        pass

    script = Loading({"bf16": 0.5, "loader_workers": 0.4})
    tuning = search(script, asked=("bf16", "loader_workers"))
    assert list_ladder(tuning) == ["bf16", "loader_workers"] and not script.alone
    assert [step.losses.largest for step in tuning.ladder] == pytest.approx([0.01, 0.02])


def test_a_step_that_fails_alone_leaves_the_others_their_losses():
    class Failing(DifferingScript):
        def run(self, changes, left_s, *more):
            if changes == ("bf16",):
                raise VariantFailedError("it ended")
            return super().run(changes, left_s, *more)

    tuning = search(Failing(EFFECTS))
    assert [step.losses.reason for step in tuning.ladder] == [NoLossCode.FAILED, None, None]


def test_no_process_is_started_for_losses_that_cannot_be_compared():
    class Random(DifferingScript):
        def note_run(self, changes, num_turns):
            return super().note_run(changes, num_turns).model_copy(update={"losses": [self.draw.random()]})

    script = Random(EFFECTS)
    tuning = search(script)
    assert {step.losses.reason for step in tuning.ladder} == {NoLossCode.NO_SEED} and not script.alone


def test_several_ranks_are_measured_by_processes():
    script = SimulatedScript(EFFECTS, world=2)
    tuning = search(script, asked=("bf16", "fused_attention"))
    assert not script.plans, "one after another"
    assert [(step.change, step.method) for step in tuning.ladder] == [("bf16", Method.PROCESSES)]
    assert tuning.ladder[0].ratio_before.low > 1
    assert outcomes(tuning, "fused_attention") == [Outcome.NOT_FASTER]


def test_both_steps_are_of_the_rounds_that_compare_them():
    class Slow(SimulatedScript):
        def run(self, changes, left_s, *more):
            self.effects["first"] = 0.5 if self.num_run else 0.0
            self.num_run += 1
            return super().run(("first", *changes), left_s)

    script = Slow({"bf16": 0.5}, world=2)
    script.num_run = 0
    tuning = search(script, asked=("bf16",))
    step = tuning.ladder[0]
    assert tuning.base.step_ns / step.step_ns == pytest.approx(step.ratio_base.times_as_fast, rel=0.02)


def test_what_needs_a_process_from_its_start_is_measured_by_processes():
    script = LoadingScript({"loader_workers": 0.4})
    tuning = search(script, asked=("loader_workers",))
    assert [(step.change, step.method) for step in tuning.ladder] == [("loader_workers", Method.PROCESSES)]
    assert len(script.plans) == 2, "of the candidate, and of the winner"


def test_a_candidate_that_hangs_in_a_process_of_its_own_leaves_the_winner_its_time():
    class Hanging(LoadingScript):
        def take_turns(self, variants, plan, left_s, note):
            if "loader_workers" in variants[1]:
                self.pass_time(10_000.0, left_s)
            return super().take_turns(variants, plan, left_s, note)

    script = Hanging({"bf16": 0.5, "loader_workers": 0.4})
    tuning = search(script, asked=("bf16", "loader_workers"), minutes=2)
    assert list_ladder(tuning) == ["bf16"] and outcomes(tuning, "loader_workers") == [Outcome.NOT_REACHED]
    assert tuning.confirmation.winner_ns and script.now <= 120 and not tuning.is_complete
