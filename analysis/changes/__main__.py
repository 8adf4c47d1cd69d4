"""Print the code to write for changes, as JSON: `python -m profiler_job.analysis.changes CHANGE...`."""

import json
import sys

from profiler_job.analysis.changes import join_code

if __name__ == "__main__":
    print(json.dumps(join_code(tuple(sys.argv[1:]))))
