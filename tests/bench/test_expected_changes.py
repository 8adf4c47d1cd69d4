"""Changes are expected first and measured then, of a script that nobody tests with."""

import pytest

from tests.bench.expected_changes import Case, add, expect, measure, read, write


@pytest.mark.long
def test_a_change_is_expected_before_it_is_measured():
    options = "--kind gpt2 --layers 1 --width 32 --heads 2 --vocabulary 100 --tokens 16"
    case = Case("tiny", "tiny", options, batch=2, cells=(("fused_adamw",), ("larger_batch",)))
    expected = expect(case, "c0ffee")
    assert [cell["changes"] for cell in expected["cells"]] == [["fused_adamw"], ["larger_batch"]]
    assert all(cell["predicted"]["at"] <= expected["written_at"] for cell in expected["cells"])
    measured = measure(case, expected)
    assert {name: value for name, value in measured.items() if name != "cells"} == {
        name: value for name, value in expected.items() if name != "cells"
    }
    for before, cell in zip(expected["cells"], measured["cells"]):
        assert cell["predicted"] == before["predicted"] and cell["measured"]["at"] > expected["written_at"]
        assert cell["measured"]["low"] <= cell["measured"]["times_as_fast"] <= cell["measured"]["high"]


def test_scripts_are_added_to_a_ledger_once(tmp_path):
    file = tmp_path / "ledger.json"
    write(file, {"about": "steps", "scripts": [{"name": "gpt2"}]})
    add([{"name": "vit"}], file)
    assert read(file) == {"about": "steps", "scripts": [{"name": "gpt2"}, {"name": "vit"}]}
    with pytest.raises(SystemExit, match="has vit already"):
        add([{"name": "vit"}], file)
