"""The badge of a page, which opens to what its numbers were measured in, and that of a step."""

import pytest


@pytest.mark.parametrize("width", [390, 1280])
def test_a_badge_opens_with_the_keyboard_and_without_scripts(browser, address, width):
    context = browser.new_context(viewport={"width": width, "height": 844}, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}report/forward-time.html")
    badge = page.locator("details.conditions")
    badge.locator("summary").focus()
    page.keyboard.press("Enter")
    box = badge.locator("ul").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= width
    words = badge.locator("ul").inner_text()
    assert all(f"{name}: " in words for name in ("GPU", "Software", "Measured", "Steps", "Clock"))
    page.keyboard.press("Enter")
    assert not badge.locator("ul").is_visible()
    link = page.locator("p.conditions a", has_text="how we measured")
    line = link.bounding_box()
    assert line and line["width"] > 4 * line["height"], "on a phone it was a letter wide"
    link.click()
    assert page.url.endswith("report/methods.html")
    context.close()


@pytest.mark.parametrize("path", ["report/forward-time.html", "index.html"])
def test_what_a_badge_shows_closes_by_escape_a_click_elsewhere_and_if_the_focus_leaves(page, address, path):
    """It closed by its badge only."""
    page.goto(f"{address}{path}")
    badge = page.locator("details.pop:visible").first
    summary = badge.locator("summary")
    focused = "document.activeElement === document.querySelector('details.pop[open] summary')"

    def is_open():
        return badge.evaluate("badge => badge.open")

    def open_by_keyboard():
        summary.focus()
        page.keyboard.press("Enter")
        assert is_open() and page.evaluate(focused)

    open_by_keyboard()
    page.keyboard.press("Escape")
    assert not is_open()
    assert summary.evaluate("summary => document.activeElement === summary")
    open_by_keyboard()
    badge.locator("ul, div").first.click(position={"x": 3, "y": 3})
    assert is_open(), "a click inside selects words"
    page.locator("h1").click()
    assert not is_open()
    open_by_keyboard()
    inside = badge.locator("a").count()
    for _ in range(inside + 1):
        page.keyboard.press("Tab")
    assert not is_open() and not summary.evaluate("summary => document.activeElement === summary")


def test_the_badge_of_how_we_measured_does_not_lead_to_its_own_page(page, address):
    page.goto(f"{address}report/methods.html")
    badge = page.locator("details.conditions")
    assert badge.count() == 1 and not page.locator("p.conditions").count()
    box = badge.bounding_box()
    below = page.locator("details.conditions + p").bounding_box()
    assert below["y"] >= box["y"] + box["height"], "words beside a badge read as its own"
