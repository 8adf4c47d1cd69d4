"""The advice of the line that the GPU waits for most is the first in the ranked list, once for each cause."""

import pandas as pd
import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.changes import load_change
from profiler_job.analysis.changes.evidence import breaks_graphs
from profiler_job.analysis.changes.waiting_lines import find_lines
from profiler_job.analysis.insight.advice_lines import format_run_advice
from profiler_job.analysis.insight.call_advice import advise_calls, list_noted_calls
from profiler_job.analysis.insight.first_advice import format_first_advice
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.pages.first_screen import choose_cards
from profiler_job.analysis.reference.python_libraries import (
    CHANGES_BY_DO,
    DO,
    DO_COPY,
    DO_SYNC,
    OWN,
    OWN_LAUNCHES,
    PARTS,
)
from profiler_job.jobs.contract.changes import CHANGES, CUDA_GRAPHS, FUSED_ADAMW, LABELS, LOADER_WORKERS, SCRIPT_LINE
from tests.capture.nsys_files import Export
from tests.insight.test_sync_waits import make_item_export
from tests.insight.test_waits import ADAM, ENGINE, MS, STEP, TOKENIZE, take_samples

NEXT_BATCH = ("_next_data", "/env/lib/python3.12/site-packages/torch/utils/data/dataloader.py", 1400)
FETCH = ("fetch", "/env/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py", 50)


def advise(export: Export, folder) -> tuple[pd.DataFrame, list[str]]:
    """What is advised of a capture, and the lines of its first screen."""
    summary = summarise(read(export.sqlite(folder / "x.sqlite")))
    table = summary.sections["advice"]
    return table[table["reason"] == ""], format_first_advice(summary)


def make_late_export(*frames) -> Export:
    """Kernels of 1 ms. Before each, the thread that launches is in `frames` for 5 ms."""
    export = Export()
    for at in range(0, 60, 6):
        export.launch(at * MS, start=at * MS + 1000, end=(at + 1) * MS)
    take_samples(export, 0, 60, *frames, STEP)
    return export


@pytest.mark.parametrize(
    ("frames", "change", "do", "where"),
    [
        ((TOKENIZE,), SCRIPT_LINE, DO[OWN], "train.py:8 tokenize"),
        ((("__getitem__", "data.py", 4), FETCH), LOADER_WORKERS, "num_workers=4", "data.py:4 __getitem__"),
        ((ENGINE,), CUDA_GRAPHS, "make_graphed_callables", "train.py:15 train_step"),
        (ADAM, FUSED_ADAMW, "fused=True", "train.py:15 train_step"),
    ],
    ids=["own code", "data set", "launches", "optimizer"],
)
def test_the_line_is_named_first_with_what_to_do_and_once(frames, change, do, where, tmp_path):
    table, lines = advise(make_late_export(*frames), tmp_path)
    first = table.iloc[0]
    assert (first["change"], first["where"]) == (change, where) and do in first["do"]
    assert first["line_share"] > 0.9 and first["fits_limit"]
    assert 44 * MS < first["time_ns"] <= first["ceiling_ns"] <= 60 * MS
    assert lines[0].startswith(f"1. {LABELS[change]} ({where}), could save up to ")
    assert (table["where"] != "").sum() == 1
    assert {LOADER_WORKERS, SCRIPT_LINE}.intersection(table["change"]) <= {change}


def test_a_line_with_nearly_half_of_the_waiting_comes_first_next_to_more_time_of_launches(tmp_path):
    """Batches of a DataLoader had 47% of it, and stood behind four changes that launch less."""
    export = Export()
    for at in range(0, 60, 6):
        export.launch(at * MS, start=at * MS + 1000, end=(at + 1) * MS)
    take_samples(export, 0, 27, NEXT_BATCH, ("train", "train.py", 3))
    take_samples(export, 27, 41, ENGINE, STEP)
    take_samples(export, 41, 60, *ADAM, ("train", "train.py", 18))
    table, _ = advise(export, tmp_path)
    launches = table[table["change"] == CUDA_GRAPHS].iloc[0]
    first = table.iloc[0]
    assert (first["change"], first["where"]) == (LOADER_WORKERS, "train.py:3 train")
    assert first["line_share"] < 0.5 and first["time_ns"] < launches["time_ns"] and launches["fits_limit"]


