"""A patch makes changes in scripts of different styles, parses, changes nothing else, and is empty the second time."""

import ast
import json
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from profiler_job.analysis.changes import find_edits
from profiler_job.analysis.changes.model_code import COPY, copy_gradients
from profiler_job.analysis.changes.patch import answer, compute_digests, describe, main, make_patch, write_patch
from profiler_job.analysis.changes.script_code import Program, ScriptCodeError, SourceFile, load_program
from profiler_job.jobs.contract.outputs import TargetError
from profiler_job.jobs.contract.tuning import CodePatch
from tests.changes.scripts import (
    ACCUMULATION,
    BRANCHES,
    CALLED_LOSS,
    FLAT,
    ONE_EXPRESSION,
    RANGES,
    SCRIPTS,
    TABS_AND_WINDOWS,
    TRAINER_CLASS,
    TWO_MODELS,
)

USUAL = ("tf32", "bf16", "fused_adamw", "compile")
AUTOCAST = 'with torch.autocast("cuda", dtype=torch.bfloat16):'


def program_of(text, **others):
    files = [SourceFile("train.py", textwrap.dedent(text))]
    files += [SourceFile(f"{name}.py", textwrap.dedent(other)) for name, other in others.items()]
    return Program(tuple(files))


def text_after(patch, name="train.py"):
    return patch.files[name].text


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_of_many_styles_get_a_full_patch(name):
    program = program_of(SCRIPTS[name])
    patch = make_patch(program, USUAL)
    assert patch.is_full and not patch.present
    text = text_after(patch)
    ast.parse(text)
    assert text.count("set_float32_matmul_precision") == 1
    assert text.count("fused=True") == SCRIPTS[name].count(".parameters()") - SCRIPTS[name].count("list(")
    assert ".compile()" in text and "autocast(" in text
    again = make_patch(Program(tuple(patch.files.values())), USUAL)
    assert again.diff == "" and {*again.present} == {*USUAL}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_patch_applies_and_keeps_all_other_lines(name, tmp_path):
    program = program_of(SCRIPTS[name])
    patch = make_patch(program, USUAL)
    (tmp_path / "train.py").write_bytes(program.script.text.encode())
    applied = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"], input=patch.diff.encode(), cwd=tmp_path, capture_output=True
    )
    assert applied.returncode == 0, applied.stderr
    assert (tmp_path / "train.py").read_bytes() == text_after(patch).encode()
    kept = [line.strip() for line in text_after(patch).splitlines()]
    changed = [
        line for line in program.script.text.splitlines() if line.strip() not in kept and "optim" not in line.lower()
    ]
    assert all("backward" in line or line.strip() == ")" for line in changed), changed


def test_autocast_is_around_the_forward_pass_and_the_loss_alone():
    lines = text_after(make_patch(program_of(ACCUMULATION), ["bf16"])).splitlines()
    place = next(number for number, line in enumerate(lines) if "autocast" in line)
    assert [line.strip() for line in lines[place + 1 : place + 5]] == [
        "logits = model(torch.randn(4, 8))",
        "loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long))",
        "loss = loss / ACCUMULATE",
        "loss.backward()",
    ]
    inside, after = lines[place + 3], lines[place + 4]
    assert len(inside) - len(inside.lstrip()) == len(after) - len(after.lstrip()) + 4


def test_a_loss_inside_an_expression_is_computed_before_backward():
    text = text_after(make_patch(program_of(ONE_EXPRESSION), ["bf16"]))
    assert f"    {AUTOCAST}\n        loss = F.cross_entropy(model(x), y)\n    loss.backward()\n" in text
    text = text_after(make_patch(program_of(CALLED_LOSS), ["bf16"]))
    assert f"    {AUTOCAST}\n        preds = model(x)\n        loss = preds.mean()\n    loss.backward()\n" in text


def test_suites_around_backward_get_autocast_each():
    text = text_after(make_patch(program_of(RANGES), ["bf16"]))
    assert text.count(AUTOCAST) == 2
    assert f'{AUTOCAST}\n        with nvtx.range("forward"):\n            out = model(x)\n' in text


