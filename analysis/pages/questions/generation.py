"""(o) What limits generating text, and what do a static cache and compiling change?"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import timing
from profiler_job.analysis.pages.extreme_rows import span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.reference.gpus import lookup
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract.ranges import DECODE, PREFILL, STEP
from profiler_job.jobs.contract.studies import GENERATION

NAME = re.compile(r"-(dynamic|static|compiled)-\d+$")
"""The end of a run's name: how it keeps keys and values, and its batch."""
GROWING = "growing cache"
WAYS = {"dynamic": GROWING, "static": "static cache", "compiled": "static cache, compiled"}
PARTS = {"busy_ns": "GPU busy", "waits_ns": "GPU waits"}
NEW_TOKENS = 64
"""Of a text of site/examples/generate.py: the prefill makes the first, each decode step one more."""
WEIGHT_BYTES = 2
"""Of a parameter in BF16, the only precision of the study."""


def answer(given: Inputs) -> Answer:
    """What a token of generated text takes, by how keys and values are kept, and by batch; and how much of it the GPU
    works.

    Runs are scripts that `profile` followed. Where it tells prefill and decode steps apart, a text is its prefill and
    its decode steps, by their unprofiled medians; else a timed step is a whole text. A token takes the text's time over
    NEW_TOKENS, and so does the GPU busy time of the captured steps. To make a token the GPU reads every weight once:
    `floor_ns` is the time that the data sheet's bandwidth needs for that, in BF16.
    """
    frames = _frames(given.runs, given.steps, given.kernels, given.memops, given.figures)
    return assemble({"tokens": NEW_TOKENS}, _claims(frames), _tables(frames), [_draw(frames.ways)])


QUESTION = Question(
    letter="o",
    slug="generation",
    title="What limits generating text?",
    needs=("runs", "steps", "kernels", "memops", "figures"),
    answer=answer,
    section=Section.LIMIT,
    place=6,
    study=GENERATION,
    searched=("inference", "decode", "prefill", "KV cache", "generate"),
)


@dataclass(frozen=True, kw_only=True)
class GenerationData:
    ways: pd.DataFrame
    """A row per run, by batch and way: way, batch_size, context_length, token_ns, busy_ns and waits_ns (both of a
    token), waits_share, launches, text_tokens_per_s, prefill_ns, prefill_tokens_per_s, decode_ns, traced_decode_ns
    (under nsys), decode_waits_share, floor_ns, floor_share, peak_memory_bytes; and against a growing cache of the same
    batch times_as_fast."""

    @property
    def growing(self) -> pd.DataFrame:
        return self.ways[self.ways["way"] == GROWING]

    @property
    def fastest(self) -> pd.DataFrame:
        """The fastest way of each batch that was measured in another way, too."""
        rows = self.ways.dropna(subset=["times_as_fast"])
        return rows.loc[rows.groupby("batch_size")["times_as_fast"].idxmax()] if len(rows) else rows


def _frames(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, figures: pd.DataFrame
) -> GenerationData:
    figures = figures.astype({"run_id": str, "figure": str})
    known = figures.pivot_table(index="run_id", columns="figure", values="value", aggfunc="first")
    known = known.reindex(columns=["decode_ns", "prefill_ns", "prefill_tokens_per_s"])
    kept = ["run_id", "batch_size", "context_length", "num_parameters", "gpu_name", "peak_memory_bytes"]
    rows = runs.reindex(columns=kept).astype({"run_id": str}).merge(known, how="left", on="run_id")
    texts = timing.host_times(steps, "timer", "step")
    texts = texts[texts["phase"] == STEP].astype({"run_id": str}).set_index("run_id")["step_ns"]
    rows = rows.merge(_measure_gpu(timing.gpu_times(kernels, memops), rows), on="run_id")
    is_split = rows["decode_ns"].notna()
    text_ns = (rows["prefill_ns"] + (NEW_TOKENS - 1) * rows["decode_ns"]).where(is_split, rows["run_id"].map(texts))
    rows["token_ns"] = text_ns / NEW_TOKENS
    traced = steps[(steps["collector"].astype(str) == "nsys") & (steps["phase"].astype(str) == DECODE)]
    traced_ns = traced.astype({"run_id": str}).groupby("run_id")["wall_ns"].median()
    rows["traced_decode_ns"] = rows["run_id"].map(traced_ns).astype(float)
    rows["decode_waits_share"] = (1 - rows["decode_busy_ns"] / rows["decode_ns"]).clip(lower=0)
    rows["waits_share"] = (1 - rows["busy_ns"] / rows["token_ns"]).clip(lower=0)
    rows["busy_ns"] = rows["token_ns"] * (1 - rows["waits_share"])
    rows["waits_ns"] = rows["token_ns"] * rows["waits_share"]
    rows["text_tokens_per_s"] = rows["batch_size"] / rows["token_ns"] * 1e9
    return GenerationData(ways=_compare(_name_ways(rows)))


