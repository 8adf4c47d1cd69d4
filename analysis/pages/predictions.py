"""What changes were predicted to give, before the runs that test it; and how predictions did where they were
developed."""

from typing import Any

import pandas as pd

from profiler_job.analysis.render.answer import Answer, Column, Table, assemble
from profiler_job.jobs.contract import changes

SLUG = "predictions"
TITLE = "Predictions"
TARGETS = {"median": 0.08, "high": 0.20, "inside": 0.80, "abstained": 1 / 3}
"""What the predictions are to reach: median and 90th percentile of the error, part of the intervals that hold the
measured step, part that may abstain."""
LABELS = {**changes.LABELS, "bf16": "BF16", "fused_adamw": "fused AdamW"}
SCRIPTS = "scripts of others"
NOT_BEFORE = "not predicted before"
APART = pd.Timedelta(hours=1)
"""Predictions of one test were made within less of each other, and no rates were fitted meanwhile."""
SOON = pd.Timedelta(minutes=5)
"""Meanwhile nothing is measured and no rates are fitted: other rates are then those of another model."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
CASE = (
    Column("changes", "change"),
    Column("size", "model"),
    Column("context_length", "context", "count"),
    Column("mode", "mode"),
)
TIMES = (
    Column("baseline_ns", "without, measured", "ms"),
    Column("predicted_ns", "with, predicted", "ms", lower="low_ns", upper="high_ns", absent="none"),
    Column("ceiling_ns", "not below", "ms", absent="none"),
)
LIMIT = Column("limited_by", "limited by")
TEST = Column("test", "test", "words")
MISSED = Column("missed", "missed", "prose", absent="nothing")
CHANGES = Column("changes", "change", "words")
"""Where there is much beside it, a line does not hold all changes."""
FEW = (CHANGES, *CASE[1:3], *TIMES)

GAINS = (
    Column("run_id", "script"),
    CHANGES,
    Column("baseline_ns", "without, measured", "ms"),
    Column("predicted_gain", "predicted gain", "ratio", lower="least_gain", upper="most_gain", absent="none"),
    Column("measured_gain", "measured gain", "ratio", lower="gain_low", upper="gain_high", absent="not measured"),
    Column("gain_again", "in hindsight", "ratio", absent="not told"),
    Column("outcome", "outcome", "prose"),
)


def answer(predicted: pd.DataFrame, developed: pd.DataFrame, besides: pd.DataFrame | None = None) -> Answer:
    """predicted: every prediction of the ledgers beside what was measured since, as of `ledger.compare_with_measured`,
    and what models say of it today (again_ns, as of `of_runs.predict_again`). developed: the pairs that the rates were
    fitted to, each predicted with those of the other sizes. besides: what scripts were measured with and nobody had
    predicted, as of `of_runs.list_unpredicted`.

    Tables: tests by when and of what they were made, summary and development by change and over all, limits by what
    limits the predicted step, measured_limits by test and what limited the measured step: number, abstained, measured,
    median and 90th percentile of the absolute error, inside, beaten; predictions and pairs one row each; hindsight, the
    tests of sweeps without what is told of one host alone; scripts, the gains of scripts of others.
    """
    predicted, developed = (_labelled(rows) for rows in (predicted, developed))
    tables = [
        Table(
            "development",
            "Development: pairs that the rates were fitted to, by change",
            _summary("pairs"),
            _by_change(developed),
        ),
        Table("pairs", "Development: every pair", (CHANGES, *CASE[1:], *TIMES[1:], *_outcome("prose")), developed),
    ]
    tests = _tests(predicted) if len(predicted) else []
    if len(predicted):
        tables += [
            Table("tests", "Predictions by test", (TEST, *_summary("predictions")[1:-1], MISSED), _table(tests)),
            Table("summary", "Predictions by change", _summary("predictions"), _by_change(predicted)),
            *(
                Table(
                    name,
                    f"Predictions by {column.label}",
                    (column, *_summary("predictions")[1:]),
                    _by(column.key, predicted[predicted["context_length"] > 0]),  # scripts of images have none
                )
                for name, column in (("sizes", CASE[1]), ("contexts", CASE[2]))
            ),
            Table(
                "limits",
                "Predictions by what limits the step",
                (LIMIT, *_summary("predictions")[1:]),
                _by_limit(predicted),
            ),
            Table("predictions", "Every prediction", (*FEW, *_outcome("prose")), predicted),
            Table(
                "scripts",
                "What changes gave to scripts of others for as many tokens, against what was predicted",
                GAINS,
                _gains(predicted, besides),
            ),
        ]
    if len(by_measured_limit := _by_measured_limit(predicted)):
        title = "Tested predictions by what limited the step when it was measured"
        columns = (TEST, Column("measured_limit", "limited by"), *_summary("predictions")[3:])
        tables.append(Table("measured_limits", title, columns, by_measured_limit))
    if hindsight := _in_hindsight(predicted):
        title = "In hindsight, which is no test: without what the host limits"
        rows = pd.DataFrame(hindsight).drop(columns=["first", "last"])
        tables.append(Table("hindsight", title, (TEST, *_summary("predictions")[1:]), rows))
    tested = _facts(predicted)
    facts: dict[str, Any] = {"targets": TARGETS, "predicted": tested, "developed": _facts(developed)}
    measured = [test | {"missed": _missed(test)} for test in tests if test["measured"]]
    facts |= {"tests": measured, "waiting": [test for test in tests if not test["measured"]]}
    facts |= {"host": _of_host(predicted), "hindsight": hindsight, "again": _again(predicted)}
    facts |= {"knows_measured_limits": len(by_measured_limit) > 0}
    return assemble(facts, [], tables, [])


def _gains(predicted: pd.DataFrame, besides: pd.DataFrame | None) -> pd.DataFrame:
    """Of scripts, how many times as fast each change was to make a step, and made it, for as many tokens. The
    newest test comes first."""
    rows = predicted[predicted["source"] == ""].reset_index(drop=True)
    if besides is not None and len(besides):
        others = _with_labels(besides).assign(outcome=NOT_BEFORE, made_at=rows["made_at"].max())
        rows = pd.concat([rows, others], ignore_index=True)
    rows = rows.sort_values("made_at", ascending=False, kind="stable", ignore_index=True)
    gains = {"predicted_gain": ("", "predicted_ns"), "least_gain": ("", "high_ns"), "most_gain": ("", "low_ns")}
    gains |= {"measured_gain": ("", "measured_ns"), "gain_again": ("", "again_ns")}
    gains |= {"gain_low": ("min_", "measured_max_ns"), "gain_high": ("max_", "measured_min_ns")}  # of single steps
    return rows.assign(
        **{gain: rows["work"] * rows[f"baseline_{of}ns"] / rows[time] for gain, (of, time) in gains.items()}
    )


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with labels of changes, and the outcome in words."""
    return _with_labels(rows).assign(outcome=[_outcome_of(row) for row in rows.to_dict("records")])