def test_text_in_strings_and_line_ends_stay():
    text = text_after(make_patch(program_of(TABS_AND_WINDOWS), USUAL))
    assert '"""\r\nstays\r\n"""' in text and "\n" not in text.replace("\r\n", "")
    assert "\t\tloss = model(x).sum()  # größer\r\n" in text and text.endswith("opt.step()")


def test_models_are_compiled_where_they_are_complete():
    lines = text_after(make_patch(program_of(BRANCHES), ["compile"])).splitlines()
    place = lines.index("    model.compile()")
    assert "raise ValueError" in lines[place - 1] and "model.to" in lines[place + 1]
    text = text_after(make_patch(program_of(TRAINER_CLASS), ["compile"]))
    assert "self.model = model.to(config.device)\n        self.model.compile()\n" in text
    graphs = text_after(make_patch(program_of(TWO_MODELS), ["cuda_graphs"]))
    assert graphs.count('.compile(mode="reduce-overhead")') == 2


def test_a_model_that_is_moved_into_another_file_is_changed_there():
    script = """
        from model import make_optimizer, Net
        import torch
        net = Net()
        optimizer = make_optimizer(net)
        loss = net(1).mean()
        loss.backward()
        optimizer.step()
    """
    module = """
        import torch

        class Net(torch.nn.Module):
            pass

        def make_optimizer(net):
            return torch.optim.AdamW(net.parameters())
    """
    patch = make_patch(program_of(script, model=module), USUAL)
    assert patch.is_full and {*patch.files} == {"train.py", "model.py"}
    assert "fused=True" in text_after(patch, "model.py") and "--- a/model.py" in patch.diff


def test_what_a_script_has_is_present():
    script = """
        import torch
        torch.backends.cuda.matmul.allow_tf32 = True
        model = torch.compile(torch.nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(1).mean()
        loss.backward()
    """
    patch = make_patch(program_of(script), USUAL)
    assert not patch.diff and patch.is_full
    assert patch.present == {
        "tf32": "train.py:3",
        "compile": "train.py:4",
        "fused_adamw": "train.py:5",
        "bf16": "train.py:6",
    }


def test_cuda_graphs_go_into_a_compilation_that_the_script_has():
    script = """
        import torch
        model = torch.compile(torch.nn.Linear(8, 8))
        model(1).mean().backward()
    """
    patch = make_patch(program_of(script), ["cuda_graphs"])
    assert patch.is_full and 'torch.compile(torch.nn.Linear(8, 8), mode="reduce-overhead")' in patch.diff
    again = make_patch(program_of(text_after(patch, "train.py")), ["cuda_graphs"])
    assert not again.diff and again.present == {"cuda_graphs": "train.py:3"}
    decided = make_patch(
        program_of("""
        import torch
        model = torch.nn.Linear(8, 8)
        if COMPILE:
            model = torch.compile(model)
        model(1).mean().backward()
    """),
        ["cuda_graphs"],
    )
    assert 'torch.compile(model, mode="reduce-overhead")' in decided.diff
    (line,) = decided.to_write["cuda_graphs"]
    assert (line.line, line.code) == (5, 'torch.compile(model, mode="reduce-overhead")')
    assert line.reason == "in the patch, below `if COMPILE`: make it so"


