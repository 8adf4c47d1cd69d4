"""The picture of the site for the README, light and dark: `python -m tests.browser.screenshots [FOLDER]`.

Renders the shipped recording afresh, so that the pictures show what a reader would get, and fails where one is large.
"""

import sys
import tempfile
from pathlib import Path

from tests.browser.chromium import launched
from tests.browser.serving import serving
from tests.site_builder import ROOT, build_site

FOLDER = ROOT / "site" / "assets" / "screenshots"
SCHEMES = ("light", "dark")
SIZE = {"width": 1280, "height": 860}
LARGEST = 250 * 1000


def take(address: str, folder: Path) -> list[Path]:
    """Write one PNG per scheme of the overview of the site at `address` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with launched() as browser:
        for scheme in SCHEMES:
            context = browser.new_context(viewport=SIZE, color_scheme=scheme)
            page = context.new_page()
            page.goto(address + "index.html")
            file = folder / f"overview-{scheme}.png"
            page.screenshot(path=file)
            written.append(file)
            context.close()
    return written


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with tempfile.TemporaryDirectory() as made, serving(build_site(Path(made))) as address:
        files = take(address, folder)
    for file in files:
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
    if any(file.stat().st_size > LARGEST for file in files):
        sys.exit(f"a picture is larger than {LARGEST // 1000} kB")


if __name__ == "__main__":
    main()
