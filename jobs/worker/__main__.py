"""The measured process, started by an executor: `python -m jobs.worker ADDRESS --device cuda`."""

from jobs.worker.service import main

main()
