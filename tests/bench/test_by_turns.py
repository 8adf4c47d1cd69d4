"""Bare and followed steps by turns: half of them are followed, in a script with an optimizer and in one without."""

import json
import sys

import pytest

from tests.bench import by_turns
from tests.without_compiler import WITHOUT_COMPILER

pytestmark = pytest.mark.long

TRAINS = f"""{WITHOUT_COMPILER}
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(200):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {{step}}")
"""
ASKS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4))
for step in range(200):
    model(torch.ones(2, 4))
    print(f"step {step}")
"""


@pytest.mark.parametrize("script", [TRAINS, ASKS], ids=["training", "inference"])
def test_half_of_the_steps_are_followed(script, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script)
    facts = by_turns.run([sys.executable, str(path)], "step ", 6, 3)
    assert len(facts["steps"]) == 36 and sum(step["is_followed"] for step in facts["steps"]) == 18
    assert (facts["stage"], facts["num_followed"]) == ("TIMED", 18)
    assert by_turns.judge(facts, 3)["pairs"] == 6


def test_a_step_may_be_updates_of_optimizers(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(TRAINS.replace("    print", "    optimizer.step()\n    print"))
    for pairs in (5, 6):  # the last turn of one is followed
        facts = by_turns.run([sys.executable, str(path)], "step ", pairs, 3, updates=2)
        assert sum(step["is_followed"] for step in facts["steps"]) == 3 * pairs
        assert (facts["stage"], facts["num_followed"]) == ("TIMED", 6 * pairs), "each update is a step of the follower"


def test_a_control_leaves_all_steps_alone(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(TRAINS)
    facts = by_turns.run([sys.executable, str(path)], "step ", 6, 3, is_control=True)
    assert sum(step["is_followed"] for step in facts["steps"]) == 18 and facts["num_followed"] == 0
    assert by_turns.judge(facts, 3, is_control=True)["pairs"] == 6
    with pytest.raises(SystemExit, match="0 of 36 steps were followed"):
        by_turns.judge(facts, 3)


def test_a_script_that_ends_too_soon_is_said_to(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(TRAINS.replace("200", "20"))
    with pytest.raises(SystemExit, match="ended with 0 before 6 pairs of 3 steps"):
        by_turns.run([sys.executable, str(path)], "step ", 6, 3)


def test_the_ratio_is_of_neighbouring_turns_without_their_first_step():
    turns = [(True, [9e6, 2.2e6, 2.2e6]), (False, [9e6, 2e6, 2e6])] * 10 + [
        (False, [1e6, 4e6, 4e6]),
        (True, [1, 4.4e6, 4.4e6]),
    ] * 10
    steps = [{"is_followed": followed, "ns": ns} for followed, times in turns for ns in times]
    told = by_turns.judge({"stage": "TIMED", "num_followed": 60, "steps": json.loads(json.dumps(steps))}, 3)
    assert told == {"pairs": 20, "bare_ms": 3.0, "ratio": 1.1, "low": 1.1, "high": 1.1}


def test_steps_that_were_not_followed_by_turns_give_no_ratio():
    steps = [{"is_followed": followed, "ns": 1.0} for followed in (True, False) for _ in range(3)]
    with pytest.raises(SystemExit, match="0 of 6 steps were followed"):
        by_turns.judge({"stage": "SKIPPED", "num_followed": 0, "steps": steps}, 3)
