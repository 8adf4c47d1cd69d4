"""Small captures as scripts of the class make them: ranges of phases, warm-up, attention's parts, processes."""

from pathlib import Path

from tests.capture.nsys_files import Export

GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(T1::Params)"
MUL = "void at::native::elementwise_kernel<(int)128, MulFunctor<float>>(int, T3)"
SOFTMAX = "void softmax_warp_forward<float, float, float, (int)9>(T1 *, const T2 *, int)"
ADDCDIV = "void at::native::elementwise_kernel<addcdiv_cuda_kernel>(int)"
FORWARD = (
    ("qkv", GEMM, 400),
    ("computing attention scores", GEMM, 100),
    ("computing softmax", SOFTMAX, 300),
    ("final matmul", GEMM, 100),
    ("ffn", MUL, 200),
)
"""Range, kernel and ns of each launch of a forward pass."""


def make_step(
    made: Export, at: int, mode: str = "forward", process: int = 1, with_ranges: bool = True, slow: int = 1
) -> int:
    """Add one step that starts at `at` ns, and return when it ends."""
    parts = [("forward", FORWARD)]
    if mode != "forward":
        parts.append(("backward", (("", GEMM, 900), ("", MUL, 300))))
    if mode == "train_step":
        parts.append(("optimizer", (("", ADDCDIV, 250),)))
    for phase, launches in parts:
        start = at
        for name, kernel, ns in launches:
            begin = at + 100
            if with_ranges and name:
                made.push(name, begin, begin + 600 * slow, process=process)
            made.launch(begin + 10, start=begin + 50, end=begin + 50 + ns, name=kernel, process=process)
            at += 1_000 * slow
        if with_ranges:
            made.push(phase, start, at, process=process)
    return at + 500


def make_capture(
    path: Path,
    mode: str = "forward",
    num_steps: int = 4,
    warmup: int = 0,
    with_ranges: bool = True,
    processes: tuple[int, ...] = (1,),
    gpus: bool = True,
) -> Path:
    """Write a capture of some steps; `warmup` steps before them are in a range called warmup."""
    made = Export()
    for number, process in enumerate(processes):
        if gpus:
            made.gpu(number=number, process=process, device=0)
        at = 1_000
        if warmup:
            start = at
            for _ in range(warmup):
                at = make_step(made, at + 10, mode, process, with_ranges, slow=3)
            made.push("warmup", start, at, process=process)
            at += 100
        for _ in range(num_steps):
            at = make_step(made, at, mode, process, with_ranges)
    return made.sqlite(path)


def make_empty_capture(path: Path, num_steps: int = 3) -> Path:
    """Write a capture without kernels: ranges and launches alone."""
    made = Export()
    for step in range(num_steps):
        at = 1_000 + 20_000 * step
        made.push("forward", at, at + 10_000 + step)
        made.call(at + 100, at + 200)
    return made.sqlite(path)
