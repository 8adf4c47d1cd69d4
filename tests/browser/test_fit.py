"""The calculator of the page on memory: it says what the grid of predictions has for the chosen case."""

import pytest

from profiler_job.analysis.metrics import memory_grid
from profiler_job.jobs.memory import CHANGES

CHOSEN = {"size": "xl", "context_length": "2048", "mode": "train_step", "precision": "fp32", "attention": "naive"}


@pytest.fixture
def memory(page, address):
    page.goto(f"{address}report/memory-use.html")
    return page


def write_gib(gib: float) -> str:
    """Three digits at most: a prediction has no more."""
    return f"{gib:.{1 if abs(gib) < 100 else 0}f} GiB".replace("-0.0 ", "0.0 ")


def read_rows(page) -> list[list[str]]:
    rows = page.locator("table.fit tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def test_a_chosen_case_has_the_memory_and_the_batches_that_are_predicted(memory):
    for name, value in CHOSEN.items():
        memory.locator(f"#will-it-fit select[name={name}]").select_option(value)
    memory.locator("#will-it-fit select[name=batch_size]").select_option("2")
    cells = [
        memory_grid.predict_cell("xl", 2048, "train_step", "fp32", "naive", batch) for batch in memory_grid.BATCHES
    ]
    assert write_gib(cells[1].gib) in memory.locator("#fit-said").inner_text()
    for place, (gpu, fits, most, tokens) in enumerate(read_rows(memory)):
        fitting = [batch for batch, cell in zip(memory_grid.BATCHES, cells, strict=True) if cell.fits <= place]
        assert gpu == f"{memory_grid.GPUS_GB[place]} GB" and (fits == "fits") == (2 in fitting)
        assert most == (str(fitting[-1]) if fitting else "none")
        assert tokens == (f"{fitting[-1] * 2048:,}" if fitting else "")


def test_changes_of_a_training_step_have_the_memory_that_is_predicted_and_a_forward_pass_has_none(memory):
    for name, value in CHOSEN.items():
        memory.locator(f"#will-it-fit select[name={name}]").select_option(value)
    memory.locator("#will-it-fit select[name=batch_size]").select_option("2")
    cell = memory_grid.predict_cell("xl", 2048, "train_step", "fp32", "naive", 2)
    table = memory.locator("table.fit-changes")
    assert table.locator("thead").inner_text().strip().split("\t") == ["change", "predicted peak", "saves"]
    rows = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert rows == [
        [change, write_gib(gib), write_gib(cell.gib - gib)] for change, gib in zip(CHANGES, cell.relieved, strict=True)
    ]
    memory.locator("#will-it-fit select[name=mode]").select_option("forward")
    assert not table.is_visible()


def test_the_address_keeps_the_case(memory):
    memory.locator("#will-it-fit select[name=size]").select_option("small")
    memory.locator("#will-it-fit select[name=batch_size]").select_option("64")
    before = (memory.locator("#fit-said").inner_text(), read_rows(memory))
    memory.reload()
    memory.locator("#fit-said").wait_for()
    assert (memory.locator("#fit-said").inner_text(), read_rows(memory)) == before
