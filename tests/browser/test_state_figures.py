"""A figure in several states shows one at a time: by a click, by the keyboard, by its address, and without scripts."""

import pytest

PAGES = {
    "bounds": ["FP32", "BF16", "BF16 compiled", "TF32"],
    "attention": ["FP32", "BF16"],
    "host": ["FP32", "BF16"],
    "memory-use": ["FP32", "BF16", "BF16 compiled"],
    "token-cost": ["FP32", "BF16", "BF16 compiled"],
    "kernels": ["FP32", "BF16", "BF16 compiled"],
}
FIRST = {"host": "FP32", "memory-use": "FP32"}
"""The state whose steps the answer is about, if it is not BF16."""

pytestmark = pytest.mark.long


def read_shown(page):
    """Return what is shown of the figure: what a reader of its states sees change."""
    shown = page.locator(".by-state .state").locator("visible=true")
    assert shown.count() == 1
    return shown.inner_html()


@pytest.mark.parametrize("name", PAGES)
def test_a_click_and_the_arrow_keys_change_the_state(page, address, name):
    page.goto(f"{address}report/{name}.html")
    group = page.get_by_role("group", name="State").first
    buttons = group.get_by_role("radio")
    assert buttons.evaluate_all("all => all.map((one) => one.value)") == PAGES[name]
    assert group.locator("input:checked").input_value() == FIRST.get(name, "BF16")
    shown = {}
    for number, state in enumerate(PAGES[name]):
        group.locator("label").nth(number).click()
        shown[state] = read_shown(page)
    assert len({*shown.values()}) == len(PAGES[name])
    group.locator("label").first.click()
    page.keyboard.press("ArrowRight")
    assert read_shown(page) == shown[PAGES[name][1]]
    page.goto(page.url)
    assert read_shown(page) == shown[PAGES[name][1]], "the address names the state"


def test_the_anchor_of_a_figure_shows_it(page, address):
    for name in ("times-trained", "times"):
        page.goto(f"{address}report/host.html#chart-{name}")
        assert page.locator(f"#chart-{name}").is_visible()


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_every_state_can_be_chosen(browser, address, name):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(f"{address}report/{name}.html")
    seen = set()
    for number in range(len(PAGES[name])):
        page.locator(".by-state .states label").nth(number).click()
        seen.add(page.locator(".by-state .state").locator("visible=true").inner_text())
    assert len(seen) == len(PAGES[name])
    context.close()
