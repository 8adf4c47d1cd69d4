"""What a reader does: sort, filter, download, switch the theme, search, open a timeline, get lost, print, go without
JavaScript."""

import csv
import io
import json
import re
from xml.etree import ElementTree

import pytest

from tests.browser.serving import pages_of

TIMES = "#table-times"
HEADINGS = f"{TIMES} thead th"
COLOUR = "(name) => getComputedStyle(document.body).getPropertyValue(name).trim()"


def cells(page, column: int, table: str = TIMES) -> list[str]:
    """Text of one column of a table, visible rows only."""
    found = page.locator(f"{table} tbody tr:visible td:nth-child({column + 1})")
    return [text.strip() for text in found.all_inner_texts()]


def raw(page, column: int, table: str = TIMES) -> list[float]:
    """Unrounded values of a numeric column, rows without one left out."""
    script = "(all, n) => all.map((row) => row.cells[n]?.dataset.v).filter((v) => v !== undefined).map(Number)"
    return page.locator(f"{table} tbody tr").evaluate_all(script, column)


def first_numeric(page, table: str = TIMES) -> int:
    script = "(all) => all.findIndex((th) => th.classList.contains('num') && th.querySelector('.unit'))"
    return page.locator(f"{table} thead th").evaluate_all(script)


@pytest.fixture
def times(page, address):
    page.goto(f"{address}report/forward-time.html{TIMES}")  # opens the part that it is folded in
    return page


def test_a_heading_sorts_by_value_and_a_third_press_restores(times):
    column = first_numeric(times)
    before = raw(times, column)
    button = times.locator(HEADINGS).nth(column).get_by_role("button")
    button.focus()
    times.keyboard.press("Enter")
    assert times.locator(HEADINGS).nth(column).get_attribute("aria-sort") == "descending"
    assert raw(times, column) == sorted(before, reverse=True) != before
    times.keyboard.press("Enter")
    assert times.locator(HEADINGS).nth(column).get_attribute("aria-sort") == "ascending"
    assert raw(times, column) == sorted(before)
    times.keyboard.press("Enter")
    assert times.locator(HEADINGS).nth(column).get_attribute("aria-sort") is None
    assert raw(times, column) == before


def test_rows_without_a_number_come_last_whatever_the_order(page, hostile_address):
    page.goto(f"{hostile_address}report/forward-time.html#table-inside")
    table = "#table-inside"
    column = first_numeric(page, table)
    button = page.locator(f"{table} thead th").nth(column).get_by_role("button")
    for _ in range(2):
        button.click()
        last = page.locator(f"{table} tbody tr").last
        assert last.locator(".why").count() and "OOM" in last.inner_text()


@pytest.mark.long  # a table of the shipped recording is long enough
def test_the_heading_stays_in_sight_while_a_long_table_scrolls(page, address):
    page.goto(f"{address}report/runs.html")
    script = """(figure) => {
      const scroll = figure.querySelector('.scroll'), head = figure.querySelector('th');
      scroll.scrollTop = 300;
      return [scroll.scrollTop, head.getBoundingClientRect().top - scroll.getBoundingClientRect().top];
    }"""
    scrolled, distance = page.locator("#table-runs").evaluate(script)
    assert scrolled == 300 and abs(distance) <= 2


def test_a_filter_keeps_the_rows_with_all_its_words(times):
    everything = cells(times, 0)
    times.locator(f"{TIMES} input").fill("small 512")
    kept = times.locator(f"{TIMES} tbody tr:visible").all_inner_texts()
    assert 0 < len(kept) < len(everything)
    assert all("small" in row and "512" in row for row in kept)
    times.locator(f"{TIMES} input").fill("")
    assert cells(times, 0) == everything


RUNS = "#table-runs"


