"""Pages at addresses that a site of this project had before, which lead on: of the study "bf16", whose place TRAINED
has taken."""

from collections.abc import Mapping
from itertools import product
from pathlib import PurePosixPath

from profiler_job.analysis.pages.explore import SLUG as EXPLORE
from profiler_job.analysis.pages.questions import STUDIES
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.text import file_name
from profiler_job.analysis.site.fragments import to_redirect
from profiler_job.analysis.site.page_context import name_sections_page
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.studies import TRAINED

SIZES, CONTEXTS = ("small", "medium", "large", "xl", "2.7B"), (128, 256, 512, 1024)
NAME = "h200-bf16"
"""The recording of the grid in BF16."""


def write_old_addresses(site: Site, studies: Mapping[str, store.Recording]) -> None:
    """Write them for a site with TRAINED: its runs lead to the same runs there, or else to the page of all runs."""
    if TRAINED not in studies:
        return
    sections = f"{PurePosixPath(name_sections_page(TRAINED)).name}.html"
    answer = next(f"{question.slug}.html" for question in STUDIES.values() if question.study == TRAINED)
    runs = {*studies[TRAINED].runs["run_id"].astype(str)}
    pages = {"report/runs-of-bf16": sections, f"report/comparison-{NAME}": answer}
    for size, context, mode in product(SIZES, CONTEXTS, MODES):
        run_id = f"{size}-ctx{context}-bf16-sdpa-{mode}-adamw_fused"
        place = f"{sections}#{file_name(run_id)}" if run_id in runs else f"{EXPLORE}.html"
        pages[f"report/runs-{NAME}-b/{file_name(run_id)}"] = f"../{place}"
        pages[f"report/comparison-{NAME}/{size}-ctx{context}-fp32-naive-{mode}"] = f"../{answer}"
    for old, to in pages.items():
        site.write_asset(f"{old}.html", to_redirect(to))
