"""The pages of a comparison say what `compare` says, link to the pages of runs, and obey no name."""

import copy
import dataclasses
import html
import json
import re

import markdown
import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.comparison.align import align
from profiler_job.analysis.comparison.judge import METRICS, compare
from profiler_job.analysis.comparison.load_sides import load_side
from profiler_job.analysis.comparison.noise import SHIPPED
from profiler_job.analysis.comparison.pair_answers import describe_pair
from profiler_job.analysis.comparison.sides import make_tables_side
from profiler_job.analysis.comparison.site_comparisons import make_comparisons
from profiler_job.analysis.pages import comparison
from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.render import charts
from profiler_job.analysis.site import combine, comparison_pages, run_pages, write_site
from profiler_job.analysis.site.site_writer import Site
from tests import synthetic
from tests.comparison.conftest import export
from tests.comparison.test_compare import HOSTILE
from tests.page_words import read_page, read_shown

pytestmark = pytest.mark.long


def recorded(label, slower=1.0, size="small"):
    """A made-up recording of two runs as a side, its kernels so much slower."""
    rec = synthetic.recording((size,), (128,), modes=("forward", "train_step"))
    begin = rec.kernels["start_ns"]
    rec.kernels["end_ns"] = begin + ((rec.kernels["end_ns"] - begin) * slower).astype("int64")
    rec.runs["started_at"] = label
    for table in ("kernels", "ranges"):
        frame = getattr(rec, table)
        frame["run_id"] = frame["run_id"].astype("category")
    side = make_tables_side(label, rec.runs, rec.steps, rec.kernels, rec.memops)
    side.recording = rec
    return side


@pytest.fixture(scope="module")
def compared():
    return compare(recorded("before"), recorded("after", 1.5), SHIPPED)


@pytest.fixture(scope="module")
def links(compared):
    return links_of(compared.first.recording, compared)


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """Two captures with hostile names, compared."""
    folder = tmp_path_factory.mktemp("captures")
    a = export([("forward", HOSTILE, 50)], hostile=HOSTILE).sqlite(folder / "a.sqlite")
    b = export([("forward", "other", 90)], hostile=HOSTILE).sqlite(folder / "b<b>.sqlite")
    return compare(load_side(a), load_side(b), SHIPPED)


def links_of(rec, compared):
    _, (sides,) = comparison_pages.assign_pages(rec, {"": compared})
    return sides.links


PAIR = "report/compared/given/small-ctx128-fp32-naive-forward.js"


