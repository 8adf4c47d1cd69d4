"""The picture of the README, light and dark: the first page of the site of somebody's own script. `python -m
tests.browser.screenshots [FOLDER]`.

The script is an HF GPT-2 loop as it was profiled on an H200. Its site is built afresh, so that the pictures show what a
reader would get. Fails if one is large.
"""

import base64
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from profiler_job.analysis.recording.ingest import ingest
from tests.browser.chromium import launched
from tests.browser.serving import serving
from tests.packed import unpack_all
from tests.site_builder import ROOT

FOLDER = ROOT / "site" / "assets" / "screenshots"
RESULTS = ROOT / "tests" / "data" / "h200_scripts" / "gpt2"
SCHEMES = ("light", "dark")
SIZE = {"width": 1280, "height": 690}
FORMAT = {"format": "webp", "quality": 30}
LARGEST = 50 * 1000


def build_site_of_script(folder: Path) -> Path:
    """Build the site of the profiled script below a folder, and return it."""
    results = shutil.copytree(RESULTS, folder / "results")
    unpack_all(results)
    ingest(results, folder / "train", emit=print)
    command = [sys.executable, "-m", "profiler_job", "site", "--recording", folder / "train", "--results", folder]
    subprocess.run(command, check=True)
    return folder / "site"


def take(address: str, folder: Path) -> list[Path]:
    """Write one WebP per scheme of the first page of the site at `address` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with launched() as browser:
        for scheme in SCHEMES:
            context = browser.new_context(viewport=SIZE, color_scheme=scheme)
            page = context.new_page()
            page.goto(address + "index.html")
            file = folder / f"script-{scheme}.webp"
            taken = context.new_cdp_session(page).send("Page.captureScreenshot", FORMAT)
            file.write_bytes(base64.b64decode(taken["data"]))
            written.append(file)
            context.close()
    return written


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with tempfile.TemporaryDirectory() as made, serving(build_site_of_script(Path(made))) as address:
        files = take(address, folder)
    for file in files:
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
    if any(file.stat().st_size > LARGEST for file in files):
        sys.exit(f"a picture is larger than {LARGEST // 1000} kB")


if __name__ == "__main__":
    main()