def test_gradients_that_are_added_up_are_copied_out_of_cuda_graphs():
    """As in nanoGPT, whose option decides whether it compiles; and where no line is known."""
    script = """
        import torch
        model = torch.nn.Linear(8, 8)
        if compile:
          unoptimized = model
          model = torch.compile(model)  # takes a minute
        for step in range(4):
            model(1).mean().backward()
    """
    program = replace(program_of(script), is_compiled=True, keeps_gradients=True)
    patch = make_patch(program, ["cuda_graphs"])
    assert patch.is_full
    compiled, head, test, copy = text_after(patch).splitlines()[5:9]
    assert compiled == '  model = torch.compile(model, mode="reduce-overhead")  # takes a minute'
    assert head.startswith("  for weight in model.parameters():  # ")
    assert (test, copy) == ("    if weight.requires_grad:", f"      {COPY}")
    again = replace(program_of(text_after(patch)), is_compiled=True, keeps_gradients=True)
    assert not make_patch(again, ["cuda_graphs"]).diff
    assert COPY not in make_patch(program, ["compile"]).diff
    eager = replace(program_of(TWO_MODELS), keeps_gradients=True)
    assert text_after(make_patch(eager, ["cuda_graphs"])).count(COPY) == 2
    for compiled in ("step = torch.compile(compute)", "steps = [torch.compile(model)]", "TrainingArguments(**options)"):
        script = f"""
            import torch
            def compute(x):
                return model(x)
            {compiled}
            step(1).mean().backward()
        """
        left = make_patch(replace(program_of(script), keeps_gradients=True), ["cuda_graphs"])
        assert left.to_write["cuda_graphs"][-1].code == COPY, compiled


def test_copied_gradients_are_the_ones_that_are_added_up():
    model = torch.nn.Linear(4, 1)
    model.bias.requires_grad = False
    namespace = {"model": model}
    source = program_of("model = 1").script
    exec("\n".join(copy_gradients(source, "model")), namespace)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((1, 4), 4.0))


def test_the_patch_alone_is_enough_for_a_script_that_was_seen_to_compile_itself(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8)\nif COMPILE:\n    model = torch.compile(model)\n"
        "model(1).mean().backward()\n"
    )
    made = answer("make", tmp_path, script, "--compiled", "cuda_graphs")
    assert made["is_full"] and not made["to_write"]
    assert '+    model = torch.compile(model, mode="reduce-overhead")' in made["diff"]
    assert answer("make", tmp_path, script, "--compiled", "compile")["present"] == {"compile": "train.py:4"}


def test_lines_of_autocast_name_the_device_that_the_script_ran_on(tmp_path):
    """In the patch, in what is left to write, and where no edit is known."""
    script = tmp_path / "train.py"
    texts = {
        "diff": textwrap.dedent(FLAT),
        "decided": 'import torch\nwith torch.autocast("cpu", torch.float16):\n    loss = model(1)\nloss.backward()',
        "unknown": "import torch\n",
    }
    for text in texts.values():
        script.write_text(text)
        made = answer("make", tmp_path, script, "--device=cpu", "bf16")
        code = made["diff"] or made["to_write"][0]["code"]
        assert 'torch.autocast("cpu", dtype=torch.bfloat16)' in code and 'autocast("cuda"' not in code


def test_what_the_script_decides_is_left_to_write():
    script = """
        import torch
        from contextlib import nullcontext
        ctx = torch.autocast("cuda", dtype=torch.float16) if FP16 else nullcontext()
        model = torch.nn.Linear(8, 8)
        if COMPILE:
            model = torch.compile(model)
        options = dict(fused=True) if FUSED else {}
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        with ctx:
            loss = model(1).mean()
        loss.backward()
    """
    patch = make_patch(program_of(script), USUAL)
    assert not patch.is_full
    assert {name: [line.line for line in lines] for name, lines in patch.to_write.items()} == {
        "bf16": [10],
        "fused_adamw": [9],
        "compile": [7],
    }
    told = describe(patch)
    assert [line["change"] for line in told["to_write"]] == ["bf16", "fused_adamw", "compile"]
    assert "set_float32_matmul_precision" in told["diff"] and not told["is_full"]


def test_a_loss_from_elsewhere_is_left_to_write():
    script = """
        import torch
        def backward_step(loss):
            loss.backward()
    """
    patch = make_patch(program_of(script), ["bf16"])
    ((line,),) = patch.to_write.values()
    assert (line.file, line.line) == ("train.py", 4) and not patch.diff


