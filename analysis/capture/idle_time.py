"""Why a GPU idles: what "launched late" means everywhere.

A gap is the time before an operation in which nothing runs on its GPU. It is late until the operation is ready, which
is the host's doing; in what is left of it the operation was launched and the GPU had not started it.

The clocks of host and GPU are some microseconds apart, so a launch is put on the GPU's clock by the shortest way from
launch to start, which counts as no wait at all: what every launch takes at least is not seen. Operations of one launch
(nodes of a CUDA graph) are ready when that call ends, and gaps inside the graph are the GPU's own.

The functions take the operations of one GPU by start, as int64 arrays of nanoseconds.
"""

import numpy as np

DRIFT = 100_000
"""Over a long capture the clocks drift apart, by 1 ns in so many at most. In captures of H200s, of several seconds, it
is up to 4.4 µs in a second."""
_NOT_COUNTED = 2**62


def find_least_lag(
    start: np.ndarray,
    launch: np.ndarray,
    launch_end: np.ndarray,
    is_node: np.ndarray,
    is_later: np.ndarray,
    drifts: bool = False,
) -> np.ndarray:
    """Find the shortest way from launch to start, for each operation (int64). It is the same for all, unless the clocks
    drift.

    is_node: the operation shares its launch with others, or is a whole graph. is_later: it is a node and not the first
    one. Nodes have the shortest way of the other operations; if there are none, the way from the end of the call to the
    first node.
    """
    lag = start - launch
    lag[is_node] = _NOT_COUNTED
    if is_node.all():
        lag = np.where(is_later, _NOT_COUNTED, start - launch_end)
    if not drifts:
        return np.full(len(lag), lag.min(initial=_NOT_COUNTED))
    # No two moments may differ by more than the drift between them: the running minimum from both sides.
    drift = start // DRIFT
    lag += drift
    backward = np.minimum.accumulate(lag[::-1])[::-1]
    backward -= drift
    lag -= drift
    lag -= drift
    np.minimum.accumulate(lag, out=lag)
    lag += drift
    return np.minimum(lag, backward, out=lag)


def compute_ready_times(
    start: np.ndarray, launch: np.ndarray, launch_end: np.ndarray, is_node: np.ndarray, least: np.ndarray
) -> np.ndarray:
    """When each operation could have started at the earliest, on the GPU's clock (int64)."""
    return np.minimum(np.where(is_node, launch_end, launch) + least, start)


def compute_late_times(covered: np.ndarray, ready: np.ndarray, is_later: np.ndarray) -> np.ndarray:
    """The part of the gap before each operation that is late (int64). covered: when what ran before had ended."""
    return np.where(is_later, 0, np.maximum(ready - covered, 0))
