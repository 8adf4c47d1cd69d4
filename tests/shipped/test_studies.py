"""Recordings of studies next to a main one, and alone: a job that measures a study makes a report of it, too."""

import dataclasses
import json
import re
import shutil

import pandas as pd
import pytest

from profiler_job.analysis.pages.home_cases import BF16, COMPILED
from profiler_job.analysis.pages.questions import ALL_QUESTIONS, QUESTIONS, STUDIES, second_recording
from profiler_job.analysis.pages.topics import ANATOMY
from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.analysis.render import chart_parts, charts, text
from profiler_job.analysis.render.answer import Claim, assemble
from profiler_job.analysis.render.screen_source import ELSEWHERE, NOT_THE_LIMIT
from profiler_job.analysis.render.text import THIN
from profiler_job.analysis.site import combine, question_pages, write_site
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.quantities import UNITS
from profiler_job.jobs.contract.studies import AGAIN, LOSSES
from tests.page_words import NUMBER, count_words, read_first_words, read_page, read_shown, read_verdict
from tests.shipped.recorded_studies import RECORDED
from tests.shipped.recordings import DATA, locate

ASKED = (*QUESTIONS.values(), *RECORDED.values())

SMALL = "small-128-4-H200.js"
WAITS = re.compile(r"GPU waits for the CPU (?:up to )?(?:\*\*)?(\d+)%")

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]


@pytest.fixture(scope="module")
def memory_alone(undrawn, built_once):
    """Folder of the report of the study `memory` alone, in which no check was broken."""

    def write(docs):
        shutil.copytree(locate("memory"), docs / "data" / "memory")
        assert write_site.publish([docs / "data" / "memory"], docs).breaches == 0
        return docs

    return built_once("memory-alone", write)


def test_the_study_of_memory_alone_makes_a_report(memory_alone):
    assert (memory_alone / "index.md").is_file()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["compile", "optimizer"])
def test_a_study_alone_makes_a_report(tmp_path, name):
    assert write_site.publish([locate(name)], tmp_path).breaches == 0
    assert (tmp_path / "index.md").is_file()


def draft_of(kind, rows, name, width, title, **options):
    """An empty drawing of a chart that keeps to the schema."""
    if width == chart_parts.WIDE:  # the narrow one differs in sizes
        charts.specification(kind, rows, chart_parts.Drawing(), width, **options)
    return '<svg width="1" height="1"></svg>'


@pytest.fixture(scope="module")
def pages(request, built_once):
    """Folder of the pages of questions and studies of the recordings in site/data, or of the recordings from which
    the site of --site was built. Recordings of one study are together."""
    if request.config.getoption("site"):
        return DATA.parent / "report"

    def write(docs):
        of_study = {}
        for folder in write_site.recordings_in(DATA):
            one = store.load(folder)
            of_study.setdefault(one.manifest.get("study", ""), []).append(one)
        studies = {
            study: combine.select_finished_runs(combine.join_recordings(parts)) for study, parts in of_study.items()
        }
        rec, losses = studies.pop(""), studies.pop(LOSSES)
        bands = question_pages.choose_bands(rec, studies.get(AGAIN))
        gains = measure_gains(combine.name_recordings(rec, studies), bands.wall)
        question_pages.write_questions(rec, docs, studies, bands=bands, gains=gains, losses=losses)
        return docs / "report"

    return built_once("questions", write)


@pytest.mark.parametrize("question", RECORDED.values(), ids=lambda question: question.slug)
def test_every_chart_of_a_study_has_something_to_draw(pages, question):
    page = read_page(pages / f"{question.slug}.md")
    assert "![" in page and ": not measured.*" not in page


@pytest.mark.parametrize(
    "name",
    [
        *(f"{state}-{of.slug}" for of in QUESTIONS.values() for state in ("bf16", "compiled")),
        *(of.slug for of in ASKED),
    ],
)
def test_a_question_is_answered_in_few_words(pages, name):
    page = read_page(pages / f"{name}.md")
    words = read_first_words(page)
    assert count_words(words) <= 150 and len(NUMBER.findall(words)) <= 10, words
    assert sum(map(len, re.findall(r"<[^>\n]+>", page))) <= 0.1 * len(page)


@pytest.mark.parametrize("question", RECORDED.values(), ids=lambda question: question.slug)
def test_a_study_shows_its_chart_first_and_its_findings_folded(pages, question):
    first, *sections = read_page(pages / f"{question.slug}.md").split("\n## ")
    assert first.index("\n# ") < max(first.find("\n!["), first.find("\n| ")) < first.index("\n**Why.**")
    assert "\n- " not in re.sub(r"<details.*?</details>", "", first, flags=re.S), "but in the badge"
    assert sum(section.count("[rows](") for section in sections) > 0


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.slug)
def test_a_question_has_a_switch_with_a_page_for_each_state(pages, question):
    slugs = {"FP32": question.slug, "BF16": f"bf16-{question.slug}", "BF16 compiled": f"compiled-{question.slug}"}
    for shown in slugs:
        items = [f"- **{state}**" if state == shown else f"- [{state}]({slugs[state]}.md)" for state in slugs]
        assert "\n<!-- switch -->\n" + "\n".join(items) + "\n\n" in read_page(pages / f"{slugs[shown]}.md")
        assert "Not measured" not in read_verdict(read_page(pages / f"{slugs[shown]}.md"))


