"""Memory that a process frees is there for what it allocates next."""

import subprocess
import sys

_TOUCH = """
import resource, sys
import numpy as np
from profiler_job.analysis.malloc import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
np.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    np.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_kept_memory_is_not_faulted_in_again():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", _TOUCH, how], check=True, capture_output=True).stdout)
        for how in ("given-back", "kept")
    }
    assert faults["kept"] < faults["given-back"] / 4
