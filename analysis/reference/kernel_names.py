"""Kernel names made short enough to read. Names are grouped in full, and shortened only to be shown: two kernels may
have one short name."""

import re

_CUTLASS = re.compile(r"cutlass::(?:Kernel2?|device_kernel)<(cutlass\w+)>")
_NOISE = re.compile(
    "|".join(
        (
            r"\bvoid |(?:at::native|binary_internal|c10|<unnamed>|\(anonymous namespace\))::|gpu_kernel_impl_nocast<",
            r"\((?:int|bool|unsigned int|unsigned long)\)(?=\d)",  # (int)4
            r"\(at::TensorIterator(?:Base)? ?&[^)]*\)|::operator ?\(\)\(\) const",
            r"::[\[{]lambda\([^)]*\)(?: \(instance \d+\)\]|[^}]*\})",
            r"_execute(?=_\w*_cublas$)|__5x_cublas$",
        )
    )
)
_TAIL = re.compile(r", (?:std::array|at::detail::Array)<.*|\((?:T\d|int|long|const|float|at::)[ ,*&].*", re.DOTALL)
_MOST_READ = 4096  # of a name: it may be as long as a capture's author wants, and expressions take its square
_SAME_TYPES = re.compile(r"\b((?:float|double|BFloat16|Half), )\1+")


def shorten(name: str, most: int = 72) -> str:
    """Return the part of kernel `name` that distinguishes it from most others, in at most `most` characters."""
    if len(name) > _MOST_READ:
        return elide(name, most)
    if match := _CUTLASS.search(name):
        return elide(match[1], most)
    short = _SAME_TYPES.sub(r"\1", _TAIL.sub("", _NOISE.sub("", name)))
    return elide(short or name, most)


def elide(text: str, most: int) -> str:
    """Shorten `text` to `most` characters in the middle: names that begin alike often end differently."""
    if len(text) <= most:
        return text
    head = (most - 1) * 4 // 5
    return f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[head + 1 - most :]}"