@pytest.fixture
def runs(page, address):
    page.goto(f"{address}report/runs.html")
    return page


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("2.7B 1024", lambda row: "2.7B" in row and "1,024" in row),
        ("1024", lambda row: "1,024" in row),
        ("1,024", lambda row: "1,024" in row),
        ("training step", lambda row: "training step" in row),
        ("Train_Step small", lambda row: "training step" in row and "small" in row),
        ("forward pass", lambda row: "forward" in row),
        ("small forward pass 128", lambda row: "forward" in row and "small" in row and "128" in row),
        ("FP32", lambda row: True),
        ("eager attention 2.7B", lambda row: "2.7B" in row),
        ("reference AdamW", lambda row: True),
    ],
)
def test_a_filter_knows_the_names_of_the_site_and_of_its_data(runs, words, kept):
    rows = runs.locator(f"{RUNS} tbody tr")
    wanted = [row for row in rows.all_inner_texts() if kept(row)]
    runs.locator(f"{RUNS} input").fill(words)
    assert runs.locator(f"{RUNS} tbody tr:visible").all_inner_texts() == wanted != []


def test_a_filter_finds_whole_numbers_and_says_when_nothing_matches(runs):
    said = runs.locator(f"{RUNS} [role=status]")
    runs.locator(f"{RUNS} input").fill("102")
    assert not runs.locator(f"{RUNS} tbody tr:visible").count()
    assert said.inner_text() == "Nothing matches “102”."
    runs.locator(f"{RUNS} input").fill("BF16")
    assert said.inner_text() == "Nothing matches “BF16”.", "the runs of the page are in FP32"
    runs.locator(f"{RUNS} input").fill("")
    assert runs.locator(f"{RUNS} tbody tr:visible").count() and not said.inner_text()


def test_models_sort_by_size(runs):
    heading = runs.locator(f"{RUNS} thead th").first
    runs.locator(f"{RUNS} thead th").nth(1).get_by_role("button").click()
    heading.get_by_role("button").click()
    names = cells(runs, 0, RUNS)
    order = ["small", "medium", "large", "xl", "2.7B"]
    assert names == sorted(names, key=lambda name: order.index(name.split(" (")[0])) and len({*names}) > 1
    heading.get_by_role("button").click()
    assert cells(runs, 0, RUNS) == names[::-1]


def downloaded(page, table: str) -> list[list[str]]:
    with page.expect_download() as caught:
        page.locator(table).get_by_role("button", name="CSV of these rows").click()
    return list(csv.reader(io.StringIO(caught.value.path().read_text(encoding="utf-8"))))


def linked(page, table: str) -> list[list[str]]:
    text = page.request.get(page.locator(f"{table} figcaption a.csv").first.evaluate("(link) => link.href")).text()
    return list(csv.reader(io.StringIO(text)))


TAKEN = """async () => {
  const taken = [], kept = { make: URL.createObjectURL, click: HTMLAnchorElement.prototype.click };
  let file;
  URL.createObjectURL = (blob) => { file = blob; return "#"; };
  HTMLAnchorElement.prototype.click = () => {};
  for (const figure of document.querySelectorAll("figure[data-table]:has([data-csv])")) {
    figure.querySelector("[data-csv]").click();
    const whole = await fetch(figure.querySelector("figcaption a.csv").href);
    taken.push([figure.id, await file.text(), await whole.text()]);
  }
  URL.createObjectURL = kept.make;
  HTMLAnchorElement.prototype.click = kept.click;
  return taken;
}"""
"""Both downloads of each table that offers them."""
EACH = 40
"""Of so many pages of runs one is enough: they are of one template."""


def test_both_downloads_of_each_table_have_the_same_values_under_the_same_headings(page, address, built):
    """The CSV of the shown rows had nanoseconds below `ms`, bytes below `GiB`, fractions below `%`; later `yes` for
    True, `ok` for True, and modules in other words."""
    pages = pages_of(built)
    of_runs = [path for path in pages if path.startswith("report/runs")]
    num_tables, apart = 0, []
    for path in [path for path in pages if path not in of_runs] + of_runs[::EACH]:
        page.goto(f"{address}{path}")
        for table, shown, whole in page.evaluate(TAKEN):
            (heading, *rows), (names, *every) = (list(csv.reader(io.StringIO(text))) for text in (shown, whole))
            assert rows and {*heading} <= {*names}, (path, table)
            columns = [names.index(name) for name in heading]
            known = {tuple(row[column] for column in columns) for row in every}
            apart += [(path, table, row) for row in rows if tuple(row) not in known][:1]
            num_tables += 1
    assert num_tables > 20 and not apart