def test_a_synchronisation_is_advised_once_with_its_line(tmp_path):
    table, _ = advise(make_item_export(with_sync=True), tmp_path)
    rows = table[table["where"] == "train.py:21 train"]
    assert rows["change"].tolist() == ["synchronisations"] and table["change"].is_unique


def make_rows(**columns) -> pd.DataFrame:
    known = {"where": "a.py:1", "function": "f", "below": "own code 100%", "sync_ns": 0, "do": DO[OWN]}
    return pd.DataFrame([{**known, "share": 0.6, "wait_ns": 6 * MS, "ceiling_ns": 7 * MS} | columns])


def test_a_line_without_advice_or_with_little_of_the_waiting_has_none():
    assert [line.where for line in find_lines(make_rows())] == ["a.py:1 f"]
    assert not find_lines(make_rows(do="")) and not find_lines(make_rows(share=0.04))
    assert not find_lines(make_rows(ceiling_ns=float("nan")))


def test_an_advice_for_a_part_of_a_line_has_its_part_of_the_bound():
    """A line of the backward pass and the optimizer: a fused optimizer would have saved both."""
    backward, fused = "torch.compile or CUDA graphs launch less in backward", "give the optimizer fused=True"
    rows = make_rows(do=f"{fused}, or foreach=True (49% of it); {backward} (48% of it)")
    first, second = find_lines(rows)
    assert (first.changes, second.changes[0]) == ((FUSED_ADAMW,), CUDA_GRAPHS)
    assert first.where == second.where == "a.py:1 f" and first.share == second.share == 0.6
    assert [line.wait_ns / MS for line in (first, second)] == pytest.approx([0.49 * 6, 0.48 * 6])
    assert [line.ceiling_ns / MS for line in (first, second)] == pytest.approx([0.49 * 7, 0.48 * 7])
    (line,) = find_lines(make_rows(do=f"call gc.freeze() (74% of it); {DO[OWN]} (25% of it)"))
    assert (line.ceiling_ns, line.changes) == (7 * MS, ()) and line.do.startswith("call gc.freeze() (74% of it); ")


def test_what_a_line_does_about_a_cause_is_a_change_that_exists():
    assert {name for names in CHANGES_BY_DO.values() for name in names} <= set(CHANGES)
    assert {part.do for part in PARTS if part.changes} <= set(CHANGES_BY_DO)


def bound(name, ceiling, **more):
    entry = {"changes": (name,), "do": "do it", "reason": "", "step_ns": None, "gain_ns": None, "sure": "low"}
    return entry | {"ceiling_ns": ceiling, "fits_limit": True} | more


def test_the_card_of_the_line_comes_before_a_larger_bound():
    line = bound(SCRIPT_LINE, 40, where="a.py:1 f", line_share=0.9)
    first, second = choose_cards([bound("compile", 60), line], 100.0)
    assert (first["where"], first["do"], first["lines"]) == ("a.py:1 f", "do it", [])
    assert second["lines"] == [load_change("compile").LINE] and not second["where"]
    graphs = bound(CUDA_GRAPHS, 60, where="a.py:1 f", line_share=0.9)
    assert [card["changes"] for card in choose_cards([bound("compile", 60), graphs], 100.0)] == [(CUDA_GRAPHS,)]
    assert format_run_advice([line])[0].startswith("line of the script (a.py:1 f): could save up to 40")


