"""A training step as bars in ms: phases, their modules, and in each bar the families of kernels.

One step is drawn here, so that it can be read without scripts; site/assets/step.js draws another one in its place from
the data of all, which the figure carries.
"""

import json
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.render import pipe_tables, tables, text
from profiler_job.analysis.render.answer import Table
from profiler_job.jobs.contract.quantities import choose_decimals

CHOICES = {"size": "size", "context_length": "context", "variant": "precision"}
LEAST = 0.005
"""The legend names the families that have this part of some step."""


def to_html(table: Table, csv_link: str, root: str, families: dict[str, str]) -> Markup:
    """The figure of the parts of steps (`analysis.metrics.step_parts`), each with what is `said` of its step."""
    families = families | {"other": families.get("other", "Other")}
    rows, values, used, words, steps, shown = _read_steps(table, root, families)
    named = [[key, families[key]] for key in used]
    data = json.dumps({"families": named, "words": words, "steps": steps}, separators=(",", ":"))
    seen = set(rows.loc[rows["time_ns"] >= LEAST * rows["step_ns"], "family"])
    legend = Markup(" ").join(tables.family_chip(family, families) for family in used if family in seen)
    return Markup(
        '<figure class="chart step" id="chart-step" data-search-exclude data-steps="{}">\n'
        '<figcaption><span class="title" aria-live="polite">{}</span>'
        "{}</figcaption>\n"
        '<p class="conditions">{}</p>\n<div class="choices script">{}</div>\n<p class="legend">{}</p>\n'
        '<table class="parts"><tbody>{}</tbody></table>\n</figure>'
    ).format(
        data,
        text.escape(shown["said"]),
        tables.to_take_along("chart-step", csv_link, root),
        _conditions(shown, values),
        Markup("").join(_choice(name, values[name], shown["at"][i]) for i, name in enumerate(CHOICES)),
        legend,
        Markup("").join(_row(row, shown, words, used, families) for row in shown["rows"]),
    )


def to_markdown(table: Table, csv_link: str, root: str, families: dict[str, str]) -> Markup:
    """The step that the figure shows first, as a pipe table."""
    families = families | {"other": families.get("other", "Other")}
    _, _, used, words, _, shown = _read_steps(table, root, families)
    rows = []
    for phase, module, ms, pairs in shown["rows"]:
        parts = [
            f"{text.inline(families[used[family]]) if family >= 0 else 'no kernel'} {_number(time)}"
            for family, time in zip(pairs[::2], pairs[1::2])
        ]
        name = str(text.inline(words[phase or module] or "outside phases"))
        rows.append([f"**{name}**" if phase else name, _number(ms), ", ".join(parts)])
    pipes = pipe_tables.write_pipes(["part of the step", "ms", "families (ms)"], rows, [False, True, False])
    return pipe_tables.write_caption(shown["said"], csv_link) + pipes


def _read_steps(table: Table, root: str, families: dict[str, str]) -> tuple[Any, ...]:
    """The rows, the values to choose from, the families and words used, every step, and the step shown first."""
    known = table.rows["family"].isin([*families, ""])
    rows = table.rows.assign(family=table.rows["family"].where(known, "other"))
    values = {name: list(dict.fromkeys(rows[name].tolist())) for name in CHOICES}
    used = [family for family in families if family in set(rows["family"])]
    words = ["", *dict.fromkeys([*rows["phase"], *rows["module"]])]
    steps = [_step(of, values, used, words, root) for _, of in rows.groupby("run_id", sort=False)]
    return rows, values, used, words, steps, min(steps, key=lambda step: _distance(step["at"], values))


def _step(
    rows: pd.DataFrame, values: dict[str, list[Any]], used: list[str], words: list[str], root: str
) -> dict[str, Any]:
    """What is drawn of one step: where it is `at` among the values, its total (ms) and its `rows`: phase and module
    (numbers of `words`), ms, and family and ms by turns. Family -1 stands for no kernel; the total of a phase has
    none."""
    first = rows.iloc[0]
    step = {"at": [values[name].index(first[name]) for name in CHOICES], "said": first["said"]}
    step |= {"ms": _rounded(first["step_ns"]), "rows": []}
    step["run"] = tables.address(first["leads_to"], root) if first["leads_to"] else ""
    for phase, inside in rows.groupby("phase", sort=False):
        modules = inside.groupby("module", sort=False)
        if len(modules) > 1:
            step["rows"].append([words.index(phase), 0, _rounded(inside["time_ns"].sum()), []])
        for module, part in modules:
            bars: list[float] = []
            for name, time in zip(part["family"], part["time_ns"]):
                bars += [used.index(name) if name else -1, _rounded(time)]
            heading = 0 if len(modules) > 1 else words.index(phase)
            step["rows"].append([heading, words.index(module), _rounded(part["time_ns"].sum()), bars])
    return step


def _rounded(nanoseconds: float) -> float:
    return float(f"{nanoseconds / 1e6:.3g}")


def _distance(at: list[int], values: dict[str, list[Any]]) -> tuple[Any, ...]:
    """From the middle of sizes and contexts, in the last of the variants."""
    middle = [len(values[name]) // 2 for name in CHOICES]
    return abs(at[0] - middle[0]) + abs(at[1] - middle[1]), -at[2]


def _conditions(step: dict[str, Any], values: dict[str, list[Any]]) -> Markup:
    size, context, variant = (values[name][i] for name, i in zip(CHOICES, step["at"]))
    words = Markup(
        '<span class="case">{} · {}</span> · <span class="variant">{}</span> · <span class="ms">{}</span> ms'
    )
    link = Markup('<a class="run" href="{}"{}> · this run</a>').format(
        step["run"], Markup("") if step["run"] else Markup(" hidden")
    )
    return words.format(text.escape(size), context, text.escape(variant), _number(step["ms"])) + link


def _choice(name: str, values: list[Any], chosen: int) -> Markup:
    boxes = Markup("").join(
        Markup('<label><input type="radio" name="step-{}" value="{}"{}><span>{}</span></label>').format(
            name, i, Markup(" checked") if i == chosen else Markup(""), text.escape(value)
        )
        for i, value in enumerate(values)
    )
    return Markup("<fieldset><legend>{}</legend>{}</fieldset>").format(CHOICES[name], boxes)


def _row(row: list[Any], step: dict[str, Any], words: list[str], used: list[str], families: dict[str, str]) -> Markup:
    phase, module, ms, pairs = row
    most = max(total for _, _, total, bars in step["rows"] if bars)
    bars = Markup("").join(
        Markup('<i style="width:{}%;background:var(--{})" title="{} {} ms"></i>').format(
            f"{100 * time / most:.2f}",
            f"family-{used[family]}" if family >= 0 else "chart-rule",
            text.escape(families[used[family]] if family >= 0 else "no kernel"),
            _number(time),
        )
        for family, time in zip(pairs[::2], pairs[1::2])
    )
    return Markup('<tr{}><th scope="row">{}</th><td class="bars">{}</td><td>{}</td></tr>\n').format(
        Markup(' class="first"') if phase else Markup(""),
        text.escape(words[phase or module] or "outside phases"),
        bars,
        _number(ms),
    )


def _number(ms: float) -> str:
    return text.number(ms, choose_decimals([ms]))
