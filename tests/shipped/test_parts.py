"""What was expected from parts of a step, against what was measured later, and what the guide says of it."""

import json
from statistics import median

from tests.bench.expected_changes import CASES
from tests.shipped.recordings import DATA

LEDGER = json.loads((DATA / "benchmarks" / "parts.json").read_text())
TESTED = (DATA.parent / "guide" / "tested.md").read_text()
EVERY = [cell | {"script": script} for script in LEDGER["scripts"] for cell in script["cells"]]
EXPECTED = json.loads((DATA / "benchmarks" / "expected_parts.json").read_text())["scripts"]
"""What was expected of the last cells, committed before these were measured."""
COMMITS = dict.fromkeys(script["commit"] for script in LEDGER["scripts"])
"""Code that expected. What the cells of each showed was changed, but of the last: these test the code as it is."""
FIRST, SECOND, THIRD, FOURTH, TODAY = (
    [cell for cell in EVERY if cell["script"]["commit"] == commit] for commit in COMMITS
)
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
    assert [*map(len, (FIRST, SECOND, THIRD, FOURTH, TODAY))] == [18, 39, 20, 21, 15]
    for cell in EVERY:
        assert cell["predicted"]["at"] <= cell["script"]["written_at"] < cell["measured"]["at"]


def test_the_last_cells_are_those_of_the_file_that_was_committed_before():
    expected = {
        (script["name"], *cell["changes"]): cell["predicted"] for script in EXPECTED for cell in script["cells"]
    }
    last = [cell for cell in EVERY if cell not in FIRST + SECOND]
    found = {(cell["script"]["name"], *cell["changes"]): cell["predicted"] for cell in last}
    assert last[: len(THIRD)] == THIRD and found.items() <= expected.items()
    assert not any("measured" in cell for script in EXPECTED for cell in script["cells"])
    names = [script["name"] for script in LEDGER["scripts"]]
    assert len({*names}) == len(names)


def test_the_third_cells_meet_the_targets_where_the_gpu_sets_the_pace():
    """Their kernels were expected as well."""
    errors = [*map(find_step_error, THIRD)]
    limited = [*filter(is_gpu_limited, THIRD)]
    assert median(map(find_step_error, limited)) <= 0.015 and max(map(find_step_error, limited)) <= 0.031
    assert sum(map(is_inside, limited)) == len(limited) - 1 == 7
    assert median(map(find_kernel_error, THIRD)) <= 0.015 and max(map(find_kernel_error, THIRD)) <= 0.1
    assert (format_share(median(errors)), format_share(find_quantile(errors, 0.9))) == ("3.6%", "30.3%")
    assert sum(map(is_inside, THIRD)) == 15


def test_the_others_are_wrong_where_the_time_of_the_cpu_was():
    """It was taken from two steps at one moment, which were slow in the first process; casts cost less than expected.
    In RoBERTa with another optimizer, what was measured is as uncertain: its interval holds what was expected."""
    missed = {(cell["script"]["name"], *cell["changes"]): cell for cell in THIRD if not is_inside(cell)}
    roberta = missed.pop(("roberta_eager_8x256", "fused_adamw"))
    expected = roberta["script"]["step_ns"] / roberta["predicted"]["step_ns"]
    assert roberta["measured"]["low"] < expected < roberta["measured"]["high"]
    assert [*missed] == [
        ("gpt2_6x384", "tf32"),
        ("gpt2_6x384", "bf16"),
        ("gpt2_6x384", "bf16", "padding", "fused_adamw"),
        ("medium_2x640", "tf32"),
    ]
    for cell in missed.values():
        assert cell["predicted"]["cpu_ns"] > cell["predicted"]["gpu_ns"] and find_kernel_error(cell) < 0.06
    by_name = {cell["script"]["name"]: cell["script"] for cell in THIRD}
    layers = {"gpt2_6x384": 12, "medium_2x640": 24}
    each = [sum(by_name[name]["issue_ns"].values()) / number for name, number in layers.items()]
    assert each[0] > 1.9 * each[1], "one model, the same calls in each layer"


def test_launching_one_model_took_another_time_in_each_process():
    issue = [script["issue_ns"] for script in LEDGER["scripts"] if script["name"] in ("gpt2_16x256", "gpt2_4x128")]
    forward, backward = ([times[name] for times in issue] for name in ("", "backward"))
    assert forward[0] > 1.2 * forward[1] and backward[1] > 1.5 * backward[0], "not faster or slower as a whole"