def _with_labels(rows: pd.DataFrame) -> pd.DataFrame:
    labels = [", ".join(LABELS.get(name, name) for name in names.split("+")) for names in rows["changes"]]
    return rows.assign(changes=labels)


def _outcome_of(row: dict) -> str:
    if pd.isna(row["predicted_ns"]):
        return str(row.get("reason") or "no prediction")
    if pd.isna(row["measured_ns"]):
        return "not measured"
    if row["beaten"]:
        return "below the ceiling"
    return "inside the interval" if row["inside"] else "outside the interval"


def _outcome(kind: str = "text") -> tuple[Column, ...]:
    return (
        Column("measured_ns", "with, measured", "ms", absent="not yet"),
        Column("error", "error", "share", absent="not yet"),
        Column("outcome", "outcome", kind),
    )


def _summary(what: str) -> tuple[Column, ...]:
    return (
        CHANGES,
        Column("number", what, "count"),
        Column("abstained", "abstained", "count"),
        Column("measured", "measured", "count"),
        Column("median", "median error", "share", absent="not yet"),
        Column("high", "90th percentile", "share", absent="not yet"),
        Column("inside", "inside interval", "share", absent="not yet"),
        Column("beaten", "ceiling beaten", "count"),
    )


def _by_change(rows: pd.DataFrame) -> pd.DataFrame:
    groups = [(name, part) for name, part in rows.groupby("changes", sort=False)]
    return pd.DataFrame([{"changes": name, **_facts(part)} for name, part in [*groups, ("all", rows)]])


