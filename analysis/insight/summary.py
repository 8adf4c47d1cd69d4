"""What a capture holds, summarised: the tables that `show` prints, and the JSON interface.

`summarise` returns one frame a section, and `Summary.as_json()` the stable interface. `section_columns.SECTIONS`
explains each column in one line. Everything is vectorised: a capture of a million kernels takes about a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.attribution import ATTRIBUTIONS, Attribution, attribute
from profiler_job.analysis.capture.blocks import count_by, sum_by
from profiler_job.analysis.capture.capture_data import UNKNOWN_PROCESS, Capture, get_process_id
from profiler_job.analysis.capture.chosen_part import ALL, Selection
from profiler_job.analysis.capture.collective_time import Communication
from profiler_job.analysis.capture.compiled_graphs import has_compiled
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.capture.graph_breaks import find_breaks, measure_idle, read_lines
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.kernel_overlaps import KernelOverlaps
from profiler_job.analysis.capture.selection import find_first_event, find_gpus, select
from profiler_job.analysis.capture.startup import find_loading_end, find_startup_end
from profiler_job.analysis.insight import advice, findings, gpu_limit
from profiler_job.analysis.insight.api_times import summarise_api, summarise_launches
from profiler_job.analysis.insight.broken_lines import list_captured
from profiler_job.analysis.insight.capture_gaps import find_unmatched_ranges, list_missing, list_problems
from profiler_job.analysis.insight.clean_gaps import CleanGaps
from profiler_job.analysis.insight.communication import measure
from profiler_job.analysis.insight.insight import form_sentences
from profiler_job.analysis.insight.matmul_sizes import summarise_matmuls
from profiler_job.analysis.insight.module_times import find_missing, link_followed, summarise_modules
from profiler_job.analysis.insight.phase_times import summarise_phases
from profiler_job.analysis.insight.range_times import summarise_ranges
from profiler_job.analysis.insight.results import NUM_MOMENTS, Summary
from profiler_job.analysis.insight.section_columns import SECTIONS, compute_share, make_frame
from profiler_job.analysis.insight.wait_causes import add_causes
from profiler_job.analysis.insight.wait_lines import bound_savings, fit_to_compiled
from profiler_job.analysis.insight.waits import find_waits
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.reference.kernel_families import COMMUNICATION, COMPUTE_FAMILIES
from profiler_job.analysis.reference.rules import OTHER, Taxonomy

OF_LIBRARIES = (*COMPUTE_FAMILIES, COMMUNICATION, "memory", OTHER)
OF_PYTORCH = (
    r"\bat::|\bc10::|torch|^triton_(?:poi|per|red|for|tem|spl|flex)_|"
    r"(?:elementwise|reduce|multi_tensor_apply)_kernel\b|CatArrayBatchedCopy|\bcunn_"
)
"""In the names of kernels that PyTorch launches."""


@dataclass(frozen=True, kw_only=True)
class CapturePart:
    """What `selection` leaves of a capture, and the entire capture. zero: when its first event begins."""

    capture: Capture
    attribution: Attribution
    entire: tuple[Capture, Attribution]
    selection: Selection
    zero: int


def select_part(
    capture: Capture,
    attribution: Attribution | None = None,
    chosen: Mapping[str, str] | None = None,
    selection: Selection = ALL,
    skips_startup: bool = False,
) -> CapturePart:
    """Select a part of a capture, with the arguments of `summarise`. Raises ExportError."""
    attribution = link_followed(capture, attribution or infer_phases(capture, attribute(capture, chosen)))
    zero = find_first_event(capture)
    is_free = skips_startup and selection.between is None and selection.range is None
    startup = find_startup_end(capture, attribution) if is_free else None
    if startup is not None:
        selection = replace(selection, between=(startup - zero, capture.events_ns), after_startup=True)
    entire = capture, attribution
    capture, attribution = select(*entire, selection)
    return CapturePart(capture=capture, attribution=attribution, entire=entire, selection=selection, zero=zero)


def summarise(
    capture: Capture,
    attribution: Attribution | None = None,
    taxonomy: Taxonomy = kernel_families.BUILT_IN,
    chosen: Mapping[str, str] | None = None,
    selection: Selection = ALL,
    with_moments: bool = False,
    skips_startup: bool = False,
    clean: CleanGaps | None = None,
) -> Summary:
    """Summarise what `selection` leaves of `capture`, with kernels classified by `taxonomy`. chosen: phases of ranges
    that the user names; with_moments: `busy`, too, which is for drawing; skips_startup: start-up is left out, if
    `selection` leaves no part of the time already; clean: steps to which waiting is scaled, see `find_waits`. Raises
    ExportError."""
    part = select_part(capture, attribution, chosen, selection, skips_startup)
    return summarise_part(part, taxonomy, chosen, with_moments, clean)


def summarise_part(
    part: CapturePart,
    taxonomy: Taxonomy,
    chosen: Mapping[str, str] | None = None,
    with_moments: bool = False,
    clean: CleanGaps | None = None,
) -> Summary:
    """Summarise a part of a capture, with the other arguments of `summarise`."""
    capture, attribution, selection = part.capture, part.attribution, part.selection
    kernels = capture.kernels
    duration = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    gpu = find_gpus(capture, kernels)
    overlaps = KernelOverlaps(gpu, kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy())
    gpus = {"kernels": gpu} | {name: find_gpus(capture, getattr(capture, name)) for name in ("graphs", "memops")}
    of_gpus, of_phases = gpu_limit.split_elapsed(capture, attribution, gpus, taxonomy)
    if selection.range is not None:  # of what else the GPU did meanwhile nothing is left: it would count as idle
        of_gpus, of_phases = of_gpus.head(0), of_phases.head(0)
    sections = {
        "verdict": of_gpus,
        "verdict_phases": of_phases,
        "kernels": _summarise_kernels(kernels, duration, taxonomy),
        "ranges": summarise_ranges(capture, attribution, duration, overlaps),
        "phases": summarise_phases(attribution, duration, overlaps),
        "api": summarise_api(capture, attribution),
        "matmuls": summarise_matmuls(capture, attribution, taxonomy),
        "syncs": _summarise_syncs(capture),
        "memops": _summarise_memops(capture),
        "gpus": _summarise_gpus(capture, gpus, duration),
    }
    if selection.gpu is None:
        exchanged = measure(capture, attribution, gpu, taxonomy)
    else:  # who waits for whom shows in the kernels of the other GPUs
        every, places = select(*part.entire, replace(selection, gpu=None))
        exchanged = measure(every, places, find_gpus(every, every.kernels), taxonomy).select_gpu(selection.gpu)
    sections |= {"communication": exchanged.of_gpus}
    sections |= {name: getattr(exchanged, name) for name in ("collectives", "messages", "late_kernels")}
    sections["families"] = _summarise_families(sections["kernels"])
    families = dict(zip(sections["kernels"]["name"], sections["kernels"]["family"]))
    sections["modules"] = summarise_modules(capture, attribution, families)
    breaks = find_breaks(capture, attribution)
    sections["findings"] = findings.find_findings(capture, attribution, sections["gpus"], taxonomy, breaks)
    if selection.range is not None:
        sections["gpus"]["idle_share"] = None
        of_exchange = ("communication", "collectives", "messages", "late_kernels")
        sections |= {name: sections[name].head(0) for name in of_exchange}
        of_idle = sections["findings"]["kind"].isin(findings.OF_IDLE_TIME)
        sections["findings"] = sections["findings"][~of_idle].reset_index(drop=True)
    waits = find_waits(capture, attribution, gpus, taxonomy, is_whole=selection.range is None, clean=clean)
    is_compiled = has_compiled(attribution.ranges, sections["kernels"]["name"])
    sections |= waits.sections | {"waits": fit_to_compiled(waits.sections["waits"], is_compiled)}
    for name in ("verdict", "verdict_phases"):
        sections[name] = add_causes(sections[name], waits.causes)
    sections["problems"] = list_problems(capture, attribution)
    sections["missing"] = list_missing(capture, attribution, chosen or {}, find_missing(*part.entire))
    facts = _collect_facts(capture, attribution, selection, sections, exchanged, part.zero) | waits.facts
    capabilities = {
        str(gpu.get("name")): (int(gpu["compute_major"]), int(gpu.get("compute_minor") or 0))
        for gpu in capture.gpus
        if gpu.get("compute_major")
    }
    of_program = {
        "compute_capabilities": capabilities,
        "has_pytorch": _may_have_pytorch(attribution, sections["kernels"]),
        "is_compiled": is_compiled,
        "captured_waiting_ns": measure_idle(capture, attribution) if breaks else None,
    }
    broken = list_captured(read_lines(attribution.ranges), breaks if selection.range is None else [])
    lines = bound_savings(sections["waits"], facts["waiting_ns"] or 0, facts["sample_period_ns"] or 0)
    sections["advice"] = advice.advise(facts | of_program, sections | {"lines": lines, "breaks": broken})
    return Summary(
        capture=facts,
        coverage=_measure_coverage(attribution, duration),
        form_sentences=form_sentences,
        launches=summarise_launches(attribution, kernels, gpu, of_gpus),
        sections={name: sections[name] for name in SECTIONS},
        shown=selection.sections or tuple(SECTIONS),
        busy=_measure_busy_moments(capture, gpus) if with_moments else {},
    )


def _may_have_pytorch(attribution: Attribution, kernels: pd.DataFrame) -> bool:
    """Whether a program may run PyTorch: unless all its kernels that are neither of libraries nor of communication are
    of another origin."""
    own = kernels.loc[~kernels["family"].isin(OF_LIBRARIES), "name"].astype(str)
    return own.empty or own.str.contains(OF_PYTORCH).any() or bool(attribution.ranges["is_operation"].any())


def _measure_coverage(attribution: Attribution, duration: np.ndarray) -> dict[str, float | None]:
    """Share of kernel time by attribution; None in a capture without kernels."""
    total = int(duration.sum())
    codes = attribution.kernels["attribution"].cat.codes.to_numpy()
    time = sum_by(codes, duration, len(ATTRIBUTIONS))
    return {name: (float(part / total) if total else None) for name, part in zip(ATTRIBUTIONS, time)}


def _collect_facts(
    capture: Capture,
    attribution: Attribution,
    selection: Selection,
    sections: Mapping[str, pd.DataFrame],
    exchanged: Communication,
    zero: int,
) -> dict[str, Any]:
    """The facts of what is selected of a capture, whose first event starts at `zero`."""
    duration = (capture.kernels["end_ns"] - capture.kernels["start_ns"]).to_numpy()
    total = int(duration.sum())
    frames = (capture.kernels, capture.graphs, capture.memops, capture.syncs, capture.api, capture.ranges)
    processes = {int(process) for frame in frames for process in find_distinct(frame["process"].to_numpy())}
    graph_ns = int((capture.graphs["end_ns"] - capture.graphs["start_ns"]).sum())
    return {
        "source": capture.source,
        "selection": selection.as_json(),
        "nsys_version": capture.nsys_version,
        "schema_version": capture.schema_version,
        "duration_ns": int(capture.duration_ns),
        "events_ns": int(capture.events_ns),
        "processes": sorted(get_process_id(process) for process in processes - {UNKNOWN_PROCESS}),
        **_find_work(capture, zero),
        **({"loading_end_ns": None} if selection.after_startup else {}),
        "num_gpus": len(sections["gpus"]),
        "num_kernels": len(capture.kernels),
        "num_graph_executions": len(capture.graphs),
        "num_api_calls": len(capture.api),
        "num_ranges": len(capture.ranges),
        "num_open_ranges": int(capture.ranges["is_open"].sum()),
        "kernel_ns": total,
        "graph_ns": graph_ns,
        "kernel_share": total / (total + graph_ns) if total + graph_ns else None,
        "unclassified_share": _sum_unclassified(sections["families"]),
        "unmatched_ranges": find_unmatched_ranges(attribution, duration),
        "communication_ranks": exchanged.num_ranks,
        "ranks_apart_ns": exchanged.apart_ns,
        "no_waiting_because": exchanged.why_not,
    }


def _find_work(capture: Capture, zero: int) -> dict[str, int | None]:
    """When the work of the GPUs begins and ends, and until when meanwhile kernels' code is loaded; ns after `zero`."""
    frames = [frame for frame in (capture.kernels, capture.graphs, capture.memops) if len(frame)]
    if not frames:
        return dict.fromkeys(("work_start_ns", "work_end_ns", "loading_end_ns"))
    starts = min(int(frame["start_ns"].min()) for frame in frames)
    ends = max(int(frame["end_ns"].max()) for frame in frames)
    loaded = find_loading_end(capture)
    return {
        "work_start_ns": starts - zero,
        "work_end_ns": ends - zero,
        "loading_end_ns": None if loaded is None else loaded - zero,
    }


