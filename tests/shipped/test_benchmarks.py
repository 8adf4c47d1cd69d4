"""The benchmark page of the shipped measurements, changed so that something was lost."""

import json

from profiler_job.analysis.pages import benchmarks
from profiler_job.analysis.site.site_writer import Site
from tests.page_words import read_page
from tests.shipped.recordings import DATA

SHIPPED = DATA / "benchmarks"


def test_the_page_says_on_which_machine_and_what_was_lost_as_far_as_a_file_has_it(tmp_path):
    job = json.loads((SHIPPED / "job.json").read_text())
    machine = {"gpus": ["A", "B"], "cores": 8, "commit": "abc"}
    job["gpus"] |= {"machine": machine, "one_gpu_repeated": 2, "all_gpus_lost": {"one": "no <b>"}, "gpus_ratio": None}
    job["whole"] |= {"machine": {"gpus": [], "cores": None, "commit": ""}, "num_gpus": 0}
    del job["process_per_run"]["machine"], job["process_per_run"]["warm_lost"]
    site = Site(tmp_path, (), {}, ("size",))
    site.write("benchmarks.md", "benchmarks.md", benchmarks.answer(job, {}))
    page = read_page(tmp_path / "benchmarks.md")
    assert "at commit abc, on a machine with 8 cores and 2 A and B." in page
    assert "On one GPU, 2 captures had to be taken again." in page
    assert "one was lost (no &#60;b&#62;) and does not count" in page
    assert page.count("at commit abc") == 1 and "on 0 GPU" not in page
    assert "not measured" in page
