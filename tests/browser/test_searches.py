"""What readers type into the search, and the page that has to come first."""

import pytest

SEARCHES = {
    "timeline": "report/runs",
    "perfetto": "report/runs",
    "speedscope": "report/runs",
    "tokens": "report/runs",
    "tokens per second": "report/runs",
    "small": "report/explore",
    "2.7B": "report/explore",
    "sort by MFU": "report/explore",
    "gradient checkpointing": "report/memory-use",
    "activation checkpointing": "report/memory-use",
    "out of memory": "report/memory-use",
    "will it fit": "report/memory-use",
    "batch size": "report/gradient-accumulation",
    "micro-batch": "report/gradient-accumulation",
    "flash attention": "report/fused-attention",
    "SDPA": "report/fused-attention",
    "softmax bandwidth": "report/softmax-detail",
    "softmax FLOPs": "report/attention-cost",
    "CUDA graphs": "report/host",
    "torch.compile": "report/host",
    "launch overhead": "report/host",
    "warmup": "report/warm-up",
    "noise band": "report/second-recording",
    "MFU": "report/token-cost",
    "TF32": "report/precision",
    "mixed precision": "report/precision",
    "BF16": "report/in-bf16",
    "fused AdamW": "report/optimizer-cost",
    "roofline": "report/bounds",
    "bottleneck": "report/bounds",
    "padding": "report/ladder",
    "what to change first": "report/ladder",
    "backward pass": "report/training-mix",
    "elementwise": "report/beyond-gemm",
    "hotspot": "report/top-kernel",
    "latency": "report/forward-time",
    "anatomy": "report/anatomy",
    "split-K": "report/kernels",
    "compare": "report/comparison",
    "throttling": "report/telemetry",
    "driver version": "report/environment",
}
LONG = {
    "price": "report/token-cost",
    "cost per token": "report/token-cost",
    "H100 vs H200": "report/token-cost",
    "two GPUs": "report/several-gpus",
    "several GPUs": "report/several-gpus",
    "FSDP": "report/several-gpus",
    "NCCL": "report/several-gpus",
    "KV cache": "report/generation",
    "decode": "report/generation",
    "exit codes": "report/commands",
    "JSON": "report/output",
    "rented GPU": "guide/rented",
    "torch.profiler trace": "guide/show",
    "profile my script": "guide/profile",
    "install": "guide/profile",
    "how to install": "guide/profile",
    "1.3B": "report/explore",
    "profile script": "guide/profile",
    "own script": "guide/profile",
    "how do I profile my script": "guide/profile",
    "docker run": "guide/docker",
    "nanogpt": "guide/profile",
}
"""About studies that the small site does not have, and guides."""
NUM = 40


def test_there_are_enough():
    assert len(SEARCHES | LONG) >= NUM


@pytest.mark.parametrize(
    ("words", "first"), [*SEARCHES.items(), *(pytest.param(*one, marks=pytest.mark.long) for one in LONG.items())]
)
def test_a_search_has_the_page_that_answers_first(page, address, words, first):
    page.goto(address)
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially(words)
    page.wait_for_function(
        "(first) => document.querySelector('.md-search-result__link')?.pathname.endsWith(first)",
        arg=f"/{first}.html",
        timeout=30_000,
    )
