"""An Answer and its template to a Markdown page with its CSV files. Words come from the template, numbers from the
Answer."""

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from jinja2.bccache import Bucket
from markupsafe import Markup

from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.render import (
    chart_parts,
    charts,
    icicle,
    pipe_tables,
    regime_map,
    screen_source,
    strip,
    svg_files,
    tables,
    text,
)
from profiler_job.analysis.render import finding_rows as findings
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table
from profiler_job.analysis.site import front_matter, page_figures
from profiler_job.analysis.site.link_terms import GLOSSARY, link_terms
from profiler_job.analysis.site.state_figures import show_charts_by_state
from profiler_job.jobs.contract.axes import AXES, find_value_label, find_value_name

HEADING = re.compile("^# .*\n", re.MULTILINE)
QUERY = "?of="
"""Names the part of a page that a script shows."""
ANY_HEADING = re.compile("^(#+ )", re.MULTILINE)
IN_TITLE = re.compile(r"(?<!\S)\S+(?= · \d)")
"""The model of a case: `small · 128`."""
METHOD = re.compile("^## How this was measured\n", re.MULTILINE)
"""Where a question's page has its notes."""
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\W*[A-Z])")
"""Between two sentences: neither within a number nor after an abbreviation."""
NOT_MEASURED = "Not measured."
TEMPLATES = Path(__file__).resolve().parents[1] / "pages"


