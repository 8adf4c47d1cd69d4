"""The pages of tuned scripts."""

from pathlib import Path

from profiler_job.analysis.insight.tuned_ladder import interpret_tuning, name_tuned
from profiler_job.analysis.insight.tuned_parts import read_tuned_steps
from profiler_job.analysis.pages import tuned_script
from profiler_job.analysis.pages.telemetry import Price
from profiler_job.analysis.render.text import file_name
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.tuning import TUNE, TUNED, read_tuning


def write_tuned(site: Site, data: Path, price: Price | None) -> list[dict[str, str]]:
    """Write the page of each result of `tune` below a folder of data, and return path (below docs, without .md), title
    and headline of each. price: of the GPU, in place of the listed one. Raises TuningError."""
    pages = []
    for file in sorted((data / TUNED).glob(f"*/{TUNE}")):
        ladder = interpret_tuning(read_tuning(file), price.per_hour if price else None)
        path = f"report/{TUNED}/{file_name(file.parent.name)}"
        site.write(f"{path}.md", "tuned_script.md", tuned_script.answer(ladder, read_tuned_steps(file.parent, ladder)))
        pages.append({"path": path, "title": name_tuned(ladder), "headline": ladder.headline})
    return pages