def written(compared, folder, rec):
    """The page of a comparison, without drawings, the HTML of its parts, and the pages of its runs if `rec` has none,
    by path."""
    _, (sides,) = comparison_pages.assign_pages(rec, {"": compared})
    site = Site(folder, (), {}, ("size", "context_length"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "render", lambda *arguments, **options: '<svg width="1" height="1"></svg>')
        comparison_pages.write_page(site, [sides])
        comparison_pages.write_runs_compared(site, sides, comparison.counterparts(compared, sides.links))
    pages = {path: read_shown(folder, path) for path in list_files(folder, "*.md")}
    return pages | {path: read_part(folder / path)["html"] for path in list_files(folder, "*.js")}


def list_files(folder, pattern):
    return [str(path.relative_to(folder)) for path in folder.rglob(pattern)]


def read_part(path):
    """What a script gives the page: name, html and pairs."""
    return json.loads(path.read_text().removeprefix("showCompared(").removesuffix(");\n"))


@pytest.fixture(scope="module")
def pages(compared, tmp_path_factory):
    return written(compared, tmp_path_factory.mktemp("docs"), compared.first.recording)


@pytest.mark.parametrize("label", ["before", "after"])
def test_the_page_of_a_run_says_what_the_other_run_differs_in(compared, links, label):
    """It said "Compared with trained" of the same run, compiled."""
    alignment = dataclasses.replace(compared.alignment, differences={"compile": ("off", "default")})
    side = copy.copy(compared.first)
    side.label = label
    made = comparison.counterparts(dataclasses.replace(compared, first=side, alignment=alignment), links)
    said = {entry["label"] for entries in made.values() for entry in entries if entry["other"] == "B"}
    assert len(said) == 1 and "torch.compile" in said.pop()


def test_every_pair_has_its_judgements_with_their_interval(compared, links):
    answer = comparison.answer(compared, links)
    known = set(METRICS) - {"energy"}  # the recordings have none
    assert set(answer.tables) == {"alone", *known}
    for metric in known:
        rows = answer.tables[metric].rows
        assert len(rows) == len(compared.pairs) == 2
        for row, pair in zip(rows.to_dict("records"), compared.pairs, strict=True):
            judged = pair.judgements[metric]
            assert (row["first"], row["second"], row["difference"]) == (judged.first, judged.second, judged.difference)
            assert (row["low"], row["high"]) == (judged.difference - judged.band, judged.difference + judged.band)
            assert (row["is_real"], row["verdict"]) == (judged.is_real, judged.verdict)
    assert answer.facts["counts"][1] == "kernel time: 2 slower"


def test_the_parts_are_those_of_the_waterfall_and_each_bar_begins_where_the_last_ended(compared, links):
    pair = compared.pairs[1]
    answer = comparison.answer_pair(compared, pair, links)
    rows = answer.tables["parts"].rows
    *parts, total = rows["difference_ns"]
    assert len(parts) == len(pair.waterfall.causes)
    assert sum(parts) == pytest.approx(total) and total == pair.waterfall.difference_ns / pair.waterfall.num
    bars = answer.charts["waterfall"].rows
    assert list(bars["begin_ns"][1:-1]) == list(bars["end_ns"][:-2]) and bars["begin_ns"].iloc[0] == 0
    assert bars["end_ns"].iloc[-1] == bars["end_ns"].iloc[-2] == pytest.approx(total)
    signed = bars[bars["series"].isin(["shorter", "longer"])]
    assert len(signed) and ((signed["end_ns"] > signed["begin_ns"]) == (signed["series"] == "longer")).all()
    for key in ("phases", "modules"):
        kernels = answer.tables[key].rows
        assert kernels["difference_ns"].sum() == pytest.approx(
            pair.waterfall.groups.eval("second_ns - first_ns").sum() / pair.waterfall.num
        )
        assert kernels["is_real"].any()
    sides = (compared.first.label, compared.second.label)
    assert answer.facts["pair"]["headline"] == describe_pair(pair, *sides)
    drawn = answer.charts["waterfall"].rows["label"].str.extract(r"^(\d+) ")[0].dropna().astype(int).tolist()
    assert drawn == [*range(1, len(drawn) + 1)] == sorted(rows["bar"].dropna().astype(int)), "numbered without gaps"


def test_of_one_pair_one_page_says_all(captures, tmp_path):
    pages = written(captures, tmp_path, synthetic.recording(("small",), (128,), modes=("forward",)))
    assert set(pages) == {"report/comparison.md", "report/compared/given.js"}
    for page in pages.values():
        assert "table-metrics" in page and "chart-waterfall" in page
        assert "peak allocated</td>" not in page, "captures do not know it"
        assert "<summary>By phase and module</summary>" in page


def test_per_token_every_title_says_so(compared, tmp_path):
    first, second = compared.first, recorded("after", 1.5)
    second.runs = second.runs.assign(context_length=256)
    made = compare(first, second, SHIPPED, align(first, second, per_token=True))
    pages = written(made, tmp_path, first.recording)
    every_pair = pages["report/comparison.md"]
    assert "Step of every pair, per 1,000 tokens" in every_pair and "Peak allocated of every pair<" in every_pair
    assert "times and their noise bands are per 1,000 tokens" in every_pair
    page = pages[PAIR]
    for title in (
        "Every metric of A and B, per 1,000 tokens",
        "What the difference of 1,000 tokens of a profiled step is made of",
        "From 1,000 tokens of A to as many of B",
        "Kernel time by phase, per 1,000 tokens",
    ):
        assert title in page, title
    kernels = [pair.waterfall.by_phase["first_calls"].sum() / pair.waterfall.num_steps for pair in made.pairs]
    tables = [comparison.answer_pair(made, pair, links_of(first.recording, made)).tables for pair in made.pairs]
    assert [of["phases"].rows["first_calls"].sum() for of in tables] == kernels


def test_energy_has_a_table_and_a_band_that_may_be_unknown(compared, tmp_path):
    first = recorded("before")
    rows = pd.DataFrame({"run_id": first.runs["run_id"], "rank": 0, "process": 0, "energy_mj": 5000, "energy_steps": 1})
    first.processes = rows
    pages = written(compare(first, first, SHIPPED), tmp_path, first.recording)
    assert "Energy of every pair, J" in pages["report/comparison.md"]
    assert "not known" in pages["report/comparison.md"]
    page = pages[PAIR]
    assert re.search(r"energy</td><td[^>]*>5.00\sJ", page) and "not known" in page and "unknown" in page


def test_a_run_of_the_report_keeps_its_page_and_others_get_one(compared, links, pages):
    names = ("small-ctx128-fp32-naive-forward", "small-ctx128-fp32-naive-train_step")
    assert links.runs == {("A", name): f"report/runs/{name}" for name in names} | {
        ("B", name): f"report/runs-b/{name}" for name in names
    }
    made = {"report/comparison.md", "report/compared/given.js"}
    made |= {f"report/compared/given/{name}.js" for name in names} | {f"report/runs-b/{name}.md" for name in names}
    assert set(pages) == made
    page = pages[f"report/runs-b/{names[0]}.md"]
    before = '<a class="case" href="../../report/runs/small-ctx128-fp32-naive-forward.html">before</a>'
    assert f"Compared with {before} (A; this run is B): step " in page
    words = html.unescape(page)
    time = r"\S+ (?:ms|µs)"
    assert re.search(rf"kernel time {time} in A and {time} in B \(\+{time}, more than the noise band", words)
    pair = "comparison.html?of=given/small-ctx128-fp32-naive-forward"
    assert f"[why](../../report/{pair.replace('.html', '.md')})" in page
    assert f'href="{pair}">small context 128 forward pass</a>' in pages["report/comparison.md"]
    assert 'href="comparison.html?of=given">All pairs</a>' in pages[PAIR]


def test_a_run_that_is_compared_with_itself_has_one_page(compared, tmp_path):
    again = compare(compared.first, compared.first, SHIPPED)
    links = links_of(compared.second.recording, again)
    assert {links.runs["A", run] == links.runs["B", run] for run in again.first.runs["run_id"]} == {True}
    pages = written(again, tmp_path, compared.second.recording)
    assert not [path for path in pages if "runs-b" in path] and [path for path in pages if "runs-a" in path]


def test_pairs_are_counted_by_mode(compared, links):
    assert comparison.answer(compared, links).facts["modes"] == [("forward pass", 1), ("training step", 1)]


def test_runs_without_a_partner_are_listed_with_the_reason(compared):
    second = compared.second
    more = second.runs.iloc[[0]].assign(run_id="other", context_length=256)
    second = make_tables_side("after", pd.concat([second.runs, more]), second.steps, second.kernels, second.memops)
    made = compare(compared.first, second, SHIPPED)
    rows = comparison.answer(made, links_of(compared.first.recording, made)).tables["alone"].rows
    assert rows.to_dict("records") == [{"side": "B", "run": "other", "why": "no such run on the other side"}]


def test_names_inside_captures_are_inert(captures, tmp_path):
    links = links_of(synthetic.recording(("small",), (128,), modes=("forward",)), captures)
    site = Site(tmp_path, (), {}, ("size",))
    site.write("report/comparison.md", "comparison.md", comparison.answer(captures, links))
    page = read_page(tmp_path / "report" / "comparison.md")
    assert "evil" in page and "alert(1)" in page.replace("&#40;", "(").replace("&#41;", ")")
    made = markdown.markdown(page, extensions=["attr_list", "md_in_html", "tables"])
    assert "<script" not in made and "<b>" not in made and 'href="javascript' not in made
    assert not set("\x1b\u202e") & set(page) and not re.search(r"^# head", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--compare", "nowhere", "nowhere"], "nowhere: does not exist"),
        (["--a", "size=small"], "need --compare A B"),
    ],
)
def test_what_cannot_be_compared_writes_no_report(tmp_path, arguments, what):
    done = CliRunner().invoke(app, ["site", "--pages-only", "--docs", str(tmp_path), *arguments])
    assert done.exit_code == 2 and done.output.startswith("error: ") and what in done.output
    assert done.output.count("\n") == 1 and not list(tmp_path.iterdir())