class _Compiled(jinja2.BytecodeCache):
    """Templates are compiled once in a process: each page has an environment of its own, since filters link from it."""

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self.known:
            bucket.bytecode_from_string(self.known[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.known[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


@dataclass(frozen=True)
class Part:
    """A part of a page: its Markdown, and its figures as HTML by the link to their CSV."""

    markdown: str
    figures: Mapping[str, str]


@dataclass
class Site:
    """Writes pages under `docs` (the MkDocs source folder): `index.md` and everything below `report/`.

    `families` are the labels of the kernel families by key; `case_columns` name a case in sentences, which link to the
    page of the run. `run_links` have that by run id: its path below docs, without .md. What the `notes` say, each with
    the template mix.md, is below the heading of every page, or where a question says how it was measured. `sizes` are
    names of models, the smallest first, and `models` have their names with parameters. `recording`: name, date and
    commit of the program of what the pages are about, for their feet. `properties`: what its runs may be looked for by
    (`run_grid.property_names`). has_glossary: the words of the glossary are links to it.
    """

    docs: Path
    template_folders: tuple[Path, ...]
    families: Mapping[str, str]
    case_columns: tuple[str, ...]
    run_links: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Answer, ...] = ()
    sizes: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    recording: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    has_glossary: bool = False

    def __post_init__(self) -> None:
        self.env = jinja2.Environment(
            loader=jinja2.FileSystemLoader([*self.template_folders, TEMPLATES]),
            undefined=jinja2.StrictUndefined,
            autoescape=True,
            finalize=text.finalize,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            bytecode_cache=_COMPILED,
            optimized=False,  # what pages share may contain nothing that a page's own filter makes
        )
        self.env.filters |= {name: getattr(text, name) for name in text.FILTERS} | {
            "text": text.inline,
            "html": text.escape,
            "snippet": text.snippet,
            "prose": text.prose,
            "file": file_markup,
            "path": path_markup,
            "page_address": page_address,
            "attribute": lambda number: Markup(int(number)),
            "bullets": bullets,
            "verdict": verdict,
            "first_sentence": first_sentence,
            "lines": lines,
            "code_line": code_line,
            "named": lambda value, axis: find_value_name(axis, value),
        }

    def write(self, path: str, template: str, answer: Answer, **extra: Any) -> None:
        """Write the page `path` (below docs, with .md), the CSV of each table it shows, and its figures as HTML."""
        self.write_with_parts(path, template, answer, (), **extra)

    def write_with_parts(self, path: str, template: str, answer: Answer, parts: Sequence[Part], **extra: Any) -> None:
        """Write a page as `write` does. parts: whose Markdown is in the page, by what `extra` gives its template."""
        rendered = _Page(self, path, answer)
        for part in parts:
            rendered.figures |= part.figures
        front, body = front_matter.split(self._add_notes(path, rendered.render(template, **extra)))
        if (self.recording or front) and (heading := HEADING.search(body)):
            name = text.plain(Markup(heading[0].removeprefix("# ").strip()))
            verdict = self._plain_verdict(path, template, answer, extra)
            front = front_matter.complete(front, name, verdict, self.recording)
            if front_matter.has_cards():
                self.write_asset(front_matter.path_of_card(path), front_matter.draw_card(front, name))
        if self.has_glossary and path != f"report/{GLOSSARY.name}":
            body = link_terms(body, "../" * path.count("/"))
        self._write_text(path, front_matter.join(front, body))
        if rendered.figures:
            self._write_text(page_figures.path_of_figures(path), page_figures.dump(rendered.figures))

    def render_part_of_page(self, path: str, folder: str, template: str, answer: Answer, **extra: Any) -> Part:
        """Render a template as a part of the page `path`, its headings a level lower. folder: of its CSV files, in the
        folder of the page's."""
        rendered = _Page(self, path, answer, folder)
        _, body = front_matter.split(self._add_notes(path, rendered.render(template, **extra)))
        return Part(markdown=ANY_HEADING.sub(r"#\1", body), figures=rendered.figures)

    def render_blocks(self, path: str, slug: str, template: str, answer: Answer, blocks: Sequence[str]) -> Part:
        """Render blocks of a template as a part of the page `path`. slug: of the page that has all of it, whose CSV
        files the part shares."""
        rendered = _Page(self, path, answer)
        rendered.folder = f"report/csv/{slug}"
        loaded = rendered.environment().get_template(template)
        known = [loaded.blocks[name] for name in blocks if name in loaded.blocks]
        first, *others = ("".join(block(loaded.new_context(rendered.context()))) for block in known)
        paragraphs = filter(None, [verdict(first, ""), *(block.strip() for block in others)])
        return Part("\n\n".join(paragraphs) or NOT_MEASURED, rendered.figures)

    def _add_notes(self, path: str, page: str) -> str:
        notes = "\n\n".join(filter(None, (self._render(path, "mix.md", note).strip() for note in self.notes)))
        place = METHOD if METHOD.search(page) else HEADING
        return place.sub(lambda heading: f"{heading[0]}\n{notes}\n", page, count=1) if notes else page

    def _plain_verdict(self, path: str, template: str, answer: Answer, extra: Mapping[str, Any]) -> str:
        """The verdict of a page in plain text; "" of a page without one."""
        if "verdict" not in _Page(self, path, answer).environment().get_template(template).blocks:
            return ""
        return text.plain(self.block(path, template, answer, "verdict", **extra))

    def _render(self, path: str, template: str, answer: Answer, **extra: Any) -> str:
        return _Page(self, path, answer).render(template, **extra)

    def render_part(self, path: str, template: str, answer: Answer, **extra: Any) -> str:
        """Render a template of HTML as a part of the page `path`."""
        return str(_Page(self, path, answer).render_part(template, **extra))

    def block(
        self, path: str, template: str, answer: Answer, block: str, otherwise: str = NOT_MEASURED, **extra: Any
    ) -> Markup:
        """One block of a template as it would read on the page `path`, on one line: the verdict of a question, for the
        home page. otherwise: in place of an empty one."""
        page = _Page(self, path, answer)
        loaded = page.environment().get_template(template)
        words = "".join(loaded.blocks[block](loaded.new_context(page.context() | extra)))
        return verdict(words, otherwise)

    def write_asset(self, path: str, content: bytes) -> int:
        """Write a file other than a page (path below docs), and return its size in bytes."""
        write_file(self.docs / path, content)
        return len(content)

    def _write_text(self, path: str, content: str) -> None:
        self.write_asset(path, content.encode("utf-8"))


def write_file(target: Path, content: bytes) -> None:
    """Write a file, and the folders that it needs."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def bullets(findings: str, otherwise: str = NOT_MEASURED) -> Markup:
    """The sentences that hold, one list item each; blank lines between calls dropped."""
    return Markup("\n".join(f"- {line.removeprefix('- ')}" for line in lines(findings)) or otherwise)


def lines(words: str) -> list[Markup]:
    """The lines with anything in them."""
    return [Markup(line.strip()) for line in str(words).splitlines() if line.strip()]


def code_line(line: str) -> Markup:
    """A printable line of an indented block of code, in which Markdown reads nothing and escapes all."""
    expanded = line.replace("\t", "    ")
    assert expanded.isprintable()
    return Markup(expanded)


def file_markup(name: str) -> Markup:
    """A name as part of a link."""
    return Markup(text.file_name(name))


def path_markup(path: str) -> Markup:
    """A path that `Site` wrote, as part of a link."""
    return Markup("/").join(file_markup(part) for part in path.split("/"))


def page_address(page: str, root: str) -> Markup:
    """The address of a page that `Site` wrote (path below docs, perhaps with a query), for a link of Markdown from a
    page whose way to the top folder is `root`."""
    path, _, query = page.partition(QUERY)
    path = tables.address(str(path_markup(path)), root, ".md")
    return Markup(path) + (Markup(QUERY) + path_markup(query) if query else "")


def _find_colour(chart: Chart, at: int) -> str:
    return str(chart.options["colours"][at] if "colours" in chart.options else f"series-{at}")


def _with_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a chart, with the values of axes as tables call them."""
    labelled = [name for name in rows if name in AXES and AXES[name].labels]
    return rows.assign(**{name: [find_value_label(name, value) for value in rows[name]] for name in labelled})


def verdict(words: str, otherwise: str = NOT_MEASURED) -> Markup:
    """One line, or `otherwise`."""
    return Markup(" ".join(str(words).split()) or otherwise)


def first_sentence(words: str) -> Markup:
    """The first sentence of a verdict."""
    return Markup(SENTENCE.split(str(words), maxsplit=1)[0])


class _Page:
    """What a template may call while it renders one page."""

    def __init__(self, site: Site, path: str, answer: Answer, folder: str = ""):
        self.site, self.path, self.answer = site, path, answer
        self.root = "../" * path.count("/")
        self.folder = posixpath.join("report/csv", path.removesuffix(".md").removeprefix("report/"), folder).rstrip("/")
        self.claimed: list[tuple[Claim, Markup, findings.Read]] = []
        self.figures: dict[str, str] = {}
        """Tables and figures as the site shows them, by the link to their CSV, by which the Markdown names them."""
        self.named: set[str] = set()
        """Models whose parameters a sentence has named."""

    def render(self, template: str, **extra: Any) -> str:
        return self.environment().get_template(template).render(self.context() | extra)

    def _add_figure(self, csv_link: str, markdown: Markup, html: Markup) -> Markup:
        """The Markdown of a figure, which the site shows as HTML."""
        self.figures[csv_link] = str(html)
        return markdown

    def context(self) -> dict[str, Any]:
        return {
            "facts": self.answer.facts,
            "root": Markup(self.root),
            "sentence": self.sentence,
            "claim": self.claim,
            "findings": lambda caller: bullets(caller(), "") + Markup("\n\n"),
            "evidence": self.evidence,
            "table": self.table,
            "chart": self.chart,
            "charts_by_state": partial(show_charts_by_state, self),
            "heat": self.heat,
            "icicle": partial(icicle.draw, has_reader=True),
            "tabulate": icicle.tabulate,
            "kind_labels": icicle.LABELS,
            "format_gain": screen_source.format_gain,
            "explain_gain": screen_source.explain_gain,
            "most_apart": MOST_APART,
            "first_screen": self.first_screen,
            "home_screen": self.home_screen,
            "regimes": self.regimes,
            "strips": self.strips,
            "extremes": self.extremes,
            "csv": lambda key: Markup(self._csv(key, self.answer.tables[key].rows, self.answer.tables[key].columns)),
            "has": lambda key: len(self.answer.tables[key].rows) > 0,
        }

    def environment(self) -> jinja2.Environment:
        """The site's environment with the filters that link from this page."""
        families = dict(self.site.families)
        env = self.site.env.overlay()
        more: dict[str, Callable[..., Markup]] = {
            "family": lambda key: tables.family_chip(key, families),
            "family_name": lambda key: text.inline(families.get(key, key)),
            "family_names": lambda keys: text.listing(families.get(key, key) for key in keys),
            "modules": lambda paths: text.listing(tables.module_names(paths)[:3]) or Markup("outside modules"),
            "kernel": self.kernel,
            "case": self.case,
            "model": self.model,
        }
        env.filters = self.site.env.filters | more
        return env

    def sentence(self, key: str, caller: Callable[..., str]) -> Markup:
        """The sentence of a claim if it holds, otherwise nothing."""
        return self._render_claim(self.answer.claims[key], caller, {})

    def _render_claim(self, claim: Claim, caller: Callable[..., str], read: findings.Read) -> Markup:
        """The sentence; `read` gains the facts in it, by their names."""
        return Markup(caller(findings.noted(claim.values, read))).strip() + Markup(" ") if claim.holds else Markup("")

    def claim(self, key: str, caller: Callable[..., str]) -> Markup:
        """A finding: the sentence, with a link to its rows."""
        read: findings.Read = {}
        words = self._render_claim(self.answer.claims[key], caller, read)
        if not words:
            return Markup("")
        self.claimed.append((self.answer.claims[key], words, read))
        return Markup("- ") + words + Markup("[rows]({})\n").format(Markup(self.link_rows(f"rows-{key}")))

    def evidence(self) -> Markup:
        """The rows behind every claim made so far, a line each; the site folds them under their sentences."""
        return Markup("\n").join(self._evidence(*claimed) for claimed in self.claimed)

    def _evidence(self, claim: Claim, words: Markup, read: findings.Read) -> Markup:
        shown = self._linked(findings.table(claim, self.answer.tables.values(), read, words))
        link = self._csv(f"rows-{claim.key}", claim.rows, shown.columns)
        number = every = text.counted(len(claim.rows), "row")
        if len(shown.rows) < len(claim.rows):
            number = text.count(len(shown.rows)) + Markup(" of ") + number
        said = first_sentence(findings.plain(words))  # the page has the others
        html = Markup(
            '<details class="folded"><summary><span class="said">{}</span> <span class="faint">{}</span></summary>\n'
            "{}\n</details>"
        ).format(text.escape(said), number, self._html(shown, link, shown.key))
        return self._add_figure(link, Markup("- [{}]({}): {}").format(every, Markup(link), text.inline(said)), html)

    def table(self, key: str, template: str = "", **extra: Any) -> Markup:
        """The table `key`. template: of the HTML that the site shows instead, with the table as `shown`."""
        table = self._linked(self.answer.tables[key])
        link = self._csv(key, table.rows, table.columns)
        markdown = pipe_tables.to_markdown(table, link, self.root, self.site.families)
        html = self._html(table, link)
        html = self.render_part(template, shown=html, **extra) if template else html
        return self._add_figure(link, markdown, html)

    def strips(self, key: str, title: str, drawn: strip.Strip | strip.StepLanes | strip.Lanes) -> Markup:
        """Lanes of a timeline: a picture, a file of its own, and on the site a figure. title: Markdown that is HTML,
        too."""
        phases = [f"{name} phase" for name in drawn.phases] if isinstance(drawn, strip.StepLanes) else []
        entries = [svg_files.Entry(name, f"series-{at % strip.NUM_SERIES}") for at, name in enumerate(phases)]
        entries += self._list_families(drawn.families)
        has_waits = not isinstance(drawn, strip.Lanes)  # of ranks, a lane may be empty while another is not
        entries += [svg_files.Entry(strip.WAITS, strip.WAIT_LINES, is_hollow=True)] * has_waits
        link = self._write_picture(key, strip.stack(drawn.lanes), entries)
        take_along = tables.to_take_along(key, "", self.root)
        extra = {"phases": phases, "waits": [strip.WAITS] * has_waits, "take_along": take_along}
        html = self.render_part("strips.html", key=key, title=title, drawn=drawn, **extra)
        shown = Markup("**{title}** · [SVG]({link})\n\n![{title}]({link})").format(title=title, link=Markup(link))
        return self._add_figure(link, shown, html)

    def _html(self, table: Table, csv_link: str, anchor: str = "") -> Markup:
        families, also = dict(self.site.families), self._list_shared_properties(table)
        return tables.to_html(table, csv_link, self.root, families, anchor, self.site.sizes, also)

    def _list_shared_properties(self, table: Table) -> str:
        """What the runs of a table have in common and no column says; nothing where some row is of no known run."""
        run_ids = set(table.rows["run_id"]) - {""} if "run_id" in table.rows else set()
        if not run_ids <= {*self.site.properties}:
            return ""
        of_axes: dict[str, set[str]] = {}
        for run_id in run_ids:
            for name, names in self.site.properties[run_id].items():
                of_axes.setdefault(name, set()).add(names)
        shown = {column.key for column in table.columns}
        return "; ".join(name for axis, (name, *more) in of_axes.items() if axis not in shown and not more)

    def _linked(self, table: Table) -> Table:
        """The table, with where the names of its runs lead to."""
        if "run_id" not in table.rows or not any(column.kind == "run" for column in table.columns):
            return table
        links = [self.site.run_links.get(run, "") if isinstance(run, str) else "" for run in table.rows["run_id"]]
        return replace(table, rows=table.rows.assign(**{tables.RUN_LEADS_TO: links}))

    def heat(self, key: str) -> Markup:
        """The table `key` as a map: one row per size, one column per context length."""
        table = self.answer.tables[key]
        link = self._csv(key, table.rows, table.columns)
        linked = (table, link, self.site.run_links, self.root)
        return self._add_figure(link, pipe_tables.heat_to_markdown(*linked), tables.heat_html(*linked))

    def first_screen(self, screen: Mapping[str, Any], name: str, link: str = "") -> Markup:
        """The first screen of a run (`pages.first_screen`). name: for ids; link: of the run, on another page."""
        csv_link = self._csv("step", screen["parts"].drop(columns="run_id"), ())
        html = self.render_part("first_screen.html", screen=screen, name=name, link=Markup(link))
        return self._add_figure(csv_link, screen_source.to_markdown(screen, csv_link), html)

    def home_screen(
        self, picker: Mapping[str, Any] | None, states: Sequence[Mapping[str, Any]], shown: str, words: str
    ) -> Markup:
        """The first screen of the home page: the choices, and the states of the case that is shown without scripts,
        which `words` name. A page without choices shows the states alone."""
        known = {state["label"]: state["screen"] for state in states if state["screen"]}
        parts = [screen["parts"].assign(state=state) for state, screen in known.items()]
        csv_link = self._csv("step", pd.concat(parts, ignore_index=True).drop(columns="run_id"), ())
        choices = self.render_part("home_picker.html", picker=picker) if picker else ""
        screens = self.render_part("home_states.html", states=states, shown=shown)
        html = Markup('<div class="home"{}>\n{}\n{}\n</div>').format(
            Markup(' id="home"') if picker else "", choices, screens
        )
        screen, picture = known[shown], ""
        if len(screen["parts"]):
            entries = [svg_files.Entry(icicle.LABELS[kind], icicle.COLOURS[kind]) for kind in screen["kinds"]]
            picture = self._write_picture("chart-step", str(icicle.draw_picture(screen["parts"])), entries)
        markdown = screen_source.to_markdown(screen, csv_link, f"{words}, {shown}", picture)
        return self._add_figure(csv_link, markdown, html)

    def render_part(self, template: str, **extra: Any) -> Markup:
        """HTML of a template, without blank lines."""
        return Markup("\n".join(line for line in self.render(template, **extra).splitlines() if line.strip()))

    def regimes(self, key: str, shown: str) -> Markup:
        """The table `key` as a map of what limits each case. shown: the state that a reader sees first."""
        table = self.answer.tables[key]
        link = self._csv(key, table.rows.drop(columns="leads_to"), table.columns)
        drawn = (table, link, self.root)
        return self._add_figure(link, regime_map.to_markdown(*drawn), regime_map.to_html(*drawn, shown))

    def _csv(self, key: str, rows: pd.DataFrame, columns: tuple[Column, ...]) -> str:
        self.site._write_text(f"{self.folder}/{text.file_name(key)}.csv", tables.to_csv(rows, columns))
        return self.link_rows(key)

    def link_rows(self, key: str) -> str:
        return self._link(f"{self.folder}/{text.file_name(key)}.csv")

    def _link(self, path: str) -> str:
        return posixpath.relpath(path, posixpath.dirname(self.path) or ".")

    def chart(self, key: str, before: str = "") -> Markup:
        """A picture, a file of its own. On the site it is a figure with a wide and a narrow drawing (CSS shows one),
        its legend, and what a reader may take along: its rows, the drawing, its address, and how to cite it. before:
        what its title begins with."""
        chart = replace(self.answer.charts[key], title=before + self.answer.charts[key].title)
        if not len(chart.rows):
            return Markup("*{}: not measured.*").format(text.inline(chart.title))
        csv_link = self._csv(f"chart-{key}", chart.rows, ())
        (wide, runs, _), (narrow, more, unnamed) = (
            self._draw(chart, name, width)
            for name, width in (("wide", chart_parts.WIDE), ("narrow", chart_parts.NARROW))
        )
        chart = self._name_series(chart)
        note = Markup('<p class="legend">{}</p>').format(", ".join(unnamed)) if unnamed else ""
        of_marks = json.dumps(runs | more, ensure_ascii=False, separators=(",", ":"))
        picture = self._write_picture(f"chart-{key}", wide, self._list_legend(chart))
        html = Markup(
            '<figure class="chart" id="chart-{}"{} data-search-exclude>\n<figcaption><span class="title">{}</span>{}'
            "</figcaption>\n{}\n{}\n</figure>"
        ).format(
            key,
            Markup(' data-runs="{}"').format(of_marks) if runs | more else "",
            text.escape(chart.title),
            tables.to_take_along(f"chart-{key}", csv_link, self.root),
            self._legend(chart),
            Markup('<div class="wide">{}</div>\n<div class="narrow">{}{}</div>').format(
                Markup(wide), Markup(narrow), note
            ),
        )
        shown = Markup("![{}]({})").format(text.inline(chart.title), Markup(picture))
        return self._add_figure(csv_link, pipe_tables.write_caption(chart.title, csv_link) + shown, html)

    def _draw(self, chart: Chart, name: str, width: int) -> tuple[str, dict[str, str], list[str]]:
        """The SVG of a chart, the pages of its runs by the labels of their marks, and the names of models for which it
        has no room."""
        rows = _with_labels(chart.rows)
        rows, unnamed = chart_parts.name_models(rows, chart.options, self.site.models, width)
        drawn = self._name_series(replace(chart, rows=rows))
        svg = charts.render(chart.kind, drawn.rows, f"{chart.key}-{name}", width, drawn.title, **drawn.options)
        pages = {label: self.site.run_links.get(run) for label, run in chart_parts.find_runs(drawn.rows, drawn.options)}
        return svg, {label: tables.address(page, self.root) for label, page in pages.items() if page}, unnamed

    def _name_series(self, chart: Chart) -> Chart:
        """The chart with its models' parameters where they are series, or in a case in its title."""
        models, series = self.site.models, charts.colour_column(chart.kind)
        rows = chart.rows.assign(**{series: [models.get(name, name) for name in chart.rows[series]]})
        order = [models.get(name, name) for name in chart.options.get("order", ())]
        title = IN_TITLE.sub(lambda size: models.get(size[0], size[0]), chart.title)
        return replace(chart, title=title, rows=rows, options={**chart.options, "order": order})

    def _write_picture(self, key: str, drawing: str, legend: Sequence[svg_files.Entry]) -> str:
        """Write a drawing as a file, and return the link to it."""
        path = f"{self.folder}/{text.file_name(key)}.svg"
        self.site._write_text(path, svg_files.make_file(drawing, legend))
        return self._link(path)

    def _legend(self, chart: Chart) -> Markup:
        names = set(chart_parts.drawn(chart.kind, chart.rows)[charts.colour_column(chart.kind)])
        items = []
        for position, name in enumerate(chart.options["order"]):
            if name not in names:
                continue
            if charts.colour_column(chart.kind) == "family":
                items.append(tables.family_chip(name, dict(self.site.families)))
            else:
                items.append(
                    Markup('<span class="series {} series-{}" style="--family:var(--{})">{}</span>').format(
                        chart_parts.mark(chart.kind), position, _find_colour(chart, position), text.escape(name)
                    )
                )
        if (hollow := chart.options.get("hollow")) in names:
            swatch = Markup('<span class="series bar hollow" style="--family:var(--series-0)">{}</span>')
            items.insert(1, swatch.format(text.escape(hollow)))
        if not items:
            return Markup("")
        return Markup('<p class="legend">{}</p>').format(Markup(" ").join(items))

    def _list_legend(self, chart: Chart) -> list[svg_files.Entry]:
        """The legend of the file of a drawing."""
        names = set(chart_parts.drawn(chart.kind, chart.rows)[charts.colour_column(chart.kind)])
        is_family = charts.colour_column(chart.kind) == "family"
        order = [(at, name) for at, name in enumerate(chart.options["order"]) if name in names]
        if is_family:
            return self._list_families([name for _, name in order])
        is_round = chart_parts.mark(chart.kind) == "point"
        entries = [svg_files.Entry(str(name), _find_colour(chart, at), is_round) for at, name in order]
        if (hollow := chart.options.get("hollow")) in names:
            entries.insert(1, svg_files.Entry(str(hollow), "series-0", is_hollow=True))
        return entries

    def _list_families(self, names: Sequence[str]) -> list[svg_files.Entry]:
        known = self.site.families
        return [
            svg_files.Entry(known.get(name, name), f"family-{name if name in known else 'other'}") for name in names
        ]

    def kernel(self, name: str) -> Markup:
        """A kernel in a sentence: short, linked to its full name in the glossary."""
        short = text.code(text.short_name(name))
        return Markup("[{}]({}report/kernels.md#{})").format(short, Markup(self.root), text.kernel_anchor(name))

    def extremes(self, low: Mapping[str, Any], high: Mapping[str, Any], key: str, form: str) -> Markup:
        """`6.98 ms (small · 128) to 742 ms (2.7B · 1024)`: values of `key` by the filter `form`; one where it is one
        row."""
        first = Markup("{} ({})").format(getattr(text, form)(low[key]), self.case(low))
        if high is low or [low[key], low.get("run_id")] == [high[key], high.get("run_id")]:
            return first
        return Markup("{} to {} ({})").format(first, getattr(text, form)(high[key]), self.case(high))

    def model(self, size: str) -> Markup:
        """A model in a sentence, the first time on a page with its parameters."""
        return text.inline(self._name_once(size))

    def _name_once(self, size: str) -> str:
        is_new = size not in self.named
        self.named.add(size)
        return self.site.models.get(size, size) if is_new else size

    def case(self, row: Mapping[str, Any]) -> Markup:
        """A case in a sentence, linked to its run: small (0.13B) · 128, without parameters once a page has them."""
        shown = [name for name in self.site.case_columns if name in row]
        words = {name: str(find_value_label(name, row[name])) for name in shown}
        words |= {name: self._name_once(words[name]) for name in shown if name == "size"}
        label = text.inline(" · ".join(words.values()))
        run = row.get("run_id")
        page = self.site.run_links.get(run, "") if isinstance(run, str) else ""
        return Markup("[{}]({})").format(label, Markup(tables.address(page, self.root, ".md"))) if page else label
