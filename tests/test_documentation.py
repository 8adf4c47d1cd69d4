"""What README, CONTRIBUTING.md and the hand-written pages of the site state on commands, options, exit codes, events
and columns is so, and nothing is left out."""

import ast
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import pytest
import typer.main
from markdown.extensions.toc import slugify

from profiler_job.__main__ import app
from profiler_job.analysis.capture import limits, phase_names
from profiler_job.analysis.capture.attribution import ATTRIBUTIONS
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.nsys_reports import REPORTS
from profiler_job.analysis.comparison import print_comparison as comparing
from profiler_job.analysis.comparison.judge import METRICS
from profiler_job.analysis.insight import findings
from profiler_job.analysis.insight.loading import COLUMNS
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.site.front_matter import split
from profiler_job.jobs.contract import axes, exit_codes
from profiler_job.jobs.contract.json_format import FORMAT_VERSION, add_format_version
from tests.reference_pages import render

ROOT = Path(__file__).parents[1]
GUIDE = sorted((ROOT / "site" / "guide").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "site" / "extend.md", *GUIDE]
SPECS = [*sorted((ROOT / "jobs" / "engines").iterdir()), ROOT / "jobs" / "sweep.yaml", ROOT / "docker" / "compose.yaml"]
MOST_WORDS_OF_GUIDES = 9_900
MEASURE, COMPARE = (ROOT / "site" / "guide" / name for name in ("measure.md", "compare.md"))
EXAMPLES = {
    *(f"analysis/pages/questions/peak_memory.{kind}" for kind in ("py", "md")),
    *(f"{side}/changes/convolution_search.py" for side in ("analysis", "jobs/follow")),
}
"""Files that a reader of *Extend* makes."""

NOT_YET: set[str] = set()
"""Documented, and not in the program yet."""
NO_MORE: set[str] = set()
"""In the program, and about to go."""

COMMAND = re.compile(r"(?<![\w/.-])(?:\.venv/bin/)?profiler-job ([a-z][a-z-]*)([^|;&#`\n]*)")
READING = [pytest.param(page, id=page.name) for page in PAGES]


def commands() -> dict[str, click.Command]:
    """The subcommands of `profiler-job` by name."""
    group = typer.main.get_command(app)
    return {name: group.get_command(None, name).load() for name in group.list_commands(None)}


def options_of(command: click.Command) -> set[str]:
    return {"--help"} | {name for one in command.params for name in one.opts if name.startswith("--")}


def read_page(page: str) -> str:
    """The Markdown of a generated page."""
    return render()[f"report/{page}.md"]


def code_of(page: Path) -> str:
    """The lines of the page's console blocks and its inline code."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", prose))


def rows_below(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table of a page whose first heading is `heading`, without its two lines of headings."""
    table = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[-| :]+\n((?:\|.*\n?)+)", page, re.MULTILINE)
    assert table, f"there is no table of {heading}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def marked(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("page", READING)
def test_files_that_are_named_exist(page):
    """Also as arguments of commands: `compare` was shown with a recording that had been renamed."""
    words = (word for part in code_of(page).splitlines() for word in part.split())
    named = {word for word in words if re.fullmatch(r"(?:analysis|jobs|site|tests|docker|\.github)/[\w./-]+", word)}
    assert not {path for path in named - EXAMPLES if not (ROOT / path).exists()}
    assert not {path for path in EXAMPLES if (ROOT / path).exists()}, "the example is in the project by now"


@pytest.mark.parametrize("page", READING)
def test_targets_of_make_that_are_named_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", code_of(page), re.MULTILINE)) <= targets


@pytest.mark.parametrize("file", [*READING, *(pytest.param(file, id=file.name) for file in SPECS)])
def test_commands_and_their_options_exist(file):
    for name, rest in COMMAND.findall(code_of(file) if file in PAGES else file.read_text()):
        assert name in commands(), f"{file.name}: profiler-job {name}"
        rest, *_ = re.split(r" (?:-- |python |torchrun |accelerate )", rest)  # what follows is somebody else's command
        unknown = set(re.findall(r"--[a-z][a-z-]*", rest)) - options_of(commands()[name]) - NOT_YET
        assert not unknown, f"{file.name}: profiler-job {name} has no {', '.join(unknown)}"


@pytest.mark.parametrize("page", READING)
def test_every_command_of_a_block_can_be_given(page):
    """Its arguments are complete, and its values such as its options take."""
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    for line in "".join(blocks).replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] in (["profiler-job"], [".venv/bin/profiler-job"]) and words[1] in commands():
            end = words.index(">") if ">" in words else None
            commands()[words[1]].make_context(words[1], words[2:end])