def test_the_units_of_both_downloads_are_in_their_headings(runs):
    heading, *rows = downloaded(runs, RUNS)
    assert {"timer_ns", "busy_ratio [fraction]", "mfu [fraction]", "peak_memory_bytes"} <= {*heading}
    assert len(rows) == runs.locator(f"{RUNS} tbody tr").count()


def test_a_figure_can_be_taken_along(page, address):
    page.goto(f"{address}report/ladder.html")
    figure = page.locator("#chart-ladder")
    with page.expect_download() as caught:
        figure.get_by_role("button", name="SVG").click()
    assert caught.value.suggested_filename == "ladder-chart-ladder.svg"
    drawing = caught.value.path().read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "var(" not in drawing and page.evaluate(COLOUR, "--series-0") in drawing, "it has its colours with it"
    heading, *rows = linked(page, "#chart-ladder")
    assert {"size", "ladder_step", "value"} <= {*heading} and len(rows) > 30
    figure.get_by_role("link", name="link").click()
    assert page.url.endswith("ladder.html#chart-ladder")
    figure.get_by_role("link", name="cite").click()
    page.wait_for_url("**/cite.html")


@pytest.mark.parametrize("path, figure", [("report/bounds.html", ".regimes")])
def test_a_figure_that_is_a_table_is_a_drawing_to_take_along_too(page, address, path, figure):
    page.goto(f"{address}{path}")
    shown = page.locator(f"figure{figure}").first
    with page.expect_download() as caught:
        shown.get_by_role("button", name="SVG").click()
    drawing = ElementTree.fromstring(caught.value.path().read_text(encoding="utf-8"))
    words = " ".join(part.text for part in drawing.iter("{http://www.w3.org/2000/svg}text"))
    assert " ".join(shown.locator(".title").inner_text().split()) in words
    for row in shown.locator("tbody th").all_inner_texts():
        assert row in words
    colours = {part.get("fill") for part in drawing.iter("{http://www.w3.org/2000/svg}rect")}
    assert len(colours) > 2 and not any("var(" in colour for colour in colours)


def test_a_strip_of_a_timeline_can_be_taken_along_as_any_figure(page, address, built):
    for path in [path for path in pages_of(built) if path.startswith("report/runs") and "train_step" in path][::60]:
        page.goto(f"{address}{path}")
        figure = page.locator("#chart-strip")
        if not figure.count():
            continue
        with page.expect_download() as caught:
            figure.get_by_role("button", name="CSV").click()
        heading, *rows = csv.reader(io.StringIO(caught.value.path().read_text(encoding="utf-8")))
        assert heading == ["strip", "family", "start_ns", "duration_ns"] and rows
        ends = [int(start) + int(duration) for _, _, start, duration in rows]
        assert max(ends) <= int(figure.get_attribute("data-ns")) + 1
        assert {row[0] for row in rows} <= {
            *figure.locator("svg").evaluate_all("(all) => all.map((svg) => svg.ariaLabel)")
        }
        with page.expect_download() as caught:
            figure.get_by_role("button", name="SVG").click()
        drawing = ElementTree.fromstring(caught.value.path().read_text(encoding="utf-8"))
        space = "{http://www.w3.org/2000/svg}"
        assert len(drawing.findall(f"{space}svg")) == figure.locator("svg").count()
        assert " ".join(figure.locator(".title").inner_text().split()) in " ".join(
            part.text for part in drawing.iter(f"{space}text")
        )
        figure.get_by_role("link", name="link", exact=True).click()
        assert page.url.endswith("#chart-strip")
        figure.get_by_role("link", name="cite").click()
        page.wait_for_url("**/cite.html")


def test_the_csv_has_the_visible_rows_and_every_digit(times):
    times.locator(f"{TIMES} input").fill("small")
    column = first_numeric(times)
    times.locator(HEADINGS).nth(column).get_by_role("button").click()
    heading, *rows = downloaded(times, TIMES)
    shown = cells(times, column)
    assert len(rows) == len(shown) < times.locator(f"{TIMES} tbody tr").count()
    values = [float(row[column]) for row in rows if row[column].replace(".", "").isdigit()]
    assert heading[column].endswith("_ns") and values == sorted(values, reverse=True)
    assert set(values) <= set(raw(times, column))
    assert max(values) >= 1e5, "values are nanoseconds, not the rounded milliseconds of the page"


