"""Memory on the first page of a script that was profiled."""

from dataclasses import replace

import pandas as pd
import pytest

from profiler_job.analysis.pages.script_memory import describe_compiled_activations
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.site.combine import select_runs
from profiler_job.analysis.site.question_pages import write_script_page
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.messages import UNKNOWN_MODULE
from profiler_job.jobs.follow import memory_owners
from tests import frozen

SCALARS = {"at_peak_activations": 6e9, "at_peak_parameters": 2e9, "kept_in_GPT/blocks.*/attn": 6e9}
SCALARS |= {"saved_Exp in GPT/<b>, 2 x float32 (4, 16)": 3e9, "could_free_checkpoint each block": 4e9}
SCALARS |= {"over_step_000_forward": 1e9, "over_step_001_backward": 8e9, "over_step_002_": 2e9}


def write_page(scalars: dict[str, float], folder) -> str:
    rec = frozen.load_study("optimizer")
    run_id = str(rec.runs.loc[rec.runs["status"].astype(str) == "ok", "run_id"].iloc[0])
    one = select_runs(rec, [run_id])
    rows = [
        {"run_id": run_id, "rank": 0, "figure": name, "unit": "bytes", "value": size} for name, size in scalars.items()
    ]
    one = replace(one, figures=pd.concat([one.figures, pd.DataFrame(rows)], ignore_index=True))
    labels = {key: family.label for key, family in FAMILIES.items()}
    write_script_page(Site(folder, (), labels, ("size", "context_length")), one)
    return (folder / "index.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_memory_at_the_peak_is_on_the_page_if_it_is_known(tmp_path):
    page = write_page(SCALARS, tmp_path)
    for text in ("## Memory", "75.0", "GPT/blocks.*/attn", "checkpoint each block", "50.0"):
        assert text in page
    assert "<b>" not in page and "at most 7.45 GiB, in backward" in page


UNKNOWN = {f"kept_in_{UNKNOWN_MODULE}": 6 * 2**30, "at_peak_activations": 6 * 2**30}


@pytest.mark.parametrize("compiled", ["compile_graphs", "compile_cached_graphs"])
def test_activations_of_a_compiled_script_are_said_in_one_sentence(compiled):
    said = describe_compiled_activations(UNKNOWN | {compiled: 2.0})
    assert "6.00 GiB of activations is not known" in said and said.count(". ") == 0
    assert UNKNOWN_MODULE == memory_owners.UNKNOWN_MODULE


def test_activations_of_other_scripts_have_a_table():
    assert describe_compiled_activations(UNKNOWN) == "" and describe_compiled_activations({"compile_graphs": 2.0}) == ""


@pytest.mark.long
def test_the_sentence_takes_the_place_of_a_table_of_one_row(tmp_path):
    page = write_page(SCALARS | UNKNOWN | {"compile_graphs": 2.0}, tmp_path)
    assert page.count("of activations is not known") == 1 and "Activations at the peak" not in page


@pytest.mark.long
def test_a_page_of_a_script_whose_memory_is_not_known_has_no_tables_of_it(tmp_path):
    assert "## Memory" not in write_page({}, tmp_path)
