"""Shipped recordings whose tables were exchanged or scaled breach a check, where frozen runs are too small or few."""

from itertools import pairwise, permutations

import pytest

from profiler_job.analysis.recording import store
from tests.pages.test_planted_faults import MODES, breaches, breaches_of_pairs, list_exchanged, only, scaled
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long


def test_copies_that_are_faster_than_memory_are_seen():
    run_ids = [f"medium-ctx{context}-fp32-naive-train_step" for context in (512, 1024)]
    two = only(store.load(locate("h200-fp32")), run_ids)
    assert not breaches(two)
    assert {"gemm_rate", "mfu", "copy_rate"} <= breaches(scaled(two, 0.4, "steps", "kernels", "memops"))


def test_tables_of_another_context_or_backend_are_no_tables_of_a_fused_run():
    """Neighbours of one size and mode, which differ in either: `gemm_rate` knows the FLOPs of eager attention alone."""
    fused = store.load(locate("attention_bf16"))
    runs = fused.runs.astype({"run_id": str, "size": str, "mode": str, "attention": str})
    groups = runs[runs["attention"] != "naive"].groupby(["size", "mode"])["run_id"]
    pairs = [pair for _, ids in groups for pair in pairwise(ids)]
    assert len(pairs) >= 22
    for pair, seen in breaches_of_pairs(fused, pairs):
        assert {"embedded_tokens", "fused_backend"} & seen, pair


SMALL_AND_MEDIUM = [("small", 128), ("small", 256), ("medium", 512), ("medium", 1024)]


def test_any_two_runs_that_are_exchanged_breach_a_check():
    """Whatever their order of size."""
    run_id = "{}-ctx{}-fp32-naive-{}"
    ids = [run_id.format(*case, mode) for case in SMALL_AND_MEDIUM for mode in MODES]
    several = only(store.load(locate("h200-fp32")), ids)
    pairs = [(run_id.format(*first), run_id.format(*second)) for first, second in list_exchanged(SMALL_AND_MEDIUM)]
    assert not [pair for pair, seen in breaches_of_pairs(several, pairs) if not seen]


def test_any_two_steps_as_people_train_that_are_exchanged_breach_a_check():
    run_id = "{}-ctx{}-bf16-sdpa-train_step-adamw_fused"
    ids = [run_id.format(size, context) for size in ("small", "large") for context in (2048, 4096)]
    several = only(store.load(locate("trained_4")), ids)
    pairs = [*permutations(ids, 2)]
    assert not [pair for pair, seen in breaches_of_pairs(several, pairs) if not seen]