def test_settings_are_changed_where_they_are_set_otherwise():
    script = """
        import torch
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
    """
    text = text_after(make_patch(program_of(script), ["tf32"]))
    assert (
        '("high")' in text and "allow_tf32 = True" in text and text.count("\n") == textwrap.dedent(script).count("\n")
    )


def test_trainers_get_options():
    script = """
        from transformers import Trainer, TrainingArguments, AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained("gpt2", attn_implementation="eager")
        arguments = TrainingArguments(
            output_dir="out",
            learning_rate=1e-4,  # as usual
        )
        Trainer(model=model, args=arguments).train()
    """
    names = [*USUAL, "fused_attention", "loader_workers"]
    patch = make_patch(program_of(script), names)
    assert patch.is_full
    text = text_after(patch)
    for option in ("bf16=True", 'optim="adamw_torch_fused"', "torch_compile=True", "dataloader_num_workers=4"):
        assert f"    {option},\n" in text
    assert 'attn_implementation="sdpa"' in text and "import torch\n" in text
    assert make_patch(Program(tuple(patch.files.values())), names).diff == ""


def test_an_accelerator_gets_its_precision():
    script = """
        from accelerate import Accelerator
        import torch
        accelerator = Accelerator()
        model = torch.nn.Linear(8, 8)
        loss = model(1).mean()
        accelerator.backward(loss)
    """
    assert 'Accelerator(mixed_precision="bf16")' in text_after(make_patch(program_of(script), ["bf16"]))


def test_arguments_of_the_command_line_are_named():
    script = """
        import torch
        from transformers import HfArgumentParser, TrainingArguments
        (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    """
    patch = make_patch(program_of(script), ["bf16", "compile"])
    assert [line.code for lines in patch.to_write.values() for line in lines] == ["--bf16 True", "--torch_compile True"]


def test_loaders_get_workers_and_pinned_memory():
    script = """
        import torch
        from torch.utils.data import DataLoader
        loader = DataLoader(dataset, batch_size=4, num_workers=0, pin_memory=False)
        other = DataLoader(dataset, **options)
        model = torch.nn.Linear(8, 8)
        device = "cuda"
        for x, y in loader:
            x, y = x.to(device), y.cuda()
            model.to(device)
            loss = model(x.to(torch.float32), y)
            loss.backward()
    """
    patch = make_patch(program_of(script), ["loader_workers", "copies"])
    text = text_after(patch)
    assert "num_workers=4, pin_memory=True)" in text
    assert "x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)" in text
    assert "model.to(device)\n" in text and "x.to(torch.float32)" in text
    assert {name: [line.line for line in lines] for name, lines in patch.to_write.items()} == {
        "loader_workers": [5],
        "copies": [5],
    }


def test_loaders_get_as_many_workers_as_were_measured(tmp_path):
    """The patch wrote four where two had been measured, and pinned memory on the CPU: PyTorch warned of both."""
    script = tmp_path / "train.py"
    script.write_text("from torch.utils.data import DataLoader\nloader = DataLoader(dataset, batch_size=4)\n")
    for device_type, pinned in (("cpu", ""), ("cuda", ", pin_memory=True")):
        made = answer("make", tmp_path, script, f"--device={device_type}", "--workers=2", "loader_workers")
        assert f"+loader = DataLoader(dataset, batch_size=4, num_workers=2{pinned})\n" in made["diff"]


def test_checkpointing_goes():
    script = """
        import torch
        from torch.utils.checkpoint import checkpoint
        model.gradient_checkpointing_enable()
        y = checkpoint(block, x, mask, use_reentrant=False)
        if deep:
            model.gradient_checkpointing_enable()
    """
    text = text_after(make_patch(program_of(script), ["keep_activations"]))
    assert "\n# model.gradient_checkpointing_enable()\ny = block(x, mask)\nif deep:\n    pass\n" in text


