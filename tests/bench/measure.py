"""One measurement in a process of its own: `python -m tests.bench.measure PROFILE` reads, attributes and summarises
it and prints what that cost as JSON. Time starts after the imports; peak memory is of the whole process, interpreter
and libraries included, as Linux tells it: what `getrusage` says begins with the peak of the process that started this
one."""

import itertools
import json
import re
import sys
import time
from pathlib import Path

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise


def main(profile: str) -> dict:
    """Seconds for each part and in all, processor seconds (fewer where the machine had other work to do as well), peak
    memory, and how many kernels were read and attributed."""
    moments, cpu = [time.perf_counter()], time.process_time()
    capture = read(profile, details=False)
    moments.append(time.perf_counter())
    attribution = attribute(capture)
    moments.append(time.perf_counter())
    summary = summarise(capture, attribution).as_json()
    moments.append(time.perf_counter())
    load_s, attribution_s, summaries_s = (b - a for a, b in itertools.pairwise(moments))
    return {
        "load_s": load_s,
        "attribution_s": attribution_s,
        "summaries_s": summaries_s,
        "cpu_s": time.process_time() - cpu,
        "seconds": moments[-1] - moments[0],
        "peak_bytes": peak_bytes(),
        "kernels_counted": sum(row["kernel_calls"] for row in summary["ranges"] if row["name"].startswith("block_")),
    }


def peak_bytes() -> int:
    """Peak memory of this process since it began."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
