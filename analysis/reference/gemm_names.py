"""What the name of a GEMM kernel says: library, architecture, math path, layout, tile, stages, split-K.

CUTLASS documents its names. cuBLAS (`xmma`, `nvjet`, `ampere_sgemm`, ...) does not: what is read from those names is an
inference from many of them and from launch counts, and each such field is listed in `GemmName.inferred`.

Layouts are in BLAS terms, column-major, of the two operands in the order the library sees them: `t` transposed,
`n` not. PyTorch's row-major tensors arrive there swapped, which makes a linear layer's forward matmul `tn`.
"""

import re
from functools import lru_cache
from typing import NamedTuple

MATH_PATHS = {
    "fp64": "FP64",
    "fp32": "FP32 on CUDA cores (FFMA)",
    "tf32": "TF32 tensor cores",
    "bf16": "BF16 tensor cores",
    "fp16": "FP16 tensor cores",
    "fp8": "FP8 tensor cores",
    "fp4": "FP4 tensor cores",
    "int8": "INT8 tensor cores",
    "fp16_simt": "FP16 on CUDA cores",
}
"""Labels of the math paths, by key. The keys that `gpus.Gpu.peak_flops` knows are the same there."""

EXPECTED_LAYOUTS = {
    "linear forward": "tn",
    "linear input gradient": "nn",
    "linear weight gradient": "nt",
    "QK^T": "tn",
    "QK^T query gradient": "nn",
    "QK^T key gradient": "nt",
    "AV": "nn",
    "AV score gradient": "tn",
    "AV value gradient": "nt",
}
"""Layout each matmul of the workload is launched with when its operands are contiguous and weights are stored
(out_features, in_features). Forward linears and QK^T multiply by a transpose; AV and input gradients do not."""


class GemmName(NamedTuple):
    """The fields of a kernel name; None if the name does not show them.

    library: `cuBLAS`, `CUTLASS`, ...
    architecture: as in the name, `sm80` or `ampere`. Code for an older architecture may run on a newer GPU.
    math_path: a key of `MATH_PATHS`: the unit and the type that multiply.
    layout: `tn`, `nn`, `nt` or `tt`.
    tile: (M, N, K) of the output tile of one block and the step along K; K is 0 if the name does not show it.
    stages: tiles in flight along K.
    split_k: True if K is split over blocks, or if the kernel adds the parts; False if the name rules it out.
    inferred: names of the fields above that no documentation backs.
    """

    library: str
    architecture: str | None = None
    math_path: str | None = None
    layout: str | None = None
    tile: tuple[int, int, int] | None = None
    stages: int | None = None
    split_k: bool | None = None
    inferred: frozenset[str] = frozenset()


_TYPE_PATHS = {
    "f64": "fp64",
    "f32": "fp32",
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "f16": "fp16",
    "fp16": "fp16",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "e2m1": "fp4",
    "s8": "int8",
    "i8": "int8",
    "u8": "int8",
}
_TYPES = "|".join(sorted(_TYPE_PATHS, key=len, reverse=True))

# sm80_xmma_gemm_<input><output>_<multiply><accumulate>_<scale>_<layout>_<output layout>_...
_XMMA = re.compile(rf"(sm\d+)_xmma_(?:sparse_)?gemm_((?:{_TYPES})+)_({_TYPES})((?:{_TYPES})?)(?:_(?:{_TYPES}))?(?=_|$)")
_CUTLASS2 = re.compile(
    r"cutlass_(?:(\d+)_)?(simt|tensorop|wmma_tensorop)_(?:(bf16|f16|tf32|f64|s8|u8|e4m3|e5m2)_)?"
    r"([shdizc])(\d*)((?:tf32|bf16|f16|fast\w*?)?)gemm(\w*?)_(\d+)x(\d+)(?:_(\d+)x(\d+))?_([nt])([nt])(?:_|>|E|\b)"
)
_CUTLASS3 = re.compile(
    r"cutlass3x_(sm\d+)_(simt|tensorop|bstensorop)_\w*?gemm_(\w+?)_\w+?_(\d+)x(\d+)x(\d+)_\d+x\d+x\d+_(\d+)_([nt])([nt])[nt]"
)
_NVJET = re.compile(r"nvjet_(?:(sm\d+)_)?([a-z]+)_(?:mma_)?(\d+x\d+\w*?)(?=_)(\w*?)_([NT])([NT])[NT]{1,2}\b")
_NVJET_TILE = re.compile(r"(\d+)x(\d+)_(\d+)x(\d+)_")
_NVJET_MMA_TILE = re.compile(r"(\d+)x(\d+)x(\d+)_(\d+)_")
_NAMED = re.compile(
    r"(kepler|maxwell|pascal|volta|turing|ampere|ada|hopper)_(?:(fp16|bf16|tf32|fp32|int8|i8)_)?([shdicz])(\d*)gemm"
    r"((?:_(?:fp16|bf16|fp32|tf32|int8|i8|fp64))?)_(\d+)x(\d+)(\w*)"
)
_GEMV = re.compile(r"gemv2([NT])|gemvNSP|gemvx::kernel|gemmk1_kernel|\bdot_kernel<|reduce_1Block_kernel")
_DEEP_GEMM = re.compile(r"(sm\d+)_(fp8|bf16|fp4)_\w*gemm_\w*impl")

