"""Modules inside compiled regions, as Inductor's backend for CPUs says them, in a process of its own."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.follow.test_follow import LOAD
from tests.jobs.conftest import ROOT

MODEL = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))

    def forward(self, x):
        return x + self.mlp(self.norm(x))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

model = Model()
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.ones(8, 16)
losses = []
try:
    for step in range(12):
        loss = called(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
except SystemExit:
    pass
print(json.dumps([log, losses, follower.graphs.list_facts()]))
"""
WHOLE = "called = torch.compile(model)\n"
REGIONAL = "called = model\nfor block in model.blocks:\n    block.compile()\n"
BROKEN = """
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)

model = Outer()
called = torch.compile(model)
"""
CHEAP = {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Compile in the process of the script, for no vector units: Inductor compiles a program for each to see whether they
work. 7 s of a processor in place of 24."""


def run(tmp_path, source, *, is_followed=True):
    load = LOAD if is_followed else "import json, torch\nlog = []\n"
    if not is_followed:
        source = source.replace("follower.graphs.list_facts()", "None")
    script = f"{load}\ntorch.manual_seed(0)\n{MODEL}{source}"
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, env=environment | CHEAP
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def list_graphs(log):
    """Pass, root and launches of each graph."""
    graphs = []
    for name in log:
        if name.startswith("modules:graph "):
            graphs.append((*name.split(" ")[2:], []))
        elif graphs and name != "end" and not name.startswith("modules:break "):
            graphs[-1][-1].append(name)
    return graphs


def list_calls(log):
    """The calls of graphs in the followed step, in order: number, and whether the graph ends at a break."""
    return [name.removeprefix("modules:call ") for name in log if name.startswith("modules:call ")]


def list_reasons(facts):
    return [each["reason"].partition(":")[0] for each in facts["graph_breaks"]]


@pytest.mark.long
@pytest.mark.parametrize("options", ["", pytest.param(", fullgraph=True", marks=pytest.mark.nightly)])
def test_each_launch_of_a_compiled_model_names_its_modules(tmp_path, options):
    script = WHOLE.replace("(model)", f"(model{options})") + TRAIN
    log, losses, facts = run(tmp_path, script)
    graphs = list_graphs(log)
    assert [graph[:2] for graph in graphs] == [("forward", "Model"), ("backward", "Model")]
    (*_, forward), (*_, backward) = graphs
    matmuls = [name.partition("|")[2] for name in forward if name.startswith("extern_kernels.")]
    assert matmuls == [f"blocks.{block}/mlp/{part}=100" for block in (0, 1) for part in (0, 2)]
    assert {"blocks.0/mlp/0=100", "blocks.1/mlp/2=100"} <= {name.partition("|")[2] for name in backward}
    assert all("|" in name for name in forward)
    assert facts["graphs"] == 2 and facts["late_graphs"] == 0 and not facts["graph_breaks"]
    assert facts["compiling_s"] > 0
    assert losses == run(tmp_path, script, is_followed=False)[1][: len(losses)]


@pytest.mark.nightly
@pytest.mark.parametrize(("options", "mark"), [("", ["(static)"]), (", dynamic=True", [])])
def test_a_graph_whose_sizes_do_not_change_says_so(tmp_path, options, mark):
    log, _, _ = run(tmp_path, WHOLE.replace("(model)", f"(model{options})") + TRAIN)
    assert [graph[2:-1] for graph in list_graphs(log)] == [tuple(mark)] * 2


@pytest.mark.nightly
def test_modules_inside_a_compiled_block_are_named_below_it(tmp_path):
    log, _, _ = run(tmp_path, REGIONAL + TRAIN)
    graphs = list_graphs(log)
    assert {graph[0] for graph in graphs} == {"forward", "backward"}
    assert {graph[1] for graph in graphs} <= {"Model/blocks.0", "Model/blocks.1"}
    assert "mlp/0=100" in {name.partition("|")[2] for name in graphs[0][-1]}


@pytest.mark.nightly
def test_a_graph_that_breaks_says_why_and_each_part_is_known(tmp_path):
    source = BROKEN + TRAIN.replace("print(", SEE_KERNELS + "print(").replace("list_facts()]", "list_facts(), kernels]")
    log, losses, facts, kernels = run(tmp_path / "followed", source)
    _, without, _, kernels_without = run(tmp_path / "without", source, is_followed=False)
    assert losses == without[: len(losses)] and kernels == kernels_without
    (known,) = facts["graph_breaks"]
    assert known["function"] == "forward" and known["file"] and known["line"]
    assert known["reason"].startswith("Call to `torch._dynamo.graph_break()`: User-inserted graph break.")
    named = {name.partition("|")[2] for *_, launches in list_graphs(log) for name in launches}
    assert {"first/mlp/0=100", "second/mlp/0=100"} <= named
    assert list_calls(log) == ["0 broken", "1", "2", "3 broken"], "forward, and backward in reverse"
    assert [graph[0] for graph in list_graphs(log)] == ["forward"] * 2 + ["backward"] * 2
    assert known["graphs"] == [0, 3]
    (noted,) = [name for name in log if name.startswith("modules:break ")]
    numbers, where, function, reason = noted.removeprefix("modules:break ").split("|", 3)
    assert (numbers, function, reason) == ("0,3", "forward", known["reason"]) and where.endswith(f":{known['line']}")
    assert not facts["recompilations"]


CACHED_BY_OPTIONS = "called = torch.compile(model, options={'fx_graph_cache': True})\n"
CACHED_LATER = """
import torch._functorch.config
import torch._inductor.config
called = torch.compile(model)
torch._inductor.config.fx_graph_cache = True
torch._functorch.config.enable_autograd_cache = True
"""


def list_cached(folder):
    """The graphs in Inductor's and in AOTAutograd's cache."""
    kinds = ("aotautograd", "fxgraph")
    return sorted((kind, str(path.relative_to(folder))) for kind in kinds for path in folder.rglob(f"{kind}/*/*"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(WHOLE, id="by default"),
        pytest.param(CACHED_BY_OPTIONS, id="by an option"),
        pytest.param(CACHED_LATER, id="set after torch.compile"),
    ],
)
def test_a_full_cache_of_graphs_is_neither_read_nor_written(tmp_path, script):
    run(tmp_path, script + TRAIN, is_followed=False)
    held = list_cached(tmp_path / "cache")
    log, _, facts = run(tmp_path, script + TRAIN)
    assert facts["graphs"] == 2 and len(list_graphs(log)) == 2 and not facts["cached_graphs"]
    assert list_cached(tmp_path / "cache") == held
    assert {cache for cache, _ in held} >= {"fxgraph"}


WITHOUT_LEVEL = f"""
import torch._inductor.config
{WHOLE}
torch._inductor.config.trace.provenance_tracking_level = 0
"""
WITHOUT_HOOKS = f"""
import torch._dynamo.eval_frame, torch._inductor.codegen.triton
for kind in torch._inductor.codegen.triton.TritonKernel.__mro__:
    if "call_kernel" in vars(kind):
        del kind.call_kernel
del torch._dynamo.eval_frame.skip_code
{WHOLE}
"""
OTHER_COMMENTS = f"""
import re
sys.modules["profiler_job_injected.compiled_graphs"]._HANDLES = re.compile("^never$")
{WHOLE}
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "named"),
    [
        pytest.param(WITHOUT_LEVEL, ["Inductor's code of a graph names none"], id="level"),
        pytest.param(WITHOUT_HOOKS, ["TritonKernel.call_kernel: AttributeError", "skip_code: ImportError"], id="hooks"),
        pytest.param(OTHER_COMMENTS, ["Inductor's code of a graph names none"], id="comments"),
    ],
)
def test_what_is_missing_in_pytorch_is_named_and_the_script_goes_on(tmp_path, script, named):
    _, losses, facts = run(tmp_path, script + TRAIN)
    assert losses and facts["graphs"] == 2
    errors = facts["graphs_errors"]
    assert len(errors) == len(named) and all(error.startswith(name) for error, name in zip(errors, named))


