"""The search of `tune` on simulated scripts, whose changes have known effects."""

from dataclasses import dataclass

import pytest

from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.contract.tuning import Accumulation, Method, NoPartsCode, Outcome
from profiler_job.jobs.executor.tune_bounds import LEAST_SAVING
from profiler_job.jobs.executor.tune_search import FIRST_ROUNDS, MARGIN, Search
from profiler_job.jobs.executor.tuned_script import VariantFailedError
from tests.jobs.simulated_scripts import EFFECTS, MS, CpuLimitedScript, SimulatedScript, list_ladder, outcomes, search


def test_what_could_save_most_is_measured_first_and_what_is_faster_is_kept():
    script = SimulatedScript(EFFECTS)
    tuning = search(script)
    assert list_ladder(tuning) == ["bf16", "fused_adamw", "compile"], "what compiles takes longest, so it comes last"
    assert script.asked[0] == [(), ("bf16",)]
    assert outcomes(tuning, "fused_attention")[0] is Outcome.NOT_FASTER
    winner = tuning.winner
    assert winner.changes == ("bf16", "fused_adamw", "compile") and winner.method is Method.TURNS
    assert winner.ratio_base.low <= 1 / (0.5 * 0.9 * 0.8) <= winner.ratio_base.high
    assert all(step.ratio_before.low > 1 for step in tuning.ladder)
    assert tuning.is_complete and {tried.change for tried in tuning.tried} == {
        name for name, record in CHANGES.items() if record.is_triable
    }


MATRIX = {"value": 0, "shape": [64, 64], "stride": [64, 1], "dtype": "float32"}
MATMUL = {"op": "aten.mm.default", "args": [MATRIX, MATRIX | {"value": 1}], "kwargs": {}, "outputs": []}
UPDATE = {"op": "aten.add_.Tensor", "args": [MATRIX], "kwargs": {}, "outputs": [], "phase": "optimizer"}


@dataclass
class ScriptOfParts(SimulatedScript):
    """Matmuls take 60 ms, the optimizer 30, or 3 if it is fused."""

    has_parts: bool = True

    def ask(self, request, left_s):
        if request["kind"] == "calls":
            calls = [MATMUL | {"phase": "", "is_view": False}, UPDATE | {"is_view": False}]
            return {"calls": calls, "optimizer": {"kind": "AdamW", "parameters": [MATRIX]}}
        if request["kind"] == "parts":
            return [self.time_part(part) for part in request["parts"]]
        return super().ask(request, left_s)

    def time_part(self, part):
        if part["op"] == "aten._to_copy.default":
            return (0.0, 0.0)
        is_bf16 = "bfloat16" in str(part)
        times = {"aten.mm.default": 6.0 if is_bf16 else 30.0 if part.get("tf32") else 60.0, "aten.add_.Tensor": 30.0}
        return (times.get(part["op"], 3.0) * MS, 0.0)


def test_what_is_expected_comes_from_parts_and_orders_the_search():
    script = ScriptOfParts({"bf16": 0.54, "tf32": 0.3, "fused_adamw": 0.27, "padding": 0.5})
    tuning = search(script, asked=("tf32", "bf16", "padding", "fused_adamw"))
    expected = {tried.change: tried.expected for tried in tuning.tried if tried.outcome is Outcome.KEPT}
    assert expected["bf16"].times_as_fast == pytest.approx(100 / 46, rel=0.01)
    assert expected["fused_adamw"].times_as_fast == pytest.approx(46 / 19, rel=0.01), "on top of BF16"
    for name in ("bf16", "fused_adamw"):
        ratio = next(tried.ratio for tried in tuning.tried if tried.change == name)
        assert expected[name].low < expected[name].times_as_fast < expected[name].high
        assert ratio.num_pairs
    assert script.asked[0] == [(), ("bf16",)]
    assert outcomes(tuning, "padding") == [Outcome.SKIPPED_BELOW_1_PERCENT], "no dimension is odd"


def test_what_saves_time_of_the_cpu_is_expected_to_where_the_cpu_limits():
    class Launching(ScriptOfParts):
        def ask(self, request, left_s):
            answer = super().ask(request, left_s)
            issue = {"issue": {"": 60 * MS, "optimizer": 40 * MS}}
            return answer | issue if request["kind"] == "profile" else answer

        def time_part(self, part):
            return (30 * MS, 5 * MS) if part["op"] == "optimizer" else (super().time_part(part)[0], MS)

    script = Launching({"fused_adamw": 0.3}, parts={"matmul": 0.2, "other": 0.1})
    tuning = search(script, asked=("fused_adamw",))
    (tried,) = tuning.tried
    assert tried.outcome is Outcome.KEPT and not tried.expected.is_of_kernels
    assert tried.expected.times_as_fast == pytest.approx(100 / 65, rel=0.02)


