"""The notebooks: their stored outputs are what they give when they are run, and the steps that they describe work."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.site.site_writer import Site
from tests import synthetic
from tests.page_words import read_page
from tests.shipped.recordings import RECORDINGS
from tests.waiting import HANGS_S

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "site" / "notebooks").glob("*.ipynb"))
OF_RECORDING = ROOT / "site" / "notebooks" / "ask-the-recording.ipynb"
AGAIN = (
    "run: jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False "
    "site/notebooks/*.ipynb"
)


every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def shown(notebook):
    """What each code cell shows, as text and HTML."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[one.get("text") or dict(one["data"]) for one in cell.outputs] for cell in cells]


@pytest.mark.long
@every_notebook
def test_stored_outputs_are_what_it_gives_now(path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    if not RECORDINGS:
        pytest.skip("no recording is here")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    stored = shown(notebook)
    assert any(stored)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=HANGS_S, kernel_name="python3", resources=resources).execute()
    assert shown(notebook) == stored, f"the stored outputs are old; {AGAIN}"


@every_notebook
def test_it_stores_no_path_of_a_machine_and_no_error(path):
    notebook = nbformat.read(path, as_version=4)
    text = path.read_text()
    assert not re.search(r"/home/|/root/|/tmp/|/work/|/Users/", text)
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    assert not [one for one in outputs if one.output_type == "error" or one.get("name") == "stderr"]


def test_the_question_that_it_describes_becomes_a_page(tmp_path):
    notebook = nbformat.read(OF_RECORDING, as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    names = {"run_grid": run_grid, "show": lambda frame: None, "rec": synthetic.recording(("small",), (128, 512))}
    for source in code:
        if "def short_kernels" in source or "def answer" in source:
            exec(source, names)
    template = next(
        re.search(r"```jinja\n(.*?)```", c.source, re.S)[1] for c in notebook.cells if "```jinja" in c.source
    )
    (tmp_path / "short_kernels.md").write_text(template)
    site = Site(tmp_path / "docs", (tmp_path,), {}, ("size", "context_length"))
    found = names["answer"](names["rec"].runs, names["rec"].kernels)
    site.write("report/short-kernels.md", "short_kernels.md", found, letter="f", title=names["TITLE"])
    page = read_page(tmp_path / "docs" / "report" / "short-kernels.md")
    assert "Kernels shorter than 10 µs" in page
    assert "cases, most launches" in page


@pytest.mark.long
@every_notebook
def test_its_page_is_small_and_takes_nothing_from_elsewhere(site, path):
    page = (site / "notebooks" / path.name).with_suffix(".html").read_text()
    cells = page[page.index('<div class="notebook">') : page.index("Download this notebook")]
    assert "<script" not in cells and "<style" not in cells and "clipboard" not in cells
    assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//(?!ui\.perfetto)", cells)
    assert "mathjax" not in page.lower()
    assert (site / "notebooks" / path.name).is_file()