def _measure_gpu(gpu: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """GPU busy and kernels of a token, and GPU busy of a decode step: run_id, busy_ns, launches, decode_busy_ns.

    The last kernels of a prefill are launched in the step after it, so its largest step counts.
    """
    values = gpu[gpu["run_id"].isin(runs["run_id"])].groupby(["phase", "run_id"])[["busy_ns", "launches"]]
    medians, largest = values.median(), values.max()
    step, decode, prefill = (
        table.loc[phase].reindex(runs["run_id"]) if phase in table.index else medians.loc[STEP].mul(np.nan)
        for table, phase in ((medians, STEP), (medians, DECODE), (largest, PREFILL))
    )
    is_split = runs.set_index("run_id")["decode_ns"].notna()
    text = (prefill + decode * (NEW_TOKENS - 1)).where(is_split, step)
    return (text / NEW_TOKENS).assign(decode_busy_ns=decode["busy_ns"]).dropna(subset=["busy_ns"]).reset_index()


def _name_ways(rows: pd.DataFrame) -> pd.DataFrame:
    """Add way, by the name of the run, and sort by batch and way. Runs of other names are left out."""
    matches = [NAME.search(run_id) for run_id in rows["run_id"]]
    places = [[*WAYS].index(match[1]) if match else -1 for match in matches]
    rows = rows.assign(place=places, way=[[*WAYS.values()][place] for place in places])
    return rows[rows["place"] >= 0].sort_values(["batch_size", "place"], ignore_index=True)


def _compare(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the time to read the weights, and how many times as fast a way is as a growing cache."""
    gpus = [lookup(name) for name in rows["gpu_name"].astype(str)]
    rates = pd.Series([gpu.memory_bandwidth if gpu else np.nan for gpu in gpus], index=rows.index, dtype=float)
    floor_ns = rows["num_parameters"] * WEIGHT_BYTES / rates * 1e9
    base = rows[rows["way"] == GROWING].drop_duplicates("batch_size").set_index("batch_size")["token_ns"]
    speedup = (rows["batch_size"].map(base) / rows["token_ns"]).where(rows["way"] != GROWING)
    return rows.assign(floor_ns=floor_ns, floor_share=floor_ns / rows["token_ns"], times_as_fast=speedup)


def _claims(frames: GenerationData) -> list[Claim]:
    rows, growing = frames.ways, frames.growing
    prefilled = rows.dropna(subset=["prefill_ns"])
    return [
        Claim("waits", growing, lambda of: bool(of["waits_share"].median() > 0.5), facts=_describe_waits),
        Claim("faster", frames.fastest[frames.fastest["times_as_fast"] > 1.05], facts=_describe_fastest),
        Claim("still", frames.fastest, facts=lambda of: {"shares": span(of["waits_share"])}),
        Claim("floor", rows.dropna(subset=["floor_ns"]), facts=lambda of: of.loc[of["floor_share"].idxmax()].to_dict()),
        Claim("batch_helps", frames.fastest, _do_batches_help, facts=_describe_all),
        Claim("batch_no_help", frames.fastest, lambda of: len(of) > 1 and not _do_batches_help(of)),
        Claim("batch", growing, lambda of: of["batch_size"].nunique() > 1, facts=_describe_ends),
        Claim("slow_cpu", rows[rows["decode_ns"] > rows["traced_decode_ns"]], facts=_describe_slow_cpu),
        Claim("prefill", prefilled, facts=lambda of: of.loc[of["prefill_tokens_per_s"].idxmax()].to_dict()),
    ]


def _do_batches_help(rows: pd.DataFrame) -> bool:
    """Whether each larger batch makes more tokens a second."""
    return len(rows) > 1 and bool(rows["text_tokens_per_s"].is_monotonic_increasing)


def _describe_waits(rows: pd.DataFrame) -> Mapping[str, Any]:
    return {"first": rows.iloc[0].to_dict(), "shares": span(rows["waits_share"])}


def _describe_fastest(rows: pd.DataFrame) -> Mapping[str, Any]:
    best = rows.loc[rows["times_as_fast"].idxmax()]
    return {"best": best.to_dict(), "base_ns": best["token_ns"] * best["times_as_fast"]}


def _describe_slow_cpu(rows: pd.DataFrame) -> Mapping[str, Any]:
    """Of decode steps that take longer than the same under nsys, which only adds time, the one that does so most."""
    facts: dict[str, Any] = rows.loc[(rows["decode_ns"] / rows["traced_decode_ns"]).idxmax()].to_dict()
    return facts


def _describe_ends(rows: pd.DataFrame) -> Mapping[str, Any]:
    return {"first": rows.iloc[0].to_dict(), "last": rows.iloc[-1].to_dict()}


def _describe_all(rows: pd.DataFrame) -> Mapping[str, Any]:
    """The ends, and how many times the tokens a second the last one has of a growing cache at the first one's batch."""
    ends = _describe_ends(rows)
    before = ends["first"]["text_tokens_per_s"] / ends["first"]["times_as_fast"]
    return {**ends, "times_as_many": ends["last"]["text_tokens_per_s"] / before}


def _tables(frames: GenerationData) -> list[Table]:
    case = (Column("batch_size", "batch", "count"), Column("way", "keys and values"))
    return [
        Table(
            "tokens",
            "A token of generated text",
            (
                *case,
                Column("token_ns", "a token", "ms"),
                Column("times_as_fast", "times as fast", "ratio", absent="base"),
                Column("text_tokens_per_s", "tokens/s, all texts", "count"),
                Column("busy_ns", "GPU busy", "ms"),
                Column("waits_share", "GPU waits", "share", bar=True),
                Column("floor_share", "reading the weights", "share", bar=True, absent="n/a"),
                Column("launches", "kernels", "count"),
                Column("peak_memory_bytes", "peak allocated", "bytes", absent="n/a"),
            ),
            frames.ways,
        ),
        Table(
            "prefill",
            "Prefill and decode steps",
            (
                *case,
                Column("context_length", "tokens of a prompt", "count"),
                Column("prefill_ns", "prefill", "ms"),
                Column("prefill_tokens_per_s", "tokens/s", "count"),
                Column("decode_ns", "decode step", "ms"),
                Column("decode_waits_share", "GPU waits in a decode step", "share", bar=True),
            ),
            frames.ways.dropna(subset=["prefill_ns"]),
        ),
    ]


def _draw(rows: pd.DataFrame) -> Chart:
    drawn = rows.assign(case=[f"batch {n}, {way}" for n, way in zip(rows["batch_size"], rows["way"], strict=True)])
    parts = pd.concat([drawn.assign(scope=label, time_ns=drawn[name]) for name, label in PARTS.items()])
    options = {"order": [*PARTS.values()], "by": ["case"], "value": "time_ns"}
    return Chart("tokens", "stacked_parts", "A token of generated text: GPU busy, and waiting", parts, options=options)
