"""The page of all runs: facets, a metric, two pins, the state in the address, and the table alone without scripts."""

import re

import pytest

TABLE = "#table-explore"
ROWS = f"{TABLE} tbody tr"
PINNED = "#explore-pinned"


@pytest.fixture
def explore(page, address):
    """The page with all runs, of any mode."""
    page.goto(f"{address}report/explore.html?mode=")
    return page


def test_facets_and_words_choose_runs_and_the_address_keeps_the_choice(explore):
    everything = explore.locator(ROWS).count()
    explore.locator("select[name=mode]").select_option("train_step")
    explore.locator("select[name=context_length]").select_option("512")
    rows = explore.locator(f"{ROWS}:visible").all_inner_texts()
    assert 0 < len(rows) < everything and all("training step" in row and "512" in row for row in rows)
    assert explore.locator("#explore-shown").inner_text() == f"{len(rows)} of {everything} runs"
    explore.reload()
    assert explore.locator(f"{ROWS}:visible").all_inner_texts() == rows
    assert "mode=train_step" in explore.url, "an address of before still leads here"
    explore.locator(f"{TABLE} input").fill("small")
    assert 0 < explore.locator(f"{ROWS}:visible").count() < len(rows)
    explore.get_by_role("button", name="All runs").click()
    assert not explore.locator(f"{TABLE} input").input_value()
    assert explore.locator(f"{ROWS}:visible").count() == everything and explore.url.endswith("?mode=")


def test_it_opens_with_training_steps(page, address):
    """Forward passes and training steps stood in one figure."""
    page.goto(f"{address}report/explore.html")
    rows = page.locator(f"{ROWS}:visible").all_inner_texts()
    assert rows and all("training step" in row for row in rows)
    page.reload()
    assert page.locator(f"{ROWS}:visible").count() == len(rows)


def test_the_figure_is_in_the_first_screen_of_a_phone(page, address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}report/explore.html")
    box = page.locator("#scatter svg").bounding_box()
    assert box["y"] + box["height"] <= 844


def test_axes_say_that_they_are_logarithmic(explore):
    names = explore.locator("#scatter text.axis").all_text_contents()
    assert len(names) == 2 and all("log" in name for name in names)


def test_the_address_keeps_words_and_order(explore):
    shown = lambda: explore.locator(f"{ROWS}:visible").all_inner_texts()  # noqa: E731
    before = shown()
    explore.locator(f"{TABLE} input").fill("small 128")
    for presses in (1, 2):
        explore.locator(f"{TABLE} thead th", has_text=re.compile("^peak")).get_by_role("button").click()
        explore.locator("select[name=mode]").select_option("train_step")  # a facet leaves the order as it is
        rows, address = shown(), explore.url
        assert 1 < len(rows) < len(before) and f"sort={'-' * (presses == 1)}peak_memory_bytes" in address
        explore.goto(f"{address.split('?')[0]}?mode=")
        assert shown() == before
        explore.goto(address)
        assert shown() == rows and explore.locator(f"{TABLE} input").input_value() == "small 128"
    explore.get_by_label("metric").select_option("tokens_per_s")
    assert "sort=" not in explore.url and not explore.locator("th[aria-sort]").count()
    explore.get_by_role("button", name="All runs").click()
    assert explore.url.endswith("?mode=") and shown() == before


@pytest.mark.parametrize("value", ["off", "default", "cudagraphs"])
def test_compiled_runs_can_be_chosen(explore, value):
    others = explore.locator(ROWS).evaluate_all("(all) => all.map((row) => row.querySelector('td.wrap').textContent)")
    said = [parts.split(", ") for parts in others]
    names = {"default": "torch.compile", "cudagraphs": "torch.compile with CUDA graphs"}
    wanted = [
        parts for parts in said if (names[value] in parts if value in names else not {*names.values()} & {*parts})
    ]
    explore.locator("select[name=compile]").select_option(value)
    assert 0 < explore.locator(f"{ROWS}:visible").count() == len(wanted) < len(said)
    explore.reload()
    assert explore.locator(f"{ROWS}:visible").count() == len(wanted)