@pytest.mark.nightly
def test_graphs_that_are_compiled_in_measured_steps_are_counted(tmp_path):
    changing = TRAIN.replace("called(x)", "called(torch.ones(8 + step, 16))")
    _, _, facts = run(tmp_path, WHOLE.replace("(model)", "(model, dynamic=False)") + changing)
    assert facts["late_graphs"] == 6 and facts["graphs"] > 6  # two in a timed, a captured and a followed step
    again = facts["recompilations"]
    assert [each["function"] for each in again] == ["forward"] * 3 and not any(each["gave_up"] for each in again)
    assert "size mismatch at index 0" in again[0]["reason"]


CALLS_PARTS = """
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        x = torch.nn.Module.__call__(self.first, x)
        torch._dynamo.graph_break()
        return torch.nn.Module.__call__(self.second, x)

model = Outer()
called = torch.compile(model)
"""


@pytest.mark.nightly
def test_to_follow_calls_compiles_nothing_again(tmp_path):
    """A broken model was compiled again in the first captured step, which took 8.7 s where others took 12 ms."""
    _, _, facts = run(tmp_path, CALLS_PARTS + TRAIN.replace("range(12)", "range(5)"))
    assert facts["late_graphs"] == 0


OF_A_SWEEP = """
import json, sys
import torch
from profiler_job.jobs.follow.compiled_graphs import CompiledGraphs
from profiler_job.jobs.follow.module_ranges import ModuleRanges
from profiler_job.jobs.worker.stepper import Stepper
from tests.jobs.test_worker import FIELDS

log = []
ranges, graphs = ModuleRanges(log.append, lambda: log.append("end")), CompiledGraphs()
graphs.begin()
stepper = Stepper(FIELDS | {"mode": "train_step", "compile": sys.argv[1]}, torch.device("cpu"))
stepper.step()
stepper.follow_modules(ranges, graphs)
print(json.dumps(log))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "region"), [("default", ""), ("blocks", "block_1/")])
def test_a_compiled_run_of_a_sweep_names_its_modules_as_an_eager_one(tmp_path, how, region):
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OF_A_SWEEP, how], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert not done.returncode, done.stderr
    log = json.loads(done.stdout.splitlines()[-1])
    graphs = list_graphs(log)
    assert [graph[0] for graph in graphs] == ["forward", "backward"]
    named = {share.rpartition("=")[0] for name in graphs[0][-1] for share in name.split("|")[1:]}
    inside = "" if region else "block_1/"
    assert {f"{inside}attention/qkv_proj", f"{inside}attention/o_proj", f"{inside}ffn"} <= named
    assert ("lm_head" in named) == (how == "default")
    assert set(list_calls(log)) == {"0", "1"}
    assert "(compiled)" in log and f"modules:backward/{region}(compiled)" in log
    assert ("lm_head" in log and "block_1" in log) == (how == "blocks")
    assert {"modules:optimizer/block_1/attention/qkv_proj", "modules:optimizer/embedding"} <= set(log)
    assert not any("optimizer/" in name and "(compiled)" in name for name in log)


WRITTEN = """
        # [Provenance debug handles] triton_per_fused_native_layer_norm_1:4
        triton_per_fused_native_layer_norm_1.run(buf1, workspace_0, 8, 16, stream=stream0)
        buf3 = workspace_0[0 * (4) * (16) : (0 + 1) * (4) * (16)].view(4, 16).sum(dim=0)
        buf5 = workspace_0[1 * (4) * (16) : (1 + 1) * (4) * (16)].view(4, 16).sum(dim=0).to(torch.bfloat16)
        # [Provenance debug handles] extern_kernels.mm:5
        extern_kernels.mm(buf1, arg2, out=buf4)
        aten.index_put_(buf6, [arg3], buf4, True)