_ALIGNMENT = re.compile(r"_aligna?(\d+)(?=_|>|E|\b)")

# Letters of nvjet's type code, as far as real names show them.
_NVJET_TYPES = {"h": "fp16", "t": "bf16", "q": "fp8", "o": "fp4", "d": "fp64"}


@lru_cache(maxsize=10_000)
def parse(name: str) -> GemmName | None:
    """Read the kernel `name`; None if it is not of a library whose naming is known."""
    for read in (
        _parse_xmma,
        _parse_cutlass2,
        _parse_cutlass3,
        _parse_nvjet,
        _parse_architecture_name,
        _parse_split_k_reduce,
        _parse_gemv,
        _parse_deep_gemm,
    ):
        gemm = read(name)
        if gemm is not None:
            return gemm
    return None


def parse_alignment(name: str) -> int | None:
    """Parse how many elements the operand loads of the GEMM kernel `name` are aligned to; None if the name does not
    show it. With 1 any shape works, but each load moves less. CUTLASS documents it. cuBLAS has one for operands
    (`aligna4`) and one for the result; there it is an inference."""
    match = _ALIGNMENT.search(name)
    return int(match[1]) if match else None


def _mark_undocumented(gemm: GemmName) -> GemmName:
    said = {field for field in GemmName._fields[1:-1] if getattr(gemm, field) is not None}
    return gemm._replace(inferred=frozenset(said))


def _parse_xmma(name: str) -> GemmName | None:
    match = _XMMA.search(name)
    if not match:
        return None
    architecture, _, multiply, _ = match.groups()
    rest = name[match.end() :]
    layout = re.match(r"_([nt]{2})_[nt](?:_|$)", rest)
    tile = re.search(r"_tilesize(\d+)x(\d+)x(\d+)", rest)
    stages = re.search(r"_stage(\d+)", rest)
    split_k = None
    if "_split_k_kernel" in rest or "_segment_k_on_" in rest:
        split_k = True
    elif "_segment_k_off_" in rest:
        split_k = False
    return _mark_undocumented(
        GemmName(
            library="cuBLAS",
            architecture=architecture,
            math_path=_TYPE_PATHS[multiply],
            layout=layout and layout[1],
            tile=tile and (int(tile[1]), int(tile[2]), int(tile[3])),
            stages=stages and int(stages[1]),
            split_k=split_k,
        )
    )


def _parse_cutlass2(name: str) -> GemmName | None:
    match = _CUTLASS2.search(name)
    if not match:
        return None
    architecture, unit, input_type, accumulator, shape, fast, _, m, n, k, stages, a, b = match.groups()
    inferred = set()
    if unit == "simt":
        path = {"s": "fp32", "d": "fp64", "h": "fp16_simt"}.get(accumulator)
    elif input_type or fast in _TYPE_PATHS:
        path = _TYPE_PATHS[input_type or fast]
    elif accumulator == "d":
        path = "fp64"
    elif shape in ("1688", "16816"):
        # No type in the name: FP32 operands. Only TF32 has this shape of instruction for them.
        path = "tf32" if accumulator == "s" else "fp16"
        inferred.add("math_path")
    else:
        path = "fp16" if shape == "884" else None
        inferred |= {"math_path"} if path else set()
    return GemmName(
        library="CUTLASS",
        architecture=architecture and f"sm{architecture}",
        math_path=path,
        layout=a + b,
        tile=(int(m), int(n), int(k or 0)),
        stages=int(stages) if stages else None,
        inferred=frozenset(inferred),
    )


