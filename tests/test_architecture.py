"""Imports run one way, in both packages: each room may import those that stand before it, and no two modules import
each other in a circle."""

import ast
import re
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for side in ("jobs", "analysis") for path in (ROOT / side).rglob("*.py"))

ROOMS = {
    # What both sides share, and nothing of either.
    "jobs.contract": set(),
    # The GPU side.
    "jobs.workloads": {"jobs.contract"},
    "jobs.garbage": set(),
    "jobs.memory": {"jobs.garbage", "jobs.contract", "jobs.workloads"},
    "jobs.sweep": {"jobs.contract", "jobs.workloads", "jobs.memory"},
    "jobs.injected": set(),
    "jobs.worker": {"jobs.contract", "jobs.workloads", "jobs.injected"},
    "jobs.executor": {"jobs.contract", "jobs.sweep", "jobs.memory"},
    "jobs.follow_up": {"jobs.contract", "jobs.executor"},
    "jobs.output": set(),
    "jobs.commands": {"jobs.contract", "jobs.sweep", "jobs.memory", "jobs.executor", "jobs.follow_up"},
    "jobs.profile": {"jobs.contract", "jobs.executor", "jobs.follow_up", "jobs.commands"},
    "jobs.tries": {"jobs.contract", "jobs.executor", "jobs.follow_up", "jobs.commands", "jobs.profile"},
    "jobs.__main__": {"jobs.output"},
    # The side that needs no GPU.
    "analysis.answer": set(),
    "analysis.beside": {"analysis.malloc"},
    "analysis.intervals": set(),
    "analysis.idle": set(),
    "analysis.communication": {"analysis.intervals"},
    "analysis.malloc": set(),
    "analysis.reference": {"jobs.contract", "jobs.workloads"},
    "analysis.capture": {
        "analysis.communication",
        "analysis.idle",
        "analysis.intervals",
        "jobs.contract",
        "analysis.reference",
    },
    "analysis.recording": {"jobs.contract", "analysis.reference", "analysis.capture"},
    "analysis.metrics": {
        "analysis.capture",
        "analysis.communication",
        "analysis.idle",
        "analysis.intervals",
        "jobs.contract",
        "jobs.memory",
        "analysis.answer",
        "analysis.reference",
    },
    "analysis.pages": {
        "jobs.contract",
        "jobs.memory",
        "analysis.answer",
        "analysis.reference",
        "analysis.metrics",
        "analysis.comparison",
        "analysis.show",
    },
    "analysis.render": {"jobs.contract", "analysis.answer"},
    "analysis.show": {"jobs.contract", "analysis.reference", "analysis.capture", "analysis.render"},
    "analysis.loading": {"analysis.reference", "analysis.capture"},
    "analysis.comparison": {
        "jobs.contract",
        "analysis.reference",
        "analysis.capture",
        "analysis.recording",
        "analysis.metrics",
        "analysis.render",
        "analysis.show",
    },
    "analysis.prediction": {
        "jobs.contract",
        "analysis.reference",
        "analysis.capture",
        "analysis.recording",
        "analysis.metrics",
        "analysis.comparison",
    },
    "analysis.tries": {
        "jobs.contract",
        "analysis.capture",
        "analysis.recording",
        "analysis.metrics",
        "analysis.comparison",
        "analysis.prediction",
        "analysis.show",
    },
    "analysis.write_first": {"analysis.write_site"},
    "analysis.write_site": {
        "jobs.garbage",
        "jobs.contract",
        "analysis.answer",
        "analysis.beside",
        "analysis.reference",
        "analysis.recording",
        "analysis.metrics",
        "analysis.comparison",
        "analysis.prediction",
        "analysis.pages",
        "analysis.render",
        "analysis.show",
    },
    "analysis.commands": {
        "jobs.contract",
        "analysis.show",
        "analysis.capture",
        "analysis.comparison",
        "analysis.prediction",
        "analysis.malloc",
        "analysis.recording",
        "analysis.render",
        "analysis.write_site",
    },
}
"""What each room may import from the others. A room is a package or a module beside them."""


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module):
    return ".".join(module.split(".")[:2])


def package_of(path):
    """The package that relative imports of a file start from; none of `jobs.injected`, which runs in other programs."""
    if not path.is_relative_to(ROOT) or "injected" in path.parts:
        return ""
    return ".".join(path.relative_to(ROOT).parent.parts)


