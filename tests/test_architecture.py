"""Imports run one way, in both packages: each room may import those that stand before it, and no two modules import
each other in a circle."""

import ast
import functools
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
    "jobs.memory": {"jobs.contract", "jobs.workloads"},
    "jobs.sweep": {"jobs.contract", "jobs.workloads", "jobs.memory"},
    "jobs.follow": set(),
    "jobs.worker": {"jobs.contract", "jobs.workloads", "jobs.memory", "jobs.follow"},
    "jobs.executor": {"jobs.contract", "jobs.sweep", "jobs.memory"},
    "jobs.cli": {"jobs.contract", "jobs.sweep", "jobs.memory", "jobs.executor"},
}

ORDER = (
    *(
        "reference",
        "changes",
        "capture",
        "recording",
        "metrics",
        "insight",
        "render",
        "comparison",
        "prediction",
        "show",
        "pages",
        "answers",
        "site",
    ),
    "cli",
)
"""The rooms of the side that needs no GPU: each may import those before it."""
MAY_SEE = {
    "jobs.cli": {"cli"},
    "jobs.contract": set(ORDER),
    "jobs.workloads": {"reference"},
    "jobs.memory": {"metrics", "pages"},
}
"""What of the GPU side they may import, too: the contract, the simulated step, which needs no torch, and
for commands of both sides the commands of the other."""

ROOMS |= {
    f"analysis.{room}": {f"analysis.{before}" for before in ORDER[:place]}
    | {other for other, rooms in MAY_SEE.items() if room in rooms}
    for place, room in enumerate(ORDER)
}
"""What each room may import from the others. A room is a package, or a module next to the packages."""


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module):
    return ".".join(module.split(".")[:2])


def package_of(path):
    """The package that relative imports of a file start from; none of `jobs.follow`, which runs in other programs."""
    if not path.is_relative_to(ROOT) or "follow" in path.parts:
        return ""
    return ".".join(path.relative_to(ROOT).parent.parts)


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path):
    """Modules and names that a file imports; in `jobs.follow` what is relative has no package before it."""
    return frozenset(_imports_of(path))


def _imports_of(path):
    yield from (name.removeprefix("profiler_job.") for name in _full_imports_of(path) if name)


def _full_imports_of(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module
            if node.level and (package := package_of(path)):
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def packages_of(path):
    """The outermost packages that a file imports."""
    return {name.split(".")[0] for name in imports_of(path) if name}


def ours(names):
    return {name for name in names if name.split(".")[0] in ("jobs", "analysis")}


def wrong_of(paths, wrong):
    """What `wrong(path)` finds in each file, by its path, of those in which it finds something."""
    assert paths
    wrong_by_path = {str(path.relative_to(ROOT)): wrong(path) for path in paths}
    return {path: names for path, names in wrong_by_path.items() if names}


def test_every_import_goes_down():
    def going_up(path):
        room, names = room_of(module_of(path)), ours(imports_of(path))
        if room in ("jobs", "analysis"):
            return names
        return {room_of(name) for name in names} - {room, "jobs", "analysis"} - ROOMS[room]

    assert not wrong_of(MODULES, going_up)


def test_the_rooms_of_contributing_are_these_in_this_order():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    packages = [room.replace(".", "/") for room in ROOMS if (ROOT / room.replace(".", "/")).is_dir()]
    assert re.findall(r"^\| `((?:jobs|analysis)/\w+)/`", text, re.MULTILINE) == packages
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES if path.name == "__init__.py"}
    assert {folder for folder in folders if folder.count("/") == 1} == set(packages)
    (order,) = re.findall(r"Imports run one way: ([^.]+)\.", text)
    assert tuple(order.split(", ")) == ORDER


def test_the_memory_simulation_has_one_entrance():
    inside = {module_of(path) for path in MODULES if module_of(path).startswith("jobs.memory.")}
    others = [path for path in MODULES if room_of(module_of(path)) != "jobs.memory"]
    assert inside and not wrong_of(others, lambda path: inside & imports_of(path))


def test_rooms_have_no_circle():
    assert list(TopologicalSorter(ROOMS).static_order())