@pytest.mark.parametrize("file", ["a.py", "my model.py"])
def test_a_line_that_waits_for_a_break_has_the_advice_of_the_break_alone(file):
    (line,) = find_lines(make_rows(where=f"{file}:1", do=DO[OWN]))
    breaks = pd.DataFrame({"where": [f"{file}:1", f"{file}:12", ""]})
    for idle, expected in (([line.wait_ns, 0, 0], True), ([0, line.wait_ns, line.wait_ns], False)):
        rows = breaks.assign(forward_idle_ns=idle, backward_idle_ns=0.0)
        assert breaks_graphs(line, rows) == expected and not breaks_graphs(line, rows[:0])


UPDATE, READ, SPLIT = ("train", "main.py", 194), ("train", "main.py", 196), ("train", "main.py", 12)


def test_an_update_of_parameters_one_by_one_launches_less_and_is_moved_to_no_worker(tmp_path):
    """`for p in model.parameters(): p.data.add_(p.grad, alpha=-lr)`: to prepare it in a worker was advised. What splits
    texts in the same step calls no CUDA, and is still to be moved."""
    export = Export()
    for at in range(4 * 25):  # 4 ms of a launch each 40 µs, then 4 ms without any
        export.launch(at * 40_000, start=at * 40_000 + 5_000, end=at * 40_000 + 7_000)
    export.launch(8 * MS, start=8 * MS + 5_000, end=8 * MS + 7_000)
    take_samples(export, 0, 4, UPDATE)
    take_samples(export, 4, 9, SPLIT)
    rows = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["waits"].set_index("where")
    assert rows.loc["main.py:194", "below"].startswith(f"{OWN_LAUNCHES} ")
    assert rows.loc["main.py:194", "do"].startswith(DO[OWN_LAUNCHES])
    assert rows.loc["main.py:12", "do"] == DO[OWN]


@pytest.mark.parametrize(
    ("kind", "is_waited", "do"),
    [(1, True, DO_COPY), (2, True, DO_SYNC), (1, False, DO[OWN])],
    ids=["to", "item", "to without waiting"],
)
def test_a_line_that_reads_or_copies_has_the_advice_of_its_call(kind, is_waited, do, tmp_path):
    """`total_loss += loss.item()` of a step that the CPU limits waits for launches, and not in the call itself. nanoGPT
    copies pinned memory without waiting: each call takes 26 µs."""
    export = Export()
    for at in range(0, 20, 2):
        start = at * MS
        export.launch(start, start=start + 5_000, end=start + 50_000)
        call = export.call(start + MS, start + MS + 50_000, name="cudaMemcpyAsync_v3020")
        export.copy(start + MS + 20_000, start + MS + 22_000, call, kind=kind, host=1)
        if is_waited:
            export.call(start + MS + 51_000, start + MS + 300_000, name="cudaStreamSynchronize_v3020")
        export.push("step", start, start + 2 * MS - 1)
    take_samples(export, 0, 20, READ)
    rows = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["waits"].set_index("where")
    assert rows.loc["main.py:196", "do"] == do


@pytest.mark.parametrize(
    ("call", "time_ns", "expected"),
    [
        ("reads a value or copies with item: memcpy Device-to-Host (pinned)", 32_000, DO_SYNC),
        ("reads a value or copies with to: memcpy Host-to-Device (pinned)", 69_000, DO_COPY),
        ("torch.cuda.synchronize", 69_000, DO_SYNC),
        ("reads a value or copies with item", -1, DO[OWN]),
        ("reads a value or copies with item", 10_000, DO[OWN]),
    ],
    ids=["item", "to", "synchronize", "not known", "small part"],
)
def test_a_call_that_was_counted_in_a_script_is_the_advice_of_its_line(call, time_ns, expected):
    rows = make_rows(cpu_ns=210_000)
    counted = [{"where": "a.py:1", "function": "f", "call": call, "time_ns": time_ns}]
    assert advise_calls(rows, list_noted_calls(counted))["do"].tolist() == [expected]
    other = advise_calls(rows.assign(do="give the optimizer fused=True"), list_noted_calls(counted))
    assert other["do"].tolist() == ["give the optimizer fused=True"]