def _parse_cutlass3(name: str) -> GemmName | None:
    match = _CUTLASS3.search(name)
    if not match:
        return None
    architecture, unit, input_type, m, n, k, stages, a, b = match.groups()
    path = _TYPE_PATHS.get(input_type)
    inferred = set()
    if path == "fp32" and unit != "simt":
        path = "tf32"
        inferred.add("math_path")
    return GemmName(
        library="CUTLASS",
        architecture=architecture,
        math_path=path,
        layout=a + b,
        tile=(int(m), int(n), int(k)),
        stages=int(stages) or None,  # 0: as many as fit, decided when compiled
        inferred=frozenset(inferred),
    )


def _parse_nvjet(name: str) -> GemmName | None:
    match = _NVJET.search(name)
    if not match:
        return None
    architecture, types, _, _, a, b = match.groups()
    rest = name[match.start(3) :]
    mma_tile, tile = _NVJET_MMA_TILE.match(rest), _NVJET_TILE.match(rest)
    if mma_tile:
        m, n, k, stages = (int(size) for size in mma_tile.groups())
    elif tile:
        m, n, k, stages = (int(size) for size in tile.groups())
    else:
        m = n = k = stages = 0
    return _mark_undocumented(
        GemmName(
            library="cuBLAS",
            architecture=architecture,
            math_path=_NVJET_TYPES.get(types[0]),
            layout=(a + b).lower(),
            tile=(m, n, k) if m else None,
            stages=stages or None,
            split_k=True if "_splitK_" in rest else None,
        )
    )


def _parse_architecture_name(name: str) -> GemmName | None:
    match = _NAMED.search(name)
    if not match:
        return None
    architecture, input_type, accumulator, shape, storage, m, n, rest = match.groups()
    if not shape:
        path = {"s": "fp32", "d": "fp64", "h": "fp16_simt"}.get(accumulator)
    elif accumulator == "d":
        path = "fp64"
    elif accumulator == "i":
        path = "int8"
    elif input_type:
        path = _TYPE_PATHS.get(input_type)
    elif accumulator == "h":
        path = "fp16"
    else:
        path = {"_bf16": "bf16", "_fp16": "fp16", "_fp32": "tf32", "_tf32": "tf32"}.get(storage)
    layout = re.search(r"_([nt]{2})(?:_|$)", rest)
    stages = re.search(r"_stages_(\d+)x(\d+)", rest)
    return _mark_undocumented(
        GemmName(
            library="cuBLAS",
            architecture=architecture,
            math_path=path,
            layout=layout and layout[1],
            tile=(int(m), int(n), int(stages[1]) if stages else 0),
            stages=stages and int(stages[2]),
            split_k=True if "splitK" in rest else None,
        )
    )


def _parse_split_k_reduce(name: str) -> GemmName | None:
    if "splitKreduce" not in name:
        return None
    return GemmName(library="cuBLAS", split_k=True, inferred=frozenset({"split_k"}))


def _parse_gemv(name: str) -> GemmName | None:
    match = _GEMV.search(name)
    if not match:
        return None
    # Matrix-vector kernels run on CUDA cores and accumulate in FP32 (FP64 for doubles), also from 16-bit operands.
    path = "fp64" if re.search(r"<[^>]*\bdouble\b", name) else "fp32" if re.search(r"\bfloat\b", name) else None
    layout = {"N": "n", "T": "t"}.get(match[1] or "")
    return _mark_undocumented(GemmName(library="cuBLAS", math_path=path, layout=layout))


def _parse_deep_gemm(name: str) -> GemmName | None:
    match = _DEEP_GEMM.search(name)
    return match and GemmName(library="DeepGEMM", architecture=match[1], math_path=match[2])
