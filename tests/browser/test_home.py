"""The first screen of the home page: it holds all, the choices stay in the address, and it reads without scripts."""

from urllib.parse import parse_qs, urlsplit

import pytest

COMMAND = "profiler-job profile -- python train.py"
ALL = (".home .picker", ".home .states", ".state svg.ici", ".state .limits", ".state .numbers", ".state .cards")


def get_choices(page):
    return [select.input_value() for select in page.locator("#home select").all()]


@pytest.mark.parametrize("width, height", [(1280, 900), (390, 844)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_holds_all(browser, address, width, height, scheme):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{address}index.html")
    command = page.locator("p", has_text=COMMAND)
    for part in (*(page.locator(f"{name}:visible").first for name in ALL), command):
        box = part.bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= height, part
    assert page.evaluate("document.documentElement.scrollWidth") == width
    context.close()


SAYS = """words => [...document.querySelectorAll('.state .numbers')].some(
    one => one.offsetParent && one.innerText === words
)"""


def test_a_choice_shows_another_step_and_stays_in_the_address(page, address):
    page.goto(f"{address}index.html")
    context = page.locator("#home select[name=context]")
    now = context.input_value()
    other = next(value for value in context.locator("option").all_inner_texts() if value != now)
    context.select_option(other)
    page.wait_for_function("name => location.search.includes(name)", arg=f"context={other}")
    assert parse_qs(urlsplit(page.url).query)["context"] == [other]
    numbers = page.locator(".state:visible .numbers").inner_text()
    choices = get_choices(page)
    page.reload()
    page.wait_for_function(SAYS, arg=numbers)
    assert get_choices(page) == choices and page.locator(".state:visible .numbers").inner_text() == numbers


def test_each_combination_of_choices_leads_to_a_step(page, address):
    page.goto(f"{address}index.html")
    for value in page.locator("#home select[name=model] option").all_inner_texts():
        page.locator("#home select[name=model]").select_option(value)
        page.wait_for_function("name => location.search.includes(name)", arg=f"model={value.split(' (')[0]}")
        assert page.locator(".state:visible .numbers").count() == 1


def test_a_part_of_the_step_is_read_out(page, address):
    page.goto(f"{address}index.html")
    read = page.locator(".state:visible .read")
    page.locator(".state:visible svg.ici rect.matmul").first.hover()
    assert "matmul" in read.inner_text()
    page.locator(".state:visible svg.ici a").nth(1).focus()
    assert read.inner_text() == page.locator(".state:visible svg.ici a").nth(1).get_attribute("aria-label")
    page.keyboard.press("Enter")
    page.locator(".state:visible table.parts").wait_for(state="visible")


def test_it_is_a_drawing_to_take_along(page, address):
    page.goto(f"{address}index.html")
    with page.expect_download() as caught:
        page.locator(".state:visible").get_by_role("button", name="SVG").click()
    drawing = caught.value.path().read_text(encoding="utf-8")
    assert "forward" in drawing and "var(--" not in drawing


def test_without_scripts_one_step_is_shown(browser, address):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"{address}index.html")
    assert page.locator(".state:visible svg.ici").count() == 1
    assert page.locator("#home .case").is_visible() and not page.locator("#home .picker").is_visible()
    page.locator(".states label").last.click()
    assert page.locator(".state:visible").count() == 1
    context.close()


def test_a_case_can_be_chosen_on_a_page_opened_from_a_file(page, built):
    page.goto((built / "index.html").as_uri())
    context = page.locator("#home select[name=context]")
    before, now = page.locator(".state:visible .numbers").inner_text(), context.input_value()
    context.select_option(next(value for value in context.locator("option").all_inner_texts() if value != now))
    page.wait_for_function(SAYS.replace("===", "!=="), arg=before)
