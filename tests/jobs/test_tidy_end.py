"""A signal ends any command with its exit code and without a traceback."""

import os
import signal
import subprocess
import sys
import time

import pytest

from profiler_job.jobs.cli.tidy_end import end_tidily
from tests.jobs.conftest import ROOT, command

ENDING = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
FRAMEWORK = """
import os, signal, sys, tempfile, time
from profiler_job.jobs.cli.tidy_end import end_tidily
NUMBER = signal.{name}

def end(*_):
    os.kill(os.getpid(), NUMBER)
    for _ in range(1000):
        pass

class Object:
    def __del__(self):
        end()
"""
IN_A_DESTRUCTOR = "with end_tidily():\n    Object()\n    time.sleep(20)\n    print('went on')\n"
IN_A_CALLBACK = (
    "import weakref\nclass Watched: pass\n"
    "with end_tidily():\n    watched = Watched()\n    callback = weakref.ref(watched, end)\n"
    "    del watched\n    time.sleep(20)\n    print('went on')\n"
)
UNRELATED = "class Fails:\n    def __del__(self):\n        raise ValueError\nwith end_tidily():\n    Fails()\n"
TWICE = (
    "with end_tidily():\n    try:\n        os.kill(os.getpid(), NUMBER)\n        time.sleep(20)\n"
    "    finally:\n        os.kill(os.getpid(), NUMBER)\n        time.sleep(20)\n        print('went on')\n"
)


def run_program(body: str, number: signal.Signals, **variables: str) -> subprocess.CompletedProcess[str]:
    program = FRAMEWORK.format(name=number.name) + body
    environment = os.environ | variables
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.parametrize("body", [IN_A_DESTRUCTOR, IN_A_CALLBACK])
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_where_exceptions_are_ignored_is_not_lost(number, body):
    """The program would go on."""
    done = run_program(body, number)
    assert "Exception ignored" not in done.stderr and "went on" not in done.stdout
    assert done.returncode == (-number if number == signal.SIGINT else 128 + number)


def test_other_ignored_exceptions_are_printed():
    assert "ValueError" in run_program(UNRELATED, signal.SIGTERM).stderr


@pytest.mark.parametrize("number", ENDING)
def test_a_second_signal_ends_it_at_once(number):
    done = run_program(TWICE, number)
    assert done.returncode == -number and "went on" not in done.stdout


@pytest.mark.parametrize("number", ENDING)
def test_handlers_are_as_before_afterwards(number):
    before = signal.getsignal(number)
    with end_tidily():
        pass
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_ignored():
    ignored = "signal.signal(NUMBER, signal.SIG_IGN)\n"
    body = f"{ignored}with end_tidily():\n    os.kill(os.getpid(), NUMBER)\nprint('went on')\n"
    assert run_program(body, signal.SIGHUP).stdout == "went on\n"


@pytest.mark.parametrize("number", ENDING)
def test_what_makes_another_error_of_a_signal_is_no_mistake_of_the_program(number):
    """as pydantic does while it builds a class."""
    body = (
        "from profiler_job.__main__ import app\n"
        "def convert(*arguments):\n"
        "    try:\n        os.kill(os.getpid(), NUMBER)\n        time.sleep(20)\n"
        "    except BaseException as error:\n        raise ValueError('another') from error\n"
        "import profiler_job.jobs.cli.status_command as status\n"
        "status.choose_runs = convert\nsys.argv = ['profiler-job', 'status']\napp()\n"
    )
    done = run_program(body, number)
    assert done.returncode == 128 + number and done.stderr == ""


INSTALLED = "from profiler_job.start import start\nstart()\n"
AS_MODULE = "import runpy\nrunpy.run_module('profiler_job', run_name='__main__')\n"


@pytest.mark.parametrize("entry", [INSTALLED, AS_MODULE])
@pytest.mark.parametrize("module", ["typer", "profiler_job.jobs.cli.status_command"])
def test_ctrl_c_ends_the_program_quietly_while_it_imports(module, entry):
    body = (
        "class Interrupts:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}:\n            os.kill(os.getpid(), signal.SIGINT)\n            time.sleep(20)\n"
        "sys.meta_path.insert(0, Interrupts)\n"
        f"sys.argv = ['profiler-job', 'status']\n{entry}"
    )
    done = run_program(body, signal.SIGINT)
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT) and (done.stdout, done.stderr) == ("", "")


def test_a_crash_in_native_code_says_where():
    body = (
        "import profiler_job.jobs.cli.status_command as status\n"
        "def crash(*arguments):\n    os.kill(os.getpid(), signal.SIGSEGV)\n    time.sleep(20)\n"
        f"status.choose_runs = crash\nsys.argv = ['profiler-job', 'status']\n{INSTALLED}"
    )
    done = run_program(body, signal.SIGSEGV)
    assert done.returncode == -signal.SIGSEGV and "in crash" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", ENDING)
def test_a_plan_ends_whenever_the_signal_comes(number):
    """It spends most of its time in objects that are given back."""
    for tenth in range(8, 18, 2):
        process = subprocess.Popen(
            command("plan"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        time.sleep(tenth / 10)
        process.send_signal(number)
        _, printed = process.communicate()
        assert process.returncode in (0, 128 + number, -number) and "Traceback" not in printed, printed
