"""Results of `tune` for tests."""

from profiler_job.jobs.contract.tuning import (
    BaseStep,
    CodeLine,
    CodePatch,
    Confirmation,
    LadderStep,
    LossDifference,
    Method,
    NoLossCode,
    Outcome,
    Tried,
    TuneRatio,
    Tuning,
)

DIFF = (
    "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,3 @@\n import torch\n"
    '+\ttorch.set_float32_matmul_precision("high")\n x\n'
)


def make_ratio(times, half=0.02):
    return TuneRatio(times_as_fast=times, low=times * (1 - half), high=times * (1 + half), num_pairs=8)


def make_step(change, changes, ms, before, precision="fp32", **others):
    ratios = {"ratio_before": make_ratio(before), "ratio_base": make_ratio(200 / ms)}
    return LadderStep(
        change=change, changes=changes, method=Method.TURNS, step_ns=ms * 1e6, precision=precision, **ratios | others
    )


def make_tuning(**others):
    """A script of 200 ms that TF32, BF16 in its place and torch.compile make 8 times as fast on an H200."""
    losses = LossDifference(num=20, first=1e-4, largest=1.3e-3, step=17, repeated=2e-5)
    known = {
        "name": "train",
        "command": ("python", "train.py"),
        "script": "train.py",
        "gpu_name": "NVIDIA H200",
        "budget_s": 600,
        "used_s": 300,
        "is_complete": True,
        "base": BaseStep(step_ns=200e6, tokens_per_step=4096, flops=4.02e12, precision="fp32", peak_bytes=20 * 2**30),
        "ladder": [
            make_step("tf32", ("tf32",), 100, 2, "tf32", peak_bytes=20 * 2**30),
            make_step("bf16", ("bf16",), 50, 2, "bf16", peak_bytes=14 * 2**30),
            make_step("compile", ("bf16", "compile"), 25, 2, "bf16", peak_bytes=10 * 2**30, losses=losses),
        ],
        "tried": [
            Tried(change="tf32", outcome=Outcome.KEPT, ratio=make_ratio(2)),
            Tried(change="loader_workers", outcome=Outcome.NOT_REACHED, could_save=0.02),
            Tried(change="larger_batch", outcome=Outcome.OUT_OF_MEMORY, message="12 GiB were wanted"),
            Tried(change="foreach", on_top_of=("bf16",), outcome=Outcome.NOT_FASTER, ratio=make_ratio(0.99)),
            Tried(change="synchronisations", outcome=Outcome.BOUND, ratio=make_ratio(1.1)),
        ],
        "confirmation": Confirmation(base_ns=(198e6, 200e6, 230e6), winner_ns=(25e6, 26e6, 24e6)),
        "patch": CodePatch(
            diff=DIFF,
            to_write=(CodeLine(change="compile", file="train.py", line=9, code="model.compile()", reason="by hand"),),
        ),
    }
    return Tuning(**known | others)


NO_SEED = LossDifference(reason=NoLossCode.NO_SEED)