def test_modules_have_no_circle():
    known = {module_of(path) for path in MODULES}
    graph = {module_of(path): ours(imports_of(path)) & known - {module_of(path)} for path in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")


def test_torch_is_imported_where_it_is_measured_and_nowhere_else():
    measuring = tuple(ROOT / "jobs" / room for room in ("worker", "workloads", "follow"))
    others = [path for path in MODULES if not any(path.is_relative_to(room) for room in measuring)]
    assert not wrong_of(others, lambda path: {"torch"} & packages_of(path))


def test_the_contract_imports_neither_torch_nor_pandas():
    contract = [*(ROOT / "jobs" / "contract").glob("*.py")]
    assert not wrong_of(contract, lambda path: {"torch", "pandas", "numpy", "pyarrow", "yaml"} & packages_of(path))


INJECTED = sorted((ROOT / "jobs" / "follow").rglob("*.py"))
BESIDE = {path.stem for path in INJECTED}
"""What a file of `jobs.follow` may import of the others as if it were installed."""


def test_what_is_injected_into_scripts_needs_torch_and_nothing_else():
    """A script's own project may have packages called `jobs` and `analysis`, and none of ours."""
    assert not wrong_of(INJECTED, lambda path: packages_of(path) - BESIDE - {"torch", *sys.stdlib_module_names})


def test_pages_hold_no_paths_and_no_sql():
    pages = [*(ROOT / "analysis" / "pages").rglob("*.py")]
    assert not wrong_of(pages, lambda path: {"pathlib", "os", "sqlite3", "pyarrow", "json"} & imports_of(path))


def test_the_site_is_written_without_knowing_a_question_by_name():
    """A question says itself what it shows elsewhere, so that a new one may, too."""
    questions = {path.stem for path in (ROOT / "analysis" / "pages" / "questions").glob("*.py")} - {"__init__"}
    files = (ROOT / "analysis" / "site").glob("*.py")
    names = {name.rpartition(".")[2] for file in files for name in imports_of(file)}
    assert not names & questions


def test_one_module_starts_the_generator_of_the_site():
    """So that another generator is one file. MkDocs's own hooks stand beside it."""
    starts = [path for path in MODULES if "mkdocs" in packages_of(path) or starts_mkdocs(path)]
    found = {path.relative_to(ROOT).as_posix() for path in starts} - {"jobs/contract/extras.py"}  # names the packages
    assert found == {"analysis/site/build_html.py", "analysis/site/write_first.py"}


def starts_mkdocs(path):
    """Whether a module holds a name of MkDocs's files, or runs it as a module."""
    return any(
        isinstance(node, ast.Constant) and node.value in ("mkdocs", "mkdocs.yml") for node in ast.walk(tree_of(path))
    )


def test_tables_are_given_by_name():
    """A later field shifted the arguments of a class of tables, and a test passed on wrong ones."""

    def sort_by_place(path):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                tables = [one for one in fields if ast.unparse(one.annotation).startswith("pd.DataFrame")]
                if len(tables) > 1 and not any("kw_only=True" in ast.unparse(one) for one in node.decorator_list):
                    yield node.name

    assert not wrong_of(MODULES, lambda path: [*sort_by_place(path)])


ASKS_THE_PROGRAM = "analysis/site/command_reference.py"
"""The page of commands asks the program, which is above all rooms, for its commands. Nothing else imports it."""


def test_what_is_imported_is_declared():
    """A package that only comes with another one is gone when that one drops it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["site"], *extras["gpu"], *extras["hf"]]
    known = {re.split(r"[=<>]", name)[0].replace("-", "_") for name in wanted}
    known |= {"yaml", "vl_convert", "pynvml", "jobs", "analysis", "profiler_job", *sys.stdlib_module_names}
    found = wrong_of(MODULES, lambda path: packages_of(path) - BESIDE - known)
    assert found == {ASKS_THE_PROGRAM: {"__main__"}}


def test_charts_know_nothing_of_the_analysis_but_how_a_number_reads():
    names = ("charts", "bar_charts", "line_charts", "chart_parts")
    files = [ROOT / "analysis" / "render" / f"{name}.py" for name in names]
    allowed = {f"analysis.render.{name}" for name in names} | {"jobs.contract.quantities"}
    assert not wrong_of(
        files, lambda path: {name for name in ours(imports_of(path)) if not name.startswith(tuple(allowed))}
    )


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


def test_names_say_what_they_are():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        for scope, name, line in bound_names(tree_of(path))
        if name in SAYS_NOTHING and (module_of(path), scope, name) not in FIELDS_OF_EVENTS
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


READS_SITE_DATA = re.compile(r'site/data|(?:parents\[\d\]|ROOT) / "site" / "data"|tests\.shipped[. ]')
MAY_READ_SITE_DATA = {
    "tests/browser/test_html.py": "checks the built site",
    "tests/browser/test_tasks.py": "checks the built site",
    "tests/freeze.py": "makes the frozen recordings",
    "tests/image/test_image.py": "checks the built image",
    "tests/recording/test_publish_data.py": "names files that git ignores",
    "tests/bench/expected_changes.py": "adds to the ledgers, when it is asked to",
    "tests/bench/report_memory.py": "measures a report of runs with 20,000 kernels each, which frozen ones do not have",
    "tests/render/test_notebook.py": "runs the notebooks, which read the shipped recordings",
    "tests/site_builder.py": "builds the site",
    "tests/test_architecture.py": "looks for the others",
}
"""Tests outside `tests/shipped` that name the shipped recordings, and why."""


def test_only_tests_of_what_is_shipped_read_it():
    """A new recording in `site/data` changes no unit test: these read small frozen recordings."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if not path.is_relative_to(ROOT / "tests" / "shipped")]
    found = {path.relative_to(ROOT).as_posix() for path in files if READS_SITE_DATA.search(path.read_text())}
    assert found == {*MAY_READ_SITE_DATA}, f"read tests/frozen.py: {', '.join(found ^ {*MAY_READ_SITE_DATA})}"


LONGEST_MODULE = 600
LONGEST_FUNCTION = 80
"""Lines."""


def test_no_module_and_no_function_is_too_long_to_read():
    files = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    long = [f"{file}: {lines}" for file in files if (lines := len(file.read_text().splitlines())) > LONGEST_MODULE]
    long += [
        f"{file}:{node.lineno}: {node.name}"
        for file in files
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("side", ["jobs", "analysis"])
def test_every_file_that_is_not_python_is_installed(side):
    """Templates, styles and data: a site of an installed program needs all of them."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {file for pattern in patterns[f"profiler_job.{side}"] for file in (ROOT / side).glob(pattern)}
    files = {path for path in (ROOT / side).rglob("*.*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in files if path.suffix != ".py"} <= installed
