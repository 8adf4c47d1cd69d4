"""The nodes of a CUDA graph while a stream is captured into it, asked of NVIDIA's driver.

Needs nothing but the driver's library; it is loaded into other people's scripts.
"""

import ctypes
from typing import Any, NamedTuple

KERNEL, MEMCPY, MEMSET = 0, 1, 2
"""Types of nodes (CUgraphNodeType) that do something on the GPU."""
_WITH_SIX = ("cuStreamGetCaptureInfo_v2", 6)
_WITH_SEVEN = ("cuStreamGetCaptureInfo_v3", 7)
"""Functions of the driver, and how many arguments they have."""


class _KernelParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class Node(NamedTuple):
    """kind: KERNEL, MEMCPY, MEMSET or another type. name: mangled, of a kernel; "" if the driver does not say. grid: of
    a kernel."""

    kind: int
    name: str
    grid: tuple[int, ...]


class DriverError(Exception):
    """The driver has no such function, or reports an error."""


class GraphNodes:
    """The nodes of the graph that `stream` (a cudaStream_t as a number) is being captured into. Raises DriverError."""

    def __init__(self, stream: int, driver: Any = None) -> None:
        try:
            self.driver = driver or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(str(error)) from None
        self.graph = self._find_graph(stream)
        self.handles = b""

    def _call(self, name: str, *args: Any) -> None:
        function = getattr(self.driver, name, None)
        if function is None:
            raise DriverError(f"{name} is missing")
        if code := function(*args):
            raise DriverError(f"{name}: error {code}")

    def _find_graph(self, stream: int) -> ctypes.c_void_p:
        for name, num_arguments in (_WITH_SIX, _WITH_SEVEN):
            if hasattr(self.driver, name):
                status, graph = ctypes.c_int(), ctypes.c_void_p()
                rest = [None] * (num_arguments - 4)
                self._call(name, ctypes.c_void_p(stream), ctypes.byref(status), None, ctypes.byref(graph), *rest)
                if status.value != 1 or not graph.value:
                    raise DriverError("the stream is not being captured")
                return graph
        raise DriverError(f"{_WITH_SIX[0]} is missing")

    def count(self) -> int:
        """Count the nodes until now. The nodes that were there before stay in front."""
        num = ctypes.c_size_t()
        self._call("cuGraphGetNodes", self.graph, None, ctypes.byref(num))
        if num.value * 8 != len(self.handles):
            handles = (ctypes.c_void_p * num.value)()
            self._call("cuGraphGetNodes", self.graph, handles, ctypes.byref(num))
            before, self.handles = self.handles, bytes(handles)
            if not self.handles.startswith(before):
                raise DriverError("the nodes have another order than before")
        return num.value

    def list_nodes(self) -> list[Node]:
        """List all nodes, in the order in which they were made."""
        num = self.count()
        return [self._read((ctypes.c_void_p * num).from_buffer_copy(self.handles)[at]) for at in range(num)]

    def _read(self, handle: int | None) -> Node:
        kind = ctypes.c_int()
        self._call("cuGraphNodeGetType", ctypes.c_void_p(handle), ctypes.byref(kind))
        if kind.value != KERNEL:
            return Node(kind.value, "", ())
        parameters = _KernelParameters()
        self._call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(handle), ctypes.byref(parameters))
        name = ctypes.c_char_p()
        owner = ("cuFuncGetName", parameters.func) if parameters.func else ("cuKernelGetName", parameters.kernel)
        if hasattr(self.driver, owner[0]):
            self._call(owner[0], ctypes.byref(name), ctypes.c_void_p(owner[1]))
        return Node(KERNEL, (name.value or b"").decode(errors="replace"), tuple(parameters.grid))
