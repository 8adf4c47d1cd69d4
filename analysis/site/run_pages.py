"""The page of each run, with its timelines."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from profiler_job.analysis.insight import run_limit
from profiler_job.analysis.insight.limit_lines import describe_waits
from profiler_job.analysis.pages import (
    run_page,
    telemetry,
    titles,
)
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.run_table import count_rows, iterate_parts
from profiler_job.analysis.render import strip, timeline
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.render.text import duration, file_name, inline, name_model_of, plain
from profiler_job.analysis.site.page_context import (
    check_recording,
    describe_conditions,
    identify_runs,
    make_site,
    name_folder,
)
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.axes import find_value_label
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.modes import MODES

MOST_IN_FULL = 12
"""Runs that all have timelines to open."""

Screens = dict[tuple[str, str], dict[str, Any]]
"""The first screen of each run, as its page shows it, by its id and start."""


class WrittenRuns(NamedTuple):
    """What was written. first: what to change first by run id, where there is anything to say."""

    first: dict[str, list[str]]
    screens: Screens


def write_runs(
    rec: store.Recording,
    docs: Path,
    checks: pd.DataFrame,
    counterparts: Mapping[str, list[dict[str, Any]]],
    price: telemetry.Price | None = None,
    gains: pd.DataFrame | None = None,
) -> WrittenRuns:
    """Write the pages of the runs of the report and their timelines. Parameters and result as in `write_run_pages`."""
    site = make_site(rec, docs)
    traces = write_timelines(rec, site, in_full=_choose_runs_in_full(rec.runs))
    written = write_run_pages(site, "report/runs", rec, checks, counterparts, traces=traces, gains=gains, price=price)
    return written if price is None else written._replace(screens={})  # screens on home have list prices


def write_runs_of_study(study: str, studied: store.Recording, docs: Path, gains: pd.DataFrame) -> None:
    """Write the pages of the runs of a study, with strips of the timeline. Whole ones would be too many bytes: they are
    of one run of several GPUs for each way to share the work. gains: as in `prediction.measured`, of all recordings."""
    site = make_site(studied, docs)
    checks = check_recording(studied).tables["checks"].rows
    strips = write_timelines(studied, site, in_full=_choose_smallest_runs(studied))
    write_run_pages(site, name_folder(study, ""), studied, checks, {}, traces=strips, gains=gains)


def write_run_pages(
    site: Site,
    folder: str,
    rec: store.Recording,
    checks: pd.DataFrame,
    counterparts: Mapping[str, list[dict[str, Any]]],
    source: str = "",
    traces: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    gains: pd.DataFrame | None = None,
    price: telemetry.Price | None = None,
) -> WrittenRuns:
    """Write a page of every run of `rec` below `folder`. counterparts: by page, the runs that it is compared with.
    source: where these runs are from, if not from the recording of the site: `study trained`. traces: as
    `write_timelines` gives them. gains: what changes were measured to give, as in `prediction.measured`. price: of the
    GPUs of one run."""
    first, screens = {}, {}
    identities = {run[0]: run for run in identify_runs(rec.runs)}
    tables = {name: getattr(rec, name) for name in run_page.TABLES}
    for run_id, answer in run_page.answers(**tables, checks=checks, measured=gains, price=price):
        run = answer.facts["run"]
        mode = find_value_label("mode", str(run["mode"]))
        words = [name_model_of(run), f"{run['context_length']:,}", mode]
        if titles.count_gpus(run) > 1:
            words += [titles.SAID["gpus"](titles.count_gpus(run)), find_value_label("parallel", str(run["parallel"]))]
        label = inline(" · ".join(map(str, words)))
        path = f"{folder}/{file_name(run_id)}"
        title = inline(titles.title_of(run) + (f" · {source}" if source else ""))
        more = {
            "label": label,
            "title": title,
            "source": source,
            "compared": counterparts.get(path, []),
            "trace": traces.get(run_id),
        }
        said = answer.facts["insight"].sentences
        more["shared"] = _describe_for_sharing(answer, source, said.verdict, is_script=bool(rec.manifest.get(SCRIPT)))
        screens[identities[run_id]] = answer.facts["screen"]
        if said.advice:
            first[run_id] = [line for (line,) in said.advice]
        if run["status"] == "ok":
            more |= describe_conditions(replace(rec, runs=rec.runs[rec.runs["run_id"].astype(str) == run_id]))
        site.write(f"{path}.md", "run_page.md", answer, **more, said=said)
    return WrittenRuns(first, screens)


def _describe_for_sharing(answer: Answer, source: str, verdict: list[str], is_script: bool) -> dict[str, str]:
    """What a link to the page of a run shows: what was run, where it is from, how long it takes, and what limits it, in
    a line and as parts of a card. Of a script no more is known than its name."""
    run, step_ns = answer.facts["run"], answer.facts["step_ns"]
    what = str(run["size"]) if is_script else titles.description_of(run, answer.facts["has_shape"])
    what += f" ({source})" if source else ""
    result = answer.facts["why"] or ("not timed" if step_ns is None else f"{plain(duration(step_ns))} a step")
    limit = verdict[:1]
    sentences = [f"{line[0].upper()}{line[1:]}." for line in (*limit, what)]
    return {"figure": result, "said": " ".join(sentences), "description": ". ".join([f"{what}: {result}", *limit])}


def _choose_runs_in_full(runs: pd.DataFrame) -> list[str]:
    """The runs whose timeline can be opened: all of a few, or else the training step of each model at the longest
    context, which launches what the others launch. Those of 60 runs were 14 MB."""
    if len(runs) <= MOST_IN_FULL:
        return [*runs["run_id"].astype(str)]
    rows = runs.astype({name: str for name in ("run_id", "size", "mode")})
    rows = rows[rows["mode"] == MODES[-1]] if (rows["mode"] == MODES[-1]).any() else rows
    longest = rows["context_length"] == rows.groupby("size")["context_length"].transform("max")
    return [*rows.loc[longest, "run_id"]]


def _choose_smallest_runs(rec: store.Recording) -> list[str]:
    """Of each way to share the work among GPUs the run with the fewest kernels."""
    if "gpus" not in rec.runs:
        return []
    ways = rec.runs[rec.runs["gpus"].fillna(1) > 1].astype({"run_id": str, "parallel": str})
    num_kernels = ways["run_id"].map(count_rows(rec.kernels)).dropna()
    names: list[str] = ways.loc[num_kernels.groupby(ways["parallel"]).idxmin(), "run_id"].tolist()
    return names


def write_timelines(rec: store.Recording, site: Site, *, in_full: Collection[str]) -> dict[str, dict[str, Any]]:
    """Write one step of the runs `in_full` that have kernels for speedscope and for Perfetto, and
    give what the run's page shows of them, with a strip of one block, or of several ranks strips of the step. Of other
    runs that is the strips alone, of those that have some."""
    names = {str(run["run_id"]): titles.title_of(run) for run in rec.runs.to_dict("records")}
    written = {}
    for run_id, ranges, kernels, memops in _iterate_runs(rec):
        step = timeline.median_step(ranges)
        if step is None:
            continue
        num_ranks = kernels["rank"].nunique()
        ranges, kernels, memops = _select_one_clock(ranges, kernels, memops)
        launched, moved = (of[of["step"] == step] for of in (kernels, memops))
        said: dict[str, Any] = {"step": step + 1, "strip": None, "in_step": None}
        said["is_of_one_machine"] = kernels["rank"].nunique() < num_ranks
        said["lanes"] = strip.draw_ranks(launched, moved, dict(site.families))
        if said["lanes"] is None:
            said["strip"] = strip.draw_block(launched, moved, dict(site.families))
            said["in_step"] = strip.draw_step(ranges[ranges["step"] == step], launched, moved, dict(site.families))
            said["waits"] = describe_waits(run_limit.split_steps(launched, moved)) if said["in_step"] else ""
        if has_files := str(run_id) in in_full:
            trace = timeline.trace_step(names[str(run_id)], step, ranges, kernels, memops)
            files = {}
            for viewer, document in (("speedscope", timeline.speedscope(trace)), ("perfetto", timeline.chrome(trace))):
                path = f"report/timelines/{file_name(run_id)}.{viewer}.json.gz"
                files[viewer] = {"path": path, "bytes": site.write_asset(path, timeline.pack(document))}
            said |= {"shift": trace.shift, "files": files}
        if has_files or said["strip"] or said["lanes"] or said["in_step"]:
            written[run_id] = said
    return written


def _iterate_runs(rec: store.Recording) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame, pd.DataFrame]]:
    """Yield the ranges, kernels and memops of each run that has kernels."""
    for frames in iterate_parts(rec.ranges, rec.kernels, rec.memops):
        by_run = [dict(iter(frame.groupby("run_id", observed=True, sort=False))) for frame in frames]
        for run_id in by_run[1]:
            ranges, kernels, memops = (of_run.get(run_id, frame.head(0)) for of_run, frame in zip(by_run, frames))
            yield run_id, ranges, kernels, memops


def _select_one_clock(
    ranges: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tables of a run without the ranks that are on other machines than the first."""
    if "node" not in kernels or (kernels["node"] == kernels["node"].iloc[0]).all():
        return ranges, kernels, memops
    ranks = kernels.loc[kernels["node"] == kernels["node"].min(), "rank"].unique()
    ranges, kernels, memops = (frame[frame["rank"].isin(ranks)] for frame in (ranges, kernels, memops))
    return ranges, kernels, memops
