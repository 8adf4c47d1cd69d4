"""The words of the five answers. Every number is from the same claims and tables that the site's questions have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.answers import markdown_text as md
from profiler_job.analysis.answers.bar_figure import Bar
from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.metrics.ordering import rank_first_seen, sort_stably
from profiler_job.analysis.pages.questions import QUESTIONS, attention_cost
from profiler_job.analysis.pages.questions.top_kernel import SCOPES
from profiler_job.analysis.render.answer import Answer, Column
from profiler_job.jobs.contract.handouts import ATTENTION_RANGES
from profiler_job.jobs.contract.quantities import format_share, format_time
from profiler_job.jobs.contract.words import NOT_MEASURED, format_count, inflect

LETTERS = ("a", "b", "c", "d", "e")
FORWARD = "forward"
_LARGER = {"forward_backward": "forward and backward", "train_step": "the training step"}
"""Modes whose steps have a forward phase, in words."""
MOST_FAMILIES = 5
FUSED = "fused attention has no softmax of its own; measure eager attention"
_NO_KERNELS = run_grid.explain_unmeasured(pd.Series({"status": "no_kernels"}))
_ABSENT = run_grid.explain_unmeasured(pd.Series())
_FIRST_SENTENCE = {"a": ("timer_ns", "host_ns", "projected_ns"), "e": ("time_ratio",)}
"""Columns that the first sentence is about: the first with a value. In other answers all measured rows count."""
LEAST_SHARE = 0.0005
"""A family with less in every case would read 0.0%; the CSV has it."""


@dataclass(kw_only=True)
class WrittenAnswer:
    """One answer before it is Markdown. sentences: the answer itself, in Markdown. table: columns and rows over the
    grid. bars: of the figure, figure_note: a line below them. method: how it was worked out. missing: what an exact
    answer lacks."""

    letter: str
    sentences: list[str]
    rows: pd.DataFrame
    columns: list[Column]
    figure_title: str
    bars: list[Bar]
    is_stacked: bool = False
    figure_note: str = ""
    method: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The question, as a heading."""
        return QUESTIONS[self.letter].title


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What sentences need in addition to the answer. by: columns that name a case. cases: by and mode of every run.
    derived: by, mode and derived_from of runs that are a part of a larger step. refused: by and why of runs that no
    smaller mode is taken from. fused_runs: ids of the runs whose attention is fused. has_traces: some captures are
    traces of torch.profiler."""

    by: list[str]
    cases: pd.DataFrame
    derived: pd.DataFrame
    refused: pd.DataFrame
    fused_runs: frozenset[str] = frozenset()
    has_traces: bool = False

    def has_run(self, rows: pd.DataFrame) -> pd.Series:
        """Return whether the case of each row has a run in any mode."""
        known = {*_list_keys(self.cases, self.by)}
        return pd.Series([key in known for key in _list_keys(rows, self.by)], index=rows.index)

    def find_larger(self, rows: pd.DataFrame, mode: str = FORWARD) -> list[str]:
        """Find the mode whose steps a run of each row is a part of; "" if it is a run itself. mode: of rows without."""
        keyed = rows if "mode" in rows else rows.assign(mode=mode)
        known = dict(zip(_list_keys(self.derived, [*self.by, "mode"]), self.derived["derived_from"]))
        return [known.get(key, "") for key in _list_keys(keyed, [*self.by, "mode"])]

    def find_lacking(self, rows: pd.DataFrame, letter: str) -> list[str]:
        """Find the modes that each row needs for an answer and has no run of, as words."""
        present = {*_list_keys(self.cases, [*self.by, "mode"])}
        wanted = [FORWARD, "train_step"] if letter == "d" else [FORWARD]
        modes = [[mode] for mode in rows["mode"]] if "mode" in rows else [wanted] * len(rows)
        keys = _list_keys(rows, self.by)
        return [" and ".join(m for m in need if (*key, m) not in present) for key, need in zip(keys, modes)]


def _list_keys(rows: pd.DataFrame, names: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(row) for row in rows[[*names]].astype(str).to_numpy()]


def write_answer(letter: str, answer: Answer, folder: Folder) -> WrittenAnswer:
    """Write one of the five answers."""
    written = _WRITERS[letter](answer, folder)
    has_run = folder.has_run(written.rows)
    without = written.rows[~has_run]
    written.rows = written.rows[has_run].reset_index(drop=True)
    if {column.key for column in written.columns} <= {*folder.by, "scope"}:  # nothing was measured in any case
        written.columns.append(Column(NOT_MEASURED, "not measured"))
    _mark_derived(written, folder)
    written.missing = [*_list_gaps(written.rows, without, folder, letter), *written.missing]
    return written


def _mark_derived(written: WrittenAnswer, folder: Folder) -> None:
    """Say in the first sentence, the table and the figure which numbers are of a part of a larger step."""
    rows = written.rows
    is_measured = rows["gemm_forward"].notna() if written.letter == "d" else rows[NOT_MEASURED].isin(["", FUSED])
    if written.letter == "e":  # a row without FLOPs has times
        is_measured |= rows["time_ratio"].notna()
    larger = pd.Series(folder.find_larger(rows), index=rows.index).where(is_measured, "")
    if not (larger != "").any():
        return
    own = rows["mode"] if "mode" in rows else pd.Series(FORWARD, index=rows.index)
    written.rows = rows.assign(steps_of=larger.where(larger != "", own).map(SCOPES).where(is_measured, None))
    place = sum(column.key in {*folder.by, "scope"} for column in written.columns)
    written.columns.insert(place, Column("steps_of", "forward from" if written.letter == "d" else "from steps of"))
    is_forward = is_measured & (own == FORWARD)
    if not (is_forward & (larger != "")).any():
        return
    written.figure_note = f"* {FORWARD} from a larger step"
    keys = [key for key in _FIRST_SENTENCE.get(written.letter, ()) if rows.loc[is_forward, key].notna().any()]
    counted = larger[is_forward & rows[keys[0]].notna()] if keys else larger[is_forward]
    if written.letter != "d" and (counted != "").any():  # d: its cases are those of both modes
        said = f"; {_say_derived(counted)}."
        written.sentences[:1] = [sentence.removesuffix(".") + said for sentence in written.sentences[:1]]


def _say_derived(larger: pd.Series) -> str:
    """Say how many forward passes are from larger steps. larger: the modes of these steps, "" of the others."""
    derived = larger[larger != ""]
    part = "" if len(derived) == len(larger) else f"in {_part(len(derived), len(larger), 'case')} "
    return f"{part}this is from {_name_phase(derived)}"


def _name_phase(larger: pd.Series) -> str:
    """Return the phase that stands for a forward pass, in words. larger: the modes whose steps have it."""
    return f"the forward phase of {_LARGER[larger.iloc[0]] if larger.nunique() == 1 else 'a larger step'}"


# -------------------------------------------------------------------------------------------------------- the questions


def _write_forward_time(answer: Answer, folder: Folder) -> WrittenAnswer:
    rows = answer.tables["times"].rows
    sentences, missing = [], []
    timed = rows.dropna(subset="timer_ns")
    if len(timed):
        sentences.append(
            f"Timed by Python without a profiler, a forward pass takes {_ends(timed, 'timer_ns', folder)}."
        )
        sentences += _compare_clocks(answer, timed, "The profiler" if folder.has_traces else "Nsight Systems")
    elif len(known := rows.dropna(subset="host_ns")):
        which = "range under the profiler" if folder.has_traces else "NVTX range under nsys"
        sentences.append(f"By its {which}, a forward pass takes {_ends(known, 'host_ns', folder)}.")
    if (rows["timer_ns"].isna() & rows[NOT_MEASURED].isin(["", _NO_KERNELS])).any():
        missing.append(
            "Python's own times, where the table has none: put a CSV with the columns `capture`, `phase`, `ms` into "
            "the folder, measured without nsys, and the answer compares the two."
        )
    measured = rows[rows["projected_ns"].notna()]
    if len(alone := measured[measured["host_ns"].isna()]):
        names = md.list_some([md.case(row, folder.by) for row in alone.to_dict("records")])
        missing.append(f"A range around one forward pass, for its time on the CPU: {names}.")
    if len(spans := rows.dropna(subset="projected_ns")):
        sentences.append(
            f"On the GPU it spans {_ends(spans, 'projected_ns', folder)}, from the start of its first kernel to the "
            "end of the last."
        )
        busy = (spans["busy_ns"] / spans["projected_ns"]).clip(upper=1.0)
        sentences.append(f"The GPU is busy for {_share_span(busy)} of that span.")
        both = spans.dropna(subset="host_ns")
        if len(ahead := both[both["projected_ns"] > 1.05 * both["host_ns"]]):
            sentences.append(
                f"In {_part(len(ahead), len(both), 'case')} the range ends before the GPU does: the script does not "
                "synchronise inside it, so take the GPU's span as the time."
            )
    elif len(rows.dropna(subset="host_ns")):
        sentences.append("No kernels were captured, so how long the GPU works is not known.")
    columns = [
        *_case_columns(answer.tables["times"].columns, folder),
        *_keep(answer.tables["times"].columns, rows, "timer_ns", "host_ns", "projected_ns", "busy_ns"),
        *_keep(answer.tables["times"].columns, rows, "host_ratio", "launch_wait"),
    ]
    clocks = {"timer_ns": "Python timer", "host_ns": "NVTX range", "busy_ns": "GPU busy"}
    bars = [
        Bar(_label(row, folder), name, row[key], format_time(row[key]))
        for row in rows.to_dict("records")
        for key, name in clocks.items()
        if pd.notna(row[key])
    ]
    method = [
        "**Python timer**: the script's own times without a profiler, with the GPU synchronised.",
        "**NVTX range**: the range of the forward pass on the CPU, while nsys traces. Profiling makes it longer.",
        "**GPU span**: from the start of the first kernel, copy or fill that it launched to the end of the last.",
        "**GPU busy**: the union of those kernels, copies and fills, without the gaps between them.",
        "Times are medians over steps, with minimum and maximum in brackets.",
    ]
    if (rows["busy_ns"] > rows["timer_ns"]).any():
        method.insert(-1, "GPU busy can exceed the timer's time: the capture is another run of the same step.")
    title = "Forward pass by each clock"
    return WrittenAnswer(
        letter="a",
        sentences=sentences,
        rows=rows,
        columns=columns,
        figure_title=title,
        bars=bars,
        method=method,
        missing=missing,
    )


def _compare_clocks(answer: Answer, timed: pd.DataFrame, profiler: str) -> list[str]:
    both = timed.dropna(subset="host_ratio")
    if not len(both):
        return ["No range marks the forward pass, so the capture gives no time of it on the CPU."]
    span = _ratio_span(both["host_ratio"])
    if (claim := answer.claims["profiler_slows"]).holds:
        count = _part(len(claim.rows), len(both), "case")
        return [f"{profiler} shows {span} that time: measurably longer in {count}, since profiling slows the CPU."]
    if (claim := answer.claims["profiler_range_shorter"]).holds:
        count = _part(len(claim.rows), len(both), "case")
        return [f"{profiler} shows {span} that time: its range is measurably shorter in {count}."]
    return [f"{profiler} shows {span} that time; the steps of both overlap, so no difference is measurable."]


def _write_top_kernel(answer: Answer, folder: Folder) -> WrittenAnswer:
    rows = answer.tables["top"].rows
    known = rows[rows["kernel_name"].notna()]
    forward = known[known["mode"] == "forward"]
    sentences = []
    if (claim := answer.claims["most_frequent"]).holds:
        facts = claim.values
        sentences.append(
            f"{md.kernel(facts['kernel_name'])} ({md.family(facts['family'])}) takes the most GPU time in "
            f"{_part(facts['num_cases'], facts['num_rows'], 'forward pass')}."
        )
    if (claim := answer.claims["share"]).holds:
        high = claim.values["high"]
        span, share = _share_span(forward["share"]), format_share(high["share"])
        sentences.append(
            f"The top kernel takes {span} of the kernel time of a forward pass"
            f"{', as' if span == share else f': {share}'} in {md.case(high, folder.by)}."
        )
        sentences.append(
            f"There it is called {_count(high['calls'])} in one forward pass, launched {_where(high['modules'])}."
        )
    for mode in ("forward_backward", "train_step"):
        of_mode = known[(known["mode"] == mode) & known["same"].notna()]
        if len(of_mode):
            same = int(of_mode["same"].astype(bool).sum())
            words = "with the backward pass" if mode == "forward_backward" else "over a whole training step"
            sentences.append(
                f"{words[0].upper()}{words[1:]}, the kernel that leads forward also leads "
                f"in {_part(same, len(of_mode), 'case')}."
            )
    columns = [
        *_case_columns(answer.tables["top"].columns, folder),
        *_keep(answer.tables["top"].columns, rows, "scope", "kernel_name", "calls", "time_ns", "share"),
        *_keep(answer.tables["top"].columns, rows, "modules", "same"),
    ]
    bars = [
        Bar(_label(row, folder), row["scope"], row["share"], format_share(row["share"]))
        for row in known.to_dict("records")
    ]
    method = [
        "Kernel time is summed for each full kernel name over the steps, and divided by their number.",
        "Kernels count where the CPU launched them, not where they ran.",
        "The module is the NVTX range around the launch. Backward kernels have none in most captures.",
        f"Scopes: {', '.join(SCOPES.values())}. The table shows short names; the CSV has full ones.",
    ]
    return WrittenAnswer(
        letter="b",
        sentences=sentences,
        rows=rows,
        columns=columns,
        figure_title="Share of the top kernel in kernel time",
        bars=bars,
        method=method,
    )


def _write_beyond_gemm(answer: Answer, folder: Folder) -> WrittenAnswer:
    rows = answer.tables["wide"].rows
    sentences = []
    if (claim := answer.claims["rest"]).holds:
        low, high = claim.values["low"], claim.values["high"]
        span = _share_span(pd.Series([low["rest"], high["rest"]]))
        sentences.append(
            f"Kernels other than matmuls take {span} of the kernel time of a forward pass, {_most(span)} in "
            f"{md.case(high, folder.by)}."
        )
    if (claim := answer.claims["leading_family"]).holds:
        facts = claim.values
        count = _part(facts["num_cases"], facts["num_all"], "case")
        share = _share_span(pd.Series([facts["low"], facts["high"]]))
        sentences.append(f"The largest group is {md.family(facts['family'])} in {count}: {share}.")
    kernels = answer.tables["kernels"].rows.sort_values("high", ascending=False, kind="stable").head(3)
    if len(kernels):
        parts = [
            f"{md.kernel(row['kernel_name'])} (up to {format_share(row['high'])}, {md.modules(row['modules'])})"
            for row in kernels.to_dict("records")
        ]
        sentences.append(f"The largest single kernels: {'; '.join(parts)}.")
    wide = answer.tables["wide"].columns
    shares = [column.key for column in wide if column.key.startswith("share_")]
    families = [key for key in shares if rows[key].max() >= LEAST_SHARE][:MOST_FAMILIES]
    columns = [*_case_columns(wide, folder), *_keep(wide, rows, "kernel_ns", "gemm", "rest", *families)]
    labels = {"gemm": "GEMM"} | {column.key: column.label for column in wide if column.key in families}
    bars = [
        Bar(_label(row, folder), name, row[key], format_share(row[key]))
        for row in rows.to_dict("records")
        for key, name in labels.items()
        if pd.notna(row[key])
    ]
    method = [
        "A kernel's family follows from its name. Split-K parts and epilogues count as matmuls (GEMM).",
        "A softmax or norm that is written out is elementwise and reduce kernels: the module tells what they are for.",
        "Shares are of the kernel time of the forward pass. "
        "The table and the figure leave out small families; the CSV files have all, which add up to 100% with GEMM.",
    ]
    return WrittenAnswer(
        letter="c",
        sentences=sentences,
        rows=rows,
        columns=columns,
        figure_title="Kernel time of a forward pass by family",
        bars=bars,
        is_stacked=True,
        method=method,
    )


def _write_training_mix(answer: Answer, folder: Folder) -> WrittenAnswer:
    compared = answer.tables["compared"].rows
    sentences = []
    for key, word in (("gemm_falls", "falls"), ("gemm_rises", "rises"), ("gemm_mixed", "changes")):
        if (claim := answer.claims[key]).holds:
            gemm, facts = claim.rows, claim.values
            count = (
                _part(len(gemm), len(gemm), "case")
                if key != "gemm_mixed"
                else f"{format_count(len(gemm), 'case')} (up in {facts['num_rises']}, down in {facts['num_falls']})"
            )
            larger = pd.Series(folder.find_larger(gemm))
            start, end, ends, note = "a forward pass", "a training step", ("inference", "training"), ""
            if (larger != "").any():
                is_all = (larger != "").all()
                start, note = (_name_phase(larger), "") if is_all else (FORWARD, f"; {_say_derived(larger)}")
                end, ends = "the whole step", ("forward", "the whole step")
            sentences.append(
                f"From {start} to {end} the share of matmuls {word} in {count}: it is "
                f"{_share_span(gemm['forward'])} of kernel time in {ends[0]} and {_share_span(gemm['train_step'])} in "
                f"{ends[1]}{note}."
            )
    if (claim := answer.claims["gains"]).holds:
        facts = claim.values
        sentences.append(
            f"{md.family(facts['family'])} gains most, in {md.case(facts, folder.by)}: "
            f"{format_share(facts['forward'])} becomes {format_share(facts['train_step'])}."
        )
    if (claim := answer.claims["backward"]).holds:
        facts = claim.values
        sentences.append(
            f"Backward takes {_ratio_span(pd.Series(facts['ratio']))} the kernel time of forward; the optimizer takes "
            f"{_share_span(pd.Series(facts['optimizer']))} of the step."
        )
    rows, columns = _set_side_by_side(answer, compared, folder)
    bars = [
        Bar(_label(row, folder), name, row[key], format_share(row[key]))
        for row in rows.to_dict("records")
        for key, name in (("gemm_forward", "matmuls, forward pass"), ("gemm_train_step", "matmuls, training step"))
        if pd.notna(row[key])
    ]
    method = [
        "Both shares are of kernel time: of a forward pass, and of forward, loss, backward and optimizer together.",
        "Kernels count where the CPU launched them; backward kernels of autograd's own thread count by time.",
    ]
    return WrittenAnswer(
        letter="d",
        sentences=sentences,
        rows=rows,
        columns=columns,
        figure_title="Share of matmuls in kernel time",
        bars=bars,
        method=method,
    )


def _set_side_by_side(answer: Answer, compared: pd.DataFrame, folder: Folder) -> tuple[pd.DataFrame, list[Column]]:
    """Return a row for each case, with the shares of the largest families in a forward pass and a training step."""
    keys = [*folder.by, NOT_MEASURED, "run_id"]
    rows = compared[keys].drop_duplicates(folder.by).reset_index(drop=True)
    order = ["gemm", *(name for name in answer.facts["families"] if name != "gemm")][:3]
    columns = _case_columns(answer.tables["compared"].columns, folder)
    for family in order:
        mine = compared[compared["family"] == family][[*folder.by, "forward", "train_step", "change"]]
        names = {name: f"{family}_{name}" for name in ("forward", "train_step", "change")}
        rows = rows.merge(mine.rename(columns=names), how="left", on=folder.by)
        is_measured = rows["gemm_forward"].notna() & rows["gemm_train_step"].notna()
        for name in names.values():  # a family that a measured case never launches
            rows[name] = rows[name].mask(is_measured & rows[name].isna(), 0.0)
        label = "GEMM" if family == "gemm" else family
        columns += [
            Column(names["forward"], f"{label}, forward", "share"),
            Column(names["train_step"], f"{label}, training", "share"),
            *([Column(names["change"], "change", "points")] if family == "gemm" else []),
        ]
    return sort_stably(rows, rank_first_seen(rows, folder.by)), columns


def _write_attention_cost(answer: Answer, folder: Folder) -> WrittenAnswer:
    rows = answer.tables["cost"].rows
    sentences, missing = [], []
    measured = rows[rows["time_ratio"].notna()]
    if len(measured):
        span = _ratio_span(measured["both_time_ratio"])
        sentences.append(
            f"Softmax takes {span} as long as the two matmuls of attention (QKᵀ and AV) together, {_most(span)} in "
            f"{md.case(measured.loc[measured['both_time_ratio'].idxmax()], folder.by)}."
        )
        if len(known := measured.dropna(subset="both_flop_ratio")):
            sentences.append(
                f"It has {_share_span(known['both_flop_ratio'])} of their FLOPs, so one of its FLOPs takes "
                f"{_ratio_span(known['both_cost_ratio'])} as long."
            )
            if (known["both_cost_ratio"] > 2).all():
                sentences.append("FLOPs do not predict its time: it does little arithmetic for each number it moves.")
        else:
            missing.append("FLOPs need the shape and the batch size: give `--handout`, or `--batch-size` and sizes.")
        share = _share_span(measured["softmax_share"])
        sentences.append(f"Softmax takes {share} of the kernel time of a forward pass.")
    if (claim := answer.claims["fused"]).holds:
        low, high = claim.values["low"]["fused_share"], claim.values["high"]["fused_share"]
        sentences.append(
            f"Attention is fused in {format_count(len(claim.rows), 'case')}: one kernel does softmax and both matmuls, "
            f"{_share_span(pd.Series([low, high]))} of forward."
        )
    is_fused = rows["run_id"].astype(str).isin(folder.fused_runs) & rows["time_ratio"].isna()
    rows = rows.assign(**{NOT_MEASURED: rows[NOT_MEASURED].mask(is_fused, FUSED)})
    if (rows[NOT_MEASURED] == attention_cost.NO_RANGES).any():
        wanted = ", ".join(f"`{name}` around {what}" for name, what in ATTENTION_RANGES.items())
        missing.append(f"Ranges inside attention: {wanted}.")
    cost = answer.tables["cost"].columns
    keys = ("scores_ns", "softmax_ns", "output_ns", "both_time_ratio", "both_cost_ratio", "softmax_share")
    columns = [*_case_columns(cost, folder), *_keep(cost, rows, *keys)]
    flop = Column("both_flop_ratio", "softmax ÷ both matmuls, FLOPs", "ratio")
    at = next((place for place, column in enumerate(columns) if column.key == "both_cost_ratio"), len(columns))
    columns[at:at] = [flop] if measured["both_flop_ratio"].notna().any() else []
    bars = [
        Bar(_label(row, folder), name, row[key], _ratio(row[key]))
        for row in rows.to_dict("records")
        for key, name in (
            ("both_time_ratio", "run time"),
            ("both_flop_ratio", "FLOPs"),
        )
        if pd.notna(row[key]) and pd.notna(row["both_time_ratio"])
    ]
    operations = answer.facts["softmax_operations"]
    method = [
        "QKᵀ and AV are the matmul kernels launched inside their ranges; softmax is every kernel inside its range.",
        "Masking and scaling are no part of the matmuls.",
    ]
    if operations:
        method.append(
            f"Softmax counts {operations:g} operations for each score; a matmul counts 2 for each multiply-add, over "
            "the full matrix, as kernels compute it under a causal mask, too."
        )
    return WrittenAnswer(
        letter="e",
        sentences=sentences,
        rows=rows,
        columns=columns,
        figure_title="Softmax over both matmuls of attention: time and FLOPs",
        bars=bars,
        method=method,
        missing=missing,
    )


_WRITERS: dict[str, Callable[[Answer, Folder], WrittenAnswer]] = {
    "a": _write_forward_time,
    "b": _write_top_kernel,
    "c": _write_beyond_gemm,
    "d": _write_training_mix,
    "e": _write_attention_cost,
}


# ---------------------------------------------------------------------------------------------------------- small parts


def _list_gaps(rows: pd.DataFrame, without: pd.DataFrame, folder: Folder, letter: str) -> list[str]:
    """List the cases without numbers by their reason, those without any run, and those whose numbers are a part of a
    larger step."""
    lines = []
    unmeasured = rows[rows[NOT_MEASURED].astype(str) != ""]
    why = unmeasured[NOT_MEASURED].astype(str).to_numpy(object)
    lacking = np.array(folder.find_lacking(unmeasured, letter), dtype=object)
    is_absent = (lacking != "") & (why == _ABSENT)
    for reason, group in unmeasured.groupby(np.where(is_absent, "no run of " + lacking, why), sort=False):
        names = [
            md.case(row, folder.by) if "no run" in reason else _with_mode(row, folder) for row in _list_rows(group)
        ]
        lines.append(f"{md.escape(reason[:1].upper() + reason[1:])}: {md.list_some([*dict.fromkeys(names)])}.")
    if len(without):
        names = [md.case(row, folder.by) for row in _list_rows(without)]
        lines.append(f"No run in any mode: {md.list_some([*dict.fromkeys(names)])}.")
    for reason, group in folder.refused.groupby("why", sort=False):
        names = [md.case(row, folder.by) for row in _list_rows(group)]
        lines.append(f"{reason[:1].upper()}{reason[1:]}: {md.list_some([*dict.fromkeys(names)])}.")
    derived = folder.derived if letter == "b" else folder.derived[folder.derived["mode"] == FORWARD]
    for (larger, mode), group in derived.groupby(["derived_from", "mode"], sort=False):
        names = [md.case(row, folder.by) for row in _list_rows(group)]
        what = "forward phase" if mode == FORWARD else "phases forward, loss and backward"
        keeps = " Forward keeps activations for backward there." if mode == FORWARD else ""
        lines.append(
            f"From the {what} of {_LARGER[larger]}, since no run has them alone: {md.list_some(names)}.{keeps}"
        )
    return lines


def _list_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def _with_mode(row: Mapping[str, Any], folder: Folder) -> str:
    mode = row.get("mode")
    return f"{md.case(row, folder.by)}{f', {md.escape(mode)}' if mode else ''}"


def _case_columns(columns: Sequence[Column], folder: Folder) -> list[Column]:
    known = {column.key: column for column in columns}
    return [known[name] for name in folder.by if name in known]


def _keep(columns: Sequence[Column], rows: pd.DataFrame, *keys: str) -> list[Column]:
    """Return the columns of these keys that have a value in any row."""
    known = {column.key: column for column in columns}
    return [known[key] for key in keys if key in known and rows[key].notna().any()]


def _label(row: Mapping[str, Any], folder: Folder) -> str:
    names = [name for name in folder.by if folder.cases[name].nunique() > 1] or folder.by[:2]
    words = " · ".join(md.value(name, row[name]) for name in names if pd.notna(row[name]))
    star = " *" * any(folder.find_larger(pd.DataFrame([{name: row[name] for name in folder.by}])))
    return f"{words}{star}"


def _ends(rows: pd.DataFrame, value: str, folder: Folder) -> str:
    """Return the lowest and the highest value with their cases."""
    low, high = rows.loc[rows[value].idxmin()], rows.loc[rows[value].idxmax()]
    first, last = (f"**{format_time(row[value])}** ({md.case(row, folder.by)})" for row in (low, high))
    return first if first == last else f"{first} to {last}"


def _share_span(values: pd.Series) -> str:
    return _join_ends([format_share(values.min()), format_share(values.max())])


def _ratio_span(values: pd.Series) -> str:
    return _join_ends([_ratio(values.min()), _ratio(values.max())])


def _ratio(value: float) -> str:
    return f"{value:#.3g}".rstrip(".") + "×"


def _join_ends(ends: list[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _most(span: str) -> str:
    """Return the word before the case of the highest value; there is none if all are the same."""
    return "most" if " to " in span else "as"


def _part(part: int, total: int, noun: str) -> str:
    if part == total:
        several = f"both {inflect(2, noun)}" if total == 2 else f"all {format_count(total, noun)}"
        return several if total > 1 else f"the only {noun}"
    return f"{part or 'none'} of {format_count(total, noun)}"


def _where(modules: object) -> str:
    words = md.modules(modules)
    return words if words == md.OUTSIDE else f"by {words}"


def _count(calls: float) -> str:
    return format_count(int(calls), "time") if float(calls).is_integer() else f"{calls:,.1f} times"