def test_parts_that_sum_to_another_difference_are_said_to(compared, tmp_path):
    second = recorded("after")
    second.steps["wall_ns"] += 10**9 * (second.steps["collector"].astype(str) == "timer")
    pages = written(compare(compared.first, second, SHIPPED), tmp_path, compared.first.recording)
    assert "In 2 of 2 pairs the unprofiled step and the profiled one change" in pages["report/comparison.md"]
    page = html.unescape(pages[PAIR])
    assert "Unprofiled, a step differs by +1,000.000 ms; under the profiler, which slows the host, by 0.000 ms" in page


def recorded_as(name, precision, at, study="", modes=("forward", "train_step")):
    """A made-up recording of a site."""
    rec = synthetic.recording(("small",), (128,), modes=modes)
    for table in ("kernels", "ranges"):
        frame = getattr(rec, table)
        frame["run_id"] = frame["run_id"].astype("category")
    for table in table_schema.TABLES:
        frame = getattr(rec, table)
        if "run_id" in frame:
            renamed = frame["run_id"].astype(str).str.replace("fp32", precision)
            frame["run_id"] = renamed.astype("category") if table in ("kernels", "ranges") else renamed
    rec.runs["precision"], rec.runs["started_at"] = precision, name
    manifest = rec.manifest | {"name": name, "recorded_from": at, "study": study}
    return store.Recording(manifest=manifest, **{table: getattr(rec, table) for table in table_schema.TABLES})


