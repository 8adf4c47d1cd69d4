"""Changes that are each the only one: which gives most in a case, how sure that is, and what was not measured there."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages.extreme_rows import span
from profiler_job.analysis.render.answer import Chart, Column, Table
from profiler_job.jobs.contract.changes import BF16, COMPILE, CUDA_GRAPHS, FUSED_ADAMW, FUSED_ATTENTION, TF32
from profiler_job.jobs.contract.quantities import format_rounded

CASE = ["size", "context_length"]
COMPARED = ["ns", "min_ns", "max_ns", "parts", "host_ratio"]
"""What two steps are compared by."""
CHANGES_OF = {
    "TF32": (TF32,),
    "BF16 autocast": (BF16,),
    "fused attention": (FUSED_ATTENTION,),
    "fused AdamW": (FUSED_ADAMW,),
    "torch.compile": (COMPILE,),
    "CUDA graphs": (CUDA_GRAPHS,),
}
"""Single changes as `prediction.measured` names them."""
HUGGING_FACE = "hf"
PADDING = "padded vocabulary"
NO_GAIN = "none measurably"


FALLS = ["shorter", "longer", "within 2%", "the step"]
LEAST_FALL = 0.02
"""A change of a step by less is drawn as none."""


def draw_falls(shown: pd.DataFrame) -> Chart:
    """Draw what each change in turn takes off one step: of the cases with most changes the largest model. shown: with
    ladder_step, ns and speedup, in the order of the ladder; TF32, whose place BF16 takes, is left out."""
    shown = shown[(shown["ladder_step"] != "TF32") & shown["speedup"].notna()]
    sizes = shown.groupby(CASE, sort=False).size()
    if not len(sizes):
        empty = pd.DataFrame(columns=["label", "text", "series", "begin_ns", "end_ns"])
        return Chart("falls", "waterfall", "A step, change by change", empty, options={"order": FALLS})
    case = sizes[sizes == sizes.max()].index[-1]
    rows = shown[(shown[CASE] == list(case)).all(axis=1)]
    steps = rows["ns"]
    bars = [{"label": rows["ladder_step"].iloc[0], "series": FALLS[3], "begin_ns": 0.0, "end_ns": steps.iloc[0]}]
    for ladder_step, before, after in zip(rows["ladder_step"].iloc[1:], steps, steps.iloc[1:]):
        series = FALLS[2] if abs(after / before - 1) < LEAST_FALL else FALLS[after > before]
        bars.append({"label": ladder_step, "series": series, "begin_ns": before, "end_ns": after})
    bars.append({"label": "all together", "series": FALLS[3], "begin_ns": 0.0, "end_ns": steps.iloc[-1]})
    drawn = pd.DataFrame(bars).assign(text=lambda all_bars: all_bars["label"])
    first, last = (format_rounded("time", steps.iloc[at]) for at in (0, -1))
    title = f"{first} become {last}: {case[0]} at {case[1]:,} tokens"
    return Chart("falls", "waterfall", title, drawn, options={"order": FALLS, "unit": "ms of a training step"})


def add_interval(rows: pd.DataFrame, first: pd.DataFrame, bands: Bands | None) -> pd.DataFrame:
    """Add least and most, the interval of the speed-up over `first` (`differences.bound_ratios`), and gains. Without
    bands it is between the ranges of steps. Rows that took turns with their base have the interval, low to high."""
    both = rows[COMPARED].add_prefix("now_").join(first.add_prefix("other_")).astype(float)
    for side in ("now", "other"):
        ends = (both[f"{side}_{name}"] for name in (("ns", "ns") if bands else ("min_ns", "max_ns")))
        both[f"{side}_shortest_ns"], both[f"{side}_longest_ns"] = ends
        both[f"{side}_issued_ns"], both[f"{side}_loop_ns"] = both[f"{side}_parts"], both[f"{side}_host_ratio"]
    bounds = differences.bound_ratios(both, "other", "now", bands.wall if bands else None)
    least, most = rows["low"].fillna(bounds["low"]), rows["high"].fillna(bounds["high"])
    return rows.assign(least=least, most=most, gains=least > 1)


def select_gains(gains: pd.DataFrame, base_ids: pd.Series, changes: pd.Series) -> pd.DataFrame:
    """Select what `prediction.measured` has of each base with these changes, row by row; NaN if it has nothing. So
    cards and the ladder show one pair of runs. gains: of one GPU."""
    pairs = gains.drop_duplicates(["run_id", "changes"]).set_index(["run_id", "changes"])
    return pairs.reindex(pd.MultiIndex.from_arrays([base_ids, changes])).set_axis(base_ids.index)


def join_gains(alone: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """Take the speed-up with its interval and its base from `select_gains`; recording: where both were measured. What
    is not measured there, as padded vocabularies, stays."""
    known = select_gains(gains, alone["base_run_id"], alone["change"].map(CHANGES_OF))
    columns = {"speedup": "times_as_fast", "least": "low", "most": "high", "base_ns": "before_ns", "gains": "gains"}
    joined = {name: known[given].where(known["before_ns"].notna(), alone[name]) for name, given in columns.items()}
    return alone.assign(**joined, recording=known["measured_in"]).astype({"gains": bool})


def take_best(alone: pd.DataFrame) -> pd.DataFrame:
    """Of each case the row with the largest speed-up."""
    return alone.sort_values("speedup", ascending=False, kind="stable").drop_duplicates(CASE).sort_index()


def select_common(alone: pd.DataFrame) -> pd.DataFrame:
    """Select the changes that were measured in every case: cells with other candidates cannot be counted together."""
    num_cases = len(alone[CASE].drop_duplicates())
    return alone[alone.groupby("change")["change"].transform("size") == num_cases]


def tabulate_best(alone: pd.DataFrame) -> Table:
    """Sizes across contexts: the change that gives most alone, how many times as fast a step is with it, and which of
    the other changes were not measured there."""
    first = take_best(alone)
    measured = alone.groupby(CASE, sort=False)["change"].agg(set)
    rows = first.assign(words=[_word_best(row, measured, alone) for row in first.to_dict("records")])
    sizes, contexts = list(dict.fromkeys(first["size"])), sorted(set(first["context_length"]))
    rows = rows.pivot(index="size", columns="context_length", values="words").reindex(sizes)
    rows = rows.rename(columns=str).rename_axis(columns=None).reset_index()
    columns = [Column(str(context), f"{context:,} tokens", "words", absent="not measured") for context in contexts]
    title = (
        "The one change to FP32 that alone makes a step fastest, times as fast (its interval), of those measured there"
    )
    return Table("first", title, (Column("size", "model"), *columns), rows)


def _word_best(row: Mapping[str, Any], measured: pd.Series, alone: pd.DataFrame) -> str:
    """Word a cell: the change with its speed-up and interval, and the changes that were not measured in this case but
    in others of such models. A vocabulary is padded only in models that were measured so."""
    of_such = alone[(alone["workload"] == HUGGING_FACE) == (row["workload"] == HUGGING_FACE)]
    of_size = set(alone.loc[alone["size"] == row["size"], "change"])
    of_case = measured[tuple(row[name] for name in CASE)]
    candidates = dict.fromkeys(of_such["change"])
    missing = [name for name in candidates if name not in of_case and (name != PADDING or name in of_size)]
    best = f"{row['change']} {row['speedup']:.3g}× ({row['least']:.2f}–{row['most']:.2f})"
    words = best if row["gains"] else f"{NO_GAIN}; most: {best}"
    return f"{words}; not measured: {', '.join(missing)}" if missing else words


def count_best(rows: pd.DataFrame, alone: pd.DataFrame) -> dict[str, Any]:
    """How often each of the changes measured in every case gives most, the most frequent first, and what it gives.
    with_few: what most often gives most at the shortest context, of all changes that were measured there, and for which
    models. tied: changes as good as the best, from `leads_from` on. others: of the cases in which another change was
    measured, too, in how many it gives more than these, and what."""
    counts = rows["change"].value_counts()
    of = [{"change": name, "num": int(num), "speedup": span(rows.loc[rows["change"] == name, "speedup"])}
          for name, num in counts.items()]  # fmt: skip
    common = select_common(alone)
    best = take_best(common).set_index(CASE)["speedup"]
    names = [*dict.fromkeys(common["change"])]
    others = []
    for name, mine in alone[~alone["change"].isin(names)].groupby("change", sort=False):
        mine = mine.set_index(CASE)
        leads = mine["gains"].astype(bool) & (mine["speedup"] > best.reindex(mine.index))
        if leads.any():
            counts = {"num": int(leads.sum()), "num_all": len(mine)}
            others.append({"change": name, "speedup": span(mine.loc[leads, "speedup"]), **counts})
    lead = _find_lead(rows, of[0]["change"], best)
    tied = _find_ties(rows, common, lead["leads_from"])
    return {"of": of, "common": names, "others": others, "with_few": _find_first(alone), "tied": tied, **lead}


def _find_first(alone: pd.DataFrame) -> dict[str, Any] | None:
    """Find the change that most often gives most, measurably, at the shortest context: change, context_length, sizes;
    None if there is no such change, or no longer context."""
    context = alone["context_length"].min()
    best = take_best(alone[alone["context_length"] == context])
    best = best[best["gains"].astype(bool)]
    if best.empty or (alone["context_length"] == context).all():
        return None
    change = best["change"].value_counts().index[0]
    return {"change": change, "context_length": context, "sizes": best.loc[best["change"] == change, "size"].tolist()}


def _find_ties(best: pd.DataFrame, common: pd.DataFrame, context: int) -> list[dict[str, Any]]:
    """Find the changes whose speed-up is within the interval of the best of their case, from a context on."""
    both = common.merge(best[[*CASE, "change", "least"]], on=CASE, suffixes=("", "_best"))
    is_tied = (both["change"] != both["change_best"]) & (both["speedup"] >= both["least_best"])
    ties: list[dict[str, Any]] = both.loc[is_tied & (both["context_length"] >= context), ["size", "change"]].to_dict(
        "records"
    )
    return ties


def _find_lead(rows: pd.DataFrame, change: str, best: pd.Series) -> dict[str, Any]:
    """Find the shortest context from which on the change gives most in every case: leads_from, 0 if there is none, and
    the longest of all."""
    contexts = best.index.get_level_values("context_length")
    led = rows[rows["change"] == change].set_index(CASE).index
    others = contexts[~best.index.isin(led)]
    leads = contexts[contexts > others.max()] if len(others) else contexts
    return {"leads_from": leads.min() if len(leads) else 0, "longest": contexts.max()}
