"""(g) What fills the memory, and which runs will not fit?"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis import metrics
from analysis.answer import NOT_MEASURED, Answer, Chart, Claim, Column, Table, assemble
from analysis.columns import case_headings
from jobs import memory as prediction
from jobs import ranges
from jobs.dry_run import BF16

SLUG = "memory-use"
TITLE = "What fills the memory, and which runs will not fit?"
STUDY = "memory"

TOLERANCE = 0.03
"""A prediction this near to the measured peak counts as right."""
GPU_SIZES = (24, 80, 141)
"""Memory in GB, as sold, of the GPUs that cells are held against."""
SAME_LIMIT = 0.01
"""A cap this near to what a GPU leaves to the allocator stands for that GPU."""
ROUNDED_PARAMETER_BYTES = (16, 17)
"""A parameter, its gradient and its two moments take 16 bytes in float32, and the allocator rounds up."""
PARTS = ("parameters", "Adam's state", "activations", "gradients, temporaries, buffers")
USES = ("parameters", "gradients", "optimizer_state", "other")
FITS = "fits"
CAP = "memory_limit_gib"
MEMORY_THEN = ("status_total_bytes", "status_free_bytes", "status_reserved_bytes")
BINARY = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# What a recording from before these axes has in all its runs.
DEFAULTS = {"compile": "off", "optimizer": "own", CAP: 0.0, "status_step": float("nan")}


def answer(
    runs: pd.DataFrame, memory: pd.DataFrame, module_memory: pd.DataFrame, figures: pd.DataFrame, main, studies
) -> Answer:
    """Device memory of a training step, and what `jobs.memory` predicts of it from the shapes alone.

    Measured, in a step after the first, of runs without a cap: the allocator's peak in each phase; the bytes of
    parameters, gradients and Adam's state when the step has ended, from a snapshot of the allocator; activations, which
    is what forward leaves allocated, by range. A range's bytes contain those of the ranges inside it.

    Predicted: the peak, against every finished run of this study and of `main`, capped or not, and apart from these, of
    the other `studies` by name, without compiled runs and those after them in their process; whether each cell fits
    GPUs of GPU_SIZES; and, for runs with the allocator capped, the step and the phase in which they run out.
    """
    known = _with_defaults(runs)
    free = known[known[CAP] == 0]
    by = metrics.case_columns(free)
    cells = metrics.cases(free, "train_step")
    observed = _observed(memory, figures).merge(_modules(module_memory), how="outer", on="run_id")
    table = cells.merge(observed, how="left", on="run_id")
    table = table.merge(known[["run_id", "num_parameters"]], how="left", on="run_id")
    table["parameter_bytes"] = table[list(USES[:3])].sum(axis=1, min_count=3) / table["num_parameters"]
    # At a peak in the optimizer the activations are gone.
    table["activations_share"] = (table["activations"] / table["peak"]).mask(table["highest"] == ranges.OPTIMIZER)
    table["softmax_share"] = table["softmax"] / table["activations"]
    table["model_share"] = table[list(USES[:3])].sum(axis=1, min_count=3) / table["peak"]
    measured = table[(table[NOT_MEASURED] == "") & table["peak"].notna()]
    errors = _errors(pd.concat([_with_defaults(main.runs).assign(sweep="main"), known.assign(sweep=STUDY)]))
    others = _others(studies, known)
    elsewhere = _errors(others[~others["after_compiled"]])
    fates = _fates(known, by)
    oom = fates[fates["status"] == "oom"]

    def of(*columns: str) -> pd.DataFrame:
        return measured[[*by, "run_id", NOT_MEASURED, *columns]]

    shares = of("peak", "model_share", "activations_share")
    in_peak = of("activations", "peak", "highest", "activations_share")
    in_peak = in_peak[in_peak["highest"] != ranges.OPTIMIZER]
    claims = [
        Claim("exact", errors, lambda rows: (rows["error"].abs() < TOLERANCE).all(), _worst),
        Claim("inexact", errors, lambda rows: (rows["error"].abs() >= TOLERANCE).any(), _worst),
        Claim("elsewhere", elsewhere, facts=_worst),
        Claim("followers", _excess(others[others["after_compiled"]], studies), _everywhere, _least_and_most),
        Claim("casts", _casts(elsewhere, studies), lambda rows: (rows["kept"] > rows["casts"]).any(), _most_rounded),
        Claim("foreseen", fates, lambda rows: rows["as_predicted"].all(), _outcomes),
        Claim("unforeseen", fates, lambda rows: not rows["as_predicted"].all(), _outcomes),
        Claim("phases", oom, facts=_phases),
        Claim("second_step", oom[oom["status_step"] == 1], lambda rows: rows["first_step_fits"].any(), _second_step),
        Claim("unused", oom, lambda rows: (rows["unused_bytes"] > rows["asked_bytes"]).any(), _most_unused),
        Claim("turns", shares, _turns, _of("activations_share")),
        Claim("fills", in_peak, lambda rows: _known(rows) and not _turns(shares), _of("activations_share")),
        Claim("activations", in_peak, _known, _of("activations_share")),
        Claim("softmax", of("softmax", "activations", "softmax_share"), _known, _of("softmax_share")),
        Claim("parameters", of(*USES[:3], "parameter_bytes"), _as_rounded, _of("parameter_bytes")),
        Claim("peak_phase", of("peak", "highest"), _short_in_optimizer, _highest),
        Claim("reserved", of("peak", "reserved", "reserved_ratio"), _known, _of("reserved_ratio")),
    ]
    headings = _headings(by)
    tables = [
        Table(
            "fits",
            "Predicted end of a training step on three GPUs, and how many of the runs tried ended so",
            (
                *headings,
                Column("predicted", "peak, predicted", "bytes"),
                Column("peak", "peak, measured", "bytes"),
                *(Column(f"predicted_{size}", f"in {size} GB") for size in GPU_SIZES),
                Column("tried", "as predicted, of tried"),
            ),
            _fits(table[[*by, "run_id", NOT_MEASURED, "peak"]], known, fates),
        ),
        Table(
            "failures",
            "Runs that went out of memory under a cap",
            (
                *headings,
                Column("cap_bytes", "cap", "bytes"),
                Column("place", "ran out in"),
                Column("predicted_place", "predicted"),
                Column("first_peak", "first step, predicted", "bytes"),
                Column("later_peak", "later steps, predicted", "bytes"),
                Column("asked_bytes", "asked for", "mib"),
                Column("unused_bytes", "reserved and unused", "mib"),
            ),
            oom,
        ),
        Table(
            "uses",
            "At the end of a training step, and what forward keeps for backward",
            (
                *headings,
                *(Column(use, use.replace("_", " ").replace("optimizer", "Adam's"), "bytes") for use in USES),
                Column("parameter_bytes", "bytes a parameter", "count"),
                Column("activations", "activations", "bytes"),
                Column("activations_share", "activations, of the peak", "share", bar=True, absent="gone by then"),
            ),
            table[[*by, "run_id", NOT_MEASURED, *USES, "parameter_bytes", "activations", "activations_share"]],
        ),
        Table(
            "phases",
            "Peak of each phase of a training step",
            (
                *headings,
                *(Column(f"{phase}_peak", phase, "bytes") for phase in ranges.PHASES),
                Column("highest", "highest in"),
                Column("reserved", "reserved", "bytes"),
                Column("reserved_ratio", "reserved ÷ allocated", "ratio"),
            ),
            table[
                [
                    *by,
                    "run_id",
                    NOT_MEASURED,
                    *(f"{phase}_peak" for phase in ranges.PHASES),
                    "highest",
                    "reserved",
                    "reserved_ratio",
                ]
            ],
        ),
        Table(
            "modules",
            "Activations by module, all layers: what each left allocated",
            (
                *headings,
                Column("attention", "attention", "bytes"),
                Column("softmax", "of it softmax", "bytes"),
                Column("ffn", "feed-forward", "bytes"),
                Column("norm", "norms", "bytes"),
                Column("ends", "embedding, head", "bytes"),
                Column("between", "freed between them", "bytes"),
                Column("activations", "together", "bytes"),
                Column("softmax_share", "softmax, of all", "share", bar=True),
            ),
            table[
                [
                    *by,
                    "run_id",
                    NOT_MEASURED,
                    *("attention", "softmax", "ffn", "norm", "ends", "between", "activations", "softmax_share"),
                ]
            ],
        ),
        Table(
            "accuracy",
            "How far the predicted peak is off, by recording",
            (
                Column("sweep", "sweep"),
                Column("precision", "precision"),
                Column("mode", "mode"),
                Column("num_runs", "runs", "count"),
                Column("num_exact", "right to the byte", "count"),
                Column("largest", "largest error", "share"),
            ),
            _accuracy(pd.concat([errors, elsewhere])),
        ),
        Table(
            "errors",
            "Predicted and measured peak of every finished run",
            (
                Column("sweep", "sweep"),
                *_headings(["size", "context_length"]),
                Column("mode", "mode"),
                Column("cap_bytes", "cap", "bytes", absent="none"),
                Column("predicted", "predicted", "bytes"),
                Column("peak", "measured", "bytes"),
                Column("error", "error", "share"),
                Column("least_gb", "fits from, GB", "count", absent=f"more than {GPU_SIZES[-1]}"),
            ),
            errors,
        ),
    ]
    charts = [
        Chart(
            "peak",
            "stacked_bytes",
            "Peak memory of a training step, and what GPUs leave to it",
            _parts(measured, by),
            {"by": by, "order": list(PARTS), "limits": {f"{size} GB": _limit(size) for size in GPU_SIZES}},
        )
    ]
    context = oom["context_bytes"].dropna()
    facts = {
        "tolerance": TOLERANCE,
        "sizes": [f"{size} GB" for size in GPU_SIZES],
        "context_assumed": prediction.CUDA_CONTEXT_BYTES,
        "context": context.median() if len(context) else None,
        "num_context": len(context),
    }
    return assemble(facts, claims, tables, charts)


def _headings(by: list[str]) -> tuple[Column, ...]:
    """Those of the case columns, without links: runs of a study have no pages."""
    return tuple(replace(one, kind="text" if one.kind == "run" else one.kind) for one in case_headings(by))


def _with_defaults(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs as plain text and numbers, with the axes that older recordings lack; compiled ones, of which nothing is
    predicted, left out."""
    names = ("run_id", "status", "status_phase", "size", "mode", "precision", "attention", "compile", "optimizer")
    known = runs.assign(**{name: value for name, value in DEFAULTS.items() if name not in runs})
    known = known.astype({name: object for name in names})
    return known[known["compile"] == "off"]