"""


def test_calls_that_inductor_notes_nothing_of_are_found_in_its_code():
    from profiler_job.jobs.follow.compiled_graphs import find_calls

    assert list(find_calls(WRITTEN.splitlines())) == [
        "triton_per_fused_native_layer_norm_1:4",
        *["aten.sum", "aten.sum", "aten.to"],
        "extern_kernels.mm:5",
        "aten.index_put_",
    ]


def test_a_node_that_inductor_made_has_the_innermost_modules_of_what_it_reads():
    from profiler_job.jobs.follow.compiled_graphs import read_modules

    def make(stack, *inputs, op="call_function"):
        meta = {"fwd_nn_module_stack": {str(at): (path, None) for at, path in enumerate(stack, 1)}} if stack else {}
        return SimpleNamespace(meta=meta, op=op, all_input_nodes=inputs)

    gradient, weight = (
        make(["L['self']", "L['self'].attn"]),
        make(["L['self']", "L['self'].attn", "L['self'].attn.gate"]),
    )
    padded = make([], make([], gradient, make([], op="placeholder")), make([], weight))
    assert read_modules(padded) == ((1, ""), (2, "attn"), (3, "attn.gate"))
    assert read_modules(make([], make([], op="placeholder"))) == ()
    again = SimpleNamespace(meta={"nn_module_stack": {"7@1": ("L['model']", None), "call": ("call 0 4", None)}})
    assert read_modules(again) == ((7, ""), (0, "call 0 4")), "a module that is called once more"


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        ([[(3, "")]], ("GPT/head", [""])),
        ([[(1, ""), (2, "norm")], []], ("GPT/blocks.0", ["norm", ""])),
        ([[(3, "")], [(1, ""), (2, "norm")], []], ("GPT", ["head", "blocks.0/norm", ""])),
        ([[(3, "head")], [(2, "")]], ("GPT", ["head", "blocks.0/norm"])),
        ([[(9, "other")]], ("", ["other"])),
    ],
)
def test_the_module_whose_function_is_compiled_is_known_by_the_modules_inside(stacks, expected):
    """After a break `self.head(self.blocks[0](x))` calls both from the stack, where they have no names."""
    from profiler_job.jobs.follow.compiled_graphs import Graph, Launch, find_root, join_levels

    paths = {1: "GPT (compiled)/blocks.0", 2: "GPT (compiled)/blocks.0/norm", 3: "GPT (compiled)/head"}
    root, graph = find_root(Graph(False, [Launch("k", {tuple(levels): 1}) for levels in stacks]), paths)
    named = [join_levels(levels) for launch in graph.launches for levels in launch.shares]
    assert (root, named) == expected


LOOPED = """
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = torch.nn.ModuleList(Odd() for _ in range(2)), Leaf(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

class Odd(Block):
    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)

