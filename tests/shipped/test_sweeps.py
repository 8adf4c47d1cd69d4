"""Each shipped recording is of a block in `jobs/sweeps`: what it names was asked for there, run by run."""

import json

import pytest

from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.studies import LADDER
from profiler_job.jobs.sweep.plan import load_sweep
from tests.shipped_sweeps import FILES, list_runs
from tests.site_builder import ROOT

MANIFESTS = sorted((ROOT / "site" / "data").rglob(store.MANIFEST))
OF_SWEEPS = [file for file in MANIFESTS if not json.loads(file.read_text()).get("script")]


@pytest.mark.parametrize("file", OF_SWEEPS, ids=lambda file: file.parent.name)
def test_a_recording_has_runs_of_the_block_that_it_names(file):
    manifest = json.loads(file.read_text())
    study, runs = list_runs()[manifest["sweep"]]
    assert manifest["study"] in (study, "again", LADDER), "the ladder has times of runs that a study has no more"
    assert {run["run_id"] for run in manifest["runs"]} <= {run.run_id for run in runs}


def test_no_two_blocks_of_the_project_have_one_name():
    names = [block.name or sweep.name for sweep in map(load_sweep, FILES) for block in sweep.blocks]
    assert len({*names}) == len(names)