def _limit(sold_gb: int) -> float:
    return prediction.USABLE_GIB[sold_gb] * prediction.GIB - prediction.CUDA_CONTEXT_BYTES


def _place(failure) -> str:
    """`forward, step 1` for a step counted from 0, and FITS where nothing fails."""
    return FITS if failure is None else f"{failure[1]}, step {int(failure[0]) + 1}"


def _errors(runs: pd.DataFrame) -> pd.DataFrame:
    """Predicted against measured peak of every finished run, and the smallest of GPU_SIZES that it fits."""
    done = runs[(runs["status"] == "ok") & runs["peak_memory_bytes"].notna()]
    rows = [*done.itertuples()]
    predicted = [prediction.predicted_peak_bytes(row) for row in rows]
    found = done[["sweep", "run_id", "size", "context_length", "precision", "mode"]].assign(
        **{NOT_MEASURED: ""},
        cap_bytes=(done[CAP] * prediction.GIB).where(done[CAP] > 0),
        predicted=predicted,
        peak=done["peak_memory_bytes"],
        least_gb=[next((size for size in GPU_SIZES if peak <= _limit(size)), None) for peak in predicted],
    )
    return found.assign(error=found["predicted"] / found["peak"] - 1).reset_index(drop=True)


def _others(studies: Mapping[str, Any], runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of the studies that are not STUDY, whose own are `runs`, and whether a compiled one was started before."""
    parts = [runs.head(0).assign(sweep=STUDY, after_compiled=False)]
    for name, study in studies.items():
        known = _with_defaults(study.runs)
        compiled = study.runs[~study.runs["run_id"].astype(str).isin(known["run_id"])]
        after = known["started_at"] > compiled["started_at"].min() if len(compiled) else False
        if name != STUDY:
            parts.append(known.assign(sweep=name, after_compiled=after))
    return pd.concat(parts, ignore_index=True).astype({"after_compiled": bool})


def _accuracy(errors: pd.DataFrame) -> pd.DataFrame:
    """Per recording, precision and mode: runs, those whose peak is right to the byte, and the largest error."""
    told = errors.assign(exact=errors["error"] == 0, largest=errors["error"].abs())
    groups = told.groupby(["sweep", "precision", "mode"], sort=False)
    found = groups.agg(num_runs=("run_id", "size"), num_exact=("exact", "sum"), largest=("largest", "max"))
    return found.reset_index().assign(**{NOT_MEASURED: ""})


def _excess(runs: pd.DataFrame, studies: Mapping[str, Any]) -> pd.DataFrame:
    """By how many bytes each phase of the runs peaks higher than predicted."""
    rows = []
    for run in runs.itertuples():
        memory = studies[run.sweep].memory.astype({"run_id": str, "phase": str})
        for row in memory[memory["run_id"] == run.run_id].itertuples():
            predicted = prediction.peaks(run, 1)[row.phase]
            peak = row.peak_allocated_bytes
            rows.append((run.run_id, row.phase, predicted, peak, peak - predicted, peak / predicted - 1))
    return pd.DataFrame(rows, columns=["run_id", "phase", "predicted", "peak", "excess", "excess_share"])


def _casts(errors: pd.DataFrame, studies: Mapping[str, Any]) -> pd.DataFrame:
    """Forward passes under autocast: what their blocks keep (bf16 copies of their weights, and nothing else), and the
    bytes of those copies."""
    rows = []
    for error in errors[(errors["precision"] == "bf16") & (errors["mode"] == "forward")].to_dict("records"):
        study = studies[error["sweep"]]
        run = study.runs[study.runs["run_id"].astype(str) == error["run_id"]].iloc[0]
        modules = study.module_memory[study.module_memory["run_id"].astype(str) == error["run_id"]]
        blocks = modules["module"].astype(str).isin([ranges.block(i) for i in range(int(run["num_layers"]))])
        if blocks.any():
            layers = run["num_parameters"] - 2 * run["vocab_size"] * run["d_model"]
            rows.append(error | {"kept": modules.loc[blocks, "kept_bytes"].sum(), "casts": BF16 * layers})
    return pd.DataFrame(rows, columns=[*errors.columns, "kept", "casts"])


def _fates(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Runs with the allocator capped: where they ran out of memory, and where they were predicted to."""
    capped = metrics.in_model_order(runs[(runs[CAP] > 0) & runs["status"].isin(["ok", "oom"])])
    capped = capped.assign(**{name: float("nan") for name in MEMORY_THEN if name not in capped})
    said = capped["status_message"].astype(object)
    rows = [*capped.itertuples()]
    limits = [prediction.allocator_limit_bytes(row) for row in rows]
    peaks = [[max(prediction.peaks(row, step).values()) for step in (0, 1)] for row in rows]
    places = [_place((row.status_step, row.status_phase) if row.status == "oom" else None) for row in rows]
    predicted = [_place(prediction.predicted_failure(row, limit)) for row, limit in zip(rows, limits)]
    total, free, reserved = (capped[name] for name in MEMORY_THEN)
    named = ["run_id", "size", "context_length", "status", "status_phase", "status_step"]
    return capped[[*dict.fromkeys([*by, *named])]].assign(
        **{NOT_MEASURED: ""},
        cap_bytes=limits,
        place=places,
        predicted_place=predicted,
        as_predicted=[one == other for one, other in zip(places, predicted)],
        first_peak=[first for first, _ in peaks],
        later_peak=[later for _, later in peaks],
        first_step_fits=[first <= limit for (first, _), limit in zip(peaks, limits)],
        asked_bytes=_bytes_said(said, "Tried to allocate {}"),
        unused_bytes=_bytes_said(said, "and {} is reserved by PyTorch but unallocated"),
        context_bytes=total - free - reserved,
    )


def _bytes_said(messages: pd.Series, pattern: str) -> pd.Series:
    """A size in PyTorch's message, in bytes. It is of the moment of the failure: later, what the failed operation held
    is free again."""
    found = messages.str.extract(pattern.format(rf"([\d.]+) ({'|'.join(BINARY)})"))
    return found[0].astype(float) * found[1].map(BINARY)


def _fits(table: pd.DataFrame, runs: pd.DataFrame, fates: pd.DataFrame) -> pd.DataFrame:
    """Per cell the predicted peak, and for each of GPU_SIZES the predicted fate and that of a run that had its memory:
    under a cap, or on such a GPU."""
    rows = {row.run_id: row for row in runs.itertuples()}
    cells = [rows.get(run_id) for run_id in table["run_id"]]
    table = table.assign(predicted=[prediction.predicted_peak_bytes(row) if row else float("nan") for row in cells])
    tried = pd.concat(
        [
            fates[["size", "context_length", "cap_bytes", "place"]],
            runs[(runs[CAP] == 0) & (runs["status"] == "ok")].assign(
                cap_bytes=lambda free: free["gpu_memory_bytes"] - prediction.CUDA_CONTEXT_BYTES, place=FITS
            )[["size", "context_length", "cap_bytes", "place"]],
        ]
    )
    for size in GPU_SIZES:
        limit = _limit(size)
        near = tried[(tried["cap_bytes"] / limit - 1).abs() < SAME_LIMIT]
        outcome = {(row.size, row.context_length): row.place for row in near.itertuples()}
        table[f"predicted_{size}"] = [
            _place(prediction.predicted_failure(row, limit)) if row else None for row in cells
        ]
        table[f"measured_{size}"] = [outcome.get(case) for case in zip(table["size"], table["context_length"])]
    pairs = [(table[f"predicted_{size}"], table[f"measured_{size}"]) for size in GPU_SIZES]
    tried = sum(measured.notna().astype(int) for _, measured in pairs)
    right = sum((predicted == measured).astype(int) for predicted, measured in pairs)
    return table.assign(tried=[f"{r} of {t}" if t else "not tried" for r, t in zip(right, tried)])


def _observed(memory: pd.DataFrame, figures: pd.DataFrame) -> pd.DataFrame:
    """One row per run: peak of each phase, the highest and its phase, reserved, activations, and bytes by use."""
    rows = memory.astype({"run_id": str, "phase": str})
    peaks = rows.pivot(index="run_id", columns="phase", values="peak_allocated_bytes")
    peaks = peaks.reindex(columns=list(ranges.PHASES)).astype(float)
    forward = rows[rows["phase"] == ranges.FORWARD].set_index("run_id")
    reserved = rows.groupby("run_id")["peak_reserved_bytes"].max()
    used = figures.astype({"run_id": str, "figure": str}).pivot(index="run_id", columns="figure", values="value")
    used = used.reindex(columns=[f"memory_{use}" for use in USES]).set_axis(list(USES), axis=1)
    found = peaks.add_suffix("_peak").assign(
        peak=peaks.max(axis=1),
        highest=peaks.idxmax(axis=1) if len(peaks) else None,
        reserved=reserved,
        reserved_ratio=reserved / peaks.max(axis=1),
        activations=forward["allocated_after_bytes"] - forward["allocated_before_bytes"],
    )
    return found.join(used, how="outer").rename_axis("run_id").reset_index()


def _modules(module_memory: pd.DataFrame) -> pd.DataFrame:
    """One row per run: bytes kept by attention, feed-forward and norms over all layers, by softmax (inside attention),
    by embedding and head, and what their callers freed or kept between them. Without softmax they add up to the
    activations."""
    rows = module_memory.astype({"run_id": str, "module": str})
    name = rows["module"].str.rsplit("/", n=1).str[-1]
    ends = name.isin([ranges.EMBEDDING, ranges.LM_HEAD])
    parts = {part: name == part for part in (ranges.ATTENTION, ranges.SOFTMAX, ranges.FFN, ranges.NORM)} | {
        "ends": ends,
        "outermost": ~rows["module"].str.contains("/"),
    }
    found = pd.DataFrame({part: rows[of].groupby("run_id")["kept_bytes"].sum() for part, of in parts.items()})
    told = found[[ranges.ATTENTION, ranges.FFN, ranges.NORM, "ends"]].sum(axis=1)
    found = found.assign(between=found["outermost"] - told).drop(columns="outermost")
    return found.rename_axis("run_id").reset_index()


def _parts(measured: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The peak cut into PARTS. A peak in the optimizer's phase comes after the activations are gone."""
    later = measured["highest"] == ranges.OPTIMIZER
    activations = measured["activations"].mask(later, 0)
    parts = [measured["parameters"], measured["optimizer_state"], activations]
    parts.append(measured["peak"] - sum(parts))
    whole = [measured[[*by, "run_id"]].assign(scope=name, bytes=size) for name, size in zip(PARTS, parts)]
    return pd.concat(whole).dropna(subset="bytes").sort_index(kind="stable").reset_index(drop=True)


def _worst(rows: pd.DataFrame) -> dict:
    worst = rows.loc[rows["error"].abs().idxmax()]
    off, exact = rows["error"].abs() >= TOLERANCE, rows["error"] == 0
    numbers = {"num_runs": len(rows), "num_off": int(off.sum()), "num_exact": int(exact.sum())}
    return numbers | {"size": abs(worst["error"]), "run_id": worst["run_id"]}


def _outcomes(rows: pd.DataFrame) -> dict:
    oom = rows["status"] == "oom"
    return {"num_runs": len(rows), "num_oom": int(oom.sum()), "num_right": int(rows["as_predicted"].sum())}


def _phases(rows: pd.DataFrame) -> dict:
    counts = rows["status_phase"].value_counts()
    found = [(phase, int(counts[phase])) for phase in ranges.PHASES if phase in counts]
    return {"num_runs": len(rows), "phases": [{"phase": phase, "num_runs": number} for phase, number in found]}


def _second_step(rows: pd.DataFrame) -> dict:
    chosen = rows[rows["first_step_fits"]]
    return {"num_runs": len(rows), "run": chosen.iloc[0].to_dict()}


def _everywhere(rows: pd.DataFrame) -> bool:
    """Every phase peaks higher, all by about the same number of bytes."""
    return rows["excess"].min() > (1 - TOLERANCE) * rows["excess"].max() > 0


def _least_and_most(rows: pd.DataFrame) -> dict:
    low, high = (rows.loc[place].to_dict() for place in (rows["excess"].idxmin(), rows["excess"].idxmax()))
    return {"low": low, "high": high, "num_runs": rows["run_id"].nunique()}


def _most_rounded(rows: pd.DataFrame) -> dict:
    return rows.loc[(rows["kept"] - rows["casts"]).idxmax()].to_dict()


def _most_unused(rows: pd.DataFrame) -> dict:
    return rows.loc[rows["unused_bytes"].idxmax()].to_dict()


def _known(rows: pd.DataFrame) -> bool:
    """Every row has its last column, and it is more than nothing."""
    return rows.iloc[:, -1].gt(0).all()


def _turns(rows: pd.DataFrame) -> bool:
    """Of every model, activations are most of the peak at its longest context, and weights, gradients and Adam's state
    at its shortest."""
    ends = [rows.sort_values("context_length").groupby("size").nth(end) for end in (0, -1)]
    return (ends[0]["model_share"] > 1 / 2).all() and (ends[1]["activations_share"] > 1 / 2).all()


def _as_rounded(rows: pd.DataFrame) -> bool:
    return rows["parameter_bytes"].between(*ROUNDED_PARAMETER_BYTES).all()


def _short_in_optimizer(rows: pd.DataFrame) -> bool:
    """Some peaks lie in the optimizer and the others in backward, which have the longer contexts of each model."""
    later = rows["highest"] == ranges.OPTIMIZER
    longest = rows[later].groupby("size")["context_length"].max()
    shortest = rows[~later].groupby("size")["context_length"].min()
    backward = (rows.loc[~later, "highest"] == ranges.BACKWARD).all()
    return later.any() and backward and not (longest >= shortest.reindex(longest.index)).any()


def _highest(rows: pd.DataFrame) -> dict:
    return {"num_runs": len(rows), "num_optimizer": int((rows["highest"] == ranges.OPTIMIZER).sum())}


def _of(value: str):
    def facts(rows: pd.DataFrame) -> dict:
        low, high = rows.loc[rows[value].idxmin()], rows.loc[rows[value].idxmax()]
        return {"low": low.to_dict(), "high": high.to_dict(), "num_runs": len(rows)}

    return facts