class Leaf(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias).tanh()

model = Outer()
called = torch.compile(model)
"""


@pytest.mark.nightly
def test_a_leaf_whose_own_call_is_compiled_is_named(tmp_path):
    """A break in a loop leaves the function around it as it is, so that each module is compiled by itself."""
    source = LOOPED + TRAIN.replace("print(", SEE_KERNELS + "print(").replace("list_facts()]", "list_facts(), kernels]")
    log, losses, _, kernels = run(tmp_path / "followed", source)
    assert {("forward", "Outer/head"), ("backward", "Outer/head")} <= {graph[:2] for graph in list_graphs(log)}
    _, without, _, kernels_without = run(tmp_path / "without", source, is_followed=False)
    assert losses == without[: len(losses)] and kernels == kernels_without != []


CONTAINERS = """
class Breaks(torch.nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()
        return x

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        blocks = [Block(), Breaks(), Block()]
        self.{name} = torch.nn.{kind}
        self.norm, self.head = torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        {run}
        return self.head(self.norm(x))

model = Outer()
called = torch.compile(model)
"""
LISTED = CONTAINERS.format(name="blocks", kind="ModuleList(blocks)", run="for block in self.blocks: x = block(x)")
NAMED = CONTAINERS.format(
    name="parts",
    kind="ModuleDict(dict(h=torch.nn.ModuleList(blocks), drop=torch.nn.GELU()))",
    run="for block in self.parts.h: x = block(self.parts.drop(x))",
)
SEQUENTIAL = CONTAINERS.format(name="blocks", kind="Sequential(*blocks)", run="x = self.blocks(x)")
SEE_GRAPHS = """
from torch._dynamo.utils import counters
compiled = [counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "num"),
    [
        pytest.param(LISTED, 2, id="loop over blocks"),
        pytest.param(SEQUENTIAL, 3, id="Sequential"),
        pytest.param(NAMED, 2, id="ModuleDict"),
        pytest.param(REGIONAL, 2, id="regional"),
    ],
)
def test_as_many_graphs_are_compiled_as_without_following(tmp_path, script, num):
    """A function that a break leaves to Python calls modules: our call around these was compiled, with leaves of
    torch.nn that are run as they are without."""
    source = script + TRAIN.replace("print(", SEE_GRAPHS + SEE_KERNELS + "print(")
    source = source.replace("list_facts()]", "list_facts(), compiled, kernels]")
    _, losses, facts, *compiled = run(tmp_path / "followed", source)
    _, without, _, *compiled_without = run(tmp_path / "without", source, is_followed=False)
    assert compiled == compiled_without and compiled[0][0] == num and compiled[1]
    assert losses == without[: len(losses)] and not facts["late_graphs"]


