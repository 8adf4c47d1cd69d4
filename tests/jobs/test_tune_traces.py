"""`tune` keeps a trace of a step as the script is, and of one tuned, with phases and modules."""

import gzip
import json

import pytest

from profiler_job.jobs.contract.tuning import Outcome, name_trace
from profiler_job.jobs.executor.tuned_script import VariantFailedError
from tests.jobs.simulated_scripts import SimulatedScript, list_ladder, outcomes, search
from tests.jobs.test_measured_parts import SCRIPT, start_turns
from tests.waiting import HANGS_S

EFFECTS = {"bf16": 0.5, "compile": 0.4}
PARTS = {"matmul": 0.6, "other": 0.3}


def test_the_step_as_it_is_and_the_winner_s_are_traced_last_and_of_what_is_compiled_no_module():
    script = SimulatedScript(EFFECTS, PARTS)
    tuning = search(script)
    assert script.traced == [((), True), (tuning.winner.changes, "compile" not in tuning.winner.changes)]
    assert "bf16" in list_ladder(tuning)
    compiled = SimulatedScript({"bf16": 0.5}, PARTS, is_compiled=True)
    search(compiled, asked=("bf16",))
    assert [by_module for _, by_module in compiled.traced] == [False, False]


def test_a_trace_that_fails_leaves_the_result_as_it_is(monkeypatch):
    def fail(script, changes, left_s, by_module):
        raise VariantFailedError("the script runs torch.profiler itself")

    whole = search(SimulatedScript(EFFECTS, PARTS))
    monkeypatch.setattr(SimulatedScript, "trace", fail)
    tuning = search(SimulatedScript(EFFECTS, PARTS))
    assert tuning.is_complete and list_ladder(tuning) == list_ladder(whole)


def test_no_time_of_the_search_is_spent_on_traces():
    script = SimulatedScript(EFFECTS, PARTS)
    tuning = search(script, minutes=0.5)
    assert outcomes(tuning, "foreach") == [Outcome.NOT_REACHED] and not script.traced


def test_without_kernels_nothing_is_traced():
    script = SimulatedScript(EFFECTS, PARTS, world=2)
    search(script)
    assert not script.traced


def test_traces_have_other_names():
    assert name_trace(()) == "step.trace.json.gz" != name_trace(("bf16", "compile"))


@pytest.mark.long
def test_a_process_writes_a_step_with_its_phases_and_one_with_its_modules(tmp_path):
    with start_turns(tmp_path, SCRIPT, ["bf16", "fused_adamw"]) as turns:
        for variant in ([], ["bf16", "fused_adamw"]):
            file = tmp_path / name_trace(variant)
            turns.ask({"kind": "trace", "variant": variant, "file": str(file), "by_module": True}, HANGS_S)
            events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
            names = {event["name"] for event in events if event.get("cat") == "user_annotation"}
            assert {"loop:step", "forward", "backward", "optimizer"} <= names
            of_modules = {"loop:modules:step", "modules:forward", "Sequential", "modules:backward/Sequential/2"}
            assert of_modules <= names
        file = tmp_path / "phases.trace.json.gz"
        turns.ask({"kind": "trace", "variant": [], "file": str(file), "by_module": False}, HANGS_S)
        assert "modules:" not in gzip.decompress(file.read_bytes()).decode()
        assert turns.ask({"kind": "profile", "variant": []}, HANGS_S)["step_ns"] > 0, "and the script goes on"
