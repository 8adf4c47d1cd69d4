"""The notebook: its stored outputs are what it gives when it is run, beside a clone or anywhere."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.browser.serving import serving
from tests.shipped.recordings import RECORDINGS
from tests.waiting import HANGS_S

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "site" / "notebooks").glob("*.ipynb"))
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


@pytest.mark.long
@every_notebook
def test_it_runs_anywhere_with_the_address_of_a_site(path, tmp_path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    stored = shown(notebook)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with serving(ROOT / "site") as address:
        for cell in notebook.cells:
            cell.source = cell.source.replace('DATA = "../data/"', f'DATA = "{address.rstrip("/")}/data/"')
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=HANGS_S, kernel_name="python3", resources=resources).execute()
    assert any(address.rstrip("/") in cell.source for cell in notebook.cells) and shown(notebook) == stored


@every_notebook
def test_ten_lines_draw_a_plot(path):
    notebook = nbformat.read(path, as_version=4)
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(list(filter(str.strip, cell.source.splitlines()))) <= 10
    assert any("<svg" in "".join(one["data"].get("image/svg+xml", "")) for one in cell.outputs if "data" in one)


@every_notebook
def test_it_needs_nothing_but_what_it_says_to_install(path):
    notebook = nbformat.read(path, as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    installed = next(cell.source for cell in notebook.cells if "pip install" in cell.source)
    for name in re.findall(r"^(?:import|from) (\w+)", code, re.M):
        assert f" {name}" in installed, name


@pytest.mark.long
@every_notebook
def test_its_page_is_small_and_takes_nothing_from_elsewhere(site, path):
    page = (site / "notebooks" / path.name).with_suffix(".html").read_text()
    cells = page[page.index('<div class="notebook">') : page.index("Download this notebook")]
    assert "<script" not in cells and "<style" not in cells and "clipboard" not in cells
    assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//(?!ui\.perfetto)", cells)
    assert "mathjax" not in page.lower()
    assert (site / "notebooks" / path.name).is_file()
