"""Numbers read well, and names are inert wherever they go."""

import html
import re
from html.parser import HTMLParser

import markdown
import pandas as pd
import pytest

from profiler_job.analysis.pages.questions import QUESTIONS
from profiler_job.analysis.render import chart_parts, charts, tables, text
from profiler_job.analysis.render.answer import Column, Table
from profiler_job.analysis.site import page_context
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests import synthetic

EVIL = [
    "<script>alert(1)</script>",
    "a|b|c",
    "`code` and *stars* and __under__",
    "[link](javascript:alert(1)) ![x](y)",
    "line\nbreak\r\nand\ttab",
    "emoji 🚀 and ünïcode",
    "void at::native::<unnamed>::kernel<float, (int)4>(T1 *, const T2 &)",
    "&amp; &lt; \" ' }} {{ {% raw %}",
    "# heading",
    "--8<-- file",
    "\x02wzxhzdk:0\x03 \x00 \x1b[31m",
    "x" * 4000,
    "</td></table><h1>out</h1>",
    '=HYPERLINK("http://x")',
]


class Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.text, self.tags = "", []

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def visible(html):
    parser = Text()
    parser.feed(html)
    return parser


def plain(name):
    return text._CONTROL.sub("\ufffd", name.replace("\r", " ").replace("\n", " ").replace("\t", " "))


def rendered(source):
    return markdown.markdown(source, extensions=["tables", "attr_list", "md_in_html", "admonition", "toc"])


@pytest.mark.parametrize("name", EVIL)
def test_a_name_in_a_sentence_reads_as_itself(name):
    found = visible(rendered(f"Kernel {text.inline(name)} leads."))
    assert found.text == f"Kernel {plain(name)} leads.".replace("  ", "  ")
    assert found.tags == ["p"]


@pytest.mark.parametrize("name", EVIL)
def test_a_name_in_a_table_reads_as_itself(name):
    rows = pd.DataFrame({"kernel_name": [name], "module": [name], "v": [1.0], NOT_MEASURED: [""]})
    columns = (Column("kernel_name", "kernel", "kernel"), Column("module", "module"), Column("v", "v", "count"))
    html = tables.to_html(Table("t", name, columns, rows), "t.csv", "", {})
    found = visible(rendered(f"before\n\n{html}\n\nafter"))
    assert found.text.count(plain(name)) >= 2 + (plain(name) == text.short_name(name))
    allowed = {"p", "figure", "figcaption", "span", "a", "div", "table", "thead", "tr", "th", "tbody", "td", "details"}
    assert set(found.tags) <= allowed | {"summary", "code", "wbr"}
    assert found.tags.count("td") == 3


@pytest.mark.parametrize("name", EVIL)
def test_a_name_in_a_chart_is_well_formed_and_inert(name):
    rows = pd.DataFrame({"size": [name], "family": ["gemm"], "share": [1.0]})
    svg = charts.render("stacked_shares", rows, "c", 400, by=["size"], order=["gemm"])
    assert "<script" not in svg
    assert set(visible(svg).tags) <= {"svg", "g", "path", "text", "title", "rect", "line", "defs", "clippath"}


