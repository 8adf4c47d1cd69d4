"""The doses of the suite, and what several workers share.

`make test` runs the default dose. `--long` (`make test-long`, which continuous integration runs) adds the tests marked
`long`, and property tests get more examples. `--all` (`make test-all`, every night) adds those marked `nightly`, which
take minutes, and visits every page in the browser. The last lines say what a dose leaves out.

With CI set, as in continuous integration, a test fails that skips for another reason than `allowed_skips` names.
"""

import fcntl
import gc
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tests.allowed_skips import is_allowed
from tests.torch_copies import TorchCopies

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers of the suite share the cores
os.environ["PROFILER_JOB_NO_CACHE"] = "1"  # nothing is kept next to the captures in tests/data
os.environ["COLUMNS"] = "120"  # what is printed fits any terminal, and tests read it in one
MOST_FILES = 20  # whose time of processors is said
MOST_WORKERS = 8  # each has pandas and torch in memory

hypothesis.settings.register_profile("default", max_examples=5, deadline=None)
hypothesis.settings.register_profile("long", max_examples=12, deadline=None)
hypothesis.settings.register_profile("all", max_examples=25, deadline=None)

IN_BROWSER = Path(__file__).parent / "browser"
"""Tests of built sites, which take a minute to build. They and all others that share what is `built_once` are long."""

NOT_RUN = pytest.StashKey[dict[str, int]]()
"""How many tests are left out, by reason."""
PROCESSOR_S = pytest.StashKey[Counter[str]]()
"""Seconds of processors by test, of processes that it started and waited for, too. Where workers share the cores, they
tell what makes a suite long; how long a test took tells also for what it waited."""


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run long tests, too, with more examples")
    parser.addoption("--all", action="store_true", help="run all tests, everything at full dose")
    parser.addoption("--site", help="folder of the built HTML of the shipped recordings: it is not built again")


def pytest_configure(config):
    for ignored, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(ignored) == signal.SIG_IGN:  # in the background of a script, or by nohup: it is inherited
            signal.signal(ignored, usual)
    config.addinivalue_line("markers", "long: takes long and runs with --long or --all only (make test-long)")
    config.addinivalue_line("markers", "nightly: takes minutes and runs with --all only (make test-all)")
    hypothesis.settings.load_profile(
        "all" if config.getoption("all") else "long" if config.getoption("long") else "default"
    )
    config.stash[NOT_RUN] = {}
    config.stash[PROCESSOR_S] = Counter()


def runs_long_tests(config) -> bool:
    return config.getoption("long") or config.getoption("all")


def leave_out(config, items: list[pytest.Item], marker: str, said: str) -> None:
    """Take the tests with a marker from `items`; the last lines tell their number, and what is `said` of them."""
    left_out = [item for item in items if item.get_closest_marker(marker)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
        config.stash[NOT_RUN][said] = len(left_out)


def pytest_collection_modifyitems(config, items):
    for item in items:
        if IN_BROWSER in item.path.parents or "built_once" in getattr(item, "fixturenames", ()):
            item.add_marker("long")
    if not config.getoption("all"):
        leave_out(config, items, "nightly", "tests of minutes were not run, pages were few: make test-all runs all")
    if not runs_long_tests(config):
        leave_out(config, items, "long", "long tests were not run, examples were few: make test-long runs them")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """In a clean checkout the first worker that comes to a module writes its bytecode, with assertions that explain
    themselves, and the others wait for it: they would all do the same."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not isinstance(collector, pytest.Module):
        return (yield)
    with open(collector.path) as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish():
    """What is there now, thousands of tests and the modules, stays to the end: the garbage collector would look through
    all of it dozens of times."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before = os.times()[:4]
    result = yield
    item.config.stash[PROCESSOR_S][item.nodeid] += sum(os.times()[:4]) - sum(before)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not is_allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, which tests/allowed_skips.py does not allow: {reason}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config) -> int:
    """One worker more than cores that this process may use. Many long tests wait for processes, and with two more, a
    sixth of two cores was idle: three more for them. pytest-xdist would count the cores of the machine."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST_WORKERS, num_cores + (3 if runs_long_tests(config) else 1))


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # a worker tells the process that prints
        session.config.workeroutput["not_run"] = session.config.stash[NOT_RUN]
        session.config.workeroutput["processor_s"] = dict(session.config.stash[PROCESSOR_S])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    output = getattr(node, "workeroutput", {})
    node.config.stash[NOT_RUN] |= output.get("not_run", {})  # in every worker the same
    node.config.stash[PROCESSOR_S].update(output.get("processor_s", {}))


def pytest_terminal_summary(terminalreporter, config):
    for said, num_tests in config.stash[NOT_RUN].items():
        terminalreporter.line(f"{num_tests} {said}")
    if runs_long_tests(config):
        _say_processor_s(terminalreporter, config.stash[PROCESSOR_S])


def _say_processor_s(terminalreporter, of_tests: Counter[str]) -> None:
    of_files: Counter[str] = Counter()
    for test, seconds in of_tests.items():
        of_files[test.split("::")[0]] += seconds
    terminalreporter.line(f"{sum(of_tests.values()):.0f} s of processors, most of them in")
    for file, seconds in of_files.most_common(MOST_FILES):
        terminalreporter.line(f"{seconds:8.1f} s {file}")


@pytest.fixture(scope="session")
def built_once(tmp_path_factory) -> Callable[[str, Callable[[Path], Path]], Path]:
    """built_once(name, build): the path that `build(folder)` gives; of several workers that ask for a name the first
    builds, and the others wait and take the same."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def once(name: str, build: Callable[[Path], Path]) -> Path:
        with open(shared / f"{name}.built", "a+") as built:
            fcntl.flock(built, fcntl.LOCK_EX)
            built.seek(0)
            if not (path := built.read()):
                path = str(build(tmp_path_factory.mktemp(name)))
                built.write(path)
        return Path(path)

    return once


@pytest.fixture(scope="session")
def torch_copies():
    with TorchCopies() as copies:
        yield copies
