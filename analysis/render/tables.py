"""Tables as HTML and as CSV. The HTML rounds to what it shows, the CSV to more digits than any clock has."""

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.reference.columns import FORMATS
from profiler_job.analysis.render import text
from profiler_job.analysis.render.answer import ANCHOR, Column, Table
from profiler_job.jobs.contract.axes import find_value_label, find_value_words
from profiler_job.jobs.contract.quantities import choose_decimals, choose_form
from profiler_job.jobs.contract.words import NOT_MEASURED

RUN_LEADS_TO = "run_leads_to"
"""Column of rows that cover a run: path of its page below docs, without .md; empty where it has none."""
NOT_IN_MAP = Markup('<td class="why">not measured</td>')
DIGITS = 7
"""Of a value in CSV files, at least, and all before the point: a computed mean or share has no more, the rest is what
floating point leaves behind, and was 1.3 MB of a site."""
NUMERIC = {*FORMATS, "quantity", "change"}
CASE = {"context_length", "precision", "attention", "mode"}
"""Columns that tell apart the runs of one model: a link to a run is read out with them."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
EXPLAINED = {"kernel_entry", "prose"}
"""Kinds of a glossary's columns: such a table is in the search index, rows of numbers are not."""
YES_NO = {"yes_no": ("no", "yes"), "check": ("breach", "ok")}
"""What pages and CSV files say about false and true."""
UNSEARCHED = Markup(" data-search-exclude")
SHORT_LABEL = 12
"""Characters of a heading over words that stays on one line."""
FILTERED_ROWS = 6
"""Shorter tables get no filter."""


def csv_heading(key: str, kind: str) -> str:
    """Heading of a column in both CSV files of a table, all of it and the rows that are shown: its name, and the unit
    of its values where the name does not say it (`time_ns`, `share [fraction]`)."""
    unit = FORMATS[kind].stored if kind in FORMATS else ""
    return f"{key} [{unit}]" if unit and key.rpartition("_")[2] != unit else key


def to_csv(rows: pd.DataFrame, columns: tuple[Column, ...] = ()) -> str:
    """All rows and columns, as the CSV of the shown rows has them: whole numbers as they are and others to `DIGITS`;
    values of axes and families by their names in recordings, other text as the page says it; text that a spreadsheet
    would run as a formula gets a leading apostrophe. `columns`, which the page shows, have known units."""
    kinds = {key: column.kind for column in columns for key in (column.lower, column.upper, column.key)}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_csv_cell(csv_heading(name, kinds.get(name, ""))) for name in rows.columns)
    said = [_SAID.get(kinds.get(name, ""), lambda value: value) for name in rows.columns]
    for row in rows.itertuples(index=False, name=None):
        writer.writerow(_csv_cell(value if is_missing(value) else say(value)) for say, value in zip(said, row))
    return out.getvalue()


def module_names(paths: str) -> list[str]:
    """The modules of a list of paths, without the leading `block/`."""
    return list(dict.fromkeys(name.removeprefix("block/") for name in str(paths).split(", ") if name))


def _yes_no(kind: str, value: object) -> str:
    return YES_NO[kind][bool(value)]


_SAID: dict[str, Callable[[Any], Any]] = {
    **{kind: partial(_yes_no, kind) for kind in YES_NO},
    "modules": lambda paths: ", ".join(module_names(paths)),
    "prose": lambda sentence: text.plain(text.prose(sentence)),
}
"""What is said about a value of such a column, without markup."""


def _csv_cell(value: object) -> object:
    if isinstance(value, str):
        clean = value.replace("\x00", "\ufffd")
        return f"'{clean}" if clean.startswith(FORMULA) else clean
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    return _to_digits(value) if isinstance(value, float) else value


def _to_digits(value: float) -> float | int:
    """`value` to `DIGITS` significant digits, those before the point all kept; an int where it is whole."""
    if not math.isfinite(value) or abs(value) >= 2**53:
        return value
    rounded = float(f"{value:.{max(DIGITS, len(str(int(abs(value)))))}g}")
    return int(rounded) if rounded.is_integer() else rounded


