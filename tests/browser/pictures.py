"""Pictures of the main kinds of pages, wide and narrow, light and dark, to look at before and after a change. `python
-m tests.browser.pictures SITE FOLDER`; the page of a script is built afresh.
"""

import sys
import tempfile
from pathlib import Path

from tests.browser.chromium import launched
from tests.browser.screenshots import SCHEMES, build_site_of_script
from tests.browser.serving import serving

PAGES = {
    "home": "index.html",
    "question": "report/bounds.html",
    "explore": "report/explore.html",
    "run": "report/runs/large-ctx512-fp32-naive-train_step.html",
}
SIZES = ((1280, 900), (390, 844))


def take_pictures(site: Path, pages: dict[str, str], folder: Path) -> None:
    """Write `NAME-WIDTH-SCHEME.png` of the first screen of each page of a built site into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with serving(site) as address, launched() as browser:
        for width, height in SIZES:
            for scheme in SCHEMES:
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                page = context.new_page()
                for name, path in pages.items():
                    page.goto(f"{address}{path}", wait_until="networkidle")
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
                context.close()


def main() -> None:
    site, folder = map(Path, sys.argv[1:])
    take_pictures(site, PAGES, folder)
    with tempfile.TemporaryDirectory() as made:
        take_pictures(build_site_of_script(Path(made)), {"script": "index.html"}, folder)


if __name__ == "__main__":
    main()