COMPILED_UPDATE = """
@torch.compile
def update(p, grad):
    p.sub_(grad)

class Descent(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                update(p, p.grad)

called = model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
"""


@pytest.mark.nightly
def test_a_compiled_optimizer_runs_compiled_in_followed_steps(tmp_path):
    """In a dispatch mode PyTorch would run it eagerly: other kernels than in measured steps."""
    source = COMPILED_UPDATE + TRAIN.replace("torch.optim.SGD", "Descent")
    log, _, facts = run(tmp_path, source)
    assert "modules:optimizer/(all parameters)" in log and facts["late_graphs"] == 0


@pytest.mark.nightly
def test_graphs_of_dynamic_shapes_have_modules(tmp_path):
    source = WHOLE.replace("(model)", "(model, dynamic=True)") + TRAIN.replace(
        "called(x)", "called(torch.ones(8 + step % 4, 16))"
    )
    log, _, facts = run(tmp_path, source)
    assert facts["graphs"] == len(list_graphs(log)) and facts["late_graphs"] == 0
    assert [list_graphs(log)[int(number)][0] for number in list_calls(log)] == ["forward", "backward"]
    (*_, forward), (*_, backward) = list_graphs(log)[-2:]
    named = {name.partition("|")[2] for name in forward}
    assert {f"blocks.{block}/mlp/{part}=100" for block in (0, 1) for part in (0, 2)} <= named
    assert all("|" in name for name in backward)