def test_checkpointing_of_an_expression_goes():
    script = """
        import torch
        from torch.utils.checkpoint import checkpoint
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False},
        )
        y = checkpoint(lambda z: block(z) + z, x, use_reentrant=False)
    """
    text = text_after(make_patch(program_of(script), ["keep_activations"]))
    assert "\n# model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False})\n" in text
    assert "\ny = (lambda z: block(z) + z)(x)\n" in text


def test_edits_of_the_same_code_are_left_to_write():
    script = """
        from torch.utils.checkpoint import checkpoint
        y = checkpoint(outer, checkpoint(inner, x))
    """
    patch = make_patch(program_of(script), ["keep_activations"])
    assert not patch.diff and {*patch.to_write} == {"keep_activations"}


def test_options_that_a_call_passes_on_are_left_to_write():
    script = """
        from transformers import TrainingArguments, AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained("gpt2", **model_options)
        arguments = TrainingArguments("out", **options)
    """
    patch = make_patch(program_of(script), ["bf16", "fused_attention"])
    assert not patch.diff and [line.line for lines in patch.to_write.values() for line in lines] == [4, 3]


def test_attention_by_hand_is_named():
    script = """
        import torch
        def attend(q, k, v):
            weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
            return weights @ v
    """
    patch = make_patch(program_of(script), ["fused_attention"])
    ((line,),) = patch.to_write.values()
    assert line.line == 4 and "scaled_dot_product_attention" in line.code


def test_each_change_answers_for_any_script():
    from profiler_job.jobs.contract.changes import CHANGES

    for name in CHANGES:
        for text in ("", "x = 1\n", "if x: import torch\n", "import torch; y = 2\nmodel.eval()\n"):
            program = program_of(text)
            program.apply(find_edits(name, program).edits)
            make_patch(program, [name])


def test_code_that_is_not_python_is_refused(tmp_path):
    script = tmp_path / "train.py"
    for content in (b"def f(:\n", b"\xff\xfe\x00", b"# coding: nonsense\n"):
        script.write_bytes(content)
        with pytest.raises(ScriptCodeError):
            load_program(script)
    with pytest.raises(ScriptCodeError):
        load_program(tmp_path / "missing.py")


def write_script(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    script = folder / "train.py"
    script.write_text("import parts.model\nimport json\n" + textwrap.dedent(FLAT))
    (folder / "parts").mkdir()
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "model.py").write_text("import torch\nmake = torch.optim.AdamW([], lr=1)\n")
    return script


def test_modules_next_to_the_script_are_read(tmp_path, monkeypatch):
    script = write_script(tmp_path)
    assert {file.name for file in load_program(script).files} == {"train.py", "parts/__init__.py", "parts/model.py"}
    monkeypatch.chdir(tmp_path)
    assert load_program(script).script.name == "code/train.py"


def test_a_script_in_another_folder_is_the_one_that_is_changed(tmp_path, monkeypatch):
    """Its path had `..`, with which no tool applies a patch, and a file of its name here was taken for it."""
    script = write_script(tmp_path)
    here = tmp_path / "here"
    (here / "parts").mkdir(parents=True)
    for name in ("train.py", "parts/__init__.py", "parts/model.py"):
        (here / name).write_text("import torch\nmine = torch.optim.AdamW([], lr=2)\n")
    monkeypatch.chdir(here)
    program = load_program(Path("../code/train.py"))
    assert {file.name: file.path for file in program.files} == {
        name: script.parent / name for name in ("train.py", "parts/__init__.py", "parts/model.py")
    }
    patch = make_patch(program, ["fused_adamw"])
    assert "--- a/parts/model.py\n" in patch.diff and ".." not in patch.diff
    write_patch(patch, program, tmp_path / "kept", compute_digests(program))
    assert "fused=True" in (script.parent / "parts/model.py").read_text()
    assert "fused" not in (here / "train.py").read_text() + (here / "parts/model.py").read_text()