def to_html(
    table: Table,
    csv_link: str,
    root: str,
    families: dict[str, str],
    anchor: str = "",
    sizes: Sequence[str] = (),
    also: str = "",
) -> Markup:
    """A <figure>: caption with its CSV, and the table, right-aligned numbers with one number of decimals a column.
    sizes: of models in order, by which a script sorts them. also: names of what all rows have in common, by which a
    filter finds them, too."""
    rows = table.rows.reset_index(drop=True)
    long = len(rows) >= FILTERED_ROWS
    decimals = {column.key: choose_column_decimals(column, rows) for column in table.columns}
    head = Markup("").join(_heading(column, families, long, sizes) for column in table.columns)
    body = Markup("").join(_row(row, table.columns, decimals, root, families) for row in rows.to_dict("records"))
    if not len(rows):
        body = Markup('<tr><td colspan="{}" class="why">nothing measured</td></tr>').format(len(table.columns))
    tall = Markup(" tall") if len(rows) > 24 else Markup("")
    title = text.escape(table.title)
    searched = any(column.kind in EXPLAINED for column in table.columns)
    return Markup(
        '<figure class="data{}" id="{}" data-table{}{}>\n<figcaption{}><span class="title">{}</span>'
        '{}<a class="csv" href="{}" download>CSV{}</a>{}</figcaption>\n'
        '<div class="scroll" tabindex="0" role="region" aria-label="{}">'
        '<table class="data"><thead{}><tr>{}</tr></thead>\n'
        "<tbody>{}</tbody></table></div>\n</figure>"
    ).format(
        tall,
        anchor or f"table-{table.key}",
        Markup(' data-also="{}"').format(text.escape(also)) if also and long else Markup(""),
        Markup("") if searched else UNSEARCHED,
        UNSEARCHED if searched else Markup(""),
        title,
        _filter(title) if long else Markup(""),
        csv_link,
        ", all" if long else "",
        Markup('<button type="button" class="script" data-csv>CSV of these rows</button>') if long else Markup(""),
        title,
        UNSEARCHED if searched else Markup(""),
        head,
        body,
    )


def _filter(title: Markup) -> Markup:
    """What only a script can do is in the page from the start, so that nothing moves, and shown where scripts run."""
    return Markup('<input type="search" class="script" placeholder="Filter rows" aria-label="Filter {}">').format(title)


def to_take_along(anchor: str, csv_link: str, root: str) -> Markup:
    """What a reader may take of a figure: its rows, its drawing, its address, how to cite it. Without a `csv_link` a
    script reads the rows off the drawing."""
    rows = Markup('<a class="csv" href="{}" download>CSV</a>').format(csv_link)
    if not csv_link:
        rows = Markup('<button type="button" class="script" data-drawn>CSV</button>')
    return Markup(
        '<span class="take">{}'
        '<button type="button" class="script" data-svg>SVG</button><a class="csv" href="#{}">link</a>'
        '<a class="csv" href="{}cite.html">cite</a></span>'
    ).format(rows, anchor, Markup(root))


def heat_html(table: Table, csv_link: str, links: Mapping[str, str], root: str) -> Markup:
    """Rows by their first column across their second, one such map per further case column; shade by the last column:
    a share from none to all, anything else by its logarithm. links: pages of runs by id."""
    row_key, column_key, *variants = (column.key for column in table.columns[:-1])
    value = table.columns[-1]
    rows = table.rows
    shades = dict(zip(rows.index, _shades(rows[value.key], value.kind)))
    columns = list(dict.fromkeys(rows[column_key]))
    parts = []
    for variant, group in rows.groupby(variants, sort=False) if variants else [((), rows)]:
        cells = {
            (row[row_key], row[column_key]): _heat_cell(
                f"{row[row_key]} · {row[column_key]}", row, shades[at], value, links.get(str(row["run_id"])), root
            )
            for at, row in zip(group.index, group.to_dict("records"))
        }
        body = Markup("").join(
            Markup('<tr><th scope="row">{}</th>{}</tr>\n').format(
                text.escape(name),
                Markup("").join(cells.get((name, c), NOT_IN_MAP) for c in columns),
            )
            for name in dict.fromkeys(group[row_key])
        )
        head = Markup("").join(Markup('<th scope="col" class="num">{}</th>').format(text.count(c)) for c in columns)
        title = " · ".join(map(str, variant)) or table.title
        parts.append(
            Markup(
                '<figure class="heat" data-search-exclude>\n<figcaption><span class="title">{}</span>'
                '<a class="csv" href="{}" download>CSV</a></figcaption>\n'
                '<table class="heat"><thead><tr><td>context</td>{}</tr></thead>'
                "<tbody>{}</tbody></table>\n</figure>"
            ).format(text.escape(title), csv_link, head, body)
        )
    return Markup("\n").join(parts)


