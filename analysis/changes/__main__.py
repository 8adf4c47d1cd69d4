"""Print the code to write for changes, as JSON: `python -m profiler_job.analysis.changes CHANGE...`."""

import json
import sys

from profiler_job.analysis.changes import join_code

print(json.dumps(join_code(tuple(sys.argv[1:]))))