def _summarise_kernels(kernels: pd.DataFrame, duration: np.ndarray, taxonomy: Taxonomy) -> pd.DataFrame:
    names = kernels["kernel_name"].cat.categories
    code = kernels["kernel_name"].cat.codes.to_numpy()
    calls = count_by(code, len(names))
    total = sum_by(code, duration, len(names))
    shortest, longest = np.full(len(names), np.iinfo(np.int64).max), np.full(len(names), -1)
    np.minimum.at(shortest, code, duration)
    np.maximum.at(longest, code, duration)
    used = np.flatnonzero(calls)
    classifications = [taxonomy.classify(str(names[i])) for i in used]
    columns = {
        "name": [str(names[i]) for i in used],
        "family": [classification.family for classification in classifications],
        "rule": [classification.rule for classification in classifications],
        "calls": calls[used],
        "total_ns": total[used],
        "share": compute_share(pd.Series(total[used])),
        "mean_ns": total[used] / calls[used],
        "min_ns": shortest[used],
        "max_ns": longest[used],
    }
    return make_frame("kernels", columns, "total_ns")


def _summarise_families(kernels: pd.DataFrame) -> pd.DataFrame:
    totals = kernels.groupby("family", sort=True)[["calls", "total_ns"]].sum().reset_index()
    return make_frame("families", totals.assign(share=compute_share(totals["total_ns"])), "total_ns")