SEE_KERNELS = """
import pathlib, re, sys
texts = [path.read_text() for path in pathlib.Path(sys.argv[1]).rglob("*.py")]
kernels = sorted(name for text in texts for name in re.findall(r"^(cpp_\\w+) = ", text, re.MULTILINE))
"""
COMPILED_BACKWARD = """
torch._dynamo.config.compiled_autograd = True

@torch.compile
def called(x):
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()
"""
EAGER_FORWARD = """
from torch._dynamo import compiled_autograd

def called(x):
    loss = model(x).square().mean()
    with compiled_autograd._enable(torch.compile):
        loss.backward()
    return loss.detach()
"""
COMPILED_BLOCKS = "for block in model.blocks:\n    block.compile()\n" + EAGER_FORWARD
ACCUMULATED = (
    COMPILED_BACKWARD
    + """
once = called

def called(x):
    return once(x) + once(x[::2])
"""
)
LINEAR = [f"blocks.{block}/mlp/{part}" for block in (0, 1) for part in (0, 2)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "above", "breaks"),
    [
        pytest.param(COMPILED_BACKWARD, "Model/", ["Unsupported Tensor.backward() call"], id="all"),
        pytest.param(EAGER_FORWARD, "Model/", [], id="eager forward"),
        pytest.param(COMPILED_BLOCKS, "Model/", [], id="compiled blocks"),
        pytest.param(ACCUMULATED, "Model/", ["Unsupported Tensor.backward() call"], id="accumulation, dynamic shapes"),
    ],
)
def test_what_compiled_autograd_compiles_has_modules_and_is_compiled_once(tmp_path, script, above, breaks):
    """To follow it makes no graph and breaks none: functions of this program are no part of what is compiled. Its
    kernels have the names that they have without."""
    source = script + TRAIN.replace("called(x).square().mean()", "called(x)").replace("loss.backward()", "pass")
    source = source.replace("print(", SEE_KERNELS + "print(").replace("list_facts()]", "list_facts(), kernels]")
    log, losses, facts, kernels = run(tmp_path / "followed", source)
    backward = next(graph for graph in list_graphs(log)[::-1] if graph[0] == "backward")
    named = [name.partition("|")[2].rpartition("=")[0] for name in backward[-1]]
    assert all(named) and {f"{above}{path}" for path in LINEAR} <= set(named)
    matmuls = [name.partition("|")[2] for name in backward[-1] if name.startswith("extern_kernels.")]
    assert sorted(matmuls) == sorted(f"{above}{path}=100" for path in LINEAR * 2)
    assert log[log.index("modules:backward/(compiled autograd)") - 1] == "modules:backward"
    assert "modules:backward/(gradient accumulation)" not in log and list_calls(log)
    assert facts["late_graphs"] == 0 and list_reasons(facts) == breaks and not facts["compiled_autograd"]
    _, without, _, kernels_without = run(tmp_path / "without", source, is_followed=False)
    assert losses == without[: len(losses)] and kernels == kernels_without


FUNCTION = """
@torch.compile
def called(x):
    return model(x).square().mean()
"""
METHOD = """
model.forward = torch.compile(model.forward)

def called(x):
    return model(x).square().mean()
"""
TWO_MODELS = """
teacher = torch.nn.Linear(16, 16)

@torch.compile
def called(x):
    return (model(x) - teacher(x)).square().mean()
"""
STEP = COMPILED_BACKWARD.replace("torch._dynamo.config.compiled_autograd = True\n", "")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "above", "region", "others"),
    [
        pytest.param(FUNCTION, "Model/", "(compiled)", set(), id="loss inside"),
        pytest.param(STEP, "Model/", "(compiled)", set(), id="backward inside"),
        pytest.param(TWO_MODELS, "Model/", "(compiled)", {"Linear"}, id="two models"),
        pytest.param(METHOD, "", "Model/(compiled)", set(), id="a method of the model"),
    ],
)
def test_a_compiled_function_has_a_phase_and_modules(tmp_path, script, above, region, others):
    """It calls no module, so its kernels had neither. What is compiled is the same as without."""
    source = script + TRAIN.replace("called(x).square().mean()", "called(x)").replace("range(12)", "range(4)")
    if "backward" in script:
        source = source.replace("        loss.backward()\n", "")
    source = source.replace("print(", SEE_KERNELS + "print(").replace("list_facts()]", "list_facts(), kernels]")
    log, losses, facts, kernels = run(tmp_path / "followed", source)
    for number, graph in enumerate(list_graphs(log)):
        matmuls = {name.partition("|")[2] for name in graph[-1] if name.startswith("extern_kernels.")}
        assert matmuls == {f"{path}=100" for path in [*others, *(f"{above}{each}" for each in LINEAR)]}
        assert graph[0] == ("forward", "backward")[number] and all("|" in name for name in graph[-1])
    assert log[log.index("zero_grad") + 2 :][:2] == ["forward", "end"]
    assert list_calls(log) == (["0 broken", "1 broken"] if "backward" in script else ["0", "1"])
    opened = log[log.index("modules:forward") :]
    assert opened[1 : 1 + len(region.split("/"))] == region.split("/") and f"modules:backward/{region}" in log
    assert facts["graphs"] == 2 and facts["late_graphs"] == 0
    _, without, _, kernels_without = run(tmp_path / "without", source, is_followed=False)
    assert losses == without[: len(losses)] and kernels == kernels_without
