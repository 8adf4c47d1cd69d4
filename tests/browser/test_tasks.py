"""What readers come for, done from home by clicks alone: at most three, without a letter or the search."""

import re

import pytest

TASKS = {
    "how long does a BF16 training step take, and what limits it?": (
        ["What changes in BF16", "Case by case"],
        "report/in-bf16.html",
    ),
    "does my model fit my GPU?": (["What fills the memory", "How this was measured"], "report/memory-use.html"),
    "which change helps a small model most?": (
        ["What does each optimisation", "Each change alone"],
        "report/ladder.html",
    ),
    "when does the GPU wait?": (["When does the GPU wait"], "report/host.html"),
    "how long does a forward pass take?": (["How long does a forward pass take"], "report/forward-time.html"),
    "which kernel takes most time?": (["Which kernel takes the most", "The top three"], "report/top-kernel.html"),
    "what does the backward pass cost?": (["How does the mix of kernels change"], "report/training-mix.html"),
    "is a step compute-bound, memory-bound or launch-bound?": (["What bounds a step"], "report/bounds.html"),
    "does fused attention help at my context?": (["What does fused attention save"], "report/fused-attention.html"),
    "what does lower precision give?": (["What does lower precision"], "report/precision.html"),
    "does a fused optimizer help?": (["What does AdamW cost"], "report/optimizer-cost.html"),
    "how many warm-up steps do I need?": (["How many steps does a number need"], "report/warm-up.html"),
    "can I trust the numbers?": (["Do the numbers agree"], "report/reconciliation.html"),
    "how do I profile my own training?": (["Profile your own training"], "guide/profile.html"),
    "what does one run look like?": (["This recording", "small"], "report/runs/"),
    "where are the data?": (["Find the run that is nearest", "Data"], "report/data.html"),
}
"""Words of the links and headings to click, in order, and where they lead."""


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_at_most_three_clicks_from_home(page, address, task):
    clicks, where = TASKS[task]
    assert len(clicks) <= 3
    page.goto(address)
    for words in clicks:
        in_article = page.locator("article :is(a, summary)", has_text=words).locator("visible=true")
        in_menu = page.locator(".md-nav--primary a", has_text=words).locator("visible=true")
        (in_article if in_article.count() else in_menu).first.click()
        page.wait_for_load_state()
    assert where in page.url
    assert page.locator("article h1").is_visible()


def test_home_says_how_long_a_step_takes_and_what_takes_most_of_it(page, address):
    """How long does a BF16 training step of large at 512 take?"""
    page.goto(address)
    figure = page.locator("#chart-step")
    for words in ("large", "512", "BF16"):
        figure.locator(".choices label", has_text=words).first.click()
    assert re.search(r"large · 512 · BF16.* · [\d.]+ ms", figure.locator(".conditions").inner_text())
    assert re.search(r"(for|takes) \d+% of this training step", figure.locator(".title").inner_text())


def test_home_says_what_to_change_first_in_every_case(page, address):
    """Which change helps small at 128 most?"""
    page.goto(address)
    table = page.locator("#table-first")
    names = [name.replace("\u00a0", " ") for name in table.locator("thead th").all_inner_texts()]
    assert names[0] == "model" and "128 tokens" in names
    cells = table.locator("tbody td").all_inner_texts()
    assert cells[0] == "small" and len(cells) == len(names) * table.locator("tbody tr").count()
    assert all(
        re.search(r"\d×$|^none|^host-bound|^not measured", cell) for cell in cells if cell not in cells[:: len(names)]
    )


def test_the_memory_page_says_what_fits_24_gb(page, address):
    """Does my 1.3B model fit 24 GB?"""
    page.goto(address)
    page.locator("article a", has_text="What fills the memory").click()
    assert "plan --gpu-memory 24" in page.locator(".follows").inner_text()
    page.locator("summary", has_text="What fits where").click()
    assert page.locator("article table").locator("visible=true").first.is_visible()


def test_a_question_leads_to_the_one_before_and_the_next(page, address):
    page.goto(f"{address}report/top-kernel.html")
    for direction, where in (("next", "beyond-gemm"), ("prev", "top-kernel"), ("prev", "forward-time")):
        page.locator(f".md-footer__link--{direction}").click()
        page.wait_for_url(f"**/report/{where}.html")
