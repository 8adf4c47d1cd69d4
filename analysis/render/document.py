"""A page in one file, without scripts: its frame, lists and tables."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.insight.short_names import shorten
from profiler_job.analysis.reference.columns import format_cell, format_heading
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.render.tables import family_chip
from profiler_job.analysis.render.terminal_text import is_text
from profiler_job.jobs.contract.outputs import PAGE_FOOTER
from profiler_job.jobs.contract.printable import make_printable

_NAME_WIDTH = 72
"""A longer name is folded: its full text opens."""
FAMILY_LABELS = {key: family.label for key, family in FAMILIES.items()}
_PAGE = Markup(
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="referrer" content="no-referrer">\n<title>{title}</title>\n<style>\n{style}</style>\n</head>\n'
    "<body>\n{body}\n" + PAGE_FOOTER + " {maker}.</footer>\n</body>\n</html>\n"
)


def render_document(title: str, parts: Iterable[Markup], maker: str = "show") -> str:
    """Make a page of these parts; `maker` is the subcommand that made it."""
    style = Markup(
        resources.files(__package__).joinpath("document.css").read_text(encoding="utf-8") + _style_swatches()
    )
    body = Markup("\n").join(part for part in parts if part)
    return _PAGE.format(title=title, style=style, body=body, maker=maker)


def _style_swatches() -> str:
    """Colours of families, as a rule each: a page without scripts takes them by class."""
    return "".join(f".family.{key}::before, .bar .{key} {{ background: var(--family-{key}); }}\n" for key in FAMILIES)


def render_list(lines: Sequence[str], kind: str) -> Markup:
    items = Markup("").join(Markup("<li>{}</li>\n").format(make_printable(line)) for line in lines)
    return Markup('<ul class="{}">\n{}</ul>').format(kind, items) if lines else Markup("")


def render_table(frame: pd.DataFrame, links: Mapping[int, str] | None = None) -> Markup:
    """Render a table of all rows; links: the target of the first cell of each row."""
    texts = {column: is_text(frame, column) for column in frame.columns}
    columns = sorted(frame.columns, key=lambda column: (column != frame.columns[0] and column != "name", texts[column]))
    names = shorten([make_printable(name) for name in frame["name"]], _NAME_WIDTH) if "name" in frame else {}
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(_choose_alignment(column, texts[column]), format_heading(column))
        for column in columns
    )
    body = []
    for number, row in enumerate(frame[columns].itertuples(index=False)):
        cells = [_render_cell(column, value, texts[column], names) for column, value in zip(columns, row)]
        if links:
            first = Markup('<td><a href="{}">{}</a></td>').format(links[number], format_cell(columns[0], row[0]))
            cells[0] = first
        body.append(Markup("<tr>{}</tr>\n").format(Markup("").join(cells)))
    folds = Markup(' class="folds"') if any(name != short for name, short in names.items()) else Markup("")
    table = '<div class="scroll"><table{}><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>'
    return Markup(table).format(folds, head, Markup("").join(body))


def _choose_alignment(column: str, is_words: bool) -> Markup:
    return Markup(' class="name"') if column == "name" else Markup("") if is_words else Markup(' class="num"')


def _render_cell(column: str, value: object, is_words: bool, names: Mapping[str, str]) -> Markup:
    text = format_cell(column, value)
    if column == "name" and isinstance(value, str):
        short = names.get(text, text)
        if short == text:
            return Markup('<td class="name"><code>{}</code></td>').format(text)
        return Markup(
            '<td class="name"><details><summary><code>{}</code></summary><code>{}</code></details></td>'
        ).format(short, text)
    if column == "family" and isinstance(value, str):
        return Markup("<td>{}</td>").format(family_chip(value, FAMILY_LABELS))
    return Markup("<td{}>{}</td>").format(_choose_alignment(column, is_words), text)
