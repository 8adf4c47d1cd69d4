"""The measured process, started by an executor: `python -m profiler_job.jobs.worker ADDRESS --device cuda`."""

from profiler_job.jobs.worker.service import main

main()