@pytest.mark.parametrize("file, names", [("setup.py", {"train.py", "net/model.py"}), ("notes.txt", {"train.py"})])
def test_modules_of_the_project_of_a_script_are_read(file, names, tmp_path, monkeypatch):
    """minGPT's projects import its package, which is installed from above: no change had a patch."""
    script = tmp_path / "projects" / "adder" / "train.py"
    (tmp_path / "net").mkdir()
    script.parent.mkdir(parents=True)
    script.write_text("from net import model\n")
    (tmp_path / "net" / "model.py").write_text("import torch\n")
    (tmp_path / file).write_text("")
    monkeypatch.chdir(script.parent)
    assert {each.name for each in load_program(script).files} == names


def test_a_patch_is_written_with_copies(tmp_path):
    script = write_script(tmp_path)
    before = script.read_bytes()
    program = load_program(script)
    digests = compute_digests(program)
    patch = make_patch(program, USUAL)
    kept = tmp_path / "results" / "before"
    assert write_patch(patch, program, kept, digests) == ["train.py", "parts/model.py"]
    assert (kept / "train.py").read_bytes() == before and (kept / "parts__model.py").is_file()
    assert b"fused=True" in script.read_bytes() and b"fused=True" in (script.parent / "parts" / "model.py").read_bytes()
    assert make_patch(load_program(script), USUAL).diff == ""


def test_a_file_that_was_changed_since_is_kept(tmp_path):
    script = write_script(tmp_path)
    digests = compute_digests(load_program(script))
    module = script.parent / "parts" / "model.py"
    module.write_text(module.read_text() + "# by the user\n")
    program = load_program(script)
    before = script.read_bytes()
    with pytest.raises(ScriptCodeError, match="changed since"):
        write_patch(make_patch(program, USUAL), program, tmp_path / "kept", digests)
    assert script.read_bytes() == before and not (tmp_path / "kept").exists()
    with pytest.raises(ScriptCodeError, match="was not there"):
        write_patch(make_patch(program, USUAL), program, tmp_path / "kept", {})


def test_copies_of_something_else_are_kept(tmp_path):
    script = write_script(tmp_path)
    program = load_program(script)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "train.py").write_text("mine")
    before = script.read_bytes()
    with pytest.raises(TargetError):
        write_patch(make_patch(program, USUAL), program, tmp_path / "kept", compute_digests(program))
    assert script.read_bytes() == before


def test_the_module_answers_in_json(tmp_path, capsys):
    script = write_script(tmp_path)

    def ask(task, *arguments):
        main(task, str(tmp_path), str(script), *arguments)
        return json.loads(capsys.readouterr().out)

    digests = ask("digest")["digests"]
    assert {*digests} == {"code/train.py", "code/parts/__init__.py", "code/parts/model.py"}
    patch = CodePatch.model_validate(ask("make", "tf32"))
    assert "+++ b/code/train.py" in patch.diff and not patch.to_write
    kept = tmp_path / "kept"
    assert ask("write", str(kept), json.dumps(digests), "tf32")["written"] == ["code/train.py"]
    assert "changed since" in ask("write", str(kept), json.dumps(digests), "fused_adamw")["error"]
    script.write_text("def f(:")
    assert "not valid Python" in ask("make", "tf32")["error"]


def test_the_texts_of_a_patch_are_those_that_it_writes(tmp_path):
    script, kept = tmp_path / "train.py", tmp_path / "kept"
    script.write_text("import torch\n" + textwrap.dedent(FLAT))
    made = answer("edit", tmp_path, script, "fused_adamw")
    digests = json.dumps(answer("digest", tmp_path, script)["digests"])
    assert made["digest"] == answer("make", tmp_path, script, "fused_adamw")["digest"] != ""
    assert answer("make", tmp_path, script, "tf32")["digest"] != made["digest"]
    assert not answer("make", tmp_path, script, "synchronisations")["digest"]
    written = answer("write", tmp_path, script, str(kept), digests, "fused_adamw")
    assert written["digest"] == made["digest"]
    assert made["is_full"] and made["texts"] == {str(script.resolve()): script.read_text()}
    assert not answer("edit", tmp_path, script, "synchronisations")["is_full"]
