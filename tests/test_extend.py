"""What the *Extend* page says to do is done here as it says it."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.changes.evidence import CaptureEvidence
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.pages.question import Question, Section
from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.reference import gpus, kernel_families, rules
from profiler_job.analysis.site import page_context
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.sweep.plan import load_sweep
from tests import synthetic
from tests.capture.test_advice import capture_of
from tests.test_architecture import SAYS_NOTHING, bound_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "site" / "extend.md"
CONVOLUTION = "cudnn::winograd_nonfused::winogradForwardData4x4<float, float>"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def load_module(name: str, source: str, folder: Path) -> ModuleType:
    """Write a module of the page into a folder, and load it under its full name."""
    file = folder / f"{name.rpartition('.')[2]}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_the_question(folder: Path) -> Question:
    """Return the question of the page, whose module and template are in a folder."""
    (folder / "peak_memory.md").write_text(blocks("jinja")[0])
    return load_module("peak_memory", blocks("python")[0], folder).QUESTION


def test_letter_and_slug_of_the_new_question_are_free(tmp_path):
    new = load_the_question(tmp_path)
    assert blocks("python")[0].startswith(f'"""({new.letter}) ')
    assert new.letter not in ALL_QUESTIONS
    assert new.slug not in {question.slug for question in ALL_QUESTIONS.values()}


def test_the_readme_has_every_section_of_questions():
    """It has what each section answers, so that a question needs no line of it."""
    listed = re.findall(r"^- \*\*(.+?)\.\*\* ", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [section.value for section in Section if section is not Section.MORE]


def test_the_question_becomes_a_page(tmp_path):
    question = load_the_question(tmp_path)
    answer = page_context.ask(question, synthetic.recording(("small", "2.7B"), (128, 1024)))
    site = Site(tmp_path / "docs", (tmp_path,), {}, ("size", "context_length"))
    site.write(question.page, question.template, answer, letter=question.letter, title=question.title)
    written = (tmp_path / "docs" / question.page).read_text()
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
    (rule,) = rules.load_rules(file, kernel_families.FAMILIES)
    assert kernel_families.classify(rule.example) == rules.UNCLASSIFIED, "a rule knows the example by now"
    assert kernel_families.add_user_rules(file).classify(rule.example).rule == rule.name


def find_block(words: str) -> str:
    return next(block for block in blocks("python") if words in block)


def test_the_change_is_advised_where_convolutions_run(tmp_path):
    change = load_module("convolution_search", find_block("def find_evidence"), tmp_path)
    assert "convolution_search" not in CHANGES and "cudnn.benchmark" in change.CODE
    seen = {}
    for name, kernel in {"with": CONVOLUTION, "without": "ampere_sgemm_128x64_tn"}.items():
        capture = read(capture_of(kernel).sqlite(tmp_path / f"{name}.sqlite"))
        summary = summarise(capture)
        seen[name] = change.find_evidence(CaptureEvidence(summary.capture, summary.sections))
    assert seen["with"].time_ns > 0 and seen["without"] is None


def test_the_change_is_applied(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    package = "profiler_job.jobs.follow.changes"
    change = load_module(f"{package}.convolution_search", find_block("class ConvolutionSearch"), tmp_path).CHANGE()
    assert change.outcome()
    change.apply()
    assert not change.outcome() and torch.backends.cudnn.benchmark


def test_the_gpu_is_a_row():
    written = next(block for block in blocks("python") if block.startswith("Gpu("))
    gpu = eval(written, {"Gpu": gpus.Gpu})
    assert gpu.peak_flops("bf16") == 800e12 and gpu.num_sms == 120
    assert gpus.lookup("NVIDIA " + gpu.names[0]) is None
