"""What calls that wait for the GPU cost, by line of the script."""

import pytest

from tests.capture.nsys_files import Export
from tests.insight.test_waits import MODULE, MS, make_late_export, summarise_export, take_samples

ITEM = ("train", "train.py", 21)
FORWARD = ("train", "train.py", 18)
PRINT = ("train", "train.py", 22)


def make_item_export(with_sync: bool, then_us: int = 0) -> Export:
    """Five steps: four launches of 1 ms each, for three short kernels and one of 6 ms. `loss.item()` waits for it, so
    that the next kernels are launched while the GPU has nothing else to do. then_us: another line waits so long for a
    copy right after."""
    export, host, gpu = Export(), 0, 0
    for _ in range(5):
        for length in (MS // 4, MS // 4, MS // 4, 6 * MS):
            begin = max(gpu, host + 10_000)
            gpu = begin + length
            export.launch(host, start=begin, end=gpu)
            take_samples(export, host / MS, host / MS + 1, FORWARD)
            host += MS
        if with_sync:
            export.call(host, gpu + 10_000, name="cudaStreamSynchronize_v3020")
            take_samples(export, host / MS, gpu / MS, ITEM)
            host = gpu + 10_000
        if then_us:
            gpu = host + then_us * 1000 - 5_000
            export.copy(host + 10_000, gpu, export.call(host, host + 3_000, name="cudaMemcpyAsync_v3020"), kind=2)
            export.call(host + 4_000, gpu + 5_000, name="cudaStreamSynchronize_v3020")
            export.sample(host + 1_000, PRINT, MODULE)
            host = gpu + 5_000
    return export


def test_what_a_long_synchronisation_costs_is_not_of_a_short_one_after_it(tmp_path):
    """`print(noise.cpu())` right after `loss.item()` finds the GPU idle already."""
    rows = summarise_export(make_item_export(True, then_us=60), tmp_path).sections["waits"].set_index("where")
    assert rows.index[0] == "train.py:21"
    assert rows["sync_ns"].get("train.py:22", 0) < 0.05 * rows.loc["train.py:21", "sync_ns"]


def test_what_a_synchronisation_keeps_from_being_hidden_counts_for_its_line(tmp_path):
    """Without it the launches of the next step are hidden by the long kernel."""
    summary = summarise_export(make_item_export(with_sync=True), tmp_path)
    rows = summary.sections["waits"].set_index("where")
    assert rows.index[0] == "train.py:21"
    assert rows.loc["train.py:21", "sync_ns"] == rows.loc["train.py:21", "wait_ns"]
    (tmp_path / "free").mkdir()
    free = summarise_export(make_item_export(with_sync=False), tmp_path / "free")
    saved = summary.capture["waiting_span_ns"] - free.capture["waiting_span_ns"]
    assert rows.loc["train.py:21", "wait_ns"] == pytest.approx(saved, rel=0.1)
    assert "keep the value on the GPU" in rows.loc["train.py:21", "do"]
    syncs = summary.sections["sync_lines"]
    assert syncs[["where", "call", "count"]].values.tolist() == [["train.py:21", "cudaStreamSynchronize", 5]]


def test_a_synchronisation_of_a_slow_cpu_costs_little(tmp_path):
    """The GPU waits for launches with and without it."""
    export = make_late_export()
    export.call(6 * MS, 6 * MS + 20_000, name="cudaStreamSynchronize_v3020")
    assert summarise_export(export, tmp_path).sections["waits"]["sync_ns"].max() <= 40_000