def test_the_rows_of_a_finding_open_below_it_and_the_page_stays(times):
    times.locator("details.detail > summary").first.click()
    link = times.locator("a.rows").first
    link.scroll_into_view_if_needed()
    before = times.evaluate("scrollY")
    rows = times.locator(link.get_attribute("href"))
    assert not rows.is_visible()
    link.focus()
    times.keyboard.press("Enter")
    assert rows.is_visible() and link.get_attribute("aria-expanded") == "true"
    assert times.evaluate("scrollY") == before
    assert rows.bounding_box()["y"] - link.bounding_box()["y"] < 120
    times.keyboard.press("Enter")
    assert not rows.is_visible() and link.get_attribute("aria-expanded") == "false"


def test_a_link_to_rows_still_leads_to_them(page, address):
    page.goto(f"{address}report/forward-time.html")
    href = page.locator("a.rows").first.get_attribute("href")
    page.goto(f"{address}report/forward-time.html{href}")
    page.reload()
    assert page.locator(href).is_visible()


def test_on_a_phone_the_first_column_stays(page, address):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{address}report/runs.html")
    script = """(figure) => {
      const scroll = figure.querySelector('.scroll'), cell = figure.querySelector('tbody td');
      scroll.scrollLeft = 200;
      return [scroll.scrollLeft, cell.getBoundingClientRect().left - scroll.getBoundingClientRect().left];
    }"""
    scrolled, distance = page.locator(RUNS).evaluate(script)
    assert scrolled == 200 and abs(distance) <= 1


