import pytest

from profiler_job.analysis.reference.gpus import GPUS, PRECISIONS, lookup


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "H200 SXM5"),
        ("H200", "H200 SXM5"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("nvidia  b200", "B200"),
    ],
)
def test_names_that_nvidia_smi_prints_are_found(name, key):
    assert lookup(name).key == key


@pytest.mark.parametrize(
    "name", ["", "NVIDIA", "NVIDIA A100", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "AMD Instinct MI300X", "H2000"]
)
def test_unknown_names_give_none_instead_of_a_neighbour(name):
    assert lookup(name) is None


def test_keys_and_names_are_unique():
    assert len({gpu.key for gpu in GPUS}) == len(GPUS)
    names = [name for gpu in GPUS for name in gpu.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("gpu", GPUS, ids=[gpu.key for gpu in GPUS])
def test_rates_are_dense_and_of_one_kind(gpu):
    """Two mistakes show as a factor 2: a sparse rate in one column, or FP16 accumulation on a GeForce."""
    assert gpu.source
    assert gpu.bf16 in (None, gpu.fp16)
    if gpu.tf32:
        assert gpu.fp16 / gpu.tf32 == pytest.approx(2, rel=0.03)
    if gpu.fp8:
        assert gpu.fp8 / gpu.fp16 == pytest.approx(2, rel=0.03)
    assert gpu.fp16 > gpu.fp32 > 5
    assert 200 < gpu.memory_gbps < 10_000 and 10 < gpu.memory_gb < 300


@pytest.mark.parametrize("gpu", GPUS, ids=[gpu.key for gpu in GPUS])
def test_fp32_rate_is_that_of_the_cores_at_a_plausible_clock(gpu):
    """Two operations per core and cycle; 64 FP32 cores an SM up to Ampere's A100/A30 and Turing, 128 otherwise."""
    cores = 64 if gpu.key.startswith(("T4", "V100", "A100", "A30")) else 128
    clock = gpu.fp32 * 1e12 / (2 * cores * gpu.num_sms)
    assert 1.3e9 < clock < 2.7e9


def test_peak_flops_are_per_second():
    h200 = lookup("NVIDIA H200")
    assert h200.peak_flops("fp32") == 67e12
    assert h200.peak_flops("bf16") == pytest.approx(989.4e12)
    assert h200.memory_bandwidth == 4.8e12 and h200.memory_bytes == 141e9
    assert lookup("Tesla T4").peak_flops("bf16") is None
    assert {precision: h200.peak_flops(precision) > 0 for precision in PRECISIONS} == dict.fromkeys(PRECISIONS, True)


def test_unknown_precision_is_named_with_the_allowed_ones():
    with pytest.raises(ValueError, match=r"'fp12' is unknown; choose one of fp32, tf32"):
        lookup("NVIDIA H200").peak_flops("fp12")