@pytest.mark.parametrize(
    "name, states",
    [
        ("attention", ["FP32", "BF16"]),
        ("host", ["FP32", "BF16"]),
        ("memory-use", ["FP32", "BF16", "BF16 compiled"]),
        ("token-cost", ["FP32", "BF16", "BF16 compiled"]),
        ("kernels", ["FP32", "BF16", "BF16 compiled"]),
    ],
)
def test_a_figure_in_several_states_is_a_list_of_pictures(pages, name, states):
    if not (pages / f"{name}.md").is_file():
        pytest.skip("of a whole site (--site): the pages of questions are written alone")
    page = read_page(pages / f"{name}.md")
    pictures = re.findall(r"^!\[(\w+(?: compiled)?)[:,] [^\]]*\]\(([^)]*\.svg)\)$", page, re.MULTILINE)
    assert [state for state, _ in pictures] == states
    assert all((pages / picture).is_file() for _, picture in pictures)


def test_the_map_of_limits_has_a_table_for_each_state(pages):
    headings = re.findall(
        r"^\| ((?:FP32|TF32|BF16)[^|,]*), \w+ attention +\|", read_page(pages / "bounds.md"), re.MULTILINE
    )
    assert headings == ["FP32", "BF16", "BF16 compiled", "TF32"]


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.slug)
def test_a_question_is_answered_for_both_recordings(pages, question):
    main, twin = (read_page(pages / f"{name}.md") for name in (question.slug, f"bf16-{question.slug}"))
    assert "BF16 autocast" in twin and "FP32 without tensor cores" in main
    assert "runs/" in main and "runs/" not in twin, "runs of a study have no pages"
    assert "Not measured" not in read_verdict(twin) + read_verdict(main)


def test_the_anatomy_of_a_step_answers_for_each_state_that_can_be_chosen(pages):
    """Its figure has a switch, and its sentences were of FP32 whatever was chosen, and later none of compiled steps."""
    page = read_page(pages / "anatomy.md")
    states = re.findall(r"<span>([^<]+) <small>", read_shown(pages.parent, "report/anatomy.md"))
    assert states == ["FP32", "BF16", "BF16 compiled"]
    assert re.findall("(?i)(?<=in )FP32|BF16(?: compiled)?(?=,)", read_verdict(page)) == states
    for letter in ANATOMY.letters:
        question = ALL_QUESTIONS[letter]
        section = page.partition(f"]({question.slug}.md)")[2].partition("\n## ")[0]
        answers = dict(re.findall(r'^<div class="answer (of-[^"]*)" markdown>\n\n(.*?)^</div>$', section, re.M | re.S))
        words = {state: words for of, words in answers.items() for state, n in zip(states, "123") if f"of-{n}" in of}
        assert [*words] == states, letter
        assert words["BF16"] != words["BF16 compiled"] != words["FP32"]
        said = [one.split("\n\n")[0].rpartition(":** ")[2] for one in words.values()]
        assert said[0] in read_page(pages / f"{question.slug}.md")
        assert all(len(one.split()) > 5 for one in said), said
        assert words["FP32"].startswith("**FP32:** ") == words["BF16"].startswith("**BF16:** ") == (letter != "t")
        assert re.match(r"\*\*\w+ compiled:\*\* ", words["BF16 compiled"])


def test_the_badge_of_the_limits_names_what_the_map_holds(pages):
    """It had FP32 alone, above a map with BF16; and a step that was only timed was *not known*."""
    page = read_page(pages / "bounds.md")
    assert "<summary>FP32, TF32, BF16 ·" in page
    assert {*re.findall(r"\| (not \w+) +(?=\|)", page)} == {"not profiled"}


