"""What is known of a script that was measured: the answers behind its pages, which `profile` prints, too."""

from typing import NamedTuple

import pandas as pd

from profiler_job.analysis.insight.module_times import list_modules
from profiler_job.analysis.metrics.kernel_time import kernel_totals
from profiler_job.analysis.pages import run_page, script_page
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.run_table import read_whole
from profiler_job.analysis.render.answer import Answer


class ScriptAnswers(NamedTuple):
    """of_script: of the first page; of_run: of the page of its run, with the first screen. modules: kernel time of a
    step by module, as `show` has it."""

    of_script: Answer
    of_run: Answer
    modules: pd.DataFrame


def answer_script(rec: store.Recording) -> ScriptAnswers:
    """Answer what the pages of a script show. rec: with one run."""
    noted = rec.waits, rec.sync_calls, rec.wait_stacks, rec.compile_notes
    kernels, memops = read_whole(rec.kernels), read_whole(rec.memops)
    of_script = script_page.answer(rec.runs, rec.steps, kernels, memops, rec.figures, *noted)
    tables = {name: getattr(rec, name) for name in run_page.TABLES}
    [(_, of_run)] = run_page.answers(**tables, checks=pd.DataFrame(columns=["run_id"]))
    return ScriptAnswers(of_script, of_run, list_modules(kernel_totals(kernels)))
