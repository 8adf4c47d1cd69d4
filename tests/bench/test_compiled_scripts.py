"""The bench of compiled scripts, as far as a CPU can show it: its models train, and losses are compared to the bit."""

import subprocess
import sys

import pytest

from tests.bench.compiled_model import KINDS
from tests.bench.compiled_scripts import PROFILED, SCRIPT, SKIP, compare_losses

TINY = "--layers 2 --width 32 --heads 2 --vocabulary 64 --batch 2 --tokens 8 --steps 3"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_trains_and_writes_the_same_losses_twice(kind, tmp_path):
    texts = []
    for name in ("first", "second"):
        command = [sys.executable, str(SCRIPT), "--kind", kind, "--mode", "none", *TINY.split()]
        subprocess.run([*command, "--losses", str(tmp_path / name)], check=True)
        texts.append((tmp_path / name).read_text())
    losses = [float.fromhex(line) for line in texts[0].split()]
    assert texts[0] == texts[1] and len(losses) == 3 and losses[2] < losses[0]


@pytest.mark.parametrize(
    ("under", "is_same"),
    [(range(20), True), (range(SKIP + PROFILED + 1), True), (range(SKIP), False), ([*range(12), 13, 14], False)],
    ids=["all", "ended early", "too few", "another loss"],
)
def test_losses_are_compared_as_far_as_both_got(under, is_same, tmp_path):
    for name, losses in (("alone", range(20)), ("under", under)):
        (tmp_path / name).write_text("".join(f"{float(loss).hex()}\n" for loss in losses))
    found = compare_losses(tmp_path / "alone", tmp_path / "under")
    assert found == {"num_losses": len(under), "same_losses": is_same}
