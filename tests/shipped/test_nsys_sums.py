"""The shipped recordings agree with the sums that nsys printed on the machine that measured."""

import pandas as pd
import pytest

from tests.shipped.recordings import locate


@pytest.mark.long
@pytest.mark.parametrize(("name", "num_runs"), [("h200-fp32", 60), ("trained_4", 10), ("changes_2", 7)])
def test_a_recording_agrees_with_nsys_to_the_nanosecond(name, num_runs):
    """Kernel calls and time by name inside the steps and inside each phase, against nsys's rows for those ranges."""
    kernels, nsys = (pd.read_parquet(locate(name) / f"{table}.parquet") for table in ("kernels", "nsys_sums"))
    assert nsys["run_id"].nunique() == num_runs
    kernels = kernels[kernels["step"] >= 0]
    total = kernels.rename(columns={"duration_ns": "total_ns"})
    by = ["run_id", "range", "kernel_name"]
    places = [total.assign(range="step"), total.rename(columns={"phase": "range"})]
    rows = pd.concat([place[[*by, "total_ns"]].astype(dict.fromkeys(by, str)) for place in places])
    ours = rows.groupby(by)["total_ns"].agg(["size", "sum"])
    theirs = nsys.astype(dict.fromkeys(by, str)).set_index(by)[["calls", "total_ns"]]
    assert ours.index.sort_values().equals(theirs.index.sort_values())
    assert (ours.to_numpy() == theirs.loc[ours.index].to_numpy()).all()
