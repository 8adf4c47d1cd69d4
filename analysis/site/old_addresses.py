"""Pages at addresses that a site of this project had before, which lead on: of the study "bf16", whose place TRAINED
has taken, of comparisons within TRAINED and of precisions, and of the studies whose runs LADDER has."""

from collections.abc import Mapping
from itertools import product
from pathlib import PurePosixPath

from profiler_job.analysis.pages.comparison import SLUG as COMPARISON
from profiler_job.analysis.pages.explore import SLUG as EXPLORE
from profiler_job.analysis.pages.questions import STUDIES
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.text import file_name
from profiler_job.analysis.site.combine import BY_TURNS
from profiler_job.analysis.site.fragments import to_redirect
from profiler_job.analysis.site.page_context import name_sections_page
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.studies import LADDER, PRECISION, TRAINED

SIZES, CONTEXTS = ("small", "medium", "large", "xl", "2.7B"), (128, 256, 512, 1024)
NAME = "h200-bf16"
"""The recording of the grid in BF16."""
FIRST_PAIRS = ("1.3B-ctx2048", "large-ctx1024")
"""The steps of a comparison of eager and compiled ones, when it was of one recording."""
UNPAIRED = ("medium-ctx512", "2.7B-ctx512")
"""Steps that were compared in FP32 and BF16."""


def write_old_addresses(site: Site, studies: Mapping[str, store.Recording]) -> None:
    """Write them for a site with TRAINED: its runs lead to the same runs there, or else to the page of all runs."""
    if TRAINED not in studies:
        return
    sections = f"{PurePosixPath(name_sections_page(TRAINED)).name}.html"
    answer, precision_answer = (
        next(f"{question.slug}.html" for question in STUDIES.values() if question.study == study)
        for study in (TRAINED, PRECISION)
    )
    runs = {*studies[TRAINED].runs["run_id"].astype(str)}
    pages = {"report/runs-of-bf16": sections, f"report/comparison-{NAME}": answer}
    pages["report/comparison-trained_1-default"] = f"{COMPARISON}-{TRAINED}-default.html"
    pages |= {f"report/runs-of-{study}": f"runs-of-{LADDER}.html" for study in BY_TURNS if study not in studies}
    for cell in FIRST_PAIRS:
        run = file_name(f"{cell}-bf16-sdpa-train_step-adamw_fused")
        for part in ("comparison-{}-default", "runs-{}-default-a", "runs-{}-default-b"):
            pages[f"report/{part.format('trained_1')}/{run}"] = f"../{part.format(TRAINED)}/{run}.html"
    for cell, (side, precision) in product(UNPAIRED, (("a", "fp32"), ("b", "bf16"))):
        page = f"runs-precision-bf16-{side}/{file_name(f'{cell}-{precision}-naive-train_step')}"
        pages[f"report/{page}"] = f"../{precision_answer}"
        pages[f"report/comparison-precision-bf16/{cell}-fp32-naive-train_step"] = f"../{precision_answer}"
    for size, context, mode in product(SIZES, CONTEXTS, MODES):
        run_id = f"{size}-ctx{context}-bf16-sdpa-{mode}-adamw_fused"
        place = f"{sections}#{file_name(run_id)}" if run_id in runs else f"{EXPLORE}.html"
        pages[f"report/runs-{NAME}-b/{file_name(run_id)}"] = f"../{place}"
        pages[f"report/comparison-{NAME}/{size}-ctx{context}-fp32-naive-{mode}"] = f"../{answer}"
    for old, to in pages.items():
        site.write_asset(f"{old}.html", to_redirect(to))