@pytest.mark.parametrize("page", READING)
def test_there_is_one_command(page):
    assert not re.search(r"python -m (jobs|analysis)\b", page.read_text())


def test_the_page_of_commands_has_every_command_and_every_option():
    sections = re.split(r"^### (.+)\n", read_page("commands"), flags=re.MULTILINE)[1:]
    listed = dict(zip(sections[::2], sections[1::2]))
    assert list(listed) == list(commands())
    for name, command in commands().items():
        rows = rows_below(listed[name], "option")
        assert {word for row in rows for word in marked(row[0])} >= options_of(command) - {"--help"}, name
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        assert len([value for names, value, _ in rows if not names and marked(value)]) == len(arguments), name
        assert all(row[2] for row in rows), name


def test_an_option_has_its_default_and_its_choices():
    rows = rows_below(read_page("commands").partition("### run\n")[2], "option")
    known = {marked(names)[0]: (marked(value), meaning) for names, value, meaning in rows if names}
    assert known["--device"] == (["cuda", "cpu"], "cuda, or cpu to try things out without a GPU. Default: `cuda`.")
    assert known["--results"][1].endswith("Variable: `PROFILER_RESULTS`. Default: `results`.")
    assert known["--retry"][0] == []


def test_the_page_of_commands_names_the_reports_of_nsys():
    assert all(name in read_page("commands") for name in REPORTS)


def test_the_exit_codes_are_those_of_the_program_and_stand_once():
    documented = [(int(code), meaning) for code, meaning in rows_below(read_page("commands"), "exit code")]
    assert documented == [(int(code), meaning) for code, meaning in exit_codes.MEANINGS.items()]
    assert not any("| exit code" in page.read_text() for page in PAGES)


def emitted() -> dict[str, set[str]]:
    """The events that the job tells, with the fields that are written out where it does."""
    found: dict[str, set[str]] = {}
    for file in (ROOT / "jobs").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                function = getattr(call.func, "attr", getattr(call.func, "id", ""))
                if function in ("report", "emit"):
                    found.setdefault(call.args[0].value, set()).update(one.arg for one in call.keywords if one.arg)
    return found


def test_the_events_and_their_fields_are_those_of_the_program():
    documented = {
        marked(event)[0]: set(marked(fields)) for event, fields, _ in rows_below(read_page("output"), "event")
    }
    events = {event: fields for event, fields in emitted().items() if event not in NO_MORE}
    assert set(documented) - NOT_YET == set(events) - NOT_YET
    for event, fields in events.items():
        assert fields <= documented[event], event


def test_the_axes_and_their_values_are_those_of_a_sweep_file():
    documented = {marked(axis)[0]: set(marked(values)) for axis, values in rows_below(MEASURE.read_text(), "axis")}
    assert set(documented) == set(axes.find_listed_axes())
    for axis in ("mode", "precision", "attention", "compile", "optimizer"):
        assert documented[axis] == set(axes.Run.model_fields[axis].annotation.__args__), axis


def columns_below(page: str, heading: str) -> dict[str, dict[str, str]]:
    """The tables of columns below headings of the third level, by these."""
    sections = re.split(rf"^### {heading}(\w+)(?: \{{.*\}})?\n", page, flags=re.MULTILINE)[1:]
    return {
        name: dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table.partition("\n## ")[0], re.MULTILINE))
        for name, table in zip(sections[::2], sections[1::2])
    }


def test_the_columns_are_those_of_the_program():
    shown, loaded = read_page("output").split("\n## Tables of load\n")
    assert columns_below(shown, "") == SECTIONS
    assert columns_below(loaded, r"capture\.") == COLUMNS


def test_the_keys_of_show_are_those_of_its_json():
    page = read_page("output")
    summary = add_format_version(summarise(read(ROOT / "tests" / "data" / "h200_parquetdir")).as_json())
    for key in ("capture", "launches"):
        assert {name for row in rows_below(page, f"key of `{key}`") for name in marked(row[0])} == set(summary[key])
    keys = dict(rows_below(page, "key"))
    assert set(marked(keys["`coverage`"])) == set(summary["coverage"])
    assert {marked(key)[0] for key in keys if key.startswith("`")} == set(summary) - set(SECTIONS)


def test_the_page_of_outputs_has_the_version_of_the_json():
    assert f"The version is now {FORMAT_VERSION}." in read_page("output")


def test_the_kinds_of_findings_are_those_of_the_program():
    page = read_page("output")
    assert {marked(kind)[0]: about for kind, about in rows_below(page, "kind of finding")} == findings.KINDS


