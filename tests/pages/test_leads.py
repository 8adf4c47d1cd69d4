"""No lead quotes a ratio of steps from fresh processes, unless its claim holds such rows only as may be quoted, or it
says how rough the ratio is."""

import re
from pathlib import Path

import pytest

from profiler_job.analysis.pages import questions

TEMPLATES = sorted(Path(questions.__file__).parent.glob("*.md"))
OF_STEPS = {
    "gradient_accumulation": {"quoted"},
    "in_bf16": {"quoted"},
    "ladder": {"together"},
    "optimizer_cost": {"step"},
    "precision": {"quoted"},
    "several_gpus": {"gives"},
}
"""Sentences of verdicts with a ratio of unprofiled steps: rows of their claims are `quotable`
(`tests/shipped/test_leads.py`)."""
OF_GPU = {
    "attention_cost": {"dearer", "cheaper_somewhere"},
    "fused_attention": {"always", "partly", "forward_only"},
    "optimizer_cost": {"fused"},
    "precision": {"rest_too"},
    "softmax_detail": {"beyond_cache", "small_only", "cache_unknown"},
    "token_cost": {"gpus"},
    "training_mix": {"backward"},
}
"""Sentences with a ratio of kernel times, GPU busy or memory, which repeat."""
ROUGH = {"gradient_accumulation": {"rough"}, "several_gpus": {"not_quoted"}}
"""Sentences with a range of steps that may not be quoted, and how far the processes of these steps are apart."""
SENTENCE = re.compile(r'call\(f\) sentence\("(\w+)"\)(.*?)endcall', re.DOTALL)
RATIO = re.compile(r"\| (?:rough_)?ratio\w*|\bmost\(|\bstep\(f\)")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_each_ratio_in_a_verdict_is_known_as_of_steps_or_of_the_gpu(path):
    verdict = re.search(r"{% block verdict %}(.*?){% endblock %}", path.read_text(encoding="utf-8"), re.DOTALL)
    found = {key for key, words in SENTENCE.findall(verdict[1]) if RATIO.search(words)} if verdict else set()
    assert found == set().union(*(known.get(path.stem, set()) for known in (OF_STEPS, OF_GPU, ROUGH)))


@pytest.mark.parametrize(("stem", "key"), [(stem, key) for stem, keys in ROUGH.items() for key in keys])
def test_a_range_that_may_not_be_quoted_says_how_far_the_processes_are_apart(stem, key):
    text = next(path for path in TEMPLATES if path.stem == stem).read_text(encoding="utf-8")
    assert "f.apart" in dict(SENTENCE.findall(text))[key]


def test_the_step_of_fused_attention_is_quoted_where_it_may_be():
    text = next(path for path in TEMPLATES if path.stem == "fused_attention").read_text(encoding="utf-8")
    verdict = re.search(r"{% block verdict %}(.*?){% endblock %}", text, re.DOTALL)[1]
    inside = "".join(re.findall(r"{% if f\.quotable %}(.*?){% endif %}", verdict))
    assert inside.count("timer_speedup") == verdict.count("timer_speedup") == 2
