"""Changes that are switched on and off while a script runs: off, it computes what it computes alone."""

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils import checkpoint as checkpoints
from torch.utils.data import DataLoader

from profiler_job.jobs.contract.changes import CHANGES, TRIABLE
from profiler_job.jobs.follow.apply_changes import Changes
from profiler_job.jobs.follow.changes import compile as compiling
from profiler_job.jobs.follow.kernel_shares import add_up_kernels
from profiler_job.jobs.follow.script_facts import count_flops

SWITCHED = [name for name in TRIABLE if not CHANGES[name].needs_process]
KINDS = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and "__init__" in vars(kind)]


@pytest.fixture
def ready(monkeypatch):
    """Have changes ready in this process, all off, and restore PyTorch afterwards."""
    holders = [(torch.autograd, "backward"), (torch.autocast, "__enter__"), (nn.Module, "__call__")]
    holders += [(torch, "set_float32_matmul_precision"), (torch, "compile"), (checkpoints, "checkpoint")]
    holders += [(nn.Module, "zero_grad"), (optimizers.Optimizer, "zero_grad"), (DataLoader, "__init__")]
    for holder, name in [*holders, *((kind, "__init__") for kind in KINDS)]:
        monkeypatch.setattr(holder, name, getattr(holder, name))
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(optimizers, hooks, getattr(optimizers, hooks).copy())
    monkeypatch.setattr(compiling, "BACKEND", "eager")

    def make(*names: str) -> Changes:
        changes = Changes(names, are_on=False)
        changes.apply()
        return changes

    yield make
    torch.set_autocast_enabled("cpu", False)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 1030)
        self.num_up = 0

    def widen(self, x):
        self.num_up += 1
        return torch.tanh(self.up(x))

    def forward(self, x):
        return self.down(checkpoints.checkpoint(self.widen, x, use_reentrant=False))


def train(changes=None, variants=((),) * 6, kind=torch.optim.AdamW, **options):
    """Train a step for each variant, and return the model, the optimizer and the losses to the bit."""
    torch.manual_seed(0)
    model = Model()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    losses = []
    for variant in variants:
        loss = model(torch.randn(4, 8)).float().square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if changes is not None:
            changes.switch(variant)
    return model, optimizer, losses


def test_changes_that_are_off_change_nothing(ready):
    *_, alone = train()
    *_, followed = train(ready(*SWITCHED))
    assert followed == alone


@pytest.mark.parametrize("name", [name for name in SWITCHED if name not in ("cuda_graphs", "cudnn_benchmark")])
def test_a_change_that_was_on_and_is_off_leaves_nothing_behind(ready, name):
    """A script trains on with the weights of the variant, so what it computes from then on is compared."""
    changes = ready(name)
    model, _, _ = train(changes, [(), (name,), (name,), (), ()], foreach=False)
    x = torch.randn(4, 8)
    clean = Model()
    clean.load_state_dict(model.state_dict())
    assert torch.equal(model(x), clean(x))
    for holder in (torch.Tensor,):
        assert not {"to", "cuda", "item", "__float__"} & vars(holder).keys()
    assert not torch.is_autocast_enabled("cpu") and torch.get_float32_matmul_precision() == "highest"


def test_autocast_is_on_in_the_turns_of_its_variant(ready):
    changes, seen = ready("bf16"), []
    torch.manual_seed(0)
    model = Model()
    model.down.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    for variant in [(), ("bf16",), ("bf16",), (), ()]:
        model(torch.randn(4, 8)).float().square().mean().backward()
        changes.switch(variant)
    assert seen == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]