def _sum_unclassified(families: pd.DataFrame) -> float | None:
    if not len(families):
        return None
    return float(families["share"][families["family"] == OTHER].sum())


def _sum_by_category(frame: pd.DataFrame, column: str, sums: dict[str, np.ndarray]) -> dict[str, Any]:
    names = frame[column].cat.categories
    code = frame[column].cat.codes.to_numpy()
    counted = {name: np.bincount(code, values, len(names)).astype(np.int64) for name, values in sums.items()}
    return {column: [str(category) for category in names], "count": np.bincount(code, minlength=len(names))} | counted


def _summarise_syncs(capture: Capture) -> pd.DataFrame:
    waited = {"total_ns": (capture.syncs["end_ns"] - capture.syncs["start_ns"]).to_numpy()}
    return make_frame("syncs", _sum_by_category(capture.syncs, "kind", waited), "total_ns")


def _summarise_memops(capture: Capture) -> pd.DataFrame:
    memops = capture.memops
    sums = {"bytes": memops["bytes"].to_numpy(), "total_ns": (memops["end_ns"] - memops["start_ns"]).to_numpy()}
    return make_frame("memops", _sum_by_category(memops, "operation", sums), "total_ns")


def _summarise_gpus(capture: Capture, gpus: dict[str, np.ndarray], duration: np.ndarray) -> pd.DataFrame:
    facts = {int(gpu["id"]): gpu for gpu in capture.gpus if gpu.get("id") is not None}
    frames = [getattr(capture, name) for name in gpus]
    rows = []
    for number in sorted({int(number) for gpu in gpus.values() for number in find_distinct(gpu)}):
        fact = facts.get(number, {})
        mine = [gpu == number for gpu in gpus.values()]
        start, end = (
            np.concatenate([frame[name].to_numpy()[here] for frame, here in zip(frames, mine)])
            for name in ("start_ns", "end_ns")
        )
        one_gpu = np.zeros(len(start), np.int8)
        busy = int(intervals.measure_busy(one_gpu, one_gpu, start, end, 1)[0])
        span = int(end.max() - start.min())
        rows.append(
            {name: fact.get(name) for name in ("name", "sm_count", "memory_bytes", "clock_hz")}
            | {
                "gpu": number,
                "operations": len(start),
                "kernel_ns": int(duration[mine[0]].sum()),
                "busy_ns": busy,
                "span_ns": span,
                "idle_share": 1 - busy / span if span else None,
            }
        )
    integers = dict.fromkeys(("sm_count", "memory_bytes", "clock_hz"), "Int64")  # though unknown for some GPUs
    return pd.DataFrame(rows, columns=list(SECTIONS["gpus"])).astype(integers)


def _measure_busy_moments(capture: Capture, gpus: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
    frames = [getattr(capture, name) for name in gpus]
    gpu = np.concatenate([*gpus.values()])
    start, end = (np.concatenate([frame[name].to_numpy() for frame in frames]) for name in ("start_ns", "end_ns"))
    edges = find_first_event(capture) + np.linspace(0, capture.events_ns, NUM_MOMENTS + 1)
    numbers = find_distinct(gpu).tolist()
    return {n: intervals.measure_busy_shares(start[gpu == n], end[gpu == n], edges) for n in numbers}
