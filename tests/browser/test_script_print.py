"""The page of one's own script on paper."""

import re

import pytest

from tests.browser import chromium
from tests.browser.screenshots import build_site_of_script
from tests.browser.serving import serving

MOST_PAGES = 6


@pytest.mark.nightly
def test_the_page_of_a_script_takes_few_pages_of_paper(tmp_path):
    if why := chromium.missing():
        pytest.skip(why)
    with chromium.launched() as browser, serving(build_site_of_script(tmp_path)) as address:
        page = browser.new_page()
        page.goto(f"{address}index.html")
        printed = page.pdf(format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= MOST_PAGES
