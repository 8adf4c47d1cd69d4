"""Parse the element type from the name of an element-wise PyTorch kernel.

ATen compiles a kernel for each type and names it in the template: `float`, `c10::BFloat16`. If the operands have
several types, the name shows that the kernel converts while it loads and stores; such a kernel that copies is a cast.
"""

import re

ELEMENT_TYPES = {
    "fp32": "FP32",
    "bf16": "BF16",
    "mixed": "both",
    "": "not said",
}
"""Labels of the element types, by key."""

_CONVERTS = re.compile(r"LoadWithCast|gpu_kernel_impl<|bfloat16_copy_kernel|float16_copy_kernel")
_COPIES = re.compile(r"copy_kernel")
_BF16 = re.compile(r"BFloat16|__nv_bfloat16")
_FP32 = re.compile(r"\bfloat\b")


def parse_element_type(name: str) -> str:
    """Key of ELEMENT_TYPES: `mixed` converts between types, "" does not say."""
    if _CONVERTS.search(name):
        return "mixed"
    if _BF16.search(name):
        return "bf16"
    return "fp32" if _FP32.search(name) else ""


def is_cast(name: str) -> bool:
    """True of a kernel that only changes the type of its elements."""
    return bool(_COPIES.search(name) and _CONVERTS.search(name))
