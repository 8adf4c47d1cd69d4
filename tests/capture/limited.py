"""Show one capture after another, each in a process with 10 s of processor time, and report the result and the memory.

    python -m tests.capture.limited < PATHS     one path a line; prints one line of JSON for each

A process that only waits is ended after HANGS_S. Memory is the peak of the process (VmHWM), interpreter and libraries
included.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

from profiler_job.analysis.show import show
from tests.bench.measure import peak_bytes
from tests.waiting import HANGS_S

PROCESSOR_S = 10
MOST_BYTES = 4 << 30  # so that what is not refused does not take the machine's memory


def main() -> None:
    """One line for each path."""
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _show(Path(line.rstrip("\n")), writing)
        os.close(writing)
        with os.fdopen(reading) as said:
            answer = said.read()
        _, status = os.waitpid(child, 0)
        print(answer or json.dumps({"ended_by": signal.Signals(os.WTERMSIG(status)).name}), flush=True)


def _show(path: Path, writing: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    signal.alarm(HANGS_S)
    out: list[str] = []
    err: list[str] = []
    code = show([path], "json", 0, out.append, err.append)
    with os.fdopen(writing, "w") as answer:
        json.dump({"code": code, "err": err, "peak_bytes": peak_bytes(), "out": out[:1]}, answer)
    os._exit(0)


if __name__ == "__main__":
    main()
