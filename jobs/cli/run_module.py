"""Run a module of another project in a process of its own: `python -m profiler_job.jobs.cli.run_module mkdocs build`.
Errors that it does not handle end as this program's errors do, with one line and an exit code."""

import runpy
import sys

from profiler_job.jobs.contract.errors import end_with

if __name__ == "__main__":
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except Exception as error:
        sys.exit(end_with(error))
