"""CUDA graphs: `model.compile(mode="reduce-overhead")` before the first call."""

from .compile import Compiled


class CudaGraphs(Compiled):
    mode = "reduce-overhead"


CHANGE = CudaGraphs