@pytest.mark.parametrize(("metric", "largest_first"), [("tokens_per_s", True), ("peak_memory_bytes", False)])
def test_a_metric_sorts_from_its_best_value_on(explore, metric, largest_first):
    explore.get_by_label("metric").select_option(metric)
    script = "(all) => all.map((cell) => Number(cell.dataset.v || cell.textContent))"
    values = explore.locator(f"{TABLE} td.metric[data-v]").evaluate_all(script)
    assert len(values) > 5 and values == sorted(values, reverse=largest_first)


@pytest.mark.parametrize("by", ["metric", "heading"])
def test_mfu_orders_runs_within_a_precision(explore, by):
    """Its peaks differ: FP32 at 72% of a small one stood above every step in BF16."""
    if by == "metric":
        explore.get_by_label("metric").select_option("mfu")
    else:
        explore.locator(f"{TABLE} thead th[data-key^=mfu] button").click()
    script = """(all) => {
      const headings = [...all[0].closest("table").tHead.rows[0].cells];
      const at = (key) => headings.findIndex((one) => one.dataset.key.startsWith(key));
      const [precision, mfu] = [at("precision"), at("mfu")];
      const known = all.filter((row) => row.cells[mfu]?.dataset.v !== undefined);
      return known.map((row) => [row.cells[precision].textContent, Number(row.cells[mfu].dataset.v)]);
    }"""
    rows = explore.locator(ROWS).evaluate_all(script)
    order = ["FP8", "BF16", "TF32", "FP32"]
    assert len(rows) > 5 and rows == sorted(rows, key=lambda row: (order.index(row[0]), -row[1]))


def test_runs_can_be_chosen_by_what_tokens_cost(explore):
    explore.get_by_label("USD per 1M tokens, at most").fill("0.02")
    explore.get_by_label("USD per 1M tokens, at most").press("Tab")
    script = """(all) => {
      const keys = [...all[0].closest("table").tHead.rows[0].cells].map((cell) => cell.dataset.key.split(" [")[0]);
      return all.map((row) => Number(row.cells[keys.indexOf("cost")].textContent));
    }"""
    costs = explore.locator(f"{ROWS}:visible").evaluate_all(script)
    assert costs and max(costs) <= 0.02 and "most=0.02" in explore.url
    explore.reload()
    assert explore.locator(f"{ROWS}:visible").count() == len(costs)
    explore.get_by_label("metric").select_option("cost")
    assert explore.locator("#scatter .title").inner_text().startswith("USD per 1M tokens, over context")
    assert explore.locator("#scatter path").count() == len(costs)
    explore.get_by_role("button", name="All runs").click()
    assert explore.url.endswith("?mode=")


def test_an_address_with_the_old_spelling_of_a_precision_leads_on(explore):
    explore.goto(f"{explore.url.split('?')[0]}?precision=bf16")
    assert explore.locator("select[name=precision]").input_value() == "BF16"


def test_a_picture_shows_each_run_of_the_table_over_any_number(explore):
    """Context, batch or another metric; the address keeps which."""
    marks = explore.locator("#scatter path")
    known = explore.locator(f"{ROWS}:visible:has(td.metric[data-v])").count()
    assert marks.count() == known > 5
    explore.locator("select[name=mode]").select_option("forward")
    assert 0 < marks.count() < known
    explore.get_by_label("over").select_option("peak_memory_bytes")
    assert "over=peak_memory_bytes" in explore.url and "peak, GiB" in explore.locator("#scatter .title").inner_text()
    before = marks.count()
    explore.reload()
    assert marks.count() == before
    marks.last.dispatch_event("click")
    assert explore.locator("#scatter .read a").get_attribute("href")


def test_two_pinned_runs_show_their_difference_by_the_keyboard_too(explore):
    pins = explore.locator(f"{TABLE} button.pin")
    for index in (0, 4):
        pins.nth(index).focus()
        explore.keyboard.press("Enter")
    assert pins.nth(4).get_attribute("aria-pressed") == "true"
    rows = explore.locator(f"{PINNED} tbody tr")
    assert rows.count() == 7
    first, second, apart = (float(text.replace(",", "")) for text in rows.first.locator("td").all_inner_texts()[:3])
    assert apart == pytest.approx(second - first, abs=0.011)  # of numbers that are shown with two decimals
    shown = explore.locator(PINNED).inner_text()
    assert len(re.findall("pin=", explore.url)) == 2
    explore.reload()
    assert explore.locator(PINNED).inner_text() == shown


