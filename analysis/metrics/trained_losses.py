"""Losses of runs after the same training steps: as they compared them themselves, or as of runs for losses alone."""

from typing import Any

import pandas as pd

from profiler_job.jobs.contract.options import build_token, format_options, parse_options
from profiler_job.jobs.contract.plain import PLAIN

TRAINED = ["loss_trained", "loss_trained_plain"]
"""Losses after the same training steps, with the changes of a run and without."""
BEFORE = ["loss", "loss_fp32"]
"""Losses before training, in the precision of a run and in FP32."""
NOT_FUSED = "loop"
"""The optimizer that has the formula of fused AdamW and takes one tensor at a time."""
SAME_START = 1e-5
"""Plain losses of two processes that differ by more began from other weights or had another batch: on one GPU they are
equal, and FP32 with fused attention is off by less than 2 millionths."""
MODEL = ["size", "context_length", "batch_size", "workload", "workload_options"]
"""What two runs have in common where only what makes them faster differs."""


def join_losses(measured: pd.DataFrame, losses: Any) -> pd.DataFrame:
    """`measured` (run_id, optimizer, MODEL, TRAINED, BEFORE, and trained_on, the GPU of its losses) with losses of the
    recording `losses` where the own run did not compare them, and with what follows, all relative: loss_off from FP32
    before training; trained_off from the plain run; numerics_off from the run in FP32 with nothing fused whose AdamW
    has the same formula, and formula_on, its GPU. loss_millionths, trained_millionths and numerics_millionths are of
    these. no_dropout: whether the losses are of the same model with dropout off."""
    measured = measured.assign(no_dropout=False)
    own_adamw = measured["optimizer"].astype(str) == PLAIN["optimizer"]
    if losses is not None:
        compared = _list_compared_losses(losses)
        others = compared.drop_duplicates("as_it_is").set_index("as_it_is").reindex(measured["run_id"])
        others = others.set_axis(measured.index)
        measured["no_dropout"] = measured["loss_trained"].isna() & others["no_dropout"].eq(True)
        measured = measured.fillna({name: others[name] for name in (*TRAINED, *BEFORE, "trained_on")})
        not_fused = _same_formula(measured, compared)
    else:
        not_fused = measured[[*TRAINED, "trained_on"]].where(own_adamw)  # else not known
    same_formula = measured["loss_trained_plain"].where(own_adamw, not_fused["loss_trained"])
    formula_on = measured["trained_on"].where(own_adamw, not_fused["trained_on"])
    off = {
        "loss": (measured["loss"] / measured["loss_fp32"] - 1).abs(),
        "trained": (measured["loss_trained"] / measured["loss_trained_plain"] - 1).abs(),
        "numerics": (measured["loss_trained"] / same_formula - 1).abs(),
    }
    return measured.assign(
        formula_on=formula_on,
        **{f"{name}_off": value for name, value in off.items()},
        **{f"{name}_millionths": (1e6 * value).round() for name, value in off.items()},
    )


def _list_compared_losses(losses: Any) -> pd.DataFrame:
    """The runs of a recording that compared losses, with MODEL, PLAIN, TRAINED, BEFORE and trained_on; as_it_is: the id
    of the run that has the dropout of its model, and no_dropout, whether that is another one. Where there are both, the
    one that has it goes first."""
    figures = losses.figures.astype({"run_id": str, "figure": str})
    values = figures.pivot_table(index="run_id", columns="figure", values="value").reindex(columns=[*TRAINED, *BEFORE])
    names = ["run_id", "gpu_name", *MODEL, *PLAIN]
    runs = losses.runs[names].astype({name: str for name in names if name not in ("context_length", "batch_size")})
    runs = runs.rename(columns={"gpu_name": "trained_on"}).join(values, on="run_id").dropna(subset=TRAINED)
    ids = [id_as_it_is(run_id, options) for run_id, options in zip(runs["run_id"], runs["workload_options"])]
    runs = runs.assign(as_it_is=ids, workload_options=runs["workload_options"].map(_drop_dropout_off))
    runs["no_dropout"] = runs["as_it_is"] != runs["run_id"]
    return runs.sort_values("no_dropout", kind="stable")


def _same_formula(measured: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """TRAINED and trained_on of the run of each model in FP32 that has fused AdamW's formula and nothing fused; none
    where it did not start from the same weights."""
    settings = pd.Series({**PLAIN, "optimizer": NOT_FUSED})
    not_fused = compared[(compared[[*settings.index]] == settings).all(axis=1)].drop_duplicates(MODEL)
    models = measured[MODEL].astype({"size": str, "workload": str, "workload_options": str})
    models["workload_options"] = models["workload_options"].map(_drop_dropout_off)
    beside = models.merge(not_fused[[*MODEL, *TRAINED, "trained_on"]], on=MODEL, how="left").set_axis(measured.index)
    start = (beside["loss_trained_plain"] / measured["loss_trained_plain"] - 1).abs()
    return beside[[*TRAINED, "trained_on"]].where(start <= SAME_START)


def id_as_it_is(run_id: str, options: str) -> str:
    """The id of the same run of a model whose dropout is not turned off by its `options`, with which an id ends."""
    kept = _drop_dropout_off(options)
    if kept == options:
        return run_id
    return run_id.removesuffix(f"-{build_token(options)}") + (f"-{build_token(kept)}" if kept else "")


def _drop_dropout_off(options: str) -> str:
    """Options less those that turn dropout off."""
    said = parse_options(options)
    return format_options({name: value for name, value in said.items() if "drop" not in name or value != 0})
