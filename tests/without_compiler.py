"""What scripts of tests begin with that compile nothing. PyTorch imports its compiler, which takes as long as all else
that is imported, where the first optimizer is made or the first process group, only to exempt them."""

WITHOUT_COMPILER = """
import sys
from types import SimpleNamespace
sys.modules["torch._dynamo"] = SimpleNamespace(
    disable=lambda function, *_, **__: function,
    graph_break=lambda: None,
    trace_rules=SimpleNamespace(clear_lru_cache=lambda: None),
    utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
)
"""
