"""The messages of communication kernels, which NCCL's ranges give."""

import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture


def find_messages(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """Find the bytes and the communicator of each kernel's message, from NCCL's range around its launch; -1 if no range
    gives them."""
    ranges, range_id = attribution.ranges, attribution.kernels["range_id"].to_numpy()
    unknown = pd.DataFrame(-1, index=range(len(range_id)), columns=["bytes", "communicator"])
    if not len(capture.messages) or not len(ranges):
        return unknown
    said = capture.messages.drop_duplicates(["thread", "start_ns"]).set_index(["thread", "start_ns"])
    inside = range_id >= 0
    around = ranges.iloc[range_id[inside]]
    keys = pd.MultiIndex.from_arrays([around["thread"].to_numpy(), around["start_ns"].to_numpy()])
    unknown.loc[inside] = said[["bytes", "communicator"]].reindex(keys, fill_value=-1).to_numpy()
    return unknown
