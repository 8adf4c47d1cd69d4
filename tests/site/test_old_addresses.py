"""Addresses of the grid in BF16, which steps as people train have replaced, lead on."""

import dataclasses
import re

from profiler_job.analysis.site.old_addresses import write_old_addresses
from profiler_job.analysis.site.page_context import make_site
from tests.synthetic import recording

RUN = "small-ctx512-bf16-sdpa-train_step-adamw_fused"


def read_redirects(folder):
    """The address that each page leads to, by its path."""
    return {
        str(page.relative_to(folder)): re.search(r'url=([^"]+)"', page.read_text())[1]
        for page in folder.rglob("*.html")
    }


def test_old_addresses_lead_to_the_same_run_or_to_all_runs(tmp_path):
    rec = recording(("small",), (512,), ("train_step",))
    trained = dataclasses.replace(rec, runs=rec.runs.assign(run_id=RUN))
    write_old_addresses(make_site(rec, tmp_path), {"trained": trained})
    to = read_redirects(tmp_path / "report")
    assert to["runs-of-bf16.html"] == "runs-of-trained.html"
    assert to["comparison-h200-bf16.html"] == "in-bf16.html"
    assert to["comparison-h200-bf16/2.7B-ctx128-fp32-naive-forward.html"] == "../in-bf16.html"
    assert to[f"runs-h200-bf16-b/{RUN}.html"] == f"../runs-of-trained.html#{RUN}"
    pair = "large-ctx1024-bf16-sdpa-train_step-adamw_fused.html"
    assert to[f"runs-trained_1-default-b/{pair}"] == f"../runs-trained-default-b/{pair}"
    assert to["runs-precision-bf16-b/2.7B-ctx512-bf16-naive-train_step.html"] == "../precision.html"
    assert to[f"runs-h200-bf16-b/{RUN.replace('small', 'xl')}.html"] == "../explore.html"


def test_a_site_without_steps_as_people_train_has_none(tmp_path):
    write_old_addresses(make_site(recording(("small",), (512,)), tmp_path), {})
    assert not [*tmp_path.rglob("*.html")]
