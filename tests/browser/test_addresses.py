"""Whatever follows # or ? in an address, no script of ours fails."""

import pytest

from tests.browser import chromium
from tests.site_builder import ROOT

PAGE = """<!doctype html><title>page</title>
<script src="{assets}/report.js" defer></script><script src="{assets}/explore.js" defer></script>
<div class="md-search"></div>
<details><summary>more</summary><p id="a b">text</p></details>
<p><a class="rows" href="#%">rows</a></p>"""


@pytest.fixture(scope="module")
def alone():
    """A browser for a page that needs no site."""
    if why := chromium.missing():
        pytest.skip(why)
    with chromium.launched() as browser:
        yield browser


@pytest.mark.parametrize("ending", ["#%", "#%E0%A4%A", "#", "#%00", "?sort=%&pin=%#%", "#none", "#a%20b"])
def test_no_address_makes_a_script_fail(alone, tmp_path, ending):
    file = tmp_path / "page.html"
    file.write_text(PAGE.format(assets=(ROOT / "site" / "assets").as_uri()))
    failures: list[str] = []
    page = alone.new_page()
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto(file.as_uri() + ending)
    page.evaluate("() => { location.hash = '%'; }")
    page.wait_for_timeout(50)
    assert failures == []
    assert page.locator("details").evaluate("(part) => part.open") is (ending == "#a%20b")
    page.close()