def _by(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    groups = rows.groupby(name, sort=name == "context_length")  # models stay in the order of their tests
    return pd.DataFrame([{name: value, **_facts(part)} for value, part in groups])


def _named(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The predictions of sweeps that were made at one time, as a test by its place, and last those of scripts."""
    is_script = rows["source"] == ""
    sweeps, scripts = _by_time(rows[~is_script]), _by_time(rows[is_script])
    names = (
        [SCRIPTS] if len(scripts) == 1 else [f"{_ordinal(place)} test with {SCRIPTS}" for place in range(len(scripts))]
    )
    return [
        *((f"{_ordinal(place)} test{_of_others(part)}", part) for place, part in enumerate(sweeps)),
        *zip(names, scripts),
    ]


def _others(rows: pd.DataFrame) -> list[str]:
    """Models other than the reference Transformer."""
    return [str(size) for size in dict.fromkeys(rows.loc[~rows["is_reference"].astype(bool), "size"])]


def _of_others(rows: pd.DataFrame) -> str:
    models = _others(rows)
    return f", of {' and '.join(models)}" if models else ""


def _by_time(rows: pd.DataFrame) -> list[pd.DataFrame]:
    rows = rows.sort_values("made_at", kind="stable")
    is_other = rows["made_at"].diff() > APART
    if "rates" in rows:  # fitted to what was measured meanwhile
        is_other |= ~rows["rates"].duplicated() & (rows["made_at"].diff() > SOON)
    return [part for _, part in rows.groupby(is_other.cumsum())]


def _ordinal(place: int) -> str:
    return ORDINALS[place] if place < len(ORDINALS) else f"{place + 1}th"


def _again(rows: pd.DataFrame) -> dict:
    """Of tested steps of scripts that models of today tell anew: measured, closer (how many are less off than was
    predicted), median and median_before (absolute errors)."""
    if "again_ns" not in rows:
        return {"measured": 0}
    both = rows[(rows["source"] == "") & rows["error"].notna() & rows["again_ns"].notna()]
    again, before = (both["again_ns"] / both["measured_ns"] - 1).abs(), both["error"].abs()
    facts = {"measured": len(both), "closer": int((again.round(3) < before.round(3)).sum())}
    return facts | {"median": again.median(), "median_before": before.median()}


def _tests(rows: pd.DataFrame) -> list[dict]:
    """As of `_facts`, of each test in the order they were made; runs (measured), of_abstentions (how many of them),
    waiting (predictions whose run is not measured), loop (as of `_loop`, of the tested steps), by_limit and
    by_measured_limit (as of `_tested_by`, of what was to limit the step and of what did), at_once (as of
    `_at_once`), models (other than the reference Transformer)."""
    return [
        {
            "test": name,
            **_facts(part),
            "runs": int(part["measured_ns"].notna().sum()),
            "of_abstentions": int((part["measured_ns"].notna() & part["predicted_ns"].isna()).sum()),
            # What could not be given to a script from outside waits for nothing.
            "waiting": 0
            if _is_of_scripts(part)
            else int((part["predicted_ns"].notna() & part["measured_ns"].isna()).sum()),
            "loop": _loop(part[part["error"].notna()]),
            "by_limit": _tested_by("limited_by", part),
            "by_measured_limit": _tested_by("measured_limit", part[part["measured_limit"] != ""]),
            "at_once": [] if _is_of_scripts(part) else _at_once(part),
            "models": [] if _is_of_scripts(part) else _others(part),
        }
        for name, part in _named(rows)
    ]


def _is_of_scripts(rows: pd.DataFrame) -> bool:
    return bool((rows["source"] == "").all())


def _at_once(rows: pd.DataFrame) -> list[dict]:
    """As of `_facts`, of tested steps by whether no other GPU of the host had a run at once (alone); held: how many
    inside. Of how many GPUs had one is not known for sure: recordings of one host call a GPU by different names."""
    known = rows[rows["error"].notna() & rows["gpus_at_once"].notna()]
    return [
        {"alone": bool(alone), "held": int(part["inside"].sum()), **_facts(part)}
        for alone, part in known.groupby(known["gpus_at_once"] == 1)
    ]


def _in_hindsight(rows: pd.DataFrame) -> list[dict]:
    """As of `_facts`, of each measured test of sweeps without what is told of one host alone."""
    tests = []
    for name, part in _named(rows):
        of_host = part["of_one_host"]
        if not _is_of_scripts(part) and part["error"].notna().any() and of_host.any():
            without = part.assign(
                predicted_ns=part["predicted_ns"].mask(of_host),
                error=part["error"].mask(of_host),
                inside=part["inside"] & ~of_host,
                beaten=part["beaten"] & ~of_host,
            )
            tests.append({"test": name, **_facts(without)})
    return tests


def _tested_by(name: str, rows: pd.DataFrame) -> list[dict]:
    """Tested steps by the limit in column `name`: limited_by, measured, inside (how many), worst (absolute error)."""
    return [
        {
            "limited_by": limit,
            "measured": len(part),
            "inside": int(part["inside"].sum()),
            "worst": part["error"].abs().max(),
        }
        for limit, part in rows[rows["error"].notna()].groupby(name)
    ]


def _table(facts: list[dict]) -> pd.DataFrame:
    names = ["first", "last", "runs", "of_abstentions", "waiting", "loop", "by_limit", "by_measured_limit", "at_once"]
    names += ["models"]
    table = pd.DataFrame(facts).drop(columns=names)
    missed = [", ".join(_missed(test)) if test["measured"] else "not measured yet" for test in facts]
    return table.assign(missed=[aims or None for aims in missed])


def _by_measured_limit(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each test whose runs say what limited them."""
    parts = [
        (test, limit, part)
        for test, of_test in _named(rows)
        for limit, part in of_test[of_test["error"].notna()].groupby("measured_limit")
        if limit
    ]
    table = pd.DataFrame([{"test": test, "measured_limit": limit, **_facts(part)} for test, limit, part in parts])
    return table.drop(columns=["number", "abstained", "first", "last"]) if len(table) else table


def _by_limit(rows: pd.DataFrame) -> pd.DataFrame:
    kept = rows[rows["predicted_ns"].notna()]
    return pd.DataFrame([{"limited_by": name, **_facts(part)} for name, part in kept.groupby("limited_by")])


def _missed(facts: dict) -> list[str]:
    """The aims that the tested predictions do not reach."""
    reached = {
        "the median error": facts["median"] <= TARGETS["median"],
        "the 90th percentile": facts["high"] <= TARGETS["high"],
        "the share of intervals": facts["inside"] >= TARGETS["inside"],
        "the share that abstains": facts["abstained"] < TARGETS["abstained"] * facts["number"],
        "the ceilings": not facts["beaten"],
    }
    return [aim for aim, is_reached in reached.items() if not is_reached]


def _of_host(rows: pd.DataFrame) -> dict:
    """Of the tested predictions of steps that the host limits: measured, too_long (how many), loop (median of the loop
    of plain Python on the host of the test, over that on the host of the run they came from), explains (the part of the
    median error that the loop accounts for)."""
    tested = rows[rows["error"].notna() & (rows["limited_by"] == "host")]
    loop = _loop(tested)
    facts = {"measured": len(tested), "too_long": int((tested["error"] > 0).sum()), "loop": loop}
    return facts | {"explains": (1 / loop - 1) / tested["error"].median() if len(tested) else float("nan")}


def _loop(rows: pd.DataFrame) -> float:
    """Median of what the loop of plain Python took on the host of a test over what it took on that of the run without
    the change; NaN where one of them was not timed."""
    return (rows["loop_ns"] / rows["baseline_loop_ns"]).median()


def _facts(rows: pd.DataFrame) -> dict:
    """number, abstained, measured, median, high (90th percentile), inside (share), beaten, first and last (made_at)."""
    tested = rows[rows["error"].notna()]
    error = tested["error"].abs()
    facts = {"number": len(rows), "abstained": int(rows["predicted_ns"].isna().sum()), "measured": len(tested)}
    facts |= {"median": error.median(), "high": error.quantile(0.9), "inside": tested["inside"].astype(float).mean()}
    facts |= {"beaten": int(tested["beaten"].sum())}
    made = [at.isoformat() for at in rows["made_at"]] if "made_at" in rows else []
    return facts | {"first": min(made, default=""), "last": max(made, default="")}
