"""The summary tables of `nsys stats`, computed from a capture: same columns, same rows, same numbers.

They exist to be compared with what nsys itself prints for the same capture, to the nanosecond; what the columns mean
was deduced from its CSV files. One thing differs: nsys prints some API functions with the version of their entry point
(`cudaGraphLaunch_v10000`) and some without; here none has it (`cuda_api.strip_version`). Averages, medians and standard
deviations (of the sample; 0 for one value) are not rounded here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution, attribute
from profiler_job.analysis.capture.capture_data import UNKNOWN_THREAD, Capture, get_process_id, get_thread_id
from profiler_job.jobs.contract.printable import make_printable

_STATISTICS = ["Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)"]


def compute_statistics(group: np.ndarray, values: np.ndarray, num_groups: int) -> pd.DataFrame:
    """Compute count, total, avg, med, min, max, std of `values` (int64) in each group 0..num_groups-1; NaN if a group
    is empty."""
    order = np.lexsort((values, group))
    ordered = values[order]
    count = np.bincount(group, minlength=num_groups)
    first = np.cumsum(count) - count
    some = count > 0
    at = first[some]
    total = np.zeros(num_groups, np.int64)
    total[some] = np.add.reduceat(ordered, at) if len(at) else 0
    blank = np.full(num_groups, np.nan)
    average, median, low, high = blank.copy(), blank.copy(), blank.copy(), blank.copy()
    average[some] = total[some] / count[some]
    median[some] = (ordered[at + (count[some] - 1) // 2] + ordered[at + count[some] // 2]) / 2
    low[some], high[some] = ordered[at], ordered[at + count[some] - 1]
    squares = np.bincount(group, (values - average[group]) ** 2, num_groups)
    deviation = np.sqrt(squares / np.maximum(count - 1, 1))
    return pd.DataFrame(
        {"count": count, "total": total, "avg": average, "med": median, "min": low, "max": high, "std": deviation}
    )


def _name_statistics(stats: pd.DataFrame, prefix: str = "") -> dict[str, Any]:
    names = [f"{prefix}{name}" for name in _STATISTICS]
    integral = stats.astype({"min": "Int64", "max": "Int64"})  # as nsys prints them; missing where a group is empty
    return dict(zip(names, (integral[statistic] for statistic in ("avg", "med", "min", "max", "std"))))


def _sum_by_name(names: pd.Series, values: np.ndarray, count: str, name: str) -> pd.DataFrame:
    categories = names.cat.categories
    stats = compute_statistics(names.cat.codes.to_numpy(), values, len(categories))
    total_ns = max(int(stats["total"].sum()), 1)
    frame = pd.DataFrame(
        {
            "Time (%)": 100 * stats["total"] / total_ns,
            "Total Time (ns)": stats["total"],
            count: stats["count"],
            **_name_statistics(stats),
            name: np.asarray(categories, dtype=object),
        }
    )
    return _sort_largest_first(frame[stats["count"] > 0], "Total Time (ns)")


def _sort_largest_first(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    return frame.sort_values(by, ascending=False, kind="stable", ignore_index=True)


def _measure_duration(frame: pd.DataFrame) -> np.ndarray:
    return (frame["end_ns"] - frame["start_ns"]).to_numpy()


def cuda_gpu_kern_sum(capture: Capture, attribution: Attribution | None = None) -> pd.DataFrame:
    """Kernels by full name."""
    return _sum_by_name(capture.kernels["kernel_name"], _measure_duration(capture.kernels), "Instances", "Name")


def cuda_api_sum(capture: Capture, attribution: Attribution | None = None) -> pd.DataFrame:
    """CUDA API calls by function: time on the host."""
    return _sum_by_name(capture.api["name"], _measure_duration(capture.api), "Num Calls", "Name")


def cuda_gpu_mem_time_sum(capture: Capture, attribution: Attribution | None = None) -> pd.DataFrame:
    """Memory copies by direction, and memory sets."""
    names = capture.memops["operation"].cat
    shown = capture.memops["operation"].cat.rename_categories([f"[CUDA {name}]" for name in names.categories])
    return _sum_by_name(shown, _measure_duration(capture.memops), "Count", "Operation")


def _group_ranges(ranges: pd.DataFrame) -> tuple[np.ndarray, pd.DataFrame]:
    """Group of each range by what nsys prints (domain:name and style), and the groups."""
    keys = pd.DataFrame({name: ranges[name].cat.codes for name in ("domain", "name", "style")})
    grouped = keys.groupby(list(keys), sort=True)
    group = grouped.ngroup().to_numpy()
    unique = keys.assign(group=group).drop_duplicates("group").sort_values("group")
    domain, name, style = (ranges[c].cat.categories[unique[c]] for c in ("domain", "name", "style"))
    return group, pd.DataFrame({"Range": [f"{d}:{n}" for d, n in zip(domain, name)], "Style": list(style)})


def nvtx_sum(capture: Capture, attribution: Attribution | None = None) -> pd.DataFrame:
    """NVTX ranges by name: time on the host."""
    ranges = capture.ranges
    group, shown = _group_ranges(ranges)
    stats = compute_statistics(group, _measure_duration(ranges), len(shown))
    frame = pd.DataFrame(
        {
            "Time (%)": 100 * stats["total"] / max(int(stats["total"].sum()), 1),
            "Total Time (ns)": stats["total"],
            "Instances": stats["count"],
            **_name_statistics(stats),
            "Style": shown["Style"],
            "Range": shown["Range"],
        }
    )
    return _sort_largest_first(frame, "Total Time (ns)")


def nvtx_kern_sum(capture: Capture, attribution: Attribution | None = None) -> pd.DataFrame:
    """Kernels by name within each push/pop range (inner ranges included) and launching thread; kernels outside every
    range first, with an empty range."""
    attribution = attribution or attribute(capture)
    place, kernels, ranges = attribution.kernels, capture.kernels, attribution.ranges
    group, shown = _group_ranges(ranges)
    op, inside = attribution.pair_with_ranges(place)
    outside = np.setdiff1d(np.flatnonzero((place["api"] >= 0).to_numpy()), op)
    op, inside = np.concatenate([op, outside]), np.concatenate([inside, np.full(len(outside), -1)])
    keys = pd.DataFrame(
        {
            "range": np.where(inside >= 0, group[inside] if len(group) else -1, -1),
            "thread": place["thread"].to_numpy()[op],
            "kernel": kernels["kernel_name"].cat.codes.to_numpy()[op],
        }
    )
    grouped = keys.groupby(["range", "thread", "kernel"], sort=True)
    number = grouped.ngroup().to_numpy()
    unique = keys.assign(number=number).drop_duplicates("number").sort_values("number")
    stats = compute_statistics(number, _measure_duration(kernels)[op], len(unique))
    instances = pd.DataFrame({"number": number, "inside": inside}).drop_duplicates()
    instances = np.bincount(instances["number"][instances["inside"] >= 0], minlength=len(unique))
    known = unique["range"].to_numpy()
    names = [*shown["Range"], ""], [*shown["Style"], ""]
    frame = pd.DataFrame(
        {
            "NVTX Range": [names[0][code] for code in known],
            "Style": [names[1][code] for code in known],
            "PID": [get_process_id(thread >> 24) for thread in unique["thread"]],
            "TID": [get_thread_id(thread) for thread in unique["thread"]],
            "NVTX Inst": instances,
            "Kern Inst": stats["count"],
            "Total Time (ns)": stats["total"],
            **_name_statistics(stats),
            "Kernel Name": kernels["kernel_name"].cat.categories[unique["kernel"]].astype(object),
        }
    )
    order = np.lexsort((-frame["Total Time (ns)"], frame["NVTX Range"]))
    return frame.iloc[order].reset_index(drop=True)


def join_gpu_operations(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """Kernels, memory copies and fills together: start_ns, end_ns and the columns of their attribution."""
    frames = []
    for name in ("kernels", "memops"):
        times = getattr(capture, name)[["start_ns", "end_ns"]]
        frames.append(pd.concat([times, getattr(attribution, name)[["api", "launch_ns", "thread"]]], axis=1))
    return pd.concat(frames, ignore_index=True)


def nvtx_gpu_proj_sum(capture: Capture, attribution: Attribution | None = None) -> pd.DataFrame:
    """Push/pop ranges projected onto the GPU: from the start of the first operation launched inside to the end of the
    last. Only instances that launched something count. A CUDA graph launch is one operation, however many kernels it
    has."""
    attribution = attribution or attribute(capture)
    ranges = attribution.ranges
    operations = join_gpu_operations(capture, attribution)
    op, inside = attribution.pair_with_ranges(operations)
    first = np.full(len(ranges), np.iinfo(np.int64).max)
    last = np.full(len(ranges), np.iinfo(np.int64).min)
    np.minimum.at(first, inside, operations["start_ns"].to_numpy()[op])
    np.maximum.at(last, inside, operations["end_ns"].to_numpy()[op])
    launches = pd.DataFrame({"inside": inside, "api": operations["api"].to_numpy()[op]}).drop_duplicates()
    num_ops = np.bincount(launches["inside"], minlength=len(ranges))
    used = np.flatnonzero(num_ops)
    parent = attribution.ranges["parent_id"].to_numpy()
    children = np.bincount(parent[(parent >= 0) & (num_ops > 0)], minlength=len(ranges))
    group, shown = _group_ranges(ranges)
    group = group[used]
    stats = compute_statistics(group, (last - first)[used], len(shown))
    sums = {
        name: np.bincount(group, values[used], len(shown))
        for name, values in (
            ("time", _measure_duration(ranges)),
            ("ops", num_ops),
            ("level", ranges["depth"].to_numpy()),
            ("children", children),
        )
    }
    count = np.maximum(stats["count"], 1)
    five = {name.replace("Avg", "Proj Avg"): value for name, value in _name_statistics(stats).items()}
    frame = pd.DataFrame(
        {
            "Range": shown["Range"],
            "Style": shown["Style"],
            "Total Proj Time (ns)": stats["total"],
            "Total Range Time (ns)": sums["time"].astype(np.int64),
            "Range Instances": stats["count"],
            **{f"Proj {name.removeprefix('Proj ')}": value for name, value in five.items()},
            "Total GPU Ops": sums["ops"].astype(np.int64),
            "Avg GPU Ops": sums["ops"] / count,
            "Avg Range Lvl": sums["level"] / count,
            "Avg Num Child": sums["children"] / count,
        }
    )
    return _sort_largest_first(frame[stats["count"] > 0], "Total Proj Time (ns)")


def cuda_kern_exec_sum(capture: Capture, attribution: Attribution | None = None) -> pd.DataFrame:
    """Measure from launch call to the end of the kernel, by thread, device, API function and kernel: T from the start
    of the call to the end of the later of call and kernel, A the call, Q from the end of the call to the start of the
    kernel if the kernel did not start before (QCount of them), K the kernel."""
    attribution = attribution or attribute(capture)
    place = attribution.kernels
    row = np.flatnonzero((place["api"] >= 0).to_numpy() & (place["thread"] != UNKNOWN_THREAD).to_numpy())
    kernels, place = capture.kernels.iloc[row], place.iloc[row]
    keys = pd.DataFrame(
        {
            "thread": place["thread"].to_numpy(),
            "device": kernels["device"].to_numpy(),
            "api": capture.api["name"].cat.codes.to_numpy()[place["api"].to_numpy()],
            "kernel": kernels["kernel_name"].cat.codes.to_numpy(),
        }
    )
    grouped = keys.groupby(list(keys), sort=True)
    group = grouped.ngroup().to_numpy()
    unique = keys.assign(group=group).drop_duplicates("group").sort_values("group")
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    launch, launch_end = place["launch_ns"].to_numpy(), place["launch_end_ns"].to_numpy()
    queued = start >= launch_end
    spans = {
        "T": compute_statistics(group, np.maximum(end, launch_end) - launch, len(unique)),
        "A": compute_statistics(group, launch_end - launch, len(unique)),
        "Q": compute_statistics(group[queued], (start - launch_end)[queued], len(unique)),
        "K": compute_statistics(group, end - start, len(unique)),
    }
    frame = pd.DataFrame(
        {
            "PID": [get_process_id(thread >> 24) for thread in unique["thread"]],
            "TID": [get_thread_id(thread) for thread in unique["thread"]],
            "DevId": unique["device"].to_numpy(),
            "Count": spans["T"]["count"],
            "QCount": spans["Q"]["count"],
            **{name: values for span, stats in spans.items() for name, values in _name_statistics(stats, span).items()},
            "API Name": capture.api["name"].cat.categories[unique["api"]].astype(object),
            "Kernel Name": capture.kernels["kernel_name"].cat.categories[unique["kernel"]].astype(object),
        }
    )
    return _sort_largest_first(frame, "TAvg (ns)")


REPORTS: dict[str, Callable[..., pd.DataFrame]] = {
    report.__name__: report
    for report in (
        cuda_gpu_kern_sum,
        cuda_api_sum,
        cuda_gpu_mem_time_sum,
        cuda_kern_exec_sum,
        nvtx_sum,
        nvtx_kern_sum,
        nvtx_gpu_proj_sum,
    )
}
LONGEST_NAME = 100
"""Characters of a name in tables of text; CSV has all of it."""


def format_reports(capture: Capture) -> str:
    """Return all tables as text, one after the other, each below its name."""
    blocks = []
    for name, report in REPORTS.items():
        table = report(capture)
        with pd.option_context("display.max_colwidth", LONGEST_NAME):
            text = table.to_string(index=False, float_format="%.1f") if len(table) else "(no rows)"
        blocks.append(f"{name}\n\n{_make_printable(text)}\n")
    return "\n".join(blocks)


def _make_printable(lines: str) -> str:
    return "\n".join(map(make_printable, lines.splitlines()))
