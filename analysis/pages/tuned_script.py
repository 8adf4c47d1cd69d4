"""The page of a tuned script: how much faster, what to write, the ladder, what did not help, the patch."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.changes import load_change
from profiler_job.analysis.insight.run_advice import MOST_CARDS
from profiler_job.analysis.insight.tuned_ladder import (
    TunedLadder,
    chart_ladder,
    has_several_peaks,
    list_diff_lines,
    name_tuned,
)
from profiler_job.analysis.insight.tuned_limits import (
    COLOURS,
    SCOPES,
    chart_tuned_limits,
    describe_tuned_limits,
    find_tuned_limits,
)
from profiler_job.analysis.insight.tuned_parts import TunedStep
from profiler_job.analysis.pages.first_screen import MEASURED, describe_screen, list_cautions
from profiler_job.analysis.render.answer import Answer, Chart, Column, Table, assemble
from profiler_job.jobs.contract.changes import FEWER_ACCUMULATIONS
from profiler_job.jobs.contract.printable import make_printable

SERIES = "with its 95% interval"
NUMBERS = {
    "step_ns": "step_ns",
    "tokens_per_s": "tokens_per_s",
    "mfu": "mfu_share",
    "peak_bytes": "peak_bytes",
    "cost": "usd_per_million",
}
"""The columns of the ladder with the key numbers of a first screen."""
TWICE = 2
"""How many times as large micro-batches are in the line of their card if it is not known."""
RATIO_ENDS = {"ratio": "", "low": "low_", "high": "high_"}


def answer(ladder: TunedLadder, steps: Sequence[TunedStep] = ()) -> Answer:
    """Of one result of `tune`. The interval of a step of the ladder compares it with the script as it is; `before` with
    the step before it. steps: whose parts are known; the first screen shows the first."""
    facts = {
        "screen": _describe_first_screen(ladder, steps[0]) if steps else None,
        "title": name_tuned(ladder),
        "headline": ladder.headline,
        "limits": describe_tuned_limits(find_tuned_limits(ladder)),
        "checks": [line for line in (ladder.check, ladder.losses) if line],
        "apply": make_printable(ladder.apply),
        "lines": [line for line in (*ladder.facts, *ladder.notes) if line],
        "code": ladder.code,
        "diff": list_diff_lines(ladder),
    }
    return assemble(facts, [], _tables(ladder), _charts(ladder))


def _describe_first_screen(ladder: TunedLadder, step: TunedStep) -> dict[str, Any]:
    """Describe the first screen as that of a run: the step, and the changes of the winner that help most."""
    row = ladder.steps.iloc[0]
    known = {name: None if pd.isna(row[name]) else row[name] for name in NUMBERS.values()}
    numbers = {name: known[column] for name, column in NUMBERS.items()}
    numbers |= {"currency": "$", "price": "", "num_steps": 0, "phases": {}}
    run = {"run_id": ladder.tuning.name, "gpu_name": ladder.tuning.gpu_name, "precision": row["precision"]}
    screen = describe_screen(run, step.parts, step.limit, [], numbers)
    cards = _describe_cards(ladder)
    return screen | {"cards": cards, "nothing_more": "" if cards else ladder.headline}


def _describe_cards(ladder: TunedLadder) -> list[dict[str, Any]]:
    """Describe the changes of the winner that made the step most times as fast, as cards (`first_screen`)."""
    winner, cards = ladder.tuning.winner, []
    before = ladder.steps["step_ns"].shift()
    for row, before_ns in zip(ladder.steps.to_dict("records"), before):
        if winner is None or row["change"] not in winner.changes:
            continue
        module = load_change(row["change"])
        ratios = {name: row[f"before_{end}times_as_fast"] for name, end in RATIO_ENDS.items()}
        times = {"before_ns": before_ns, "shown_ns": before_ns, "after_ns": row["step_ns"], "apart": None}
        times["on_slow_host"] = False
        factor = ladder.tuning.accumulation.factor if ladder.tuning.accumulation else TWICE
        line = module.LINE.replace(f"= {TWICE}", f"= {factor}") if row["change"] == FEWER_ACCUMULATIONS else module.LINE
        code = {"actions": [module.ACTION], "lines": [line], "where": "", "do": "", "is_alone": False}
        code["cautions"] = list_cautions([row["change"]])
        cards.append({"changes": (row["change"],), "kind": MEASURED, **ratios, **times, **code})
    return sorted(cards, key=lambda card: -card["ratio"])[:MOST_CARDS]


def _tables(ladder: TunedLadder) -> list[Table]:
    steps = ladder.steps.assign(precision=ladder.steps["precision"].astype(str).str.upper())
    known = [
        _ratio_column("expected_times_as_fast", "expected from parts", "expected_"),
        Column("tokens_per_s", "tokens/s", "count", absent="n/a"),
        Column("mfu_share", "MFU of data-sheet peak", "share", absent="n/a"),
        *([Column("precision", "precision")] if has_several_peaks(steps) else []),
        Column("peak_bytes", "peak allocated", "bytes", absent="n/a"),
        Column("usd_per_million", "USD for 1M tokens", "number", absent="n/a"),
        Column("losses", "loss differs by", "words", absent="n/a"),
    ]
    tried = (
        Column("label", "change"),
        Column("verdict", "verdict", "words"),
        Column("times_as_fast", "times as fast", "ratio", lower="low_times_as_fast", upper="high_times_as_fast"),
        Column("could_save_share", "could save up to", "share", absent="n/a"),
        Column("why", "why", "words"),
    )
    other_code = (
        tried[0],
        _ratio_column("expected_times_as_fast", "expected times as fast", "expected_"),
        Column("on_top_of", "on top of", "words", absent="nothing"),
        tried[-1],
        Column("what_to_write", "what to write", "words"),
    )
    return [
        Table(
            "steps",
            "The ladder",
            (
                Column("label", "change"),
                Column("step_ns", "step", "ms"),
                _ratio_column("times_as_fast", "times as fast", ""),
                _ratio_column("before_times_as_fast", "over the one before", "before_"),
                *(column for column in known if steps[column.key].notna().any()),
            ),
            steps,
        ),
        Table("other_code", "What other code could give", other_code, ladder.other_code),
        Table("not_helping", "What did not help", tried, ladder.not_helping),
        Table("not_reached", "What was not reached", (tried[0], tried[3]), ladder.not_reached),
    ]


def _ratio_column(key: str, label: str, prefix: str) -> Column:
    low, high = (f"{prefix}{end}_times_as_fast" for end in ("low", "high"))
    return Column(key, label, "ratio", lower=low, upper=high, absent="n/a")


def _charts(ladder: TunedLadder) -> list[Chart]:
    rows = chart_ladder(ladder).assign(series=SERIES)
    charts = [Chart("ladder", "ladder_bars", "Times as fast as the script as it is", rows, options={"order": [SERIES]})]
    if limits := find_tuned_limits(ladder):
        options = {"by": ["label"], "order": [*SCOPES.values()], "value": "time_ns", "colours": COLOURS}
        charts.append(
            Chart("limits", "stacked_parts", "What limits a step", chart_tuned_limits(limits), options=options)
        )
    return charts
