"""What switches on a compilation that a script has below a condition: its command, or a constant of its code."""

import textwrap

import pytest

from profiler_job.analysis.changes.patch import COMMAND, make_patch
from profiler_job.analysis.changes.script_code import Program, SourceFile
from tests.changes.test_accumulation_code import WANTED

SCRIPT = """
import argparse
import torch
{before}
model = torch.nn.Linear(8, 8)
if {test}:
    model = torch.compile(model)
model(1).mean().backward()
"""
OPTION = "p = argparse.ArgumentParser(); p.add_argument({}); args = p.parse_args()"
CONFIGURED = "compile = True\nexec(open('configurator.py').read())"
STARTED = ("python", "train.py")


def program_of(before: str, test: str, command: str = "", started: tuple[str, ...] = STARTED) -> Program:
    text = SCRIPT.format(before=before, test=test)
    return Program((SourceFile("train.py", text),), command=(*started, *command.split()))


@pytest.mark.parametrize(
    ("before", "test", "command", "wanted"),
    [
        (CONFIGURED, "compile", "--compile=False --lr=1", "--compile=True --lr=1"),
        (CONFIGURED, "compile", "config/small.py", "config/small.py --compile=True"),
        ("", "config.model.compile", "model.compile=false", "model.compile=true"),
        ("", "args.use_compile", "--use-compile False -b 2", "--use-compile True -b 2"),
        (OPTION.format("'--compile', action='store_true'"), "args.compile", "-b 2", "-b 2 --compile"),
        (OPTION.format("'-c', '--compile', action='store_true'"), "args.compile", "", "--compile"),
        (
            OPTION.format("'--compile', action='store_true'"),
            "hasattr(torch, 'compile') and args.compile",
            "",
            "--compile",
        ),
        (OPTION.format("'--no-compile', action='store_true'"), "not args.no_compile", "--no-compile -b 2", "-b 2"),
        (OPTION.format("'--eager', dest='compile', action='store_false'"), "not args.compile", "", "--eager"),
        (OPTION.format("'--compile', action=argparse.BooleanOptionalAction"), "args.compile", "", "--compile"),
        (
            OPTION.format("'--compile', action=argparse.BooleanOptionalAction, default=True"),
            "args.compile",
            "--no-compile -b 2",
            "--compile -b 2",
        ),
        (OPTION.format("'--compile', action='store_true'") + "\nwanted = args.compile", "wanted", "", "--compile"),
    ],
)
@pytest.mark.parametrize("change", ["compile", "cuda_graphs"])
def test_the_command_switches_it_on(before, test, command, wanted, change):
    patch = make_patch(program_of(before, test, command), [change])
    [line] = patch.to_write[change]
    assert patch.is_full and patch.command == (*STARTED, *wanted.split()) and patch.digest
    assert (line.reason, line.code) == (COMMAND, " ".join(patch.command))
    assert ("reduce-overhead" in patch.diff) == bool(patch.diff) == (change == "cuda_graphs")


@pytest.mark.parametrize(
    ("before", "test", "old", "new"),
    [
        ("COMPILE = False", "COMPILE", "COMPILE = False", "COMPILE = True"),
        ("class Config:\n    compile: bool = False\n", "config.compile", "bool = False", "bool = True"),
        (OPTION.format("'--compile', type=int, default=0"), "args.compile", "default=0", "default=True"),
        ("eager = True", "not eager", "eager = True", "eager = False"),
    ],
)
def test_a_constant_of_the_code_switches_it_on(before, test, old, new):
    program = program_of(before, test)
    patch = make_patch(program, ["compile"])
    assert patch.is_full and not patch.command
    assert patch.files["train.py"].text == program.script.text.replace(old, new)


@pytest.mark.parametrize(
    ("before", "test"),
    [
        ("import os", "os.environ.get('COMPILE')"),
        ("COMPILE = True", "COMPILE"),
        ("a = dict(compile=False); b = dict(compile=False)", "a.compile"),
        ("compile = False", "compile and torch.cuda.is_available()"),
        ("compile = False", "compile == 'yes'"),
        ("compile = read()", "compile"),
        ("a = b\nb = a", "a"),
        (OPTION.format("'-b', action='store_true'"), "args.b"),
    ],
)
def test_what_decides_otherwise_is_left_to_write(before, test):
    patch = make_patch(program_of(before, test), ["compile"])
    [line] = patch.to_write["compile"]
    assert not patch.is_full and not patch.diff and not patch.command and "make it so" in line.reason


def test_a_compilation_in_an_expression_or_an_else_is_below_a_condition():
    text = "import torch\nEAGER = True\nmodel = torch.nn.Linear(8, 8)\n{}\nmodel(1).mean().backward()\n"
    for line in (
        "model = model if EAGER else torch.compile(model)",
        "if EAGER:\n    pass\nelse:\n    model = torch.compile(model)",
    ):
        program = Program((SourceFile("train.py", text.format(line)),))
        assert "+EAGER = False" in make_patch(program, ["compile"]).diff


def test_two_changes_of_the_command_are_one():
    program = program_of("", "args.compile", "--compile=0 --batch_size=4 --accum=8")
    program = Program(program.files, accumulation=WANTED, command=program.command)
    patch = make_patch(program, ["compile", "fewer_accumulations"])
    assert patch.is_full and patch.command[2:] == ("--compile=1", "--batch_size=8", "--accum=4")
    assert [*patch.to_write] == ["fewer_accumulations"]


def test_blocks_are_compiled_though_the_script_could_compile_the_whole_model():
    """Of nanoGPT: the blocks are in a ModuleDict, and DDP has no attribute for them."""
    text = textwrap.dedent("""
        import torch
        from torch import nn
        class GPT(nn.Module):
            def __init__(self):
                super().__init__()
                self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(8, 8), h=nn.ModuleList([Block() for _ in "12"])))
        if RESUMES:
            model = GPT()
        else:
            model = GPT()
        model.to("cuda")
        if compile:
            model = torch.compile(model)
        if ddp:
            model = nn.parallel.DistributedDataParallel(model)
        while True:
            model(1).mean().backward()
    """)
    patch = make_patch(Program((SourceFile("train.py", text),)), ["compile_blocks"])
    code = '    model = GPT()\nfor block in model.transformer.h:\n    block.compile()\nmodel.to("cuda")\n'
    assert patch.is_full and code in patch.files["train.py"].text