def test_autocast_that_the_script_opens_is_in_its_own_type_again(ready):
    changes, seen = ready("bf16"), []
    model = Model()
    context = torch.autocast("cpu", torch.float16)
    for variant in [("bf16",), ("bf16",), (), ()]:
        with context:
            seen.append(model(torch.randn(4, 8)).dtype)
        changes.switch(variant)
    assert seen == [torch.float16, torch.bfloat16, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", ["fused_adamw", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_forms_of_an_optimizer_take_turns(ready, kind, name):
    changes = ready(name)
    turns = [(), (name,), (), (name,), ()]
    _, optimizer, losses = train(changes, turns, kind, foreach=False)
    _, _, alone = train(None, turns, kind, foreach=False)
    assert losses == pytest.approx(alone, rel=1e-5)
    assert optimizer.param_groups[0]["foreach"] is False and not optimizer.param_groups[0].get("fused")
    changes.switch([name])
    form = "fused" if name == "fused_adamw" else "foreach"
    assert optimizer.param_groups[0][form] is True
    assert (getattr(optimizer, "_step_supports_amp_scaling", False)) == (form == "fused")


def test_an_optimizer_without_a_fused_form_is_an_obstacle(ready):
    changes = ready("fused_adamw")
    train(changes, kind=torch.optim.RMSprop)
    assert "fused_adamw" in changes.explain_obstacles()


@pytest.mark.parametrize("name", ["compile", "compile_blocks"])
def test_a_model_that_is_compiled_in_turns_is_compiled_once(ready, name):
    changes = ready(name)
    model = nn.Sequential(nn.ModuleDict({"blocks": nn.ModuleList([Model(), Model()])}))
    model.forward = lambda x: model[0]["blocks"][0](x)
    model(torch.randn(4, 8))
    changes.switch([name])
    parts = [part for part in model.modules() if part._compiled_call_impl is not None]
    kept = [part._compiled_call_impl for part in parts]
    assert len(parts) == (1 if name == "compile" else 2)
    changes.switch([])
    assert all(part._compiled_call_impl is None for part in parts)
    changes.switch([name])
    assert [part._compiled_call_impl for part in parts] == kept


class GraphMemory(torch.autograd.Function):
    """Writes its gradients to the same memory each time, as the CUDA graph of a backward pass does."""

    written: ClassVar[dict[int, torch.Tensor]] = {}

    @staticmethod
    def forward(context, *weights):
        context.weights = weights
        return sum(weight.detach().sum() for weight in weights)

    @staticmethod
    def backward(context, gradient):
        written = [GraphMemory.written.setdefault(id(each), torch.empty(each.shape)) for each in context.weights]
        for memory in written:
            memory.fill_(gradient.item())
        return tuple(torch.empty(0).set_(memory.untyped_storage(), 0, memory.shape) for memory in written)


class GraphedModel(nn.Linear):
    def forward(self, x):
        return GraphMemory.apply(*self.parameters())


def take_step(model, num_backwards, set_to_none=True):
    """Take a training step up to its update, and return what the gradients are."""
    for _ in range(num_backwards):
        model(None).backward()
    values = model.weight.grad.unique().tolist() + model.bias.grad.unique().tolist()
    model.zero_grad(set_to_none)
    return values


@pytest.fixture
def graphs(ready, monkeypatch):
    monkeypatch.setattr(compiling, "compile_in_place", lambda model, **options: None)
    monkeypatch.setattr(GraphMemory, "written", {})
    yield (changes := ready("cuda_graphs"))
    assert changes.changes["cuda_graphs"].gradients.hooks == {}


def test_gradients_in_the_memory_of_cuda_graphs_are_added_up_in_copies(graphs):
    model = GraphedModel(2, 2)
    assert take_step(model, 3) != [3.0, 3.0], "this is what the copies are for"
    graphs.switch(["cuda_graphs"])
    for _ in range(4):
        assert take_step(model, 3) == [3.0, 3.0]
        graphs.note_step(3)
    graphs.switch([])


def test_gradients_that_are_set_to_zero_stay_outside_cuda_graphs(graphs):
    model = GraphedModel(2, 2)
    model(None)
    graphs.switch(["cuda_graphs"])
    for _ in range(4):
        assert take_step(model, 1, set_to_none=False) == [1.0, 1.0]
        graphs.note_step(1)
    graphs.switch([])


def test_gradients_that_are_dropped_after_each_backward_pass_are_not_copied_for_long(graphs):
    model = GraphedModel(2, 2)
    model(None)
    change = graphs.changes["cuda_graphs"]
    for num_hooks in (2, 0, 0):
        graphs.switch(["cuda_graphs"])
        assert take_step(model, 1) == [1.0, 1.0]
        graphs.note_step(1)
        assert len(change.gradients.hooks) == num_hooks
        graphs.switch([])


def test_padded_outputs_are_the_same(ready):
    changes = ready("padding")
    model, x = Model(), torch.randn(4, 8)
    before = model(x)
    changes.switch(["padding"])
    assert "forward" in vars(model.down)
    after = model(x)
    assert after.shape == before.shape and torch.allclose(after, before, rtol=0, atol=1e-6)
    changes.switch([])
    assert "forward" not in vars(model.down)


def test_activations_are_kept_in_the_turns_of_that_variant(ready):
    changes = ready("keep_activations")
    model, *_ = train(changes, [(), ("keep_activations",), (), ()])
    assert model.num_up == 2 + 2 + 1 + 2


def test_fused_attention_is_given_to_models_of_transformers(ready):
    changes = ready("fused_attention")
    model = Model()
    model.config, model._supports_sdpa = SimpleNamespace(_attn_implementation="eager"), True
    model(torch.randn(4, 8))
    assert not changes.explain_obstacles()
    changes.switch(["fused_attention"])
    assert model.config._attn_implementation == "sdpa"
    changes.switch([])
    assert model.config._attn_implementation == "eager"


def test_gradients_are_dropped_where_the_script_asks_for_zeros(ready):
    changes = ready("dropped_gradients")
    model, optimizer, _ = train(changes, [()])
    assert not changes.explain_obstacles()
    changes.switch(["dropped_gradients"])
    optimizer.zero_grad(set_to_none=False)
    assert model.up.weight.grad is None


def test_what_has_no_gpu_or_is_not_there_is_an_obstacle(ready):
    changes = ready(*SWITCHED)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    obstacles = changes.explain_obstacles()
    assert {"tf32", "cuda_graphs", "copies", "synchronisations", "cudnn_attention"} <= obstacles.keys()
    assert {"fused_adamw", "foreach", "dropped_gradients", "padding", "compile_blocks"} <= obstacles.keys()
    assert not {"bf16", "compile"} & obstacles.keys()


def test_kernels_are_added_up_by_kind():
    operations = [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8", 0, 40),
        ("cutlass_80_tensorop_s1688gemm_128x128_tn_align1", 50, 70),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", 60, 90),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>", 100, 110),
        ("Memcpy HtoD (Pageable -> Device)", 120, 130),
        ("elementwise_kernel", 130, 140),
    ]
    sums = add_up_kernels(reversed(operations), 2)
    assert (sums["matmul"], sums["matmul_fp32"], sums["unaligned"]) == (30, 20, 10)
    assert (sums["attention"], sums["fill"], sums["pageable"], sums["other"]) == (15, 5, 5, 5)
    assert sums["busy"] == (40 + 40 + 10 + 20) / 2


def test_flops_of_a_token_are_those_of_linear_layers_and_attention():
    model = Model()
    inputs = [{"shape": [4, 512]}]
    assert count_flops(model, inputs) == 6.0 * (8 * 16 + 16 * 1030)
    model.config = SimpleNamespace(num_hidden_layers=2, hidden_size=64)
    of_linear_layers = 6.0 * (8 * 16 + 16 * 1030)
    assert count_flops(model, inputs) == of_linear_layers + 12.0 * 2 * 64 * 512
    next(model.children()).is_causal = True  # as attention of Hugging Face's models has it: the mask hides half
    assert count_flops(model, inputs) == of_linear_layers + 6.0 * 2 * 64 * 512
    model.config = None
    first = next(part for part in model.modules() if isinstance(part, torch.nn.Linear))
    first.weight.requires_grad_(False)  # as LoRA leaves weights: without their gradient
    assert count_flops(model, inputs) == 6.0 * (8 * 16 + 16 * 1030) - 2.0 * first.weight.numel()
    first.weight.data = first.weight.data.flatten()  # as FSDP keeps its part
    assert count_flops(model, inputs) == 0.0