def test_the_site_compares_the_recordings_that_have_the_same_cells_with_other_axes():
    main, twin = recorded_as("fp32", "fp32", "2026-11-01"), recorded_as("bf16", "bf16", "2026-11-02")
    again = recorded_as("again", "fp32", "2026-11-03", "again")
    few = recorded_as("few", "tf32", "2026-11-05", modes=("forward",))
    few.runs["context_length"] = 256
    made = make_comparisons([twin, again, main, few])
    assert list(made) == ["bf16"]
    assert made["bf16"].first.label == "fp32" and made["bf16"].alignment.differences["precision"] == ("fp32", "bf16")
    assert make_comparisons([main]) == {} == make_comparisons([main, again])


@pytest.mark.parametrize(
    ("setting", "other"), [("gpu_name", "NVIDIA H100 80GB HBM3"), ("torch", "2.12.0"), ("commit", "0123456")]
)
def test_two_gpus_and_two_versions_of_a_program_are_compared_and_a_repetition_is_not(setting, other):
    main, changed = recorded_as("main", "fp32", "2026-11-01"), recorded_as("changed", "fp32", "2026-11-02")
    assert make_comparisons([main, changed]) == {}, "they differ in nothing"
    changed.runs[setting] = other
    made = make_comparisons([main, changed])["changed"]
    assert made.alignment.settings == {setting: (str(main.runs[setting].iloc[0]), other)}
    again = recorded_as("again", "fp32", "2026-11-03", "again")
    again.runs[setting] = other
    assert make_comparisons([main, again]) == {}, "what a noise band is from"


def test_of_two_gpus_every_pair_has_a_page_and_the_first_says_which_gpus(tmp_path):
    main, changed = recorded_as("h200", "fp32", "2026-11-01"), recorded_as("h100", "fp32", "2026-11-02")
    changed.runs["gpu_name"] = "NVIDIA H100 80GB HBM3"
    pages = written(make_comparisons([main, changed])["h100"], tmp_path, main)
    assert "h200 against h100" in pages["report/comparison.md"]
    assert re.search(r"B has NVIDIA H100 80GB HBM3", html.unescape(pages["report/comparison.md"]))
    assert len([path for path in pages if path.startswith("report/compared/given/")]) == 2


def test_the_bands_of_repetitions_stand_beside_those_that_are_the_least(compared, tmp_path):
    narrow = dataclasses.replace(SHIPPED, source="20 pairs", wall=dataclasses.replace(SHIPPED.wall, relative=1e-5))
    made = compare(compared.first, compared.second, narrow.widen_to(SHIPPED))
    page = written(made, tmp_path, compared.first.recording)["report/comparison.md"]
    of_least = f"{100 * SHIPPED.wall.time_half:.1f}% of a step"
    assert page.count("of a step and") == 2 and of_least in page.split("at least the band of the shipped recordings")[1]


def test_a_study_of_precision_is_compared_within():
    parts = [recorded_as("precision", name, "2026-11-01", "precision") for name in ("fp32", "bf16")]
    joined = combine.join_recordings(parts)
    made = make_comparisons([joined], {"precision": joined})
    assert list(made) == ["precision-bf16"] and len(made["precision-bf16"].pairs) == 2


def recorded_compiled(precision, compiled=("off", "default")):
    """Recordings of steps as people train, made up: one for each value of the axis `compile`."""
    parts = [recorded_as("trained", f"{precision}-{value}", "2026-11-01", "trained") for value in compiled]
    return [
        dataclasses.replace(part, runs=part.runs.assign(precision=precision, compile=value))
        for part, value in zip(parts, compiled, strict=True)
    ]


