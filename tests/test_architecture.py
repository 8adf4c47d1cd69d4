"""Imports run one way: reading -> metrics -> measures -> questions -> __main__, with knowledge, answer, columns, facts,
ordering and report beside them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "analysis").rglob("*.py"))

ALLOWED = {
    "answer": set(),
    "columns": {"answer"},
    "facts": set(),
    "ordering": set(),
    "knowledge": {"knowledge"},
    "reading": {"reading", "knowledge"},
    "metrics": {"answer", "ordering", "knowledge"},
    "measures": {"measures", "metrics", "answer", "ordering", "knowledge"},
    "questions": {"questions", "measures", "metrics", "answer", "columns", "facts", "ordering", "knowledge"},
    "report": {"report", "answer"},
}
"""What a part of `analysis` may import from the others. Parts that are not named here tie them together."""


SHARED = ("ranges", "memory", "dry_run", "caching_allocator")
"""Modules of `jobs` that `analysis` may import: the names of ranges, and the predicted memory that it holds against
the measured one. They are plain facts and arithmetic, and import nothing of `jobs` but each other."""


def part(path):
    relative = path.relative_to(ROOT / "analysis")
    return relative.parts[0].removesuffix(".py")


def imported(path):
    return imports_of(ast.parse(path.read_text()))


def imports_of(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path):
    names = set(imported(path))
    tops = {name.split(".")[0] for name in names}
    assert "torch" not in tops
    assert {name.split(".")[1] for name in names if name.startswith("jobs.")} <= set(SHARED)
    if part(path) in ALLOWED:
        parts = {name.split(".")[1] for name in names if name.startswith("analysis.")}
        assert parts <= ALLOWED[part(path)], f"{part(path)} imports {parts - ALLOWED[part(path)]}"


@pytest.mark.parametrize("name", SHARED)
def test_what_analysis_takes_from_jobs_stands_alone(name):
    path = ROOT / "jobs" / f"{name}.py"
    names = set(imported(path)) - typing_only(path)
    assert not {one for one in names if one.split(".")[0] in ("torch", "pydantic", "yaml", "analysis")}
    assert {one.split(".")[1] for one in names if one.startswith("jobs.")} <= set(SHARED)


def typing_only(path):
    """What only type checkers import."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {name for block in blocks for name in imports_of(block)}


@pytest.mark.parametrize("path", [path for path in MODULES if part(path) == "questions"], ids=lambda path: path.name)
def test_questions_hold_no_paths_and_no_sql(path):
    names = set(imported(path))
    assert not names & {"pathlib", "os", "sqlite3", "pyarrow", "json"}


def test_charts_know_nothing_of_the_analysis():
    names = set(imported(ROOT / "analysis" / "report" / "charts.py"))
    assert not {name for name in names if name.startswith("analysis")}