def test_the_names_of_phases_are_those_that_are_recognised():
    rows = rows_below(read_page("output"), "phase")
    *phases, (_, _, steps) = [(phase, source, marked(examples)) for phase, source, examples in rows]
    assert phases == [(names.phase, names.source, list(names.examples)) for names in phase_names.NAMES]
    for phase, _, examples in phases:
        assert {phase_names.find_phase(example) for example in examples} == {phase}
    assert {"iter_3", "ProfilerStep#7", "[pl][profile]run_training_batch"} <= {*steps}
    assert all(map(phase_names.is_step, steps))


def test_the_labels_of_phases_are_those_of_coverage():
    assert [marked(label)[0] for label, _ in rows_below(read_page("output"), "label")] == list(ATTRIBUTIONS)


def test_the_limits_are_those_of_the_program():
    documented = dict(rows_below(read_page("output"), "what"))
    known = [one for one in vars(limits).values() if isinstance(one, limits.Limit)]
    assert documented == {limit.what: f"{limit.most:,}" for limit in known}


@pytest.mark.parametrize("page", READING)
def test_links_lead_somewhere(page):
    generated = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    generated |= {question.page for question in ALL_QUESTIONS.values()}
    generated |= {
        f"report/{name}.md" for name in ("benchmarks", "reconciliation", "telemetry", "environment", "clocks")
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        at = file.relative_to(ROOT / "site").as_posix() if file.is_relative_to(ROOT / "site") else ""
        if anchor in ("gh-light-mode-only", "gh-dark-mode-only"):
            anchor = ""
        if at in render():
            assert not anchor or anchor in anchors(render()[at]), f"{page.name}: {target}"
        elif not file.exists():
            assert at in generated, f"{page.name}: {target}"
        elif anchor:
            assert anchor in anchors(file.read_text()), f"{page.name}: {target}"


def anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.*?)(?: \{.*\})?$", page, re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in headings}


def test_the_guides_stay_short():
    """They had 26,000 words once. Front matter is for the search."""
    bodies = [split(page.read_text(encoding="utf-8"))[1] for page in GUIDE]
    assert sum(len(body.split()) for body in bodies) <= MOST_WORDS_OF_GUIDES


def test_every_page_of_the_guide_is_in_the_navigation_and_in_the_readme():
    nav = re.findall(r": (guide/\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    linked = re.findall(r"\]\(site/(guide/\S+\.md)\)", (ROOT / "README.md").read_text())
    assert set(nav) == set(linked) == {f"guide/{page.name}" for page in GUIDE}


def test_the_metrics_and_keys_of_compare_are_those_of_the_program(capsys, tmp_path):
    assert {marked(name)[0] for name, _ in rows_below(COMPARE.read_text(), "metric")} == set(METRICS)
    capture = ROOT / "tests" / "data" / "h200_parquetdir"
    again = shutil.copytree(capture, tmp_path / "again")
    comparing.run(comparing.Request(first=capture, second=again, form="json"), print, print)
    printed = json.loads(capsys.readouterr().out)
    for heading, keys in (("key of compare", printed), ("key of `pairs`", printed["pairs"][0])):
        assert {name for row in rows_below(read_page("output"), heading) for name in marked(row[0])} == set(keys)


def test_every_command_of_the_page_on_scripts_can_be_given(monkeypatch):
    """Each line of its blocks reaches `profile` as the page means it."""
    page = ROOT / "site" / "guide" / "profile.md"
    lines = re.findall(r"^profiler-job (profile .*?)(?:\s+#.*)?$", page.read_text(), re.MULTILINE)
    assert len(lines) == 10
    given = []
    monkeypatch.setattr("profiler_job.jobs.cli.measure_script.shutil.which", lambda program: program)
    monkeypatch.setattr(
        "profiler_job.jobs.cli.measure_script.attempt", lambda script, results: given.append(script) or sys.exit(0)
    )
    for line in lines:
        with pytest.raises(SystemExit):
            typer.main.get_command(app)(shlex.split(line), standalone_mode=False)
    assert [(one.name, one.skip, one.steps, one.step, one.goes_on) for one in given] == [
        ("train", 10, 5, "auto", False),
        ("train", 10, 5, "auto", False),
        ("train", 10, 5, "auto", False),
        ("train", 50, 10, "auto", False),
        ("generate", 10, 5, "forward", False),
        ("train", 10, 5, "my_step", False),
        ("train", 10, 5, "auto", True),
        ("bigger-batch", 10, 5, "auto", False),
        ("train", 10, 5, "auto", False),
        ("train", 10, 5, "auto", False),
    ]
    assert [one.samples for one in given] == [one is not given[2] and not one.goes_on for one in given]
    assert list(given[0].command) == ["python", "train.py", "--any", "args"]
    assert f"After {given[0].num_needed} steps" in page.read_text()