def test_steps_as_people_train_are_compared_with_compiled_ones_over_all_recordings_of_the_study():
    recordings = [combine.join_recordings(recorded_compiled(precision)) for precision in ("fp32", "bf16")]
    recordings[1].runs["context_length"] = 256
    made = make_comparisons(recordings, {"trained": combine.join_recordings(recordings)})
    assert list(made) == ["trained-default"] and len(made["trained-default"].pairs) == 4
    assert made["trained-default"].first.label == "trained"


def test_a_pair_within_a_study_is_of_one_recording():
    whole = combine.join_recordings(recorded_compiled("fp32"))
    recordings = [whole, *recorded_compiled("bf16")]
    made = make_comparisons(recordings, {"trained": combine.join_recordings(recordings)})["trained-default"]
    assert {run for pair in made.pairs for run in pair.case.first} < {*whole.runs["run_id"]}
    assert len(made.pairs) == len(made.alignment.only_first) == len(made.alignment.only_second) == 2


def test_runs_on_another_gpu_than_the_first_of_a_study_are_not_compared_within_it():
    recordings = [combine.join_recordings(recorded_compiled(precision)) for precision in ("fp32", "bf16")]
    recordings[1].runs["gpu_name"] = "NVIDIA H100 80GB HBM3"
    made = make_comparisons(recordings, {"trained": combine.join_recordings(recordings)})["trained-default"]
    assert {*made.first.runs["precision"], *made.second.runs["precision"]} == {"fp32"}


def test_the_page_of_a_cell_leads_to_that_of_the_other_recording_and_the_overview_to_all(tmp_path):
    main, twin = recorded_as("fp32", "fp32", "2026-11-01"), recorded_as("bf16", "bf16", "2026-11-02")
    shipped = make_comparisons([main, twin])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "render", lambda *arguments, **options: '<svg width="1" height="1"></svg>')
        for module in (run_pages, comparison_pages):
            patch.setattr(module, "write_timelines", lambda *arguments, **options: {})
        write_site.write(
            main, tmp_path, compared=compare(recorded("x"), recorded("y"), SHIPPED), compare_others=lambda: shipped
        )
    names = {precision: f"small-ctx128-{precision}-naive-forward" for precision in ("fp32", "bf16")}
    mine = read_page(tmp_path / "report" / "runs" / f"{names['fp32']}.md")
    assert f"[bf16 (BF16 autocast)](../../report/runs-bf16-b/{names['bf16']}.md) (B; this run is A): step " in mine
    assert f"[why](../../report/comparison.md?of=bf16/{names['fp32']})" in mine
    theirs = read_page(tmp_path / "report" / "runs-bf16-b" / f"{names['bf16']}.md")
    assert "[Runs](../runs.md) · recording bf16 · BF16" in theirs and " · recording " not in mine
    other = f"[fp32 (FP32 without tensor cores)](../../report/runs/{names['fp32']}.md)"
    assert f"{other} (A; this run is B): step " in theirs
    overview = read_page(tmp_path / "index.md")
    assert "[Comparison: x against y](report/comparison.md?of=given)" in overview
    shown = html.unescape(overview)
    sides = "fp32 (FP32 without tensor cores) against bf16 (BF16 autocast)"
    assert f"[Comparison: {sides}](report/comparison.md?of=bf16)" in shown
    page = read_page(tmp_path / "report" / "comparison.md")
    assert page.index("x against y](comparison.md?of=given)") < page.index(f"{sides}](comparison.md?of=bf16)")
    part = read_part(tmp_path / "report" / "compared" / "bf16" / f"{names['fp32']}.js")
    whole = read_part(tmp_path / "report" / "compared" / "bf16.js")
    assert part["name"] == f"bf16/{names['fp32']}" == whole["pairs"][0][0] and whole["name"] == "bf16"
    moved = (tmp_path / "report" / "comparison-bf16" / f"{names['fp32']}.html").read_text()
    assert f'content="0; url=../comparison.html?of=bf16/{names["fp32"]}"' in moved
    assert 'url=comparison.html?of=bf16"' in (tmp_path / "report" / "comparison-bf16.html").read_text()


def test_of_several_pairs_it_is_said_what_follows(compared, links):
    said = comparison.answer(compared, links).facts["follows"]
    steps = [pair.judgements["step"] for pair in compared.pairs]
    real = [judged for judged in steps if judged.is_real]
    assert (said["num_known"], said["num_real"]) == (len(steps), len(real))
    if real:
        assert abs(said["share"]) == max(abs(judged.share) for judged in real)