@pytest.mark.parametrize("name", EVIL)
def test_a_short_name_is_short_and_a_file_name_is_safe(name):
    assert len(text.short_name(name)) <= 70
    assert set(text.file_name(name)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert len(text.file_name(name)) <= 120


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, "
            "std::array<char *, (unsigned long)3>>(int, T2, T3)",
            "vectorized_elementwise_kernel · add",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_"
            "execute_split_k_kernel__5x_cublas",
            "sm80_xmma_gemm nn 64x64x8 ffma split-K",
        ),
        ("void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float>(T1)", "splitKreduce_kernel"),
    ],
)
def test_short_names_keep_what_tells_kernels_apart(name, short):
    assert text.short_name(name) == short


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (text.duration(1_234_000), "1.23\u202fms"),
        (text.duration(123_456_789), "123\u202fms"),
        (text.percent(0.12345), "12.3%"),
        (text.percent(0.00001), "&lt;0.1%"),
        (text.percent(0), "0.0%"),
        (text.points(-0.031), "−3.1 points"),
        (text.ratio(1.0349), "1.03×"),
        (text.count(12345), "12,345"),
        (text.span((3, 3), "step"), "3 steps"),
        (text.span((3, 10), "step"), "3–10 steps"),
        (text.span((1, 1), "step"), "1 step"),
        (text.part_of(3, 20, "case"), "3 of 20 cases"),
        (text.part_of(20, 20, "case"), "all 20 cases"),
        (text.part_of(0, 20, "case"), "none of 20 cases"),
        (text.part_of(2, 2, "pass"), "both passes"),
        (text.part_of(1, 2, "case"), "1 of 2 cases"),
        (text.part_of(1, 1, "case"), "the only case"),
        (text.part_of(0, 1, "case"), "no case"),
        (text.when("2026-11-21T09:05:44+02:00"), "2026-11-21 07:05 UTC"),
        (text.when("soon"), "an unknown time"),
        (text.size(4752), "4.64\u202fKiB"),
        (text.size(838860800), "800\u202fMiB"),
        (text.size(12), "12\u202fB"),
        (text.quantity(2.5, "ratio"), "2.50×"),
        (text.quantity(8, "s"), "8.00\u202fs"),
        (text.ratio_span((2.001, 2.002)), "2.00×"),
        (text.percent_span((0.1, 0.2), 0), "10% to 20%"),
        (text.size(3 * 2**30), "3.00\u202fGiB"),
        (text.listing(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers(call, shown):
    assert str(call) == shown


def test_csv_keeps_every_measured_digit_seven_of_a_computed_value_and_runs_no_formula():
    rows = pd.DataFrame({"name": ["=1+1", "@x", "-cmd", 'say "hi", now'], "v": [1 / 3, -2.0, float("nan"), 10**15]})
    lines = tables.to_csv(rows).splitlines()
    assert lines[1] == "'=1+1,0.3333333"
    assert lines[2] == "'@x,-2"
    assert lines[3] == "'-cmd,"
    assert lines[4] == '"say ""hi"", now",1000000000000000'


@pytest.mark.parametrize(
    "value, written",
    [
        (1445900955.3999999, "1445900955"),  # all digits of the nanoseconds, none of what is left of a mean
        (744009120.4000001, "744009120"),
        (5661.4000000000005, "5661.4"),
        (-0.00001234567891234, "-1.234568e-05"),
        (0.1 + 0.2, "0.3"),
        (1.0e300, "1e+300"),
        (0.0, "0"),
    ],
)
def test_a_value_is_written_without_what_floating_point_leaves_behind(value, written):
    assert tables.to_csv(pd.DataFrame({"v": [value]})).splitlines()[1] == written


def test_what_is_said_of_values_is_said_in_the_csv_too():
    rows = pd.DataFrame({"passed": [True, None], "same": [False, True], "modules": ["block/norm, norm, block/ffn", ""]})
    rows["rule"] = "`ffma` in QK^T"
    kinds = {"passed": "check", "same": "yes_no", "modules": "modules", "rule": "prose"}
    columns = tuple(Column(name, name, kind) for name, kind in kinds.items())
    assert tables.to_csv(rows, columns).splitlines()[1:] == [
        'ok,no,"norm, ffn",ffma in QK\u1d40',
        ",yes,,ffma in QK\u1d40",
    ]
    html = tables.to_html(Table("t", "t", columns, rows), "t.csv", "", {})
    assert ">ok<" in html and ">no<" in html and ">norm, ffn<" in html and "<code>ffma</code> in QK\u1d40<" in html
    assert '<td class="absent">not measured' in html, "of a row that was measured"


def test_an_empty_cell_says_why():
    rows = pd.DataFrame(
        {"size": ["a", "b"], "x_ns": [1e6, None], "y_ns": [2e6, None], NOT_MEASURED: ["", "OOM in loss"]}
    )
    columns = (Column("size", "model"), Column("x_ns", "x", "ms"), Column("y_ns", "y", "ms"))
    html = tables.to_html(Table("t", "t", columns, rows), "t.csv", "", {})
    assert '<td class="why" colspan="2">OOM in loss</td>' in html


def test_empty_cells_at_the_end_of_a_measured_row_are_one_where_they_say_the_same():
    rows = pd.DataFrame({"size": ["a"], "x_ns": [None], "y_ns": [None], "z_ns": [None]})
    x, y, z = (Column(f"{name}_ns", name, "ms", absent=said) for name, said in zip("xyz", ("n/a", "not measured", "")))
    html = tables.to_html(Table("t", "t", (Column("size", "model"), x, y, z), rows), "t.csv", "", {})
    assert '<td class="absent num">n/a</td><td class="absent" colspan="2">not measured</td>' in html


def test_an_amount_has_three_digits():
    rows = pd.DataFrame({"joules": [31.64861, 2.925307]})
    html = tables.to_html(Table("t", "t", (Column("joules", "J", "amount"),), rows), "t.csv", "", {})
    assert ">31.65<" in html and ">2.93<" in html


def test_numbers_of_a_column_share_their_decimals():
    rows = pd.DataFrame({"x_ns": [123e6, 0.5e6]})
    html = tables.to_html(Table("t", "t", (Column("x_ns", "x", "ms"),), rows), "t.csv", "", {})
    assert ">123.000<" in html and ">0.500<" in html


def test_charts_use_variables_for_every_colour_and_ids_of_their_own():
    rows = pd.DataFrame({"size": ["a"], "clock": ["x"], "time_ns": [2e6]})
    svg = charts.render("dumbbell", rows, "one", 400, order=["x"], by=["size"])
    assert "#fe" not in svg
    assert "var(--series-0)" in svg and "var(--chart-text)" in svg
    assert "<title>a, x: 2.00 ms</title>" in svg
    assert 'id="one-' in svg or " id=" not in svg


def test_every_drawing_keeps_to_the_schema():
    rec = synthetic.recording(("small", "2.7B"), (128, 512))
    for question in QUESTIONS.values():
        for chart in page_context.ask(question, rec).charts.values():
            assert charts.specification(
                chart.kind, chart.rows, chart_parts.Drawing(), chart_parts.WIDE, **chart.options
            )


def test_shares_too_small_to_see_are_left_to_the_table():
    rows = pd.DataFrame({"size": ["a", "a"], "family": ["gemm", "copy"], "share": [0.9999, 0.0001]})
    svg = charts.render("stacked_shares", rows, "one", 800, order=["gemm", "copy"], by=["size"])
    assert "--family-gemm" in svg and "--family-copy" not in svg


def test_a_value_that_reads_as_it_is_stands_once_and_is_a_number_all_the_same():
    rows = pd.DataFrame({"calls": [7, 7000], "share": [1 / 3, 0.5]})
    columns = (Column("calls", "calls", "count"), Column("share", "share", "share", bar=True))
    html = tables.to_html(Table("t", "t", columns, rows), "t.csv", "", {})
    assert "<td data-v>7</td>" in html and '<td data-v="7000">7,000</td>' in html
    assert '<td data-v="0.3333333" style="--bar:33.3%">33.3</td>' in html


def test_a_heading_breaks_before_a_sign_only_and_shows_the_colour_of_a_family():
    columns = (Column("x", "busy ÷ timer", "share"), Column("share_gemm", "gemm", "share"))
    rows = pd.DataFrame({"x": [0.5], "share_gemm": [0.5], "a": "x", "b": "y"})
    html = tables.to_html(Table("t", "t", columns, rows), "t.csv", "", {"gemm": "GEMM"})
    assert "busy ÷\u00a0timer <span" in html
    words = tables.to_html(Table("t", "t", (Column("a", "bound by"), Column("b", "same as forward")), rows), "", "", {})
    assert "bound\u00a0by<" in words and "same as forward<" in words
    assert '<span class="family gemm">gemm</span>' in html


def test_a_quantity_has_the_unit_of_its_row():
    rows = pd.DataFrame({"limit": [0.5, 800 * 2**20, 8.0], "unit": ["share", "bytes", "s"]})
    html = tables.to_html(Table("t", "t", (Column("limit", "limit", "quantity"),), rows), "t.csv", "", {})
    assert ">50.0%<" in html and ">800\u202fMiB<" in html and ">8.00\u202fs<" in html


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('torch.set("high")', ["torch.", "set(", '"high")']),
        ("compile(model, mode='reduce-overhead')", ["compile(", "model, mode=", "'reduce-overhead')"]),
        ("a < b", ["a < b"]),
    ],
)
def test_code_breaks_after_marks_and_never_inside_a_string(line, parts):
    """On a phone, `"high"` was cut in the middle."""
    shown = text.snippet(line)
    pieces = [html.unescape(re.sub("<[^>]+>", "", piece)) for piece in shown.split("<wbr>")]
    assert [piece for piece in pieces if piece] == parts
    strings = [html.unescape(one) for one in re.findall('<span class="whole">([^<]*)</span>', shown)]
    assert strings == re.findall("""["'][^"']*["']""", line)
