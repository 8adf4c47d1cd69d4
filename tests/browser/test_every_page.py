"""Every page (with --all, of those that are alike some; else a few), light and dark, wide and narrow: quiet,
self-contained, fitting, steady, and accessible to axe-core.

axe takes minutes on pages of tables, so it reads less of them. Contrast is measured once for every combination of
colours, size and surroundings on a page. Of rows of the same elements, classes and attributes two are kept, and
every row with a text whose contrast is measured. All rules run on the light page; the dark one differs in colours only,
so there the rules about colours run. That the switch and the system's setting make a page dark is tested with the
behaviours.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.browser.chromium import watched
from tests.browser.serving import different_pages, serving

WIDTHS = {"wide": 1280, "narrow": 390}
FEW = ["index.html", *(f"report/{name}.html" for name in ("explore", "forward-time", "kernels", "methods", "runs"))]
FEW += ["report/runs/small-ctx512-fp32-naive-train_step.html", "notebooks/ask-the-data.html"]
SCHEMES = {"light": "default", "dark": "slate"}
STEADY = 0.01
"""Largest cumulative layout shift (Google calls 0.1 good)."""

WATCH_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.shifts.push(one.value);
}).observe({ type: "layout-shift", buffered: true });
"""
WIDER = """() => {
  const folded = document.querySelectorAll('details.folded:not([open])');
  for (const one of folded) one.open = true;
  const wider = [...document.querySelectorAll('figure .scroll')].filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => `${one.ariaLabel}: ${one.scrollWidth - one.clientWidth} px`);
  for (const one of folded) one.open = false;
  return wider;
}"""
EXCESS = """() => Math.max(document.body.scrollWidth, document.documentElement.scrollWidth) - innerWidth"""
SET_SCHEME = "(name) => { document.body.dataset.mdColorScheme = name; }"
SHIFTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(\
window.shifts.reduce((a, b) => a + b, 0)))))"
MARK_LOOKS = """() => {
  const around = new Map([[null, ""]]);
  const surroundings = (one) => {
    if (!around.has(one)) {
      const { backgroundColor, opacity } = getComputedStyle(one);
      around.set(one, `${surroundings(one.parentElement)} ${backgroundColor} ${opacity}`);
    }
    return around.get(one);
  };
  const seen = new Set();
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const look = [element.tagName, element.className, style.color, style.fontSize, style.fontWeight];
    const key = `${look} ${surroundings(element)}`;
    if (!seen.has(key)) element.dataset.look = "";
    seen.add(key);
  }
}"""
DROP_ROWS_ALIKE = """() => {
  const shape = (one) =>
    `${one.tagName} ${one.getAttribute("class")} ${one.getAttributeNames()} (${[...one.children].map(shape)})`;
  for (const body of document.querySelectorAll("tbody")) {
    const seen = new Map();
    for (const row of [...body.rows]) {
      if (row.querySelector("[data-look]")) continue;
      const key = shape(row);
      seen.set(key, (seen.get(key) ?? 0) + 1);
      if (seen.get(key) > 2) row.remove();
    }
  }
}"""
AXE = """async (colours) => {
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-look]" }] });
  const only = colours ? { runOnly: ["color-contrast", "link-in-text-block"] } : {};
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...only });
  return violations.flatMap((rule) =>
    rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 160)} ${node.failureSummary.replaceAll("\\n", " ")}`));
}"""


def least_shift(page, loads: int = 3) -> float:
    """How much moved while the page that is open was loaded; of several loads the least, where that is too much: on a
    busy machine a page is painted before all of it has come, which is another test."""
    least = page.evaluate(SHIFTED)
    while least > STEADY and (loads := loads - 1):
        page.reload()
        least = min(least, page.evaluate(SHIFTED))
    return least


@dataclass
class Visit:
    """What visiting all pages in one width showed, by page."""

    complaints: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    too_wide: list[str] = field(default_factory=list)
    shifting: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    wide_tables: list[str] = field(default_factory=list)
    num_pages: int = 0


def visit_all(browser, address: str, pages: list[str], width: int) -> Visit:
    axe_playwright = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    axe = (Path(axe_playwright.__file__).parent / "axe.min.js").read_text()
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    context.add_init_script(WATCH_SHIFTS)
    page = context.new_page()
    seen = Visit(num_pages=len(pages))
    complaints, requests = watched(page)
    for here in pages:
        page.goto(address + here)
        if (shift := least_shift(page)) > STEADY:
            seen.shifting.append(f"{here}: {shift:.3f}")
        page.add_style_tag(content="*, ::before, ::after { transition: none !important }")
        seen.wide_tables += [f"{here}, {one}" for one in page.evaluate(WIDER)]
        for scheme, name in SCHEMES.items():
            page.evaluate(SET_SCHEME, name)
            if (excess := page.evaluate(EXCESS)) > 0:
                seen.too_wide.append(f"{here}, {scheme}: {excess} px")
            page.evaluate(MARK_LOOKS)
        page.evaluate(DROP_ROWS_ALIKE)
        page.evaluate(axe)
        for scheme, name in SCHEMES.items():
            page.evaluate(SET_SCHEME, name)
            seen.violations += [f"{here}, {scheme}: {one}" for one in page.evaluate(AXE, scheme == "dark")]
        seen.complaints += [f"{here}: {said}" for said in complaints]
        seen.outside += [f"{here}: {url}" for url in requests if not url.startswith(address)]
        complaints.clear()
        requests.clear()
    context.close()
    return seen


@pytest.fixture(scope="package", params=list(WIDTHS))
def visit(request, browser, address, built, built_once):
    """As it takes minutes, it is made by the first worker that asks for it."""
    pages = different_pages(built) if request.config.getoption("all") else FEW

    def build(folder: Path) -> Path:
        seen = visit_all(browser, address, pages, WIDTHS[request.param])
        (folder / "seen.json").write_text(json.dumps(asdict(seen)))
        return folder / "seen.json"

    return Visit(**json.loads(built_once(f"visit-{request.param}", build).read_text()))


def test_nothing_is_logged(visit):
    assert visit.num_pages >= len(FEW)
    assert not visit.complaints


def test_nothing_is_requested_from_elsewhere(visit):
    assert not visit.outside


def test_no_page_scrolls_sideways(visit):
    assert not visit.too_wide


@pytest.mark.parametrize("visit", ["wide"], indirect=True)
def test_tables_are_no_wider_than_the_page(visit):
    """Those behind findings, too."""
    assert not visit.wide_tables


def test_nothing_moves_while_a_page_loads(visit):
    assert not visit.shifting


@pytest.mark.parametrize("width", WIDTHS.values())
def test_nothing_moves_while_a_page_arrives_in_pieces(browser, built, width):
    """The data page's tables settled their columns row by row: it moved by 0.016 on a busy machine."""
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    context.add_init_script(WATCH_SHIFTS)
    page = context.new_page()
    moved = {}
    with serving(built, slowly=True) as address:
        for path in ["index.html", *(f"report/{name}.html" for name in ("data", "kernels", "forward-time"))]:
            page.goto(address + path)
            moved[path] = page.evaluate(SHIFTED)
    context.close()
    assert max(moved.values()) <= STEADY, moved


def test_axe_finds_no_violation(visit):
    assert not visit.violations, "\n".join(visit.violations[:20])
