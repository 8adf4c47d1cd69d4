"""The model against plain references, its operations counted, its ranges recorded."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from profiler_job.jobs.contract import ranges
from profiler_job.jobs.worker.stepper import join_numbers
from profiler_job.jobs.workloads import annotation
from profiler_job.jobs.workloads.transformer.model import (
    RotaryEmbedding,
    TransformerLM,
    compute_loss,
    name_ranges,
    softmax,
)
from profiler_job.jobs.workloads.transformer.sizes import MODEL_SIZES, VOCAB_SIZE, ModelSize

SHAPE = {"d_model": 32, "d_ff": 48, "num_layers": 3, "num_heads": 4, "vocab_size": 50, "context_length": 12}
MATMULS = {"mm", "bmm", "addmm", "baddbmm"}


@pytest.fixture(params=["naive", "sdpa"])
def attention(request):
    return request.param


def build(
    attention: str = "naive", dtype: torch.dtype = torch.float64, **changes
) -> tuple[TransformerLM, torch.Tensor]:
    """A small model with norm weights that are not 1, and token ids [2, T + 1]."""
    torch.manual_seed(1)
    shape = SHAPE | changes
    model = TransformerLM(**shape, attention=attention)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.to(dtype), torch.randint(shape["vocab_size"], (2, shape["context_length"] + 1))


def reference_rope(x: torch.Tensor) -> torch.Tensor:
    """Rotation of each pair by position * 10000^(-2i/K), as a product of complex numbers. x [B, H, T, K]."""
    positions, d_head = torch.arange(x.shape[-2]).double(), x.shape[-1]
    angle = positions[:, None] * 10_000.0 ** (-torch.arange(0, d_head, 2).double() / d_head)
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def reference_logits(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """The same network from PyTorch's own functions, from a dict of its parameters."""

    def norm(x, name):
        return F.rms_norm(x, (x.shape[-1],), weights[f"{name}.weight"], eps=1e-5)

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"])

    x = F.embedding(tokens, weights["embedding.weight"])
    for i in range(SHAPE["num_layers"]):
        block = f"blocks.{i}"
        h = norm(x, f"{block}.attention_norm")
        q, k, v = (
            linear(h, f"{block}.attention.{name}_proj").unflatten(-1, (SHAPE["num_heads"], -1)).transpose(1, 2)
            for name in "qkv"
        )
        heads = F.scaled_dot_product_attention(reference_rope(q), reference_rope(k), v, is_causal=True)
        x = x + linear(heads.transpose(1, 2).flatten(-2), f"{block}.attention.o_proj")
        h = norm(x, f"{block}.ffn_norm")
        x = x + linear(F.silu(linear(h, f"{block}.ffn.w1")) * linear(h, f"{block}.ffn.w3"), f"{block}.ffn.w2")
    return linear(norm(x, "final_norm"), "lm_head")


def test_logits_and_gradients_equal_a_plain_reference(attention):
    model, tokens = build(attention, torch.float32)
    logits = model(tokens[:, :-1])
    compute_loss(logits, tokens[:, 1:]).backward()

    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    expected = reference_logits(weights, tokens[:, :-1])
    F.cross_entropy(expected.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, weights[name].grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: n + m
        )


def test_naive_and_fused_attention_agree():
    (naive, tokens), (fused, _) = build("naive"), build("sdpa")
    torch.testing.assert_close(naive(tokens[:, :-1]), fused(tokens[:, :-1]), rtol=1e-5, atol=1e-6)


def test_a_token_sees_only_what_came_before_it(attention):
    model, tokens = build(attention)
    tokens = tokens[:, :-1]
    before = model(tokens)
    for position in (3, SHAPE["context_length"] - 1):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % SHAPE["vocab_size"]
        after = model(changed)
        assert torch.equal(before[:, :position], after[:, :position])
        assert not torch.allclose(before[:, position], after[:, position])