def test_the_script_is_not_started_again_for_what_is_expected():
    kinds = []

    class Counting(ScriptOfParts):
        def ask(self, request, left_s):
            kinds.append(request["kind"])
            if request["kind"] == "parts" and "tf32" in str(request):
                raise VariantFailedError("a part that ends the script")
            return super().ask(request, left_s)

        def take_turns(self, variants, plan, left_s, note):
            kinds.append("turns")
            return super().take_turns(variants, plan, left_s, note)

    script = Counting({"bf16": 0.54})
    tuning = search(script, minutes=1)
    assert list_ladder(tuning) == ["bf16"] and kinds[-1] == "turns" != kinds[-2]
    assert outcomes(tuning, "tf32")


def test_what_attention_written_by_hand_could_save_is_told():
    class ByHand(ScriptOfParts):
        def ask(self, request, left_s):
            answer = super().ask(request, left_s)
            if request["kind"] == "calls":
                part = {"shape": [8, 4, 4], "stride": [16, 4, 1], "dtype": "float32"}
                scores = {"shape": [8, 4, 4096], "stride": [16384, 4096, 1], "dtype": "float32", "value": 9}
                fixed = {"kwargs": {}, "phase": "", "is_view": False}
                calls = [
                    {"op": "aten.bmm.default", "args": [part | {"value": 3}, part | {"value": 4}], "outputs": [scores]},
                    {"op": "aten._softmax.default", "args": [scores, -1, False], "outputs": [scores | {"value": 10}]},
                    {
                        "op": "aten.bmm.default",
                        "args": [scores | {"value": 10}, part | {"value": 5}],
                        "outputs": [part],
                    },
                ]
                answer["calls"] += [call | fixed for call in calls]
            return answer

        def time_part(self, part):
            return (30 * MS, 0.0) if part["op"] in ("aten.bmm.default", "aten._softmax.default") else (3 * MS, 0.0)

    script = ByHand({}, obstacles={"fused_attention": "other attention needs other code"})
    (tried,) = search(script, asked=("fused_attention",)).tried
    assert tried.outcome is Outcome.NOT_POSSIBLE and tried.could_save > 0.5
    assert tried.expected.low < tried.expected.times_as_fast < tried.expected.high


@dataclass
class LanguageModel(ScriptOfParts):
    """A matmul makes the logits of four samples, and the loss is written out: 10 ms for each of its calls, of 2 ms for
    what a fused one reads and writes. Its input has `rows`."""

    rows: int = 4
    peak_bytes: int = 10

    def ask(self, request, left_s):
        answer = super().ask(request, left_s)
        if request["kind"] == "describe":
            memory = {"gpu_memory_bytes": 100, "peak_allocated_bytes": self.peak_bytes}
            return answer | memory | {"inputs": [{"name": "x", "shape": [self.rows, 8], "dtype": "int64"}]}
        if request["kind"] == "calls":
            logits = {"value": 7, "shape": [32, 100], "stride": [100, 1], "dtype": "float32"}
            targets = {"value": 5, "shape": [4, 8], "stride": [8, 1], "dtype": "int64"}
            fixed = {"kwargs": {}, "phase": "", "is_view": False}
            calls = [
                {"op": "aten.embedding.default", "args": [MATRIX, targets], "outputs": [logits | {"value": 6}]},
                {"op": "aten.mm.default", "args": [logits | {"value": 6}, MATRIX], "outputs": [logits]},
                {"op": "aten._log_softmax.default", "args": [logits, -1, False], "outputs": [logits | {"value": 8}]},
                {"op": "aten.nll_loss_forward.default", "args": [logits | {"value": 8}, targets], "outputs": []},
            ]
            return answer | {"calls": [call | fixed for call in calls] + answer["calls"][1:]}
        return answer

    def time_part(self, part):
        is_larger = any(size in (64, 8) for size in (part["args"][0]["shape"] if "args" in part else []))
        times = {"aten.mm.default": 70.0 if is_larger else 60.0, "aten.amax.default": 2.0}
        if part["op"] in ("aten._log_softmax.default", "aten.nll_loss_forward.default"):
            return (10 * MS, 0.0)
        return (times.get(part["op"], 5.0) * MS, 0.0)


