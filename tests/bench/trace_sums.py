"""Compare what is read of traces of torch.profiler with plain sums over their JSON.

python -m tests.bench.trace_sums TRACE...

Printed as JSON, a line for each trace: kernels and copies with their sums in ns, as read and as summed, whether they
are equal, and what `show` says first.
"""

import argparse
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.trace_files import open_trace
from profiler_job.analysis.insight.limit_lines import describe_verdict
from profiler_job.analysis.insight.summary import summarise

_KERNELS, _COPIES = {"kernel"}, {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}


def sum_plainly(path: Path) -> dict[str, int]:
    """Count and sum the operations of a trace, as any reader of JSON finds them."""
    with open_trace(path) as file:
        text = file.read().decode("utf-8", "replace")
    trace = json.loads(text, strict=False, parse_float=Decimal)
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    sums = dict.fromkeys(("kernels", "kernel_ns", "copies", "copy_ns"), 0)
    for event in events:
        category = str(event.get("cat")).lower()
        if event.get("ph") != "X" or category not in _KERNELS | _COPIES:
            continue
        count, total = ("kernels", "kernel_ns") if category in _KERNELS else ("copies", "copy_ns")
        sums[count] += 1
        sums[total] += round(Decimal(str(event.get("dur") or 0)) * 1000)
    return sums


def check(path: Path) -> dict[str, Any]:
    """Read a trace, and compare it with its plain sums."""
    plain = sum_plainly(path)
    try:
        capture = read(path)
    except ExportError as error:
        return {"trace": path.name, "refused": error.code, "plain": plain}
    times = [int((frame["end_ns"] - frame["start_ns"]).sum()) for frame in (capture.kernels, capture.memops)]
    sums = dict(zip(plain, (len(capture.kernels), times[0], len(capture.memops), times[1])))
    verdict = describe_verdict(summarise(capture))[0]
    return {"trace": path.name, **sums, "is_equal": sums == plain, "plain": plain, "verdict": verdict}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="+", type=Path)
    for trace in parser.parse_args().traces:
        print(json.dumps(check(trace)), flush=True)