def test_rope_is_a_rotation_by_complex_numbers():
    rope = RotaryEmbedding(16, 20)
    x = torch.randn(2, 3, 20, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rope(x), reference_rope(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rope(x).norm(dim=-1), x.norm(dim=-1))


def test_rope_scores_depend_on_distance_alone():
    rope = RotaryEmbedding(16, 20)
    q, k = (torch.randn(16, generator=torch.Generator().manual_seed(seed)).expand(1, 1, 20, 16) for seed in (0, 1))
    scores = (rope(q) @ rope(k).transpose(-2, -1))[0, 0]
    for distance in range(-5, 6):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_softmax_equals_torchs_and_survives_large_scores():
    x = torch.randn(4, 7, dtype=torch.float64) * 5 + 1000
    x[:, -1] = float("-inf")
    torch.testing.assert_close(softmax(x), x.softmax(-1))


class Operations(TorchDispatchMode):
    """Counter of the operations that reach a device."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    @property
    def num_matmuls(self) -> int:
        return sum(self.counts[name] for name in MATMULS)


@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_forward_has_9l_plus_1_matmuls_and_backward_18l_plus_2(num_layers):
    model, tokens = build(num_layers=num_layers)
    with Operations() as forward:
        logits = model(tokens[:, :-1])
    loss = compute_loss(logits, tokens[:, 1:])
    with Operations() as backward:
        loss.backward()
    assert forward.num_matmuls == 9 * num_layers + 1
    assert backward.num_matmuls == 18 * num_layers + 2


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 50_257])
@pytest.mark.parametrize("size", MODEL_SIZES)
def test_the_parameter_count_is_the_modules(size, vocab_size):
    shape = MODEL_SIZES[size]._asdict() | {"vocab_size": vocab_size, "context_length": 8, "attention": "naive"}
    with torch.device("meta"):
        model = TransformerLM(**shape)
    assert MODEL_SIZES[size].num_parameters(vocab_size) == sum(parameter.numel() for parameter in model.parameters())


def test_the_sizes_are_those_of_the_course_and_one_more():
    assert {
        "small": ModelSize(768, 3072, 12, 12),
        "medium": ModelSize(1024, 4096, 24, 16),
        "large": ModelSize(1280, 5120, 36, 20),
        "xl": ModelSize(1600, 6400, 48, 25),
        "2.7B": ModelSize(2560, 10240, 32, 32),
        "1.3B": ModelSize(2048, 5504, 24, 16),
    } == MODEL_SIZES
    assert {size.d_head for size in MODEL_SIZES.values()} == {64, 80, 128}


def test_nothing_has_a_bias_and_the_head_is_untied():
    model, _ = build()
    names = dict(model.named_parameters(remove_duplicate=False))
    assert not [name for name in names if "bias" in name]
    assert names["embedding.weight"] is not names["lm_head.weight"]


def test_norms_are_computed_in_float32_under_autocast():
    model, tokens = build(dtype=torch.float32)
    seen = []
    model.blocks[0].attention_norm.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(tokens[:, :-1]).dtype == torch.bfloat16
    assert seen == [torch.float32]


class Recorder:
    """Stands for the NVTX opener: paths of the ranges in the order they open."""

    def __init__(self):
        self.open: list[str] = []
        self.paths: list[str] = []

    @contextmanager
    def __call__(self, name: str):
        self.open.append(name)
        self.paths.append("/".join(self.open))
        yield
        assert self.open.pop() == name


@pytest.fixture
def recorder():
    recorder = Recorder()
    annotation.use(recorder)
    yield recorder
    annotation.use(annotation._open_nothing)
    assert not recorder.open


def test_ranges_nest_as_documented(recorder, attention):
    model, tokens = build(attention, num_layers=2)
    model(tokens[:, :-1])
    inner = ["attention_scores", "softmax", "attention_output"] if attention == "naive" else ["fused_attention"]
    block = ["norm", "attention"]
    block += [f"attention/{name}" for name in ("qkv_proj", "rope", *inner, "o_proj")]
    block += ["norm", "ffn"]
    blocks = [path for i in range(2) for path in (f"block_{i}", *(f"block_{i}/{name}" for name in block))]
    assert recorder.paths == ["embedding", *blocks, "norm", "lm_head"]


def test_every_range_is_in_the_vocabulary(recorder, attention):
    model, tokens = build(attention, num_layers=2)
    model(tokens[:, :-1])
    names = {path.rpartition("/")[2] for path in recorder.paths}
    assert names <= {*ranges.MODULES, ranges.name_block(0), ranges.name_block(1)}


def test_an_unused_range_is_one_shared_object_that_does_nothing():
    assert annotation.annotate("forward") is annotation.annotate("softmax")
    with annotation.annotate("forward") as value:
        assert value is None


def test_no_ranges_opens_nothing_and_restores_the_opener_after_an_error(recorder):
    with pytest.raises(RuntimeError), annotation.no_ranges(), annotation.annotate("step"):
        raise RuntimeError
    with annotation.annotate("forward"):
        pass
    assert recorder.paths == ["forward"]


def test_a_compiled_run_names_modules_by_the_ranges_that_an_eager_one_opens():
    size = dict(d_model=16, d_ff=32, num_layers=11, num_heads=2, vocab_size=50, context_length=8)
    model, open_names, paths = TransformerLM(**size), [], set()

    @contextmanager
    def note(name):
        open_names.append(name)
        paths.add("/".join(open_names))
        yield
        open_names.pop()

    with annotation.opened_by(note):
        model(torch.zeros(1, 8, dtype=torch.long))
    with_parameters = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    named = {name_ranges(join_numbers(name)) for name in with_parameters}
    assert named <= paths and {"block_10/attention/qkv_proj", "block_10/ffn", "norm", "lm_head"} <= named
