"""What was expected from parts of a step, against what was measured later, and what the guide says of it."""

import json
from statistics import median

from tests.shipped.recordings import DATA

LEDGER = json.loads((DATA / "benchmarks" / "parts.json").read_text())
TESTED = (DATA.parent / "guide" / "tested.md").read_text()
EVERY = [cell | {"script": script} for script in LEDGER["scripts"] for cell in script["cells"]]
EXPECTED = json.loads((DATA / "benchmarks" / "expected_parts.json").read_text())["scripts"]
"""What was expected of the last cells, committed before these were measured."""
COMMITS = dict.fromkeys(script["commit"] for script in LEDGER["scripts"])
"""Code that expected: before and after the time of the CPU was estimated anew, and with attention by cuDNN."""
CELLS, LATER, NEWEST = ([cell for cell in EVERY if cell["script"]["commit"] == commit] for commit in COMMITS)
GPU_LIMITED = 0.85
"""Part of a measured step in which the GPU works, from which on it sets the pace."""


def find_step_error(cell) -> float:
    """Find by how much the expected ratio differs from the measured one."""
    expected = cell["script"]["step_ns"] / cell["predicted"]["step_ns"]
    return abs(expected / cell["measured"]["times_as_fast"] - 1)


def find_kernel_error(cell) -> float:
    return abs(cell["predicted"]["gpu_ns"] / cell["measured"]["kernels_ns"] - 1)


def is_inside(cell) -> bool:
    low, high = (cell["script"]["step_ns"] / cell["predicted"][end] for end in ("high_ns", "low_ns"))
    return low <= cell["measured"]["times_as_fast"] <= high


def format_share(value: float) -> str:
    return f"{100 * value:.1f}%"


def find_quantile(values, share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def test_all_was_expected_before_it_was_measured():
    assert (len(CELLS), len(LATER)) == (18, 39) and len(NEWEST) >= 20
    for cell in EVERY:
        assert cell["predicted"]["at"] <= cell["script"]["written_at"] < cell["measured"]["at"]


def test_the_last_cells_are_those_of_the_file_that_was_committed_before():
    expected = {
        (script["name"], *cell["changes"]): cell["predicted"] for script in EXPECTED for cell in script["cells"]
    }
    assert {(cell["script"]["name"], *cell["changes"]): cell["predicted"] for cell in NEWEST} == expected
    assert not any("measured" in cell for script in EXPECTED for cell in script["cells"])
    names = {cell["script"]["name"] for cell in CELLS + LATER}
    assert names.isdisjoint(script["name"] for script in EXPECTED)


def test_the_last_cells_meet_the_targets_where_the_gpu_sets_the_pace():
    """Their changes were measured in another process than their parts, minutes later: the CPU was faster by up to 40%
    by then, which is what is wrong in the others. Their kernels were expected as well."""
    errors = [*map(find_step_error, NEWEST)]
    limited = [*filter(is_gpu_limited, NEWEST)]
    assert median(map(find_step_error, limited)) <= 0.015 and max(map(find_step_error, limited)) <= 0.031
    assert sum(map(is_inside, limited)) == len(limited) - 1 == 7
    assert median(map(find_kernel_error, NEWEST)) <= 0.015 and max(map(find_kernel_error, NEWEST)) <= 0.1
    assert (format_share(median(errors)), format_share(find_quantile(errors, 0.9))) == ("3.6%", "30.3%")
    assert sum(map(is_inside, NEWEST)) == 15


def test_the_guide_says_how_well_changes_are_expected():
    errors = [*map(find_step_error, LATER)]
    said = f"{len(LATER)} predictions on nine scripts that were not measured before have a median error of "
    said += f"{format_share(median(errors))}, 90% within {format_share(find_quantile(errors, 0.9))}"
    assert len({cell["script"]["name"] for cell in LATER}) == 9
    assert f"{said}, and {sum(map(is_inside, LATER))} measured speed-ups in their intervals" in TESTED


def is_gpu_limited(cell) -> bool:
    return cell["measured"]["kernels_ns"] >= GPU_LIMITED * cell["measured"]["step_ns"]


def test_new_cells_meet_the_targets():
    """On scripts and sizes that were not measured before, with nothing fitted to the GPU."""
    errors = [*map(find_step_error, LATER)]
    assert {cell["script"]["name"] for cell in LATER}.isdisjoint(cell["script"]["name"] for cell in CELLS)
    assert median(errors) <= 0.06 and find_quantile(errors, 0.9) <= 0.15
    assert sum(map(is_inside, LATER)) / len(LATER) >= 0.85
    assert (format_share(median(errors)), format_share(find_quantile(errors, 0.9))) == ("4.0%", "9.5%")
    assert sum(map(is_inside, LATER)) == 36
    assert format_share(median(map(find_step_error, filter(is_gpu_limited, LATER)))) == "1.2%"


def test_kernels_of_new_cells_are_wrong_where_attention_becomes_fused():
    """Attention that is written out in FP32, by the script or by PyTorch: its part was measured in a layout that fused
    kernels do not take, or not at all. Later code describes it as they do."""
    wrong = [cell for cell in LATER if find_kernel_error(cell) > 0.075]
    assert {"bf16", "fused_attention"}.issuperset(name for cell in wrong for name in cell["changes"][:1])
    kinds = {(cell["script"]["name"], "fused_attention" in cell["changes"]) for cell in wrong}
    assert kinds == {
        ("llama_8x512", False),
        ("medium_eager_4x512", True),
        ("bert_eager_8x256", True),
        ("gpt2_eager_2x256", True),
    }
    others = [find_kernel_error(cell) for cell in LATER if cell not in wrong]
    assert len(wrong) == 6 and format_share(median(others)) == "1.8%"