@pytest.mark.parametrize("width", [1280, 390])
def test_no_word_of_a_chart_is_cut(page, address, width):
    """On a phone the title of the axis lost its last two letters."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{address}report/forward-time.html")
    script = """(svg) => {
      const box = svg.getBoundingClientRect();
      const isCut = (text) => text.left < box.left - 1 || text.right > box.right + 1;
      const texts = [...svg.querySelectorAll('text')];
      return [texts.length, texts.filter((one) => isCut(one.getBoundingClientRect())).map((one) => one.textContent)];
    }"""
    num_texts, cut = page.locator("#chart-clocks svg").locator("visible=true").evaluate(script)
    assert num_texts > 5 and not cut


@pytest.mark.parametrize("width", [1280, 390])
def test_a_tap_on_a_mark_says_its_value_and_leads_to_its_run(page, address, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{address}report/forward-time.html")
    figure = page.locator("#chart-clocks")
    figure.locator("svg path:has(title)").locator("visible=true").first.click(force=True)
    said = figure.locator(".read")
    assert re.fullmatch(r"small \(0\.13B\) · 128, .+: [\d.]+× · its run", said.inner_text())
    said.locator("a").click()
    page.wait_for_url("**/report/runs/small-ctx128-*-forward.html")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_chart_fits_and_its_words_keep_their_size(page, address, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{address}report/forward-time.html")
    drawing = page.locator("figure.chart svg").locator("visible=true")
    assert drawing.count() == 1
    assert drawing.bounding_box()["width"] <= width
    assert drawing.locator("text").first.evaluate("(text) => getComputedStyle(text).fontSize") == "12px"


def test_a_click_on_the_scheme_switch_recolours_the_charts(page, address):
    page.goto(f"{address}report/forward-time.html")
    script = """() => [...document.querySelectorAll('figure.chart svg')].flatMap((svg) =>
      [...svg.querySelectorAll('text, path, rect')].slice(0, 40).map((one) => getComputedStyle(one).fill))"""
    light = page.evaluate(script)
    page.locator("label.md-header__button[title='Switch to dark']").click()
    page.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
    dark = page.evaluate(script)
    assert light and len(light) == len(dark) and set(light) != set(dark)
    page.reload()
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate", "the choice is kept"


def test_a_dark_system_gets_a_dark_page(browser, address):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(address)
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
    context.close()


@pytest.mark.parametrize(
    ("words", "where"),
    [("vectorized_elementwise_kernel", "kernels"), ("cudaLaunchKernel", "cuda|kernels"), ("split-K", "kernels")],
)
def test_search_finds_kernels_and_calls(page, address, words, where):
    """The list is emptied at each letter typed, so it is read until it holds what is wanted."""
    page.goto(address)
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially(words)
    found = page.wait_for_function(
        """(where) => [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)
          .find((address) => address.match(`/report/(${where})`))""",
        arg=where,
        timeout=120_000,
    )
    page.goto(found.json_value())
    assert words.lower() in page.locator("article").inner_text().lower()


@pytest.mark.parametrize("name", ["ladder", "bounds", "memory-use"])
def test_an_answer_and_what_it_rests_on_take_under_three_screens(page, address, name):
    """The ladder took 2,724 px, the bounds 2,540."""
    page.goto(f"{address}report/{name}.html")
    assert page.evaluate("document.documentElement.scrollHeight") < 2500


INDEX = "search/search_index.json"
MOST_LOADED = 500_000
"""Bytes of home and of all that it asks for, not compressed, without the index of the search."""
LARGEST_INDEX = 400_000


def test_home_and_the_index_of_the_search_are_light(page, address):
    """The index was 1.1 MB: half of it was of pages that nobody finds by words, each of a single run."""
    loaded = {}
    page.on("response", lambda response: loaded.update({response.url.removeprefix(address): response}))
    page.goto(address, wait_until="networkidle")
    assert INDEX in loaded and len(loaded) > 5
    sizes = {name: len(response.body()) for name, response in loaded.items()}
    assert sizes.pop(INDEX) < LARGEST_INDEX and sum(sizes.values()) < MOST_LOADED


def test_the_search_has_no_pages_of_single_runs_or_pairs(built):
    """Each is one of many alike: words find the pages that list them."""
    index = json.loads((built / "search" / "search_index.json").read_text())
    folders = {doc["location"].rpartition("/")[0] for doc in index["docs"]}
    assert folders <= {"", "report", "guide", "notebooks"} and "report" in folders


def test_a_search_for_a_number_says_where_numbers_are_found(page, address):
    page.goto(address)
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("512")
    page.wait_for_function("document.querySelector('.md-search-result__meta').textContent.includes('Explore')")


def test_a_result_marks_what_was_searched_for(page, address):
    page.goto(f"{address}report/softmax-detail.html?h=softmax")
    page.locator("article mark").first.wait_for()  # the index is parsed first


UNFOUND = """(docs) => {
  const cut = lunr.tokenizer.separator;
  const words = [...new Set(docs.flatMap((text) => text.toLowerCase().split(cut)))].filter(Boolean).sort();
  lunr.TokenSet._nextId = 1;
  const set = lunr.TokenSet.fromArray(words);
  const unfound = words.filter((word) => !set.intersect(lunr.TokenSet.fromString(word)).toArray().includes(word));
  return [unfound, words.filter((word) => /[0-9]/.test(word)), words.length];
}"""


def test_search_loses_no_word(page, address, built):
    """lunr 2.3.9 confuses words with digits: a search for "tokens" ended with an error. So the index has none."""
    index = json.loads((built / "search" / "search_index.json").read_text())
    page.goto(address)
    [worker] = (built / "assets" / "javascripts" / "workers").glob("search.*.js")
    page.add_script_tag(url=f"{address}assets/javascripts/workers/{worker.name}")
    page.evaluate("(cut) => { lunr.tokenizer.separator = new RegExp(cut); }", index["config"]["separator"])
    texts = [text for doc in index["docs"] for text in (doc["title"], doc["text"], *doc.get("tags", ()))]
    unfound, with_digits, num_words = page.evaluate(UNFOUND, texts)
    assert not unfound and not with_digits
    assert num_words > 1000


def test_a_wrong_address_leads_back(page, address):
    answer = page.goto(f"{address}report/runs/no/such/page.html")
    assert answer.status == 404
    assert page.locator("h1").inner_text().startswith("There is no such page")
    assert page.evaluate("getComputedStyle(document.body).getPropertyValue('--heat-low') !== ''"), "styled"
    page.locator("article a", has_text="Home").click()
    page.wait_for_url(f"{address}index.html")


def test_a_link_to_rows_opens_them(page, address):
    page.goto(f"{address}report/forward-time.html")
    link = page.locator("a.rows").first
    target = page.locator(link.get_attribute("href"))
    assert not target.is_visible()
    page.locator("details.detail > summary", has_text="What was measured").click()
    link.click()
    assert target.locator("tbody tr").first.is_visible()


@pytest.mark.long  # the shipped studies have runs enough
@pytest.mark.parametrize("width", [1280, 390])
def test_a_link_to_a_run_opens_its_section_and_what_that_is_folded_in(page, address, width):
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{address}report/runs-of-prediction.html")
    assert page.evaluate("document.documentElement.scrollHeight") < 2500
    last = page.locator("details.run h3").last
    assert not last.is_visible()
    run_id = last.get_attribute("id")
    page.goto(f"{address}report/explore.html")
    page.locator(f"article a[href$='runs-of-prediction.html#{run_id}']").click()
    page.locator("details.run[open] p").wait_for(state="visible")
    assert page.locator("details.run[open]").count() == 1
    assert 0 <= page.locator("details.run[open]").bounding_box()["y"] < 844


def test_a_kernel_opens_to_its_full_name(page, address):
    page.goto(f"{address}report/runs/small-ctx512-fp32-naive-train_step.html#table-kernels")  # in a folded part
    details = page.locator("#table-kernels td.kernel details").first
    full = details.locator("> code")
    assert not full.is_visible()
    details.locator("summary").click()
    assert full.is_visible()
    assert len(full.inner_text()) > len(details.locator("summary").inner_text())


def test_the_menu_opens_on_a_phone(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(address)
    page.locator("label.md-header__button[for='__drawer']").click()
    link = page.locator(".md-nav--primary a", has_text="Explore").first
    link.wait_for(state="visible")
    link.click()
    page.wait_for_url("**/report/explore.html")
    page.locator("label.md-header__button[for='__drawer']").click()
    page.locator(".md-nav--primary label.md-nav__link", has_text="Reference").click()
    page.locator(".md-nav--primary a", has_text="Glossary").click()
    page.wait_for_url("**/report/glossary.html")
    context.close()


PAPER = {"width": 718, "height": 1000}
"""A4 without the margins that a browser leaves."""


@pytest.mark.parametrize(
    "path", ["index.html", *(f"report/{name}.html" for name in ("forward-time", "training-mix", "runs", "kernels"))]
)
def test_on_paper_tables_are_whole_and_controls_are_gone(page, address, path):
    page.set_viewport_size(PAPER)
    page.goto(address + path)
    page.emulate_media(media="print")
    for control in (".md-header", ".md-sidebar", "figcaption input", "figcaption button"):
        assert not page.locator(control).locator("visible=true").count(), control
    cut = """(all) => all.map((one) => [one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight])
      .filter((excess) => Math.max(...excess) > 1)"""
    assert not page.locator("article :not(.folded) > figure .scroll").evaluate_all(cut)


@pytest.mark.parametrize("path", ["index.html", "report/forward-time.html", "report/runs.html", "report/kernels.html"])
def test_without_javascript_everything_can_be_read(browser, address, path):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address + path)
    assert page.locator("h1").is_visible()
    for summary in page.locator("article details.detail > summary").all():
        summary.click()
    rows = page.locator("article > figure.data tbody tr, article > .detail > figure.data tbody tr")
    assert rows.count() > 4
    assert all(rows.nth(index).is_visible() for index in (0, rows.count() - 1))
    for chart in page.locator("figure.chart .wide svg").locator("visible=true").all():  # of the state that is chosen
        assert chart.bounding_box()["height"] > 40
    for summary in page.locator("article .scroll summary, article .folded > summary").locator("visible=true").all()[:2]:
        summary.click()
        assert summary.locator("..").get_attribute("open") is not None
    offered = page.locator("figcaption input, figcaption button, th button").locator("visible=true")
    assert not offered.count(), "nothing is offered that does not work"
    context.close()