def _shades(values: pd.Series, kind: str) -> list[float]:
    """From 0 to 1; NaN where nothing was measured."""
    if kind == "share":
        return [float(value) for value in values]
    logs = np.log(values.astype(float))
    low, high = logs.min(), logs.max()
    return [(log - low) / (high - low) if high > low else 0.5 for log in logs]


def _heat_cell(case: str, row: dict[str, Any], shade: float, value: Column, link: str | None, root: str) -> Markup:
    if is_missing(row[value.key]):
        return Markup('<td class="why">{}</td>').format(text.escape(row.get(NOT_MEASURED) or "not measured"))
    form = FORMATS[value.kind]
    shown = row[value.key] / form.size
    title = text.escape(f"{case}: {text.number(shown, 3)} {form.unit}")
    number = text.number(shown, choose_decimals([shown]) if shown < 100 and value.kind != "share" else 0)
    inside = (
        Markup('<a href="{}" title="{}">{}</a>').format(address(link, root), title, number)
        if link
        else Markup('<span title="{}">{}</span>').format(title, number)
    )
    return Markup('<td class="shade{}" style="--shade:{}">{}</td>').format(
        " deep" if shade > 0.75 else " middle" if shade > 0.5 else "", f"{shade:.3f}", inside
    )


def _heading(column: Column, families: dict[str, str], with_key: bool, sizes: Sequence[str]) -> Markup:
    """A quotient breaks before its sign only; a unit may take its own line, as it makes tables of many columns wider
    than the page; short words stay on one line; a family's share has its colour. with_key: it carries its heading in
    CSV files, for a script, and over names of models the order of `sizes`."""
    unit = FORMATS[column.kind].unit if column.kind in FORMATS else ""
    numeric = Markup(' class="num"') if column.kind in NUMERIC else Markup("")
    label = text.escape(column.label).replace("÷ ", "÷\u00a0")
    if column.kind not in NUMERIC and len(column.label) <= SHORT_LABEL:
        label = label.replace(" ", "\u00a0")
    family = column.key.removeprefix("share_")
    if family != column.key and family in families:
        label = family_chip(family, {family: column.label})
    tail = Markup(' <span class="unit">{}</span>').format(unit) if unit else Markup("")
    key = Markup(' data-key="{}"').format(csv_heading(column.key, column.kind)) if with_key else Markup("")
    if with_key and sizes and (column.kind == "run" or column.key == "size"):
        key += Markup(' data-order="{}"').format(" ".join(sizes))
    return Markup('<th scope="col"{}{}>{}{}</th>').format(numeric, key, label, tail)


def choose_column_decimals(column: Column, rows: pd.DataFrame) -> int:
    """Decimals of all numbers of a column, whose heading has the unit."""
    form = FORMATS.get(column.kind)
    if not form:
        return 0
    values = [v for v in rows[column.key] if isinstance(v, int | float) and math.isfinite(v)]
    if form.kind in ("share", "count"):
        return choose_form(form.kind, values).decimals
    shown = [value / form.size for value in values]
    large = max((abs(value) for value in shown), default=0.0)
    return min(choose_decimals(shown), 3 if large < 1000 else 2)


