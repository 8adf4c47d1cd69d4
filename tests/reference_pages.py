"""The generated pages of commands and outputs, as Markdown."""

import functools
import tempfile
from pathlib import Path

from profiler_job.analysis.pages import output_reference
from profiler_job.analysis.site import command_reference
from profiler_job.analysis.site.site_writer import Site


@functools.cache
def render() -> dict[str, str]:
    """Return the pages by their path below the docs."""
    answers = {"commands": command_reference.make_answer(), "output": output_reference.answer()}
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), (), {}, ())
        for name, answer in answers.items():
            site.write(f"report/{name}.md", f"{name}.md", answer)
        return {f"report/{name}.md": (site.docs / f"report/{name}.md").read_text() for name in answers}