def test_what_needs_other_code_is_expected_from_parts_of_the_same_step():
    """The loss takes 20 ms of 100, and 4 if it is fused. A matmul of twice the samples takes 70 ms, not 120."""
    script = LanguageModel({})
    tuning = search(script)
    expected = {tried.change: tried for tried in tuning.tried if tried.change in ("fused_loss", "larger_batch")}
    assert {tried.outcome for tried in expected.values()} == {Outcome.NOT_POSSIBLE}
    for name, gain in {"fused_loss": 1.19, "larger_batch": 1.7}.items():
        ratio = expected[name].expected
        assert ratio.low < ratio.times_as_fast < ratio.high and ratio.times_as_fast == pytest.approx(gain, rel=0.1), (
            name
        )
    assert expected["larger_batch"].message == "for as many samples" and tuning.is_complete
    assert not [tried for tried in search(LanguageModel({}), asked=("bf16",)).tried if tried.change != "bf16"]


def test_fewer_passes_are_expected_from_parts_though_they_are_measured_after_these():
    numbers = Accumulation(rows=4, num_passes=2, factor=2)
    tuning = search(LanguageModel({"fewer_accumulations": 0.4}, accumulation=numbers), asked=("fewer_accumulations",))
    (tried,) = tuning.tried
    assert tried.outcome is Outcome.KEPT and tried.expected.times_as_fast == pytest.approx(1.7, rel=0.1)
    assert tried.could_save == pytest.approx(1 - 1 / tried.expected.high)


def test_a_larger_batch_that_may_not_fit_says_so_and_one_of_unknown_rows_says_nothing():
    full = search(LanguageModel({}, peak_bytes=60))
    (tried,) = [tried for tried in full.tried if tried.change == "larger_batch"]
    assert "if twice the memory fits" in tried.message
    unknown = search(ScriptOfParts({}))
    assert not outcomes(unknown, "larger_batch")
    assert outcomes(unknown, "fused_loss") == [Outcome.SKIPPED_BELOW_1_PERCENT], "it has no such loss"


def test_what_another_change_does_better_says_which():
    tuning = search(SimulatedScript({"cuda_graphs": 0.5, "bf16": 0.3}, parts={"matmul": 0.3, "other": 0.1}))
    why = {tried.change: tried.message for tried in tuning.tried if tried.outcome is Outcome.SKIPPED_BELOW_1_PERCENT}
    assert why["tf32"] == "covered by BF16 autocast" and why["compile"] == "covered by CUDA graphs"
    assert why["expandable_segments"] == ""


def test_what_could_not_save_1_percent_is_skipped():
    tuning = search(SimulatedScript(EFFECTS))
    skipped = [tried for tried in tuning.tried if tried.outcome is Outcome.SKIPPED_BELOW_1_PERCENT]
    assert "cudnn_benchmark" in {tried.change for tried in skipped}
    assert all(tried.could_save < LEAST_SAVING and tried.ratio is None for tried in skipped)


def test_cuda_graphs_are_the_first_that_compile_where_the_gpu_waits_for_the_cpu():
    script = SimulatedScript({"cuda_graphs": 0.5, "bf16": 0.0}, parts={"matmul": 0.2, "other": 0.1})
    tuning = search(script)
    assert list_ladder(tuning) == ["cuda_graphs"]
    compiling = [asked[1] for asked in script.asked if {"compile", "compile_blocks", "cuda_graphs"} & {*asked[1]}]
    assert compiling[0] == ("cuda_graphs",)
    assert Outcome.KEPT not in outcomes(tuning, "compile")


def test_what_the_cpu_hides_is_measured_with_cuda_graphs_in_one_compilation():
    script = CpuLimitedScript({"bf16": 0.5, "padding": 0.2, "tf32": 0.01})
    tuning = search(script)
    compiled = [asked[1] for asked in script.asked if "cuda_graphs" in asked[1] and len(asked) == 2]
    assert compiled[0] == ("bf16", "padding", "cuda_graphs")
    assert list_ladder(tuning) == ["cuda_graphs"] and tuning.winner.changes == compiled[0]
    assert tuning.winner.ratio_base.times_as_fast == pytest.approx(100 / 24, rel=0.02)
    for name in ("bf16", "padding"):
        assert outcomes(tuning, name) == [Outcome.KEPT]
    assert outcomes(tuning, "tf32")[-1] is not Outcome.KEPT, "1% of the kernels is too little to go with them"