@pytest.mark.parametrize("words", ["fused attention", "eager attention", "fused AdamW", "reference AdamW"])
def test_words_find_what_the_site_calls_so(explore, words):
    """Fused attention found eager attention with fused AdamW, too, and AdamW found nothing."""
    rows = explore.locator(ROWS).evaluate_all("(all) => all.map((row) => [...row.cells].map((one) => one.textContent))")
    place, mine = {
        "fused attention": (4, ("sdpa", "flash", "efficient", "cudnn")),
        "eager attention": (4, ("eager",)),
        "fused AdamW": (5, ("fused",)),
        "reference AdamW": (5, ("reference",)),
    }[words]
    wanted = sum(row[place].strip() in mine for row in rows)
    explore.locator(f"{TABLE} input").fill(words)
    assert 0 < explore.locator(f"{ROWS}:visible").count() == wanted < len(rows)


def test_what_two_gpus_or_an_unknown_wait_leave_open_is_not_called_beyond_noise(explore):
    """The noise band is of runs of one GPU, and as wide as the GPU waits."""
    rows = explore.locator(ROWS)
    facts = """(all) => {
      const keys = [...all[0].closest("table").tHead.rows[0].cells].map((cell) => cell.dataset.key.split(" [")[0]);
      const cell = (row, key) => row.cells[keys.indexOf(key)];
      return all.map((row) => [row.id, cell(row, "gpu_name").textContent,
        cell(row, "step_ns")?.dataset.v, cell(row, "idle_share")?.dataset.v]);
    }"""
    timed = [fact for fact in rows.evaluate_all(facts) if fact[2]]
    of_h200 = [run for run, gpu, _, idle in timed if "H200" in gpu and idle]
    of_h100 = [run for run, gpu, _, idle in timed if "H100" in gpu and idle]
    without_idle = [run for run, gpu, _, idle in timed if "H200" in gpu and not idle]

    def verdict(first: str, second: str) -> str:
        explore.goto(f"{explore.url.split('?')[0]}?pin={first}&pin={second}")
        return explore.locator(f"{PINNED} tbody tr").first.locator("td").last.inner_text()

    assert verdict(*of_h200[:2]).startswith(("yes", "no:"))
    assert verdict(of_h200[0], of_h100[0]) == "not known"
    assert verdict(of_h200[0], without_idle[0]) == "not known"


def test_every_run_can_be_linked(explore):
    ids = explore.locator(ROWS).evaluate_all("(all) => all.map((row) => row.id)")
    assert len({*ids}) == len(ids) and all(ids)
    links = explore.locator(f"{ROWS} td:first-child a").evaluate_all("(all) => all.map((a) => a.getAttribute('href'))")
    assert len(links) == len(ids)


def test_without_javascript_the_table_is_there(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}report/explore.html")
    assert page.locator(f"{ROWS}:visible").count() > 10
    assert not page.locator("form.explore select").locator("visible=true").count()
    context.close()


@pytest.mark.parametrize(
    ("over", "chosen"), [("context_length", {"size": "small"}), ("num_parameters", {"context_length": "512"})]
)
def test_runs_that_differ_in_nothing_but_the_axis_are_joined_by_a_line(explore, over, chosen):
    """Over parameters the model is what differs."""
    for name, value in ({"mode": "train_step", "precision": "FP32"} | chosen).items():
        explore.locator(f"select[name={name}]").select_option(value)
    explore.get_by_label("over").select_option(over)
    lines = explore.locator("#scatter polyline")
    assert lines.count()
    points = lines.first.get_attribute("points").split()
    places = [float(point.split(",")[0]) for point in points]
    assert len(points) > 1 and places == sorted(set(places))
    explore.get_by_label("over").select_option("peak_memory_bytes")
    assert not lines.count()


def test_lines_are_named_by_what_differs(explore):
    """DDP, FSDP and one GPU had three lines without a name."""
    chosen = {"mode": "train_step", "size": "small", "precision": "FP32"}
    for name, value in chosen.items():
        explore.locator(f"select[name={name}]").select_option(value)
    explore.get_by_label("over").select_option("context_length")
    num_lines, names = explore.locator("#scatter polyline").count(), explore.locator("#scatter text.line")
    assert num_lines > 1 and names.count() == num_lines
    texts = names.all_text_contents()
    assert len({*texts}) == num_lines and all(texts) and not any("small" in text for text in texts)
