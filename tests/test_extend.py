"""What the *Extend* page says to do is done here as it says it."""

import ast
import importlib.util
import re
from pathlib import Path

from profiler_job.analysis.pages.questions import QUESTIONS, STUDIES
from profiler_job.analysis.reference import gpus, kernel_families
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.sweep.plan import load_sweep
from tests import synthetic
from tests.test_architecture import SAYS_NOTHING, bound_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "site" / "extend.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def letter_of_the_question() -> str:
    """Letter of the question that the page adds to QUESTIONS."""
    return re.search(r'`"(\w)": peak_memory`', PAGE.read_text(encoding="utf-8"))[1]


def test_letter_and_slug_of_the_new_question_are_free():
    letter = letter_of_the_question()
    source = blocks("python")[0]
    assert source.startswith(f'"""({letter}) ')
    registered = QUESTIONS | STUDIES
    assert len(registered) == len(QUESTIONS) + len(STUDIES)
    assert letter not in registered, f"({letter}) is {registered[letter].TITLE}"
    slug = re.search(r'^SLUG = "(.+)"$', source, re.MULTILINE)[1]
    assert slug not in {question.SLUG for question in registered.values()}


def test_the_readme_lists_every_question():
    listed = re.findall(r"^\| ([a-z]) \| ", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [*QUESTIONS, *STUDIES]


def test_the_readme_calls_no_study_unrecorded_whose_recording_is_shipped():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    unrecorded = re.findall(r"^\| ([a-z]) \| .*not recorded yet", readme, re.MULTILINE)
    named = {letter: getattr(STUDIES.get(letter), "STUDY", "") for letter in unrecorded}
    assert not [letter for letter, study in named.items() if (ROOT / "site" / "data" / study).is_dir()]


def test_the_question_becomes_a_page(tmp_path):
    module, template = blocks("python")[0], blocks("jinja")[0]
    (tmp_path / "peak_memory.py").write_text(module)
    (tmp_path / "peak_memory.md").write_text(template)
    found = importlib.util.spec_from_file_location("peak_memory", tmp_path / "peak_memory.py")
    question = importlib.util.module_from_spec(found)
    found.loader.exec_module(question)
    runs = synthetic.recording(("small", "2.7B"), (128, 1024)).runs
    site = Site(tmp_path / "docs", (tmp_path,), {}, ("size", "context_length"))
    page = f"report/{question.SLUG}.md"
    site.write(page, "peak_memory.md", question.answer(runs), letter=letter_of_the_question(), title=question.TITLE)
    written = (tmp_path / "docs" / page).read_text()
    assert "A training step needs **" in written and "The highest peak is " in written
    assert "OOM in forward" in written, "a run that did not finish says so"
    assert (tmp_path / "docs/report/csv/peak-memory/peaks.csv").is_file()


def test_its_code_keeps_the_rules_of_names():
    names = {name for _, name, _ in bound_names(ast.parse(blocks("python")[0]))}
    assert names and not names & SAYS_NOTHING


def test_the_sweep_has_the_new_size(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(blocks("yaml")[0])
    runs = load_sweep(file).runs
    assert len(runs) == 8
    assert {(run.size, run.d_model) for run in runs} == {("small", 768), ("tiny", 256)}


def test_the_rule_catches_its_example(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(blocks("toml")[0])
    (rule,) = kernel_families.load_rules(file)
    assert kernel_families.classify(rule.example) == kernel_families.UNCLASSIFIED, "a rule knows the example by now"
    assert kernel_families.add_user_rules(file).classify(rule.example).rule == rule.name == "attention-rwkv"


def test_the_gpu_is_a_row():
    written = next(block for block in blocks("python") if block.startswith("Gpu("))
    gpu = eval(written, {"Gpu": gpus.Gpu})
    assert gpu.peak_flops("bf16") == 800e12 and gpu.num_sms == 120
    assert gpus.lookup("NVIDIA " + gpu.names[0]) is None