def test_what_the_cpu_hides_is_dropped_if_it_breaks_the_compilation():
    class Broken(CpuLimitedScript):
        def fail(self, changes):
            if {"padding", "cuda_graphs"} <= {*changes}:
                raise VariantFailedError("broken")

    tuning = search(Broken({"bf16": 0.5, "padding": 0.2}))
    assert list_ladder(tuning)[0] == "cuda_graphs" and "padding" not in tuning.winner.changes


def test_a_clear_difference_takes_fewer_rounds():
    script = SimulatedScript({"bf16": 0.5}, noise=0.0)
    tuning = search(script, asked=("bf16",))
    tried = next(tried for tried in tuning.tried if tried.change == "bf16")
    assert tried.ratio.num_pairs == FIRST_ROUNDS and tried.outcome is Outcome.KEPT


def test_what_is_no_faster_when_all_take_turns_is_taken_back():
    """It was by chance that it was faster at first; whether it is measurably slower is not asked."""

    class Chance(SimulatedScript):
        def ask(self, request, left_s):
            if len(request.get("variants", ())) > 2:
                self.effects = {"bf16": 0.5}
            return super().ask(request, left_s)

    tuning = search(Chance({"bf16": 0.5, "fused_adamw": 0.1}, noise=0.0), asked=("bf16", "fused_adamw"))
    assert list_ladder(tuning) == ["bf16"] and outcomes(tuning, "fused_adamw") == [Outcome.NOT_FASTER]
    assert "not when all steps of the ladder took turns" in tuning.tried[-1].message


def test_a_candidate_is_measured_again_after_a_change_that_remakes_the_script():
    class Remade(SimulatedScript):
        def time_step(self, changes):
            self.effects["bf16"] = 0.3 if "compile" in changes else -0.1
            return super().time_step(changes)

    tuning = search(Remade({"compile": 0.3}))
    assert outcomes(tuning, "bf16") == [Outcome.NOT_FASTER, Outcome.KEPT]
    assert list_ladder(tuning) == ["compile", "bf16"]


def test_out_of_memory_ends_a_variant_and_not_the_run():
    full = VariantFailedError("it ended (exit code 1): CUDA out of memory", is_oom=True)
    tuning = search(SimulatedScript(EFFECTS, failures={"bf16": full}))
    assert outcomes(tuning, "bf16") == [Outcome.OUT_OF_MEMORY]
    assert list_ladder(tuning) == ["fused_adamw", "compile"]
    assert "out of memory" in next(tried.message for tried in tuning.tried if tried.change == "bf16")


def test_a_variant_that_fails_is_not_tried_again():
    tuning = search(SimulatedScript(EFFECTS, failures={"compile": VariantFailedError("broken")}))
    assert outcomes(tuning, "compile") == [Outcome.FAILED]
    assert list_ladder(tuning) == ["bf16", "fused_adamw"]


def test_a_script_that_fails_without_changes_is_an_error():
    class Broken(SimulatedScript):
        def ask(self, request, left_s):
            raise VariantFailedError("ended (exit code 1)")

    with pytest.raises(VariantFailedError):
        search(Broken({}))


def test_what_the_script_has_already_is_not_possible():
    tuning = search(SimulatedScript(EFFECTS, obstacles={"bf16": "the script has it already"}))
    assert outcomes(tuning, "bf16") == [Outcome.NOT_POSSIBLE]


def test_the_search_ends_at_its_budget_and_leaves_time_to_compare_losses():
    script = SimulatedScript(EFFECTS)
    tuning = search(script, minutes=0.7)
    assert script.now <= 0.7 * 60 + 1e-6 and not tuning.is_complete
    assert list_ladder(tuning) == ["bf16", "fused_adamw"]
    assert outcomes(tuning, "compile") == [Outcome.NOT_REACHED]
    assert tuning.winner.losses.reason is None and tuning.confirmation.winner_ns


