"""Calls of a step with larger batches, fewer passes and a fused loss, compared with those of recorded steps."""

from collections import Counter

import pytest
import torch
from torch import nn

from profiler_job.jobs.contract.changes import FEWER_ACCUMULATIONS, FUSED_LOSS, LARGER_BATCH
from profiler_job.jobs.executor.changed_calls import change_calls
from profiler_job.jobs.executor.described_calls import list_inputs, name_operator
from profiler_job.jobs.executor.predicted_steps import StepParts
from profiler_job.jobs.follow.measured_parts import PartsMeasurement, can_repeat
from profiler_job.jobs.follow.step_calls import CallRecorder

WIDTH, TOKENS, WORDS = 16, 8, 20
MS = 1e6


class Model(nn.Module):
    """A small language model with attention that is written out, or fused, and a mask without a batch."""

    def __init__(self, is_fused: bool):
        super().__init__()
        self.is_fused = is_fused
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.norm, self.before, self.after = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).tril().view(1, 1, TOKENS, TOKENS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(TOKENS))
        parts = self.before(self.norm(x)).view(len(x), TOKENS, 3, 4, 4).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        if self.is_fused:
            y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = (query @ key.transpose(-1, -2)).masked_fill(self.mask == 0, float("-inf"))
            y = nn.functional.dropout(scores.softmax(-1), 0.1) @ value
        return self.head(nn.functional.gelu(x + self.after(y.transpose(1, 2).reshape(x.shape))))


def lose(logits, targets):
    return nn.functional.cross_entropy(logits.float(), targets)


def lose_as_on_gpus(logits, targets):
    """As autocast of GPUs does it: log-softmax stays in the type of the logits, and its results are cast."""
    with torch.autocast("cpu", enabled=False):
        return nn.functional.nll_loss(logits.log_softmax(-1).float(), targets)


def record(rows: int, is_fused: bool = True, num_passes: int = 1, is_bf16: bool = False, loss_of=lose) -> dict:
    """Record a step."""
    torch.manual_seed(0)
    model = Model(is_fused)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batches = [torch.randint(0, WORDS, (rows, TOKENS)) for _ in range(num_passes)]
    phases = [""]
    recorder = CallRecorder(lambda: phases[-1])
    with recorder:
        for tokens in batches:
            phases.append("")
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                loss = loss_of(model(tokens).view(-1, WORDS), tokens.view(-1))
            phases.append("backward")
            loss.backward()
        phases.append("optimizer")
        optimizer.step()
    step = {"calls": recorder.calls, "numbers": recorder.numbers, "optimizer": None}
    return step | {"rows": rows, "factor": num_passes}


def count(calls) -> Counter:
    return Counter(
        (name_operator(call), *(f"{each['dtype']}{each['shape']}" for each in list_inputs(call)))
        for call in calls
        if not call["is_view"]
    )


@pytest.mark.parametrize("is_bf16", [False, True])
@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("rows", [2, 3, 4])
def test_calls_of_a_larger_batch_are_those_of_a_step_that_has_it(rows, is_fused, is_bf16):
    """With two rows, activations have the shape of a weight."""
    larger = change_calls(record(rows, is_fused, is_bf16=is_bf16), [LARGER_BATCH])
    assert count(larger) == count(change_calls(record(2 * rows, is_fused, is_bf16=is_bf16), ()))


def test_heads_of_one_sequence_are_as_many_more():
    """Of one row each dimension is a multiple: heads and tokens."""
    larger, known = change_calls(record(1, is_fused=False), [LARGER_BATCH]), change_calls(record(2, is_fused=False), ())
    assert all(count(larger)[call] == number for call, number in count(known).items() if call[0] == "bmm")


def test_calls_of_fewer_passes_are_those_of_larger_micro_batches_each_as_often():
    """All but those that add gradients up, of passes after the first."""
    larger = count(change_calls(record(2, num_passes=4), [FEWER_ACCUMULATIONS]))
    once = count(change_calls(record(8), ()))
    passes = count(call for call in change_calls(record(8), ()) if call["phase"] != "optimizer")
    assert all(larger[call] == (4 if call in passes else 1) * number for call, number in once.items())
    assert {name for name, *_ in larger.keys() - once.keys()} == {"add_"}


def predict(step: dict, changes, time=lambda part: MS):
    kernels = dict.fromkeys(("matmul", "convolution", "attention", "busy"), 0.0)
    shares = {"step_ns": 2 * MS, "kernels": kernels, "issue": {"": MS, "optimizer": MS}}
    return StepParts(step, shares, lambda parts: [(time(part), 0.0) for part in parts]).predict(changes)


def test_the_work_of_a_step_needs_a_part_of_larger_passes():
    """Each call takes as long, as where launches do. The optimizer works once for each step."""
    step = record(2, num_passes=4)
    num_updates = count(call for call in step["calls"] if call["phase"] == "optimizer").total()
    alone = count(change_calls(step, ())).total() - num_updates
    cost = {name: predict(step, [name] if name else []).cpu_ns for name in ("", LARGER_BATCH, FEWER_ACCUMULATIONS)}
    assert cost == {"": 2 * MS, LARGER_BATCH: MS, FEWER_ACCUMULATIONS: 1.25 * MS}
    gpu = {
        name: sum(
            StepParts(step, {"kernels": None, "step_ns": MS}, lambda parts: [(MS, 0.0)] * len(parts))
            .sum_parts([name])
            .values()
        )
        for name in (LARGER_BATCH, FEWER_ACCUMULATIONS)
    }
    assert gpu[LARGER_BATCH] == pytest.approx((alone + num_updates) / 2 * MS)
    assert gpu[FEWER_ACCUMULATIONS] == pytest.approx((alone / 4 + num_updates) * MS)
    assert predict(step | {"rows": None}, [LARGER_BATCH]) is None, "the rows of a batch are not known"


