"""A run's timeline in the speedscope that the site carries."""

import base64

import pytest

from tests.browser.chromium import watched

RUN, TITLE = "small-ctx1024-fp32-naive-train_step", "small · 1024 · training step · FP32"
COLOURS = """async (data) => {
    const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + data)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 130, image.width, 100).data.buffer);
    return new Set(pixels).size;
}"""


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_the_link_on_a_run_page_draws_its_step(page, address, scheme):
    page.emulate_media(color_scheme=scheme)
    complaints, requests = watched(page)
    said = []
    page.on("console", lambda one: said.append(one.text))
    page.goto(f"{address}report/runs/{RUN}.html")
    page.locator(".timeline a").first.click()
    page.wait_for_function(f"document.title.startsWith('{TITLE}')", timeout=120_000)
    page.get_by_text("GPU 0 stream 7").first.wait_for()
    assert page.evaluate(COLOURS, base64.b64encode(page.screenshot()).decode()) > 10
    assert not complaints
    assert any("Importing as speedscope json file" in text for text in said)
    assert not [url for url in requests if not url.startswith((address, "data:", "blob:"))]
