"""Axes have round numbers at even distances, and a legend shows what the drawing shows."""

import itertools
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.render import chart_parts, charts
from profiler_job.analysis.render.answer import Chart, assemble
from profiler_job.analysis.site.site_writer import Site
from tests.page_words import read_shown


def ticks(low, high, width=chart_parts.WIDE):
    rows = pd.DataFrame({"size": ["a", "b"], "clock": "x", "ratio": [low, high]})
    drawing = charts.specification(
        "dumbbell", rows, chart_parts.Drawing(), width, order=["x"], by=["size"], value="ratio", unit="times"
    )
    return drawing["layer"][0]["encoding"]["x"]["axis"].get("values")


def drawn(chart, tmp_path, **options):
    """A page with nothing but the chart."""
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "page.md").write_text(f"{{{{ chart('{chart.key}') }}}}")
    Site(tmp_path, (folder,), {}, ("size",), **options).write("page.md", "page.md", assemble({}, [], [], [chart]))
    return read_shown(tmp_path, "page.md")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (14, 72, [20, 30, 40, 50, 60, 70]),
        (4, 900, [5, 10, 20, 50, 100, 200, 500]),
        (0.02, 20000, [0.1, 1, 10, 100, 1000, 10000]),
    ],
    ids=["within a decade", "some decades", "many decades"],
)
def test_ticks_of_a_logarithmic_axis_are_as_dense_as_fits(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_a_narrow_drawing_has_fewer_ticks():
    assert ticks(4, 900, chart_parts.NARROW) == pytest.approx([10, 30, 100, 300])


def test_where_round_numbers_are_too_few_the_library_chooses():
    assert ticks(1.6, 2.2) is None


def test_a_drawing_calls_the_values_of_axes_as_tables_do(tmp_path):
    by = ["size", "attention", "optimizer"]
    rows = pd.DataFrame([["small", "naive", "own"], ["small", "flash", "own"]], columns=by).assign(clock="x", ratio=1.0)
    chart = Chart("one", "dumbbell", "One", rows, options={"order": ["x"], "by": by, "value": "ratio"})
    drawing = drawn(chart, tmp_path)
    assert ">small · eager · reference<" in drawing and ">small · flash · reference<" in drawing
    assert ">small · naive" not in drawing and "· own<" not in drawing


@pytest.mark.parametrize(("kind", "shown"), [("traces", "line"), ("lines", "point")])
def test_a_legend_shows_lines_where_lines_are_drawn_without_points(tmp_path, kind, shown):
    rows = pd.DataFrame({"series": "one", "clock": "one", "note": "", "context_length": [1, 2], "time_ns": [1e6, 2e6]})
    options = {"x_title": "x", "y_title": "y"} if kind == "traces" else {}
    rows = rows.assign(x=rows["context_length"], y=rows["time_ns"])
    chart = Chart("one", kind, "One", rows, options={"order": ["one"], **options})
    assert f'class="series {shown} series-0"' in drawn(chart, tmp_path)


@pytest.mark.parametrize(("end", "shown"), [(-3e6, "-3.00 ms"), (0.0, "0 ns")], ids=["a difference", "none"])
def test_the_bars_of_a_waterfall_lie_between_their_ends(tmp_path, end, shown):
    rows = pd.DataFrame({"label": ["1 gemm", "in all"], "text": "a\x1b<b>", "series": "shorter"})
    rows = rows.assign(begin_ns=0.0, end_ns=end)
    chart = Chart("one", "waterfall", "One", rows, options={"order": ["longer", "shorter"]})
    drawing = drawn(chart, tmp_path)
    assert f"a&lt;b&gt;: {shown}" in drawing and "<b>" not in drawing
    assert 'class="series bar series-1"' in drawing and "longer" not in drawing
    specification = charts.specification("waterfall", rows, chart_parts.Drawing(), chart_parts.NARROW, **chart.options)
    assert specification["layer"][1]["encoding"]["x2"] == {"field": "end"}


def test_bars_have_their_numbers_next_to_them(tmp_path):
    """In bars of 10 pixels they were cut."""
    rows = pd.DataFrame({"size": ["a", "b<i>"], "series": "measured", "value": [0.5, 11.84]})
    options = {"by": ["size"], "order": ["measured"], "unit": "times as fast"}
    drawing = drawn(Chart("one", "ratio_bars", "One", rows, options=options), tmp_path)
    assert all(words in drawing for words in (">0.50×<", ">12×<", "a, measured: 0.500×", "b&lt;i&gt;"))
    specification = charts.specification("ratio_bars", rows, chart_parts.Drawing(), chart_parts.WIDE, **options)
    bar, number = specification["layer"]
    assert [layer["mark"]["type"] for layer in (bar, number)] == ["bar", "text"]
    rows = specification["datasets"][number["data"]["name"]]
    assert number["encoding"]["x"]["field"] == "end" and [row["text"] for row in rows] == ["0.50×", "12×"]
    _, end = bar["encoding"]["x"]["scale"]["domain"]
    assert specification["width"] * (1 - 11.84 / end) == pytest.approx(42), "there is room right of the longest bar"


def test_a_hollow_bar_says_why_and_has_its_number(tmp_path):
    rows = pd.DataFrame({"size": ["a", "b"], "series": ["measured", "slower host"], "value": [2.0, 1.5]})
    options = {"by": ["size"], "order": ["measured"], "unit": "times as fast", "hollow": "slower host"}
    drawing = drawn(Chart("one", "ratio_bars", "One", rows, options=options), tmp_path)
    assert 'class="series bar hollow" style="--family:var(--series-0)">slower host<' in drawing
    assert ">1.5×<" in drawing and "b, slower host: 1.50×" in drawing
    filled, hollow, _ = charts.specification("ratio_bars", rows, chart_parts.Drawing(), chart_parts.WIDE, **options)[
        "layer"
    ]
    assert hollow["mark"]["fill"] == "transparent" and hollow["mark"]["stroke"] == filled["mark"]["color"]


def test_a_bar_whose_interval_is_known_has_it_and_a_legend_of_one_entry_is_left_out(tmp_path):
    rows = pd.DataFrame({"size": ["a", "b"], "series": "measured", "value": [2.0, 1.5]})
    rows = rows.assign(low=[1.8, None], high=[2.3, None])
    options = {"by": ["size"], "order": [], "unit": "times as fast", "hollow": "slower host"}
    drawing = drawn(Chart("one", "ratio_bars", "One", rows, options=options), tmp_path)
    assert "a, measured: 2.00× [1.80, 2.30]" in drawing and "b, measured: 1.50×<" in drawing
    assert 'class="legend"' not in drawing
    layers = charts.specification("ratio_bars", rows, chart_parts.Drawing(), chart_parts.WIDE, **options)["layer"]
    (span,) = (layer for layer in layers if layer["mark"]["type"] == "rule")
    assert (span["encoding"]["x"]["field"], span["encoding"]["x2"]["field"]) == ("low", "high")


@pytest.mark.parametrize(("width", "beside"), [(chart_parts.WIDE, 3), (chart_parts.NARROW, 1)])
def test_bars_of_several_cases_are_panels_on_one_scale(width, beside):
    rows = pd.DataFrame(
        [("a", "TF32", 2.0), ("a", "BF16", 4.0), ("b", "TF32", 8.0)], columns=["size", "ladder_step", "value"]
    )
    options = {"by": ["size", "ladder_step"], "order": ["measured"], "unit": "times as fast", "panels": 1}
    rows = rows.assign(series="measured")
    drawn_as = charts.specification("ratio_bars", rows, chart_parts.Drawing(), width, **options)
    assert drawn_as["columns"] == beside
    first, second = drawn_as["concat"]
    assert [panel["title"]["text"] for panel in (first, second)] == ["a", "b"]
    scales = [panel["layer"][0]["encoding"]["x"]["scale"]["domain"] for panel in (first, second)]
    assert scales[0] == scales[1] and scales[0][1] > 8
    bars = drawn_as["datasets"][first["layer"][0]["data"]["name"]]
    assert [(bar["bar"], bar["title"]) for bar in bars] == [
        ("TF32", "a · TF32, measured: 2.00×"),
        ("BF16", "a · BF16, measured: 4.00×"),
    ]


@pytest.mark.parametrize("width", [chart_parts.WIDE, chart_parts.NARROW])
def test_bars_of_times_have_one_scale_in_ms(width):
    rows = pd.DataFrame([["a", "gemm", 30e6], ["a", "copy", 10e6], ["b", "gemm", 4e6], ["b", "copy", 1.0]])
    rows.columns = ["size", "family", "time_ns"]
    drawing = charts.specification(
        "stacked_times", rows, chart_parts.Drawing(), width, by=["size"], order=["gemm", "copy"]
    )
    (data,) = drawing["datasets"].values()
    assert [(row["share"], row["text"]) for row in data] == [
        (30.0, "30"),
        (10.0, "10"),
        (4.0, "" if width == chart_parts.NARROW else "4"),
    ]
    assert data[0]["title"] == "a, gemm: 30.0 ms", "and what cannot be seen is not drawn"
    assert drawing["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 40.0]


def test_no_series_has_the_colour_of_a_family():
    css = (Path(__file__).parents[2] / "site" / "assets" / "report.css").read_text(encoding="utf-8")
    schemes = [part.split("}")[0] for part in css.split("[data-md-color-scheme=")[1:]]
    assert len(schemes) == 2
    for scheme in schemes:
        series, families = (set(re.findall(rf"--{kind}-\w+: (#\w+)", scheme)) for kind in ("series", "family"))
        assert len(series) == 4 and len(families) > 10 and not series & families


@pytest.mark.parametrize("kind", ["dumbbell", "stacked_shares"])
def test_words_in_drawings_are_12_px_high_or_more(kind):
    rows = pd.DataFrame({"size": ["a", "b"], "clock": "x", "family": "x", "share": [0.5, 1.0], "time_ns": [1e6, 9e6]})
    drawing = charts.render(kind, rows, "one", chart_parts.WIDE, order=["x"], by=["size"])
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)(?:px)?"', drawing)]
    assert sizes and min(sizes) >= 12


@pytest.mark.parametrize("width", [chart_parts.WIDE, chart_parts.NARROW])
def test_marks_say_their_values_on_a_phone_too(width):
    rows = pd.DataFrame({"size": ["a", "b"], "clock": "x", "ratio": [0.5, 2.0]})
    drawing = charts.render("dumbbell", rows, "one", width, order=["x"], by=["size"], value="ratio", log=False)
    assert re.findall(r"<title>(.*?)</title>", drawing) == ["a, x: 0.500×", "b, x: 2.00×"]


@pytest.mark.parametrize("width", [chart_parts.WIDE, chart_parts.NARROW])
def test_slopes_have_a_panel_a_model_and_a_line_a_context(width):
    ends = {"forward pass": "fwd", "training step": "train"}
    rows = pd.DataFrame(
        [
            {"size": size, "series": f"{context} tokens", "end": end, "share": share}
            for size in ("small", "2.7B")
            for context in (128, 512)
            for end, share in zip(ends, (0.9, 0.7))
        ]
    )
    options = {"panel": "size", "order": ["128 tokens", "512 tokens"], "ends": ends, "unit": "%"}
    drawing = charts.render("slopes", rows, "one", width, **options)
    assert charts.specification("slopes", rows, chart_parts.Drawing(), width, **options)
    assert all(drawing.count(f">{word}<") == 2 for word in ends.values())
    assert all(drawing.count(f">{size}<") == 1 for size in ("small", "2.7B"))
    assert "<title>2.7B · 512 tokens, training step: 70.0%</title>" in drawing


@pytest.mark.parametrize(
    "values",
    [(0.965, 1.045), (48, 19_000), (1.2, 3.7), (0.02, 7e5), (9.98, 10.03), (0.4, 2.5)],
    ids=str,
)
def test_ticks_of_a_narrow_logarithmic_axis_leave_labels_their_room(values):
    """They were drawn into each other: "0.970.99", "50 100200"."""
    low, high = values
    axis = chart_parts.log_axis(chart_parts.Drawing(), values, 5, least_gap=0.17).to_dict()
    places = [math.log(tick / low) / math.log(high / low) for tick in axis["values"]]
    assert 2 <= len(places) <= 5 and min(places) >= 0 and max(places) <= 1
    assert min(after - before for before, after in itertools.pairwise(places)) >= 0.17


def test_parts_of_a_time_are_stacked_in_ms_without_limits():
    rows = pd.DataFrame({"size": "a", "scope": ["busy", "idle"], "time_ns": [3e6, 1e6]})
    drawing = charts.render("stacked_parts", rows, "one", 400, order=["busy", "idle"], by=["size"], value="time_ns")
    assert re.findall(r"<title>(.*?)</title>", drawing) == ["a, busy: 3.00 ms", "a, idle: 1.00 ms"]


def test_parts_of_something_are_stacked_in_percent_of_it():
    rows = pd.DataFrame({"size": "a", "scope": ["busy", "idle"], "of_base": [0.5, 0.25]})
    options = {"order": ["busy", "idle"], "by": ["size"], "value": "of_base", "part_of": "the step before"}
    drawing = charts.render("stacked_parts", rows, "one", 400, **options)
    assert "<title>a, busy: 50.0% of the step before</title>" in drawing and ">% of the step before<" in drawing


def test_a_figure_knows_the_run_of_each_mark(tmp_path):
    rows = pd.DataFrame({"size": ["a", "a", "b"], "clock": ["x", "y", "x"], "ratio": 1.0, "run_id": ["r", "r", "s"]})
    chart = Chart("one", "dumbbell", "One", rows, options={"order": ["x", "y"], "by": ["size"], "value": "ratio"})
    drawing = drawn(chart, tmp_path, run_links={"r": "report/runs/r"})
    assert 'data-runs="{&#34;a&#34;:&#34;report/runs/r.html&#34;}"' in drawing


@pytest.mark.parametrize(
    ("compiled", "named", "below"),
    [(["default", "off"], ["small (0.13B) · compiled"], ""), (["off" * 9] * 2, [], "small (0.13B)")],
    ids=["room", "no room"],
)
def test_a_figure_names_the_parameters_of_each_model_once(tmp_path, compiled, named, below):
    """In the first label that has room in the narrow drawing, or else below that."""
    rows = pd.DataFrame({"size": ["small"] * 2, "compile": compiled, "clock": ["x", "y"], "ratio": 1.0, "run_id": "r"})
    options = {"order": ["x", "y"], "by": ["size", "compile"], "value": "ratio"}
    drawing = drawn(Chart("one", "dumbbell", "One", rows, options=options), tmp_path, models={"small": "small (0.13B)"})
    narrow = drawing.partition('<div class="narrow">')[2]
    assert re.findall(r">(small \([^<]*)</text>", narrow) == named
    assert re.findall(r'<p class="legend">([^<]*)</p></div>', narrow) == [below] * bool(below)
    assert drawing.partition('<div class="narrow">')[0].count("small (0.13B)") > 0


def test_a_panel_has_the_parameters_of_its_model_on_a_line_of_their_own(tmp_path):
    rows = pd.DataFrame({"size": "small", "series": "a", "end": ["f", "t"], "share": [0.5, 0.4]})
    options = {"panel": "size", "order": ["a"], "ends": {"f": "fwd", "t": "train"}, "unit": "%"}
    drawing = drawn(Chart("one", "slopes", "One", rows, options=options), tmp_path, models={"small": "small (0.13B)"})
    assert len(re.findall(r">small</tspan><tspan [^>]*>\(0\.13B\)<", drawing)) == 2


def test_a_series_and_a_title_name_the_parameters_of_a_model(tmp_path):
    rows = pd.DataFrame({"series": "small", "x": [1, 2], "y": [1.0, 2.0]})
    chart = Chart(
        "one", "traces", "Steps: small · 128", rows, options={"order": ["small"], "x_title": "", "y_title": ""}
    )
    drawing = drawn(chart, tmp_path, models={"small": "small (0.13B)"})
    assert "Steps: small (0.13B) · 128" in drawing and ">small (0.13B)</span>" in drawing


@pytest.mark.parametrize(("ends_at", "stands"), [(2048, "left"), (128, "right")], ids=["room", "no room"])
def test_the_name_of_a_line_that_ends_before_others_stands_where_these_are_not(ends_at, stands):
    points = [(clock, x, "") for clock in ("eager", "fused") for x in (64, 128, 512, 2048, 8192)]
    rows = pd.DataFrame(points, columns=["clock", "context_length", "note"])
    rows = rows[(rows["clock"] == "fused") | (rows["context_length"] <= ends_at)].assign(time_ns=1e6)
    rows["note"] = rows["clock"].map({"eager": ", then OOM", "fused": ""})
    drawing = charts.render("lines", rows, "one", chart_parts.NARROW, order=["eager", "fused"])
    at = {word: float(x) for x, word in re.findall(r'translate\(([\d.]+),[\d.]+\)"[^>]*>([^<]+)</text>', drawing)}
    assert at["eager, then OOM"] - at[f"{ends_at:,}"] == pytest.approx(-9 if stands == "left" else 9, abs=0.1)
    assert at["fused"] > at["8,192"]


def test_a_wide_drawing_cuts_no_label_that_it_has_room_for():
    label = "medium context 1024 forward_backward"
    rows = pd.DataFrame({"size": [label, "b"], "clock": "x", "ratio": [1.0, 2.0]})
    wide, narrow = (
        charts.render("dumbbell", rows, "one", width, "One", order=["x"], by=["size"], value="ratio", unit="times")
        for width in (chart_parts.WIDE, chart_parts.NARROW)
    )
    assert f">{label}<" in wide and "…<" not in wide
    assert f">{label}<" not in narrow and "…<" in narrow


@pytest.mark.parametrize("width", [chart_parts.WIDE, chart_parts.NARROW])
def test_limits_are_named_lines_that_stay_inside_the_drawing(width):
    rows = pd.DataFrame({"size": ["a", "b"], "clock": "x", "ratio": [1.0, 1.2]})
    limits = {"data-sheet peak 1.00×": 1.0, "data-sheet bandwidth 1.43×": 1.43}
    options = {"order": ["x"], "by": ["size"], "value": "ratio", "log": False}
    drawing = charts.render("dumbbell", rows, "one", width, **options, limits=limits, colours=("quiet",))
    assert all(f">{name}<" in drawing for name in limits) and drawing.count("stroke-dasharray") == 2
    assert float(re.search(r'<svg [^>]*width="([\d.]+)"', drawing)[1]) <= width
    assert "var(--quiet)" in drawing and "var(--series-0)" not in drawing