MEASURED_CELLS = {  # on an H200, in ms; parts in the order of OPERATORS, those of the larger batch for as many samples
    "12 layers in TF32, 2 x 1024 tokens": (
        {"step": 21.335, "cpu": 23.562, "matmul": 8.913, "attention": 6.837, "busy": 20.360},
        [(9.038, 8.244), (7.001, 5.748), (1.700, 0.850), (3.259, 2.872)],
        1.194,
    ),
    "12 layers in BF16, 4 x 512 tokens": (
        {"step": 23.854, "cpu": 35.522, "matmul": 5.789, "attention": 0.492, "busy": 11.672},
        [(5.840, 5.609), (0.599, 0.465), (1.712, 0.856), (4.269, 3.338)],
        1.932,
    ),
}
OPERATORS = ("aten.mm.default", "attention", "aten.add_.Tensor", "aten.gelu.default")


@pytest.mark.parametrize("cell", MEASURED_CELLS)
def test_a_larger_batch_is_expected_to_be_as_fast_as_it_was_measured(cell):
    """The CPU took longer to launch a step phase by phase than a step took: the first was expected to be 1.408 times as
    fast, less than its kernels take."""
    seen, times, measured = MEASURED_CELLS[cell]
    samples = {"value": 0, "shape": [2, 16], "stride": [16, 1], "dtype": "float32"}
    weight = samples | {"value": 1, "shape": [16, 16]}
    fixed = {"kwargs": {}, "outputs": [], "phase": "", "is_view": False}
    calls = [{"op": op, "args": [samples]} | fixed for op in OPERATORS]
    calls[2] |= {"args": [weight], "phase": "optimizer"}
    kernels = {"convolution": 0.0} | {name: seen[name] * MS for name in ("matmul", "attention", "busy")}
    step = {"calls": calls, "optimizer": None, "rows": 2, "factor": 2}

    def measure(parts):
        pairs = [(times[OPERATORS.index(part["op"])], part["args"][0]["shape"] == [4, 16]) for part in parts]
        return [((2 * larger if is_larger else base) * MS, 0.0) for (base, larger), is_larger in pairs]

    shares = {"step_ns": seen["step"] * MS, "kernels": kernels, "issue": {"": seen["cpu"] * MS}}
    parts = StepParts(step, shares, measure)
    assert sum(parts.sum_parts([LARGER_BATCH]).values()) == pytest.approx(sum(larger for _, larger in times) * MS)
    before, after = parts.predict([]), parts.predict([LARGER_BATCH])
    assert before.step_ns == pytest.approx(seen["step"] * MS) and before.step_ns / after.step_ns < 1.05 * measured
    assert before.step_ns / after.high_ns < measured < before.step_ns / after.low_ns
    assert all(x >= y for x, y in ((after.step_ns, after.gpu_ns), (after.step_ns, after.cpu_ns)))


def test_a_fused_loss_leaves_the_traffic_of_the_logits():
    """In the type in which the matmul leaves them; casts of weights, which may be as large, stay."""
    step = record(2)
    before, after = (change_calls(step, ["bf16", *more]) for more in ([], [FUSED_LOSS]))
    left_out = [name for name, *_ in (count(before) - count(after)).elements()]
    assert sorted(left_out) == [
        "_log_softmax",
        "_log_softmax_backward_data",
        "_to_copy",
        "nll_loss_backward",
        "nll_loss_forward",
    ]
    logits = f"bfloat16[{2 * TOKENS}, {WORDS}]"
    assert count(after) - count(before) == Counter({("amax", logits): 2, ("mul", logits): 1})


@pytest.mark.parametrize("loss_of", [lose, lose_as_on_gpus])
def test_a_fused_loss_is_found_in_scripts_in_bf16(loss_of):
    """It reads and writes what the matmul leaves, in BF16, whichever side of log-softmax the casts are on."""
    step = record(2, is_bf16=True, loss_of=loss_of)
    before, after = count(change_calls(step, ())), count(change_calls(step, [FUSED_LOSS]))
    logits = f"bfloat16[{2 * TOKENS}, {WORDS}]"
    assert after - before == Counter({("amax", logits): 2, ("mul", logits): 1})
    left_out = Counter(name for name, *_ in (before - after).elements())
    assert left_out["_to_copy"] == 2 and left_out.keys() >= {"_log_softmax", "_log_softmax_backward_data"}


def test_a_step_without_such_a_loss_stays():
    step = record(2)
    step["calls"] = [call for call in step["calls"] if "nll_loss" not in call["op"]]
    assert count(change_calls(step, [FUSED_LOSS])) == count(change_calls(step, ()))


def test_parts_of_such_calls_can_be_measured_alone():
    step = record(2)
    calls = [call for call in change_calls(step, [FUSED_LOSS, LARGER_BATCH]) if not call["is_view"]]
    parts = [{name: call[name] for name in call if name not in ("outputs", "phase", "is_view")} for call in calls]
    assert all(PartsMeasurement(step["numbers"]).measure(parts))


def test_indices_of_a_larger_batch_are_those_of_the_batch_repeated():
    """Zeros alone would have all samples update one row."""
    numbers = {1: torch.arange(6).view(2, 3)}
    described = {"value": 1, "shape": [4, 3], "stride": [3, 1], "dtype": "int64"}
    made = PartsMeasurement(numbers).make(described)
    assert made.tolist() == [[0, 1, 2], [3, 4, 5]] * 2
    for shape in ([4, 2], [5, 3], [12], []):
        assert not can_repeat(numbers[1], shape)
    assert not can_repeat(torch.tensor(3), [4])