def is_missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _row(
    row: dict[str, Any], columns: tuple[Column, ...], decimals: dict[str, Any], root: str, families: dict[str, Any]
) -> Markup:
    why = row.get(NOT_MEASURED) or "not measured"
    gaps = [is_missing(row[column.key]) for column in columns]
    tail = len(gaps)
    while tail and gaps[tail - 1] and (row.get(NOT_MEASURED) or explain_absent(columns[tail - 1], row) in ("", why)):
        tail -= 1
    cells = [_cell(column, row, columns, decimals[column.key], root, families, why) for column in columns[:tail]]
    if tail < len(gaps):
        name = "why" if row.get(NOT_MEASURED) else "absent"
        cells.append(Markup('<td class="{}" colspan="{}">{}</td>').format(name, len(gaps) - tail, text.escape(why)))
    named = any(column.kind in ("quantity", "change") for column in columns)
    unit = Markup(' data-unit="{}"').format(row["unit"]) if named else Markup("")
    name = Markup(' id="{}"').format(text.file_name(row[ANCHOR])) if row.get(ANCHOR) else Markup("")
    return Markup("<tr{}{}>{}</tr>\n").format(name, unit, Markup("").join(cells))


def explain_absent(column: Column, row: dict[str, Any]) -> str:
    """What is said about an empty cell in a measured row."""
    return (column.why and row.get(column.why)) or column.absent


def _cell(
    column: Column,
    row: dict[str, Any],
    columns: tuple[Column, ...],
    decimals: int,
    root: str,
    families: dict[str, Any],
    why: str,
) -> Markup:
    value = row[column.key]
    if is_missing(value):
        absent = explain_absent(column, row)
        name = "why" if row.get(NOT_MEASURED) else "absent"  # the others of the row were measured
        name += " num" if column.kind in NUMERIC else ""
        said = why if row.get(NOT_MEASURED) else absent or why
        return Markup('<td class="{}">{}</td>').format(name, text.escape(said))
    if column.kind in NUMERIC:
        shown = format_number_cell(column, row, decimals)
        if ends := format_spread(column, row, decimals):
            spread = Markup(" <small>{}\u2013{}</small>").format(*ends)
            return Markup("<td{}>{}{}</td>").format(_raw(value, ""), shown, spread)
        width = f"{min(100.0, max(0.0, 100 * value)):.1f}"
        bar = Markup(' style="--bar:{}%"').format(width) if column.bar else Markup("")
        return Markup("<td{}{}>{}</td>").format(_raw(value, shown), bar, shown)
    named, value = value, label_value(column.key, row)
    key = Markup(' data-k="{}"').format(text.escape(named)) if named != value else Markup("")
    if column.kind == "run":
        page = row.get(RUN_LEADS_TO)
        label = text.escape(value)
        if not page:
            return _plain(label, key)
        case = [_case_word(other, row) for other in columns if other is column or other.key in CASE]
        said = Markup(' aria-label="{}"').format(text.escape(", ".join(case))) if len(case) > 1 else Markup("")
        return Markup('<td{}><a href="{}"{}>{}</a></td>').format(key, address(page, root), said, label)
    if column.kind == "kernel":
        return Markup('<td class="kernel">{}</td>').format(kernel_details(value, row.get("family"), families))
    if column.kind == "kernel_entry":
        entry = '<td class="kernel" id="{}">{}</td>'
        return Markup(entry).format(text.kernel_anchor(value), kernel_details(value))
    if column.kind == "page":
        page = row[f"{column.key}_leads_to"]
        label = text.escape(value)
        if not page:
            return _plain(label, key)
        return Markup('<td{}><a href="{}">{}</a></td>').format(key, address(page, root), label)
    if column.kind == "words":
        return Markup('<td class="wrap">{}</td>').format(text.escape(value))
    if column.kind == "prose":
        return Markup('<td class="wrap">{}</td>').format(text.prose(value))
    if column.kind == "code":
        return Markup("<td><code>{}</code></td>").format(text.escape(value).replace("/", Markup("/<wbr>")))
    if column.kind == "family":
        return Markup("<td>{}</td>").format(family_chip(value, families))
    if column.kind == "modules":
        return Markup('<td class="modules">{}</td>').format(modules(value))
    if column.kind in YES_NO:
        word = _yes_no(column.kind, value)
        return Markup('<td class="{}-{}">{}</td>').format(column.kind, word, word)
    if column.kind == "status":
        return Markup('<td><span class="status status-{}">{}</span></td>').format(
            text.file_name(str(value)), text.escape(value)
        )
    words = find_value_words(column.key, named)
    also = Markup(' data-also="{}"').format(text.escape(words)) if words else Markup("")
    return Markup("<td{}{}>{}</td>").format(key, also, text.escape(value))


