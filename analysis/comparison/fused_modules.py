"""Kernels of both sides by module: each has its part of the kernels that one side fuses, so that an eager run and a
compiled one can be compared module by module."""

import pandas as pd

from profiler_job.analysis.capture.fused_kernels import divide_fused

_TIMES = ["first_ns", "second_ns"]
_PLACE = ["phase", "module"]


def divide_among_modules(kernels: pd.DataFrame) -> pd.DataFrame:
    """Divide the fused kernels of both sides (phase, module, first_ns, second_ns) among their modules. Adds
    fused_into: the fused kernels of either side that compute parts of the row's phase and module, longest first."""
    divided = divide_fused(kernels, _TIMES)
    fused = divided[divided["fused_into"] != ""]
    times = fused[_TIMES].max(axis=1).groupby([fused[name] for name in (*_PLACE, "fused_into")]).sum()
    names = times.sort_values(ascending=False, kind="stable").reset_index().groupby(_PLACE)["fused_into"].agg("; ".join)
    return divided.drop(columns="fused_into").join(names, on=_PLACE).fillna({"fused_into": ""})