def test_steps_that_the_cpu_limits_took_longer_after_a_trace():
    """Steps were timed before the first trace of the process, and turns were taken after it."""
    slower = {
        cell["script"]["name"]: cell["measured"]["base_ns"] / cell["script"]["step_ns"]
        for cell in FIRST + SECOND
        if sum(cell["script"]["issue_ns"].values()) > 0.85 * cell["script"]["step_ns"]
    }
    assert len(slower) == 6 and all(1.05 < ratio < 1.5 for ratio in slower.values())


def test_steps_whose_launches_the_gpu_held_up_were_expected_to_be_slower():
    """The time of the CPU held waits for the queue of launches and for copies, in FP32."""
    missed = [cell for cell in FOURTH if not is_inside(cell)]
    assert len(missed) == 5
    for cell in missed:
        script = cell["script"]
        assert script["kernels_ns"] >= GPU_LIMITED * script["step_ns"] and find_kernel_error(cell) < 0.03
        assert cell["predicted"]["cpu_ns"] > cell["predicted"]["gpu_ns"]
        assert script["step_ns"] / cell["predicted"]["step_ns"] < cell["measured"]["low"]


def test_each_code_but_the_last_was_changed_after_its_cells():
    assert [*LEDGER["changed_after"]] == [*COMMITS][:-1]


def test_the_next_cells_are_of_scripts_that_led_to_no_change():
    known = {script["name"] for script in LEDGER["scripts"] if script["commit"] in LEDGER["changed_after"]}
    assert known.isdisjoint(case.name for case in CASES) and sum(len(case.cells) for case in CASES) >= 12


def test_the_guide_says_how_well_changes_are_expected():
    errors = [*map(find_step_error, TODAY)]
    said = f"{len(TODAY)} predictions on three new scripts have a median error of "
    said += f"{format_share(median(errors))}, 90% within {format_share(find_quantile(errors, 0.9))}"
    assert len({cell["script"]["name"] for cell in TODAY}) == 3
    assert f"{said}, and {sum(map(is_inside, TODAY))} measured speed-ups in their intervals" in TESTED


def test_the_code_as_it_is_meets_the_targets_on_new_scripts():
    errors = [*map(find_step_error, TODAY)]
    assert median(errors) <= 0.06 and find_quantile(errors, 0.9) <= 0.15
    assert sum(map(is_inside, TODAY)) / len(TODAY) >= 0.85


def is_gpu_limited(cell) -> bool:
    return cell["measured"]["kernels_ns"] >= GPU_LIMITED * cell["measured"]["step_ns"]


def test_cells_of_the_second_code_met_the_targets():
    """On scripts and sizes that were not measured before, with nothing fitted to the GPU."""
    errors = [*map(find_step_error, SECOND)]
    assert {cell["script"]["name"] for cell in SECOND}.isdisjoint(cell["script"]["name"] for cell in FIRST)
    assert median(errors) <= 0.06 and find_quantile(errors, 0.9) <= 0.15
    assert sum(map(is_inside, SECOND)) / len(SECOND) >= 0.85
    assert (format_share(median(errors)), format_share(find_quantile(errors, 0.9))) == ("4.0%", "9.5%")
    assert sum(map(is_inside, SECOND)) == 36
    assert format_share(median(map(find_step_error, filter(is_gpu_limited, SECOND)))) == "1.2%"


def test_kernels_of_new_cells_are_wrong_where_attention_becomes_fused():
    """Attention that is written out in FP32, by the script or by PyTorch: its part was measured in a layout that fused
    kernels do not take, or not at all. Later code describes it as they do."""
    wrong = [cell for cell in SECOND if find_kernel_error(cell) > 0.075]
    assert {"bf16", "fused_attention"}.issuperset(name for cell in wrong for name in cell["changes"][:1])
    kinds = {(cell["script"]["name"], "fused_attention" in cell["changes"]) for cell in wrong}
    assert kinds == {
        ("llama_8x512", False),
        ("medium_eager_4x512", True),
        ("bert_eager_8x256", True),
        ("gpt2_eager_2x256", True),
    }
    others = [find_kernel_error(cell) for cell in SECOND if cell not in wrong]
    assert len(wrong) == 6 and format_share(median(others)) == "1.8%"