def test_a_cold_compilation_is_not_reserved_for_processes_that_find_it_in_a_cache():
    """It takes 50 s of 200; the one that the change has to be given, 40."""
    script = SimulatedScript({"cuda_graphs": 0.5}, {"matmul": 0.2}, is_compiled=True, cold_s=45.0, compile_s=40.0)
    tuning = search(script, minutes=200 / 60, asked=("cuda_graphs", "expandable_segments"))
    assert list_ladder(tuning) == ["cuda_graphs"] and tuning.base.is_compiled
    reserved: list[float] = []
    known = Search(script, tuning, lambda now: None, print, lambda: script.now)
    known.facts = {"compiled": True}
    for script.num_started, script.starts_s in ((1, 50.0), (2, 5.0)):
        reserved.append(known.reserve_s)
    assert reserved[1] == pytest.approx(MARGIN * (2.2 * 5 + 0.6 * known.compiled_s)) and reserved[0] < 0.45 * 200


def test_a_script_that_compiles_itself_is_compiled_again_by_what_changes_it():
    compiled = SimulatedScript({"bf16": 0.5}, is_compiled=True)
    tuning = search(compiled, asked=("bf16", "cudnn_attention", "compile"))
    assert tuning.no_parts is NoPartsCode.COMPILED and list_ladder(tuning) == ["bf16"]
    assert outcomes(tuning, "compile") == outcomes(tuning, "cudnn_attention") == [Outcome.SKIPPED_BELOW_1_PERCENT]
    late = search(SimulatedScript({"bf16": 0.5}, is_compiled=True), minutes=0.6, asked=("bf16",))
    assert outcomes(late, "bf16") == [Outcome.NOT_REACHED], "it compiles for longer than what is left"


def test_a_compilation_that_takes_too_long_is_not_reached():
    script = SimulatedScript(EFFECTS, compile_s=500.0)
    tuning = search(script, minutes=2)
    assert script.now <= 120 + 1e-6 and outcomes(tuning, "compile") == [Outcome.NOT_REACHED]
    assert list_ladder(tuning) == ["bf16", "fused_adamw"] and tuning.confirmation.winner_ns


def test_an_interrupted_search_goes_on_where_it_was():
    script = SimulatedScript(EFFECTS, interrupt_at=6)
    with pytest.raises(KeyboardInterrupt):
        search(script)
    cut_off = script.last
    assert list_ladder(cut_off) == ["bf16"] and not cut_off.is_complete
    again = SimulatedScript(EFFECTS)
    tuning = search(again, cut_off)
    assert list_ladder(tuning) == ["bf16", "fused_adamw", "compile"] and tuning.is_complete
    assert [(), ("bf16",)] not in again.asked, "what was measured is not measured again"
    assert Outcome.NOT_REACHED not in {tried.outcome for tried in tuning.tried}
    assert tuning.used_s == pytest.approx(script.now + again.now, abs=0.2)


def test_given_changes_alone_are_tried():
    tuning = search(SimulatedScript(EFFECTS), asked=("bf16", "compile"))
    assert list_ladder(tuning) == ["bf16", "compile"]
    assert {tried.change for tried in tuning.tried} == {"bf16", "compile"}


def test_a_bound_is_measured_and_never_kept():
    class Waiting(SimulatedScript):
        def ask(self, request, left_s):
            answer = super().ask(request, left_s)
            return answer | {"num_syncs": 1} if request["kind"] == "profile" else answer

    tuning = search(Waiting({"synchronisations": 0.3}, parts={"matmul": 0.6}), asked=("synchronisations",))
    assert outcomes(tuning, "synchronisations") == [Outcome.BOUND] and not tuning.ladder


@pytest.mark.parametrize(("minutes", "bound"), [(1, Outcome.NOT_REACHED), (2, Outcome.BOUND)])
def test_what_is_only_a_bound_leaves_time_for_what_may_be_kept(minutes, bound):
    class Waiting(SimulatedScript):
        def ask(self, request, left_s):
            answer = super().ask(request, left_s)
            if request["kind"] == "rounds":
                self.pass_time(20.0, left_s)
            return answer | {"num_syncs": 1} if request["kind"] == "profile" else answer

    numbers = Accumulation(rows=4, num_passes=2, factor=2)
    effects = {"synchronisations": 0.3, "fewer_accumulations": 0.4}
    script = Waiting(effects, parts={"matmul": 0.6}, accumulation=numbers)
    tuning = search(script, minutes=minutes, asked=tuple(effects))
    assert list_ladder(tuning) == ["fewer_accumulations"] and outcomes(tuning, "synchronisations") == [bound]
