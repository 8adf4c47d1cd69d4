"""The formulas against known numbers, torch's own counter, and the operations that the model really runs."""

import pytest

from profiler_job.analysis.reference import flops
from profiler_job.analysis.reference.flops import Cost, StepShape, matmul_flops, num_matmuls, step_flops
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.workloads import annotation

SMALL = StepShape(
    batch_size=4, context_length=512, d_model=768, d_ff=3072, num_layers=12, num_heads=12, vocab_size=10_000
)
TINY = StepShape(batch_size=2, context_length=16, d_model=24, d_ff=40, num_layers=3, num_heads=4, vocab_size=50)


def test_query_key_of_the_small_size():
    assert flops.query_key(SMALL).flops == 1_610_612_736
    assert flops.attention_value(SMALL).flops == 1_610_612_736


def test_softmax_is_51_times_less_arithmetic_than_its_matmuls():
    matmuls = flops.query_key(SMALL).flops + flops.attention_value(SMALL).flops
    assert matmuls / flops.softmax(SMALL).flops == pytest.approx(51.2)


@pytest.mark.parametrize(("attention", "forward"), [("naive", 9 * 12 + 1), ("sdpa", 7 * 12 + 1)])
def test_number_of_matmuls(attention, forward):
    counts = [num_matmuls(SMALL, phase, attention) for phase in flops.PHASES]
    assert counts == [forward, 0, 2 * forward, 0]


@pytest.mark.parametrize(("attention", "of_layer"), [("naive", 9), ("sdpa", 7)])
def test_checkpointing_launches_all_matmuls_of_a_layer_again_but_the_last(attention, of_layer):
    kept, again = (num_matmuls(SMALL, "backward", attention, each) for each in ("off", "blocks"))
    assert again - kept == 12 * (of_layer - 1)
    assert num_matmuls(SMALL, "forward", attention, "blocks") == num_matmuls(SMALL, "forward", attention)


def test_matmuls_of_a_step_add_up():
    forward = matmul_flops(SMALL, "forward")
    assert step_flops(SMALL, "forward") == forward
    assert step_flops(SMALL, "train_step") == step_flops(SMALL, "forward_backward") == 3 * forward
    # six operations a weight and token (the embedding does no arithmetic), and attention's scores on top
    weights = flops.num_parameters(SMALL) - 25 * 768 - 10_000 * 768
    attention = 12 * 2 * flops.query_key(SMALL).flops
    assert 3 * forward == 6 * weights * SMALL.num_tokens + 3 * attention


def test_fused_attention_does_the_matmuls_of_eager_attention():
    eager = flops.query_key(SMALL).flops + flops.attention_value(SMALL).flops
    assert flops.fused_attention(SMALL).flops == eager


def test_causal_skipping_leaves_just_over_half():
    full, skipped = flops.fused_attention(SMALL), flops.fused_attention(SMALL, skip_masked=True)
    assert skipped.flops / full.flops == pytest.approx(513 / 1024)
    assert skipped.bytes == full.bytes


def test_scores_that_the_mask_hides_are_no_work_of_the_model():
    """The best MFU was at 8,192 tokens, where half of what was counted was never computed."""
    hidden = SMALL.num_scores - SMALL.num_unmasked
    of_scores = 3 * 4 * SMALL.num_layers * SMALL.d_head
    full, needed = (step_flops(SMALL, "train_step", skip_masked) for skip_masked in (False, True))
    assert full - needed == of_scores * hidden
    assert SMALL.num_unmasked / SMALL.num_scores == pytest.approx(513 / 1024)


def test_intensity_tells_matmuls_from_elementwise():
    assert flops.linear(2048, 768, 3072).intensity > 100
    assert flops.residual(2048, 768).intensity < 1
    assert Cost(6, 3) + Cost(1, 1) * 2 == Cost(8, 5)


