"""The Llama that comes with the program: its size, its attention, and what plans know of it."""

import pytest
import torch

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.sweep.plan import Sweep, SweepError, load_sweep
from profiler_job.jobs.sweep.prediction import predict_seconds
from profiler_job.jobs.workloads.llama.build import GroupedQueryAttention, build
from profiler_job.jobs.workloads.llama.costs import LLAMA_8B, count_parameters, fill_shape
from profiler_job.jobs.workloads.transformer.model import RotaryEmbedding

SMALL = {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 50}


@pytest.mark.parametrize("shape", [LLAMA_8B, SMALL], ids=["8B", "small"])
def test_the_parameter_count_is_the_modules(shape):
    run = {"context_length": 8, "batch_size": 1, "attention": "sdpa"}
    model = build(run, torch.device("meta"), **shape).model
    assert count_parameters(**shape) == sum(parameter.numel() for parameter in model.parameters())


def test_it_has_the_parameters_of_llama_3_8b():
    assert count_parameters(**LLAMA_8B) == 8_030_261_248


def test_fused_and_unfused_attention_agree_with_keys_and_values_that_heads_share():
    torch.manual_seed(0)
    rope = RotaryEmbedding(8, 16)
    fused, unfused = (GroupedQueryAttention(32, 4, 2, rope, kind) for kind in ("sdpa", "naive"))
    unfused.load_state_dict(fused.state_dict())
    x = torch.randn(3, 16, 32)
    torch.testing.assert_close(fused(x), unfused(x))


def test_a_sweep_file_names_it_and_changes_its_shape_and_time_is_predicted():
    content = {"name": "x", "workload": "llama", "size": ["8B"], "context_length": [2048], "mode": ["forward"]}
    whole, half = Sweep.model_validate(content | {"workload_axes": {"num_layers": [32, 16]}}).runs
    assert isinstance(half, Run) and half.run_id == "8B-ctx2048-fp32-naive-forward-llama-num_layers16"
    assert fill_shape(whole).num_parameters == 8_030_261_248 and fill_shape(half).num_layers == 16
    protocol = Sweep.model_validate(content).protocol
    assert predict_seconds(half, protocol) < predict_seconds(whole, protocol)


def test_a_workload_without_a_module_is_refused_with_the_names_that_are_known(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("{name: x, workload: gemma, size: [8B], context_length: [8], mode: [forward]}")
    with pytest.raises(SweepError, match="workload: should be transformer, llama, or MODULE:FUNCTION"):
        load_sweep(file)