def test_two_times_of_one_forward_pass_say_whose_they_are(pages):
    """One page had 15.3 ms and another 9.01 ms of the same pass: its processes differ, and no sentence explained it."""
    there, here = (read_page(pages / f"{name}.md") for name in ("host", "forward-time"))
    assert re.search(r"takes 15\sms here and 9\.0\sms in the main recording", there)
    assert re.search(r"takes 9\.01\sms to 15\.3\sms in 3", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", here))


def test_every_page_gives_one_share_of_the_step_that_waits_for_the_cpu(pages):
    """Of one step it was 52% on its page, 49% on the page of the host, of another session, and 43% on the page of
    limits, which counted launches alone."""
    said = {name: read_verdict(read_page(pages / f"{name}.md")) for name in ("host", "bounds")}
    said |= {"home": (pages.parent / "index.md").read_text(), "case": (pages / "cases" / SMALL).read_text()}
    shares = {name: re.search(WAITS, words)[1] for name, words in said.items()}
    assert shares == dict.fromkeys(shares, "52")


def test_the_home_page_leads_with_a_step_in_each_state(pages):
    page = read_shown(pages.parent, "index.md")
    for state, time in (("FP32", "818"), ("BF16", "118"), ("BF16 compiled", "69")):
        assert f"{state} <small>{time}" in page
    assert page.index('class="screen"') < page.index("profiler-job profile --") < page.index("## What limits it")
    assert len(list((pages / "cases").iterdir())) >= 20, "each model at each context"


def test_home_opens_on_a_step_with_three_cards(pages):
    """It had two cards, for the state that is shown and for FP32, before it is changed."""
    of_states = {label: cards for label, _, _, cards in list_screens(pages / "cases" / "large-1024-4-H200.js")}
    assert len(of_states["BF16"]) == len(of_states["FP32"]) == 3
    for gain, words, code in of_states["BF16"]:
        assert re.search(r"→|could (?:save|give)", gain) and re.search(
            rf"\[.+–.+\]|not measured|{NOT_THE_LIMIT}", words
        ), gain
        assert "<code>" in code


def test_a_state_without_a_figure_is_not_offered_and_keeps_its_time(pages):
    """Five compiled states were timed and not captured."""
    num = dict.fromkeys(("offered", "timed alone", "not recorded"), 0)
    for page in sorted((pages / "cases").glob("*-*.js")):
        for label, time, screen, _ in list_screens(page):
            assert ("<svg" in screen) == (time not in ("", "not recorded") and "no figure" not in time), (page, label)
            if label == COMPILED:
                kind = "timed alone" if "no figure" in time else time if time == "not recorded" else "offered"
                num[kind] += 1
    assert num["offered"] == 25 and num["timed alone"] == 5 and num["not recorded"]


def test_a_section_without_a_finding_has_no_list(tmp_path):
    (tmp_path / "page.md").write_text(
        '{% call findings() %}{% call(f) claim("one") %}told{% endcall %}{% endcall %}{{ evidence() }}'
    )
    for rows, told in ((["a"], "- told"), ([], "")):
        site = Site(tmp_path, (tmp_path,), {}, ("size",))
        claim = Claim("one", pd.DataFrame({"size": rows}))
        site.write("out.md", "page.md", assemble({}, [claim], [], []))
        assert re.split(r" \[|^$", read_page(tmp_path / "out.md"))[0].strip() == told


def test_recordings_are_taken_together_though_only_one_ran_out_of_memory(tmp_path):
    parts = [store.load(locate(name)) for name in ("attention_bf16", "attention_bf16_long")]
    assert ["status_step" in part.runs for part in parts] == [False, True]
    runs = combine.join_recordings(parts).runs
    assert runs["status_step"].notna().sum() == (runs["status"].astype(str) == "oom").sum() > 0


def test_studies_without_a_main_recording_need_one(tmp_path):
    with pytest.raises(RecordingError, match="give the recording of a sweep"):
        write_site.publish([locate("compile"), locate("memory")], tmp_path)


def test_a_study_that_was_not_recorded_says_how_to_record_it(memory_alone):
    missing = [question for question in STUDIES.values() if question.study not in ("", "memory")]
    for question in missing:
        page = read_page(memory_alone / "report" / f"{question.slug}.md")
        assert "Not measured in this recording." in page
        by_what = f"STUDY={question.study}" if question is second_recording.QUESTION else f"study: {question.study}"
        assert by_what in page


def test_of_a_recording_made_without_nsys_every_page_says_so(memory_alone):
    pages = {path.stem: read_page(path) for path in memory_alone.rglob("*.md")}
    assert " without Nsight Systems, by commit" in pages["data"]
    assert ", no Nsight Systems; started" in pages["small-ctx128-fp32-naive-train_step"]


def timed_only(rec):
    """As of a sweep with `profiled_steps: 0`."""
    none = {name: getattr(rec, name).head(0) for name in ("kernels", "memops", "api", "ranges", "nsys_sums")}
    timer = rec.steps["collector"].astype(str) == "timer"
    return dataclasses.replace(rec, steps=rec.steps[timer].reset_index(drop=True), **none)


def none_finished(rec):
    kept = ("runs", "memory")
    none = {name: getattr(rec, name).head(0) for name in table_schema.TABLES if name not in kept}
    return dataclasses.replace(rec, runs=rec.runs.assign(status="failed", status_phase="forward"), **none)


@pytest.mark.nightly
@pytest.mark.parametrize("change", [timed_only, none_finished], ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("main", "beside"), [("h200-fp32", ("compile", "accumulation", "changes_1")), ("accumulation", ())]
)
def test_without_a_capture_only_what_was_timed_is_told(main, beside, change, tmp_path, monkeypatch):
    """Studies next to the main recording, and one alone, of whose runs the questions are asked, too."""
    monkeypatch.setattr(charts, "render", draft_of)
    rec, *others = (change(store.load(locate(name))) for name in (main, *beside))
    studies = {of.manifest["study"]: of for of in (rec, *others) if of.manifest.get("study")}
    question_pages.write_questions(rec, tmp_path, studies)
    pages = {path.stem: read_page(path) for path in tmp_path.rglob("*.md")}
    words = "".join(pages.values())
    assert "waits for launches for" not in words and "the GPU **waits for launches**" not in words
    assert "unprofiled timer overlap" not in words and "nan" not in words.split()
    of_studies = [question.slug for question in STUDIES.values() if question.study in studies]
    assert not [slug for slug in of_studies if "Not measured in this recording." in pages[slug]]


def list_screens(page):
    """List the states of a case of home: label, time of the switch, and the cards, each with times, words and code."""
    html = json.loads(page.read_text(encoding="utf-8").removeprefix("showCase(").rstrip(");\n"))["html"]
    html = html.replace("<wbr>", "")
    labels = re.findall(r"<span>([^<]+) <small>([^<]*)</small></span>", html.partition("</fieldset>")[0])
    screens = html.split('<div class="state">')[1:]
    for (label, time), screen in zip(labels, screens, strict=True):
        cards = re.findall(r'<span class="gain">([^<]+)<small>([^<]+)</small></span>(.*?)</li>', screen, re.DOTALL)
        yield label, time, screen, cards


def read_times(gain):
    """The two times of a card in ns, or of a card with rates the times of as many tokens."""
    before, _, after = gain.strip().partition(" → ")
    if after.endswith(" tokens/s"):
        rates = (before, after.removesuffix(" tokens/s"))
        return [1 / (float(rate.removesuffix("k")) * (1000 if rate.endswith("k") else 1)) for rate in rates]
    unit = after.rpartition(THIN)[2]
    shown = [before if THIN in before else f"{before}{THIN}{unit}", after]
    return [float(one.partition(THIN)[0].replace(",", "")) * UNITS["time"][one.partition(THIN)[2]] for one in shown]


def reads_as(ns, time):
    """Whether a time, itself rounded, may be the `time` of the switch, which has two digits."""
    return time.partition(",")[0] in {str(text.rounded(ns * factor, "ns")) for factor in (0.995, 1, 1.005)}


def test_the_two_times_of_a_card_give_its_ratio(pages):
    """488 → 247 ms, which is 1.98, stood next to 1.92× [1.90–1.95]."""
    num = 0
    for page in sorted((pages / "cases").glob("*-*.js")):
        for label, _, _, cards in list_screens(page):
            for gain, words, _ in cards:
                ends = re.match(r"([\d.]+)× \[([\d.]+)–([\d.]+)\]", words)
                if " → " in gain and ends:
                    before, after = read_times(gain)
                    ratio, low, high = map(float, ends.groups())
                    assert low <= round(before / after, len(ends[2].partition(".")[2])) <= high, (page.name, label)
                    assert low <= ratio <= high
                    num += 1
    assert num >= 30


def test_cards_on_home_have_the_times_of_the_switch_or_are_of_another_recording(pages):
    """A card had 222 -> 142 ms, and the switch 139 ms."""
    num_compared = 0
    for page in sorted((pages / "cases").glob("*-*.js")):
        times = {label: time for label, time, *_ in list_screens(page)}
        for label, time, screen, cards in list_screens(page):
            assert not screen.strip("</div>\n ") or (len(cards) < 3) == ('class="nothing"' in screen), (
                page.name,
                label,
            )
            for gain, words, code in cards:
                if " → " in gain and ELSEWHERE not in words and "ms" in gain:
                    assert reads_as(read_times(gain)[0], time), (page.name, label)
                    is_next = label == BF16 and "torch.compile(model)" in code and times[COMPILED] != "not recorded"
                    assert not is_next or reads_as(read_times(gain)[1], times[COMPILED]), (page.name, label)
                    num_compared += is_next
    assert num_compared >= 5


def test_each_bar_of_the_budget_is_one_step(pages):
    """Steps of eight batches stood in one bar, 800% long."""
    parts = pd.concat(pd.read_csv(path) for path in (pages / "csv" / "token-cost").glob("chart-budget*.csv"))
    bars = parts.groupby(["size", "state"])["part"].sum()
    assert len(bars) >= 10 and bars.to_numpy() == pytest.approx(1)
