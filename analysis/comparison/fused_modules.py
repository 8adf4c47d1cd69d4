"""Modules whose kernels one side fuses: which fused kernels compute a part of each, so that an eager run and a compiled
one can be compared module by module."""

import re

import pandas as pd

from profiler_job.jobs.contract import ranges as vocabulary

_PREFIX, _SUFFIX = vocabulary.FUSED.split("{}")
_LEVEL = re.compile(r"/|\[(?=\d+\])")
SIDES = ("first", "second")


def list_fused_modules(module: str) -> list[str]:
    """List the modules of which a fused kernel computes parts, as `qualify` names them: GPT/h.*/(fused: norm + mlp[0])
    -> GPT.h.*.norm, GPT.h.*.mlp.0; none for another module."""
    base, begins, names = module.rpartition(_PREFIX)
    if not begins or not names.endswith(_SUFFIX):
        return []
    return [qualify(base + name) for name in names.removesuffix(_SUFFIX).split(" + ")]


def qualify(module: str) -> str:
    """Name a module as PyTorch's `named_modules` does: GPT/transformer.h.*/mlp/0 -> GPT.transformer.h.*.mlp.0. In the
    name of a fused kernel a dot may be either."""
    return _LEVEL.sub(".", module).replace("]", "")


def add_fused(by_module: pd.DataFrame) -> pd.DataFrame:
    """Add to kernels by phase and module (first_ns, second_ns): first_fused_ns and second_fused_ns, the time of fused
    kernels that compute a part of the module, too, all of it; and fused_into, the names of these, the longest first."""
    held: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for phase, module, first_ns, second_ns in by_module[["phase", "module", "first_ns", "second_ns"]].itertuples(
        index=False
    ):
        for part in list_fused_modules(module):
            held.setdefault((phase, part), []).append((module.rpartition("/")[2], first_ns, second_ns))
    known = [held.get(key, []) for key in zip(by_module["phase"], by_module["module"].map(qualify))]
    ordered = [sorted(some, key=lambda fused: -max(fused[1], fused[2])) for some in known]
    columns = {
        "first_fused_ns": [sum(first_ns for _, first_ns, _ in some) for some in known],
        "second_fused_ns": [sum(second_ns for _, _, second_ns in some) for some in known],
        "fused_into": ["; ".join(dict.fromkeys(name for name, _, _ in some)) for some in ordered],
    }
    return by_module.assign(**columns)
