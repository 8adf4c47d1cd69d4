"""Measure how long the site takes to be made, and its pages to be painted, on two cores.

    python -m tests.bench.site_speed [--repeat 5] [--out FILE.json]

The shipped recordings are rendered and built as `make run` does it without a GPU, into a folder of its own. Then the
system's Chromium loads pages of it from a server on this machine, each time with an empty cache, and says when it
painted the largest thing that was seen (largest contentful paint, web.dev/lcp).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.__main__ import CORES, machine, target
from tests.browser.chromium import launched
from tests.browser.serving import serving

TO_HTML = "profiler_job.analysis.site.build_html"
PAGES = {
    "home": "index.html",
    "a question": "report/forward-time.html",
    "all runs": "report/explore.html",
    "a run": "report/runs/small-ctx512-fp32-naive-train_step.html",
}
WIDTHS = (1280, 390)
MOST_PAINT_S = 1.0
MOST_MAKE_S = 90.0
LARGEST_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  done(list.getEntries().at(-1).startTime);
}).observe({ type: "largest-contentful-paint", buffered: true }))"""


def main() -> int:
    """Measure, and write what was. Exit code 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.site_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="loads of each page; the median counts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory() as folder:
        made_s = make_site(Path(folder) / "html")
        pages = measure_pages(Path(folder) / "html", arguments.repeat)
    result = {
        "recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "make bench",
        "machine": machine(len(cores)),
        "made_s": made_s,
        "repeat": arguments.repeat,
        "pages": pages,
        "targets": targets(made_s, pages),
    }
    text = json.dumps(result, indent=2)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if all(target["met"] for target in result["targets"]) else 1


def make_site(html: Path) -> float:
    """Seconds of `make run` with the environment standing."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "profiler_job", "site", "--pages-only"], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run([sys.executable, "-m", TO_HTML, "build", "--strict", "--quiet", "-d", str(html)], check=True)
    return time.perf_counter() - began


def measure_pages(html: Path, repeat: int) -> list[dict]:
    """A row for each page and width in CSS pixels: median and longest seconds to the largest paint."""
    rows = []
    with serving(html) as address, launched() as browser:
        for name, path in PAGES.items():
            for width in WIDTHS:
                paints = [_largest_paint_s(browser, address + path, width) for _ in range(repeat)]
                row = {"page": name, "width": width, "bytes": (html / path).stat().st_size}
                rows.append(row | {"paint_s": statistics.median(paints), "longest_s": max(paints)})
    return rows


def _largest_paint_s(browser, address: str, width: int) -> float:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(address, wait_until="load")
    page.wait_for_timeout(500)  # a later paint would be larger
    paint_ms = page.evaluate(LARGEST_PAINT)
    context.close()
    return paint_ms / 1000


def targets(made_s: float, pages: list[dict]) -> list[dict]:
    slowest = max(row["paint_s"] for row in pages)
    return [
        target("make run, the environment standing: seconds", MOST_MAKE_S, made_s),
        target("largest paint of the slowest page: seconds", MOST_PAINT_S, slowest),
    ]


if __name__ == "__main__":
    sys.exit(main())