def test_utilisation_is_none_without_a_peak():
    assert flops.utilisation(1e12, 0.5, 4e12) == 0.5
    assert flops.utilisation(1e12, 0.5, None) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: matmul_flops(SMALL, "forwards"),
        lambda: num_matmuls(SMALL, "forward", "paged"),
        lambda: step_flops(SMALL, "train"),
    ],
)
def test_unknown_words_are_refused_with_the_allowed_ones(call):
    with pytest.raises(ValueError, match="is unknown; choose one of"):
        call()


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(params=["naive", "sdpa"])
def model(torch, request):
    from profiler_job.jobs.workloads.transformer.model import TransformerLM

    model = TransformerLM(
        d_model=TINY.d_model,
        d_ff=TINY.d_ff,
        num_layers=TINY.num_layers,
        num_heads=TINY.num_heads,
        vocab_size=TINY.vocab_size,
        context_length=TINY.context_length,
        attention=request.param,
    )
    return model


def run(torch, model, backward):
    from profiler_job.jobs.workloads.transformer.model import compute_loss

    tokens = torch.randint(0, TINY.vocab_size, (TINY.batch_size, TINY.context_length))
    loss = compute_loss(model(tokens), tokens)
    if backward:
        loss.backward()


def test_forward_agrees_with_torchs_counter(torch, model):
    """torch counts causal SDPA in full and softmax as 0, so that both kinds of attention come out the same."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel([SDPBackend.MATH]), FlopCounterMode(display=False) as counter:
        run(torch, model, backward=False)
    assert counter.get_total_flops() == matmul_flops(TINY, "forward")


def test_backward_agrees_with_torchs_counter(torch, model):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel([SDPBackend.MATH]), FlopCounterMode(display=False) as counter:
        run(torch, model, backward=True)
    assert counter.get_total_flops() == step_flops(TINY, "train_step")


@pytest.mark.parametrize("mode", ["forward", "train_step"])
def test_the_llama_agrees_with_torchs_counter(torch, mode):
    from torch.utils.flop_counter import FlopCounterMode

    from profiler_job.jobs.workloads.llama.build import build

    sizes = {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 50}
    run = {"batch_size": 2, "context_length": 16, "attention": "naive", "mode": mode, "workload": "llama"}
    built = build(run, torch.device("cpu"), **sizes)
    with FlopCounterMode(display=False) as counter:
        loss = built.loss(built.model(*built.batch))
        if mode != "forward":
            loss.backward()
    run["workload_options"] = ", ".join(f"{name}={value}" for name, value in sizes.items())
    assert counter.get_total_flops() == flops.llama_step_flops(run)
    assert flops.llama_step_flops(run | {"workload": "hf"}) is None


@pytest.mark.parametrize("model", ["naive"], indirect=True)  # fused attention hides its matmuls
def test_matmuls_are_launched_as_often_as_counted(torch, model):
    assert count_matmuls(torch, model, backward=False) == num_matmuls(TINY, "forward")
    both = num_matmuls(TINY, "forward") + num_matmuls(TINY, "backward")
    assert count_matmuls(torch, model, backward=True) == both


@pytest.mark.parametrize("model", ["naive"], indirect=True)
def test_matmuls_are_launched_again_as_often_as_counted(torch, model):
    from profiler_job.jobs.worker.stepper import checkpoint_blocks

    checkpoint_blocks(model)
    both = num_matmuls(TINY, "forward") + num_matmuls(TINY, "backward", checkpointing="blocks")
    assert count_matmuls(torch, model, backward=True) == both


def count_matmuls(torch, model, backward):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        matmuls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.matmuls += function.overloadpacket.__name__ in ("mm", "bmm", "addmm", "baddbmm")
            return function(*args, **(kwargs or {}))

    with Count() as count:
        run(torch, model, backward)
    return count.matmuls


def test_the_optimizer_moves_what_the_formula_says(torch):
    from torch.utils._python_dispatch import TorchDispatchMode

    from profiler_job.jobs.workloads.adamw import AdamW

    class Traffic(TorchDispatchMode):
        elements = 0
        kernels = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            read = {id(tensor): tensor.numel() for tensor in args if isinstance(tensor, torch.Tensor)}
            self.elements += sum(read.values()) + result.numel()
            self.kernels += 1
            return result

    parameter = torch.randn(10, 10)
    parameter.grad = torch.randn(10, 10)
    optimizer = AdamW([parameter])
    optimizer.step()  # the first step allocates the moments too
    with Traffic() as traffic:
        optimizer.step()
    assert traffic.kernels == 8
    assert traffic.elements * flops.FP32_BYTES == flops.adamw_unfused(100).bytes
    assert flops.adamw(100).bytes < flops.adamw_unfused(100).bytes


def test_kernels_of_a_forward_pass_do_the_operations_of_its_modules_and_move_more():
    kernels, layers, n = {}, SMALL.num_layers, SMALL.num_tokens
    for (module, family), cost in flops.kernel_costs(SMALL).items():
        part = "matmuls" if family == "gemm" else module
        kernels[part] = kernels.get(part, Cost(0, 0)) + cost
    assert set(kernels) - {"block", "matmuls"} <= set(ranges.MODULES)
    assert kernels["matmuls"].flops == matmul_flops(SMALL, "forward")
    for module, least in {
        "norm": flops.rms_norm(n, SMALL.d_model) * (2 * layers + 1),
        "rope": flops.rope(SMALL) * layers,
        "softmax": flops.softmax(SMALL) * layers,
        "ffn": flops.swiglu_gate(n, SMALL.d_ff) * layers,
        "block": flops.residual(n, SMALL.d_model) * (2 * layers),
    }.items():
        assert kernels[module].flops == least.flops and kernels[module].bytes >= least.bytes, module


def test_matmuls_one_by_one_are_the_gemm_kernels_of_a_forward_pass():
    together = {(name, "gemm"): cost * number for name, (cost, number) in flops.matmul_costs(SMALL).items()}
    assert together == {key: cost for key, cost in flops.kernel_costs(SMALL).items() if key[1] == "gemm"}
    assert sum(number for _, number in flops.matmul_costs(SMALL).values()) == 9 * SMALL.num_layers + 1


@pytest.mark.parametrize("model", ["naive"], indirect=True)
def test_kernels_of_a_forward_pass_move_what_the_model_really_reads_and_writes(torch, model):
    """Each operation that the model dispatches, by range: its operands once and its results once."""
    from contextlib import contextmanager

    from torch.utils._python_dispatch import TorchDispatchMode

    moved, opened = {}, ["step"]
    views = {"view", "_unsafe_view", "t", "transpose", "expand", "slice", "unsqueeze", "detach", "alias"}

    @contextmanager
    def open_range(name):
        opened.append("block" if name.startswith(ranges.BLOCK_PREFIX) else name)
        yield
        opened.pop()

    class Traffic(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function.overloadpacket.__name__ not in views:
                operands = [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else [arg])]
                results = result if isinstance(result, tuple) else [result]
                tensors = {id(one): one for one in operands if isinstance(one, torch.Tensor) and one.dim()}
                touched = [*tensors.values(), *results]
                moved[opened[-1]] = moved.get(opened[-1], 0) + sum(one.numel() * one.itemsize for one in touched)
            return result

    tokens = torch.randint(TINY.vocab_size, (TINY.batch_size, TINY.context_length))
    with torch.no_grad(), annotation.opened_by(open_range), Traffic():
        model(tokens)
    formula = {}
    for (module, _), cost in flops.kernel_costs(TINY).items():
        formula[module] = formula.get(module, 0) + cost.bytes
    assert moved.keys() == formula.keys()
    del moved["embedding"], formula["embedding"]  # the rows that it needs, not the whole table
    assert moved == formula
