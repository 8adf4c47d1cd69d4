"""The setting of PyTorch for matmuls of FP32 numbers."""

import torch


def read_matmul_precision() -> str:
    """Return `torch.get_float32_matmul_precision()`, which raises if TF32 is on through
    `torch.backends.fp32_precision`, as the Trainer of Transformers sets it; then "high"."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"