def format_number_cell(column: Column, row: Mapping[str, Any], decimals: int) -> str:
    """Format the number in a cell of a column of NUMERIC, without the unit that the heading has."""
    value = row[column.key]
    if column.kind == "number":
        return text.number(value, 0 if float(value).is_integer() else 4)
    if column.kind == "quantity":
        return text.quantity(value, row["unit"])
    if column.kind == "change":
        return text.change(value, row["unit"])
    shown = text.number(value / _find_size(column), decimals)
    return f"+{shown}" if column.kind == "points" and value > 0 else shown


def format_spread(column: Column, row: Mapping[str, Any], decimals: int) -> tuple[str, ...]:
    """Format the ends of the spread of a number; nothing if its column has none, or if one is not known."""
    names = (column.lower, column.upper) if column.lower else ()
    if any(is_missing(row[name]) for name in names):
        return ()
    return tuple(text.number(row[name] / _find_size(column), decimals) for name in names)


def _find_size(column: Column) -> float:
    return FORMATS[column.kind].size if column.kind in FORMATS else 1.0


def label_value(key: str, row: Mapping[str, Any]) -> Any:
    """Label the value of a row in column `key`: a model with its parameters, if the row has them, and a value of
    another axis by its label."""
    if key == "size":
        return text.name_model_of(row)
    return find_value_label(key, row[key])


def _plain(label: Markup, key: Markup) -> Markup:
    return Markup("<td{}>{}</td>").format(key, label)


def _case_word(column: Column, row: dict[str, Any]) -> str:
    value = label_value(column.key, row)
    return f"{column.label} {value}" if column.kind in NUMERIC else str(value)


def _raw(value: float, shown: str) -> Markup:
    """The value as in CSV files, as an attribute, which also marks the cell as a number; empty where it reads so."""
    exact = str(_to_digits(float(value)) if isinstance(value, float) else int(value))
    return Markup(" data-v") if exact == shown else Markup(' data-v="{}"').format(exact)


def page_of_run(run_id: str) -> str:
    """Path below docs of the page of a run of the main recording, without .md."""
    return f"report/runs/{text.file_name(run_id)}"


def address(page: str, root: str, suffix: str = ".html") -> str:
    """Link to a page (path below docs without .md, perhaps with a query or an anchor) from one at the top (root ""), in
    report/ (root "../") or below it. suffix: .md for a link in Markdown."""
    path = re.split("[?#]", page, maxsplit=1)[0]
    rest = page.removeprefix(path)
    if root == "../" and path.startswith("report/"):
        root, path = "", path.removeprefix("report/")
    return f"{root}{path}{suffix}{rest}"


def kernel_details(name: str, family: str | None = None, families: dict[str, str] | None = None) -> Markup:
    """A short name that opens to the full one, with the colour of its family."""
    short = text.short_name(name)
    dot = Markup("")
    if family and families:
        known = family if family in families else "other"
        title = text.escape(families.get(family, family))
        dot = Markup('<span class="family dot {}" title="{}"></span>').format(known, title)
    if short == name:
        return dot + Markup("<code>{}</code>").format(text.escape(name))
    return Markup("<details><summary>{}<code>{}</code></summary><code>{}</code></details>").format(
        dot, text.breakable(short), text.escape(name)
    )


def family_chip(family: str, families: dict[str, str]) -> Markup:
    """The family's colour and label."""
    known = family if family in families else "other"
    return Markup('<span class="family {}">{}</span>').format(known, text.escape(families.get(family, family)))


def modules(paths: str) -> Markup:
    """`module_names`, the first two of them."""
    names = module_names(paths)
    if not names:
        why = "launched where no module's range is open: in backward, or by the optimizer"
        return Markup('<span class="faint" title="{}">outside modules</span>').format(text.escape(why))
    shown = Markup(", ").join(text.inline(name).replace("/", Markup("/<wbr>")) for name in names[:2])
    more = Markup(' <span class="faint" title="{}">+{} more</span>').format(
        text.escape(", ".join(names)), len(names) - 2
    )
    return shown + more if len(names) > 2 else shown
