"""Edits that several changes share."""

import textwrap

import pytest

from profiler_job.analysis.changes.code_places import set_environment, set_flag
from profiler_job.analysis.changes.loader_code import pin_copies
from profiler_job.analysis.changes.model_code import compile_blocks, prefer_cudnn
from profiler_job.analysis.changes.optimizer_code import set_foreach, set_gradients_to_none
from profiler_job.analysis.changes.script_code import Program, SourceFile
from tests.changes.scripts import FLAT, RANGES


def apply(find, text, *arguments):
    """The text after the edits, which a second search does not find again."""
    program = Program((SourceFile("train.py", textwrap.dedent(text)),))
    changed = program.apply(find(program, *arguments).edits)
    assert not find(changed, *arguments).edits
    return changed.script.text


def test_cudnn_is_the_first_choice_around_forward_pass_and_loss():
    text = apply(prefer_cudnn, FLAT)
    assert "SDPBackend.CUDNN_ATTENTION, " in text and "set_priority=True):\n        loss = model(x)" in text
    assert apply(prefer_cudnn, RANGES).count("sdpa_kernel") == 2


def test_a_file_that_imports_nothing_is_left_to_write():
    program = Program((SourceFile("train.py", '"""Words."""\nmodel(x).sum().backward()\n'),))
    found = prefer_cudnn(program)
    assert not found.edits and found.to_write[0].line == 2


def test_blocks_are_compiled_where_the_model_is_made():
    text = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

        model = Net().cuda()
        loss = model(1).mean()
        loss.backward()
    """
    code = "for block in model.blocks: block.compile()"
    assert "\nfor block in model.layers:\n    block.compile()\nloss" in apply(compile_blocks, text, code)
    program = Program((SourceFile("train.py", textwrap.dedent(FLAT)),))
    (line,) = compile_blocks(program, code).to_write
    assert line.line == 5 and line.code == code


def test_a_variable_is_set_before_the_first_import():
    text = apply(set_environment, '"""Words."""\nfrom __future__ import annotations\nimport torch\n', "NAME", "a:True")
    assert text == (
        '"""Words."""\nfrom __future__ import annotations\n'
        'import os\n\nos.environ.setdefault("NAME", "a:True")\n\nimport torch\n'
    )
    program = Program((SourceFile("train.py", 'import os\nos.environ["NAME"] = "b"\n'),))
    assert set_environment(program, "NAME", "a").to_write[0].line == 2


def test_a_flag_is_changed_where_it_is_set_or_added():
    target = "torch.backends.cudnn.benchmark"
    assert apply(set_flag, f"import torch\n{target} = False\n", target, "True") == f"import torch\n{target} = True\n"
    assert apply(set_flag, "import torch as th\nx = 1\n", target, "True") == (
        "import torch as th\n\nth.backends.cudnn.benchmark = True\nx = 1\n"
    )
    program = Program((SourceFile("train.py", f"import torch\n{target} = flag\n"),))
    assert set_flag(program, target, "True").to_write[0].line == 2


def test_gradients_are_dropped_and_loops_are_named():
    text = "opt.zero_grad(set_to_none=False)\nopt.zero_grad(a, set_to_none=False)\n"
    assert apply(set_gradients_to_none, text) == "opt.zero_grad()\nopt.zero_grad(a)\n"
    program = Program((SourceFile("train.py", "for p in ps:\n    p.grad.zero_()\n"),))
    assert set_gradients_to_none(program).to_write[0].code == "p.grad = None"


@pytest.mark.parametrize(
    "given, is_left", [("pin_memory=True", False), ("pin_memory=False", True), ("", True), ("**others", True)]
)
def test_a_loader_that_is_given_pinned_memory_has_it(given, is_left):
    """As of makemore, whose patch was not full."""
    text = f"""
        from torch.utils.data import DataLoader

        class Endless:
            def __init__(self, data, **options):
                self.loader = DataLoader(data, **options)

        loader = Endless(data, {given})
    """
    made = pin_copies(Program((SourceFile("train.py", textwrap.dedent(text)),)))
    assert bool(made.to_write) == is_left != bool(made.present)


def test_an_optimizer_may_use_lists_again():
    text = "import torch\nopt = torch.optim.SGD(ps, foreach=False, lr=1)\n"
    assert apply(set_foreach, text) == "import torch\nopt = torch.optim.SGD(ps, lr=1)\n"