def imports_of(path):
    """Modules and names that a file imports; in `jobs.injected` what is relative has no package before it."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module
            if node.level and (package := package_of(path)):
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def ours(names):
    return {name for name in names if name.split(".")[0] in ("jobs", "analysis")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_goes_down(path):
    room = room_of(module_of(path))
    if room in ("jobs", "analysis"):
        assert not ours(imports_of(path))
        return
    used = {room_of(name) for name in ours(imports_of(path))} - {room, "jobs", "analysis"}
    assert used <= ROOMS[room], f"{room} imports {used - ROOMS[room]}"


def test_the_memory_simulation_has_one_entrance():
    inside = {module_of(path) for path in MODULES if module_of(path).startswith("jobs.memory.")}
    others = {path: inside & set(imports_of(path)) for path in MODULES if room_of(module_of(path)) != "jobs.memory"}
    assert inside and not {str(path): used for path, used in others.items() if used}


def test_rooms_have_no_circle():
    assert list(TopologicalSorter(ROOMS).static_order())


def test_modules_have_no_circle():
    known = {module_of(path) for path in MODULES}
    graph = {module_of(path): ours(imports_of(path)) & known - {module_of(path)} for path in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_is_imported_where_it_is_measured_and_nowhere_else(path):
    if not any(path.is_relative_to(ROOT / "jobs" / room) for room in ("worker", "workloads", "injected")):
        assert "torch" not in {name.split(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize("path", sorted((ROOT / "jobs" / "contract").glob("*.py")), ids=lambda path: path.name)
def test_the_contract_imports_neither_torch_nor_pandas(path):
    tops = {name.split(".")[0] for name in imports_of(path)}
    assert not tops & {"torch", "pandas", "numpy", "pyarrow", "yaml"}


INJECTED = sorted((ROOT / "jobs" / "injected").glob("*.py"))


@pytest.mark.parametrize("path", INJECTED, ids=lambda path: path.name)
def test_what_is_injected_into_scripts_needs_torch_and_nothing_else(path):
    """A script's own project may have packages called `jobs` and `analysis`, and none of ours."""
    beside = {one.stem for one in INJECTED}
    tops = {name.split(".")[0] for name in imports_of(path) if name} - beside - {""}
    assert tops <= {"torch", *sys.stdlib_module_names}


PAGES = sorted((ROOT / "analysis" / "pages").rglob("*.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_hold_no_paths_and_no_sql(path):
    assert not set(imports_of(path)) & {"pathlib", "os", "sqlite3", "pyarrow", "json"}


def test_the_site_is_written_without_knowing_a_question_by_name():
    """A question says itself what it shows elsewhere, so that a new one may, too."""
    questions = {path.stem for path in (ROOT / "analysis" / "pages" / "questions").glob("*.py")} - {"__init__"}
    names = {name.rpartition(".")[2] for name in imports_of(ROOT / "analysis" / "write_site.py")}
    assert not names & questions


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_tables_are_given_by_name(path):
    """A later field shifted the arguments of a class of tables, and a test passed on wrong ones."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            tables = [one for one in fields if ast.unparse(one.annotation).startswith("pd.DataFrame")]
            if len(tables) > 1:
                assert any("kw_only=True" in ast.unparse(one) for one in node.decorator_list), node.name


def test_what_is_imported_is_declared():
    """A package that only comes with another one is gone when that one drops it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["gpu"], *extras["hf"]]
    known = {re.split(r"[=<>]", name)[0].replace("-", "_") for name in wanted}
    known |= {"yaml", "vl_convert", "pynvml", "jobs", "analysis", *sys.stdlib_module_names}
    for path in MODULES:
        tops = {name.split(".")[0] for name in imports_of(path) if name} - {one.stem for one in INJECTED}
        assert tops <= known, f"{module_of(path)} imports {tops - known}"


def test_charts_know_nothing_of_the_analysis():
    assert not ours(imports_of(ROOT / "analysis" / "render" / "charts.py"))


SAYS_NOTHING = {"found", "whole", "one", "told", "taken", "everything"}
FIELDS_OF_EVENTS = {("jobs.executor.preflight", "Check", "found"), ("jobs.executor.events", "check", "found")}
"""Fields of the JSON that a job emits keep their names: module, class or function, and name."""


def bound_names(node, scope=""):
    """Each name that is bound below `node`: the innermost class or function around it, the name, and its line."""
    for child in ast.iter_child_nodes(node):
        name, within = None, scope
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = within = child.name
            case ast.Name(ctx=ast.Store()):
                name = child.id
            case ast.Attribute(ctx=ast.Store()):
                name = child.attr
            case ast.arg():
                name = child.arg
            case ast.alias():
                name = child.asname or child.name
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                name = child.name
        yield scope, name, getattr(child, "lineno", 0)
        yield from bound_names(child, within)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_what_they_are(path):
    module = module_of(path)
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for scope, name, line in bound_names(ast.parse(path.read_text()))
        if name in SAYS_NOTHING and (module, scope, name) not in FIELDS_OF_EVENTS
    ]
    assert not wrong, f"say what it is: {', '.join(wrong)}"


@pytest.mark.parametrize(
    "code",
    [
        "one = 1",
        "for one in (): pass",
        "[one for one in ()]",
        "(one := 1)",
        "lambda one: 1",
        "def one(): pass",
        "def f(*, one): pass",
        "class A:\n one: int",
        "import ast as one",
        "self.one = 1",
        "try: pass\nexcept OSError as one: pass",
    ],
)
def test_every_way_to_bind_a_name_is_seen(code):
    assert "one" in {name for _, name, _ in bound_names(ast.parse(code))}


def test_no_file_has_what_a_merge_left_open():
    """A conflict in a template is printed on its page."""
    kinds = ("*.py", "*.md", "*.css", "*.js", "*.yml", "*.yaml", "*.toml")
    folders = [ROOT / name for name in ("analysis", "docker", "jobs", "site", "tests")]
    files = [file for kind in kinds for file in (*ROOT.glob(kind), *(one for at in folders for one in at.rglob(kind)))]
    marks = tuple(sign * 7 + " " for sign in "<>")
    assert len(files) > 500
    assert not [file for file in files if any(line.startswith(marks) for line in file.read_text().splitlines())]
