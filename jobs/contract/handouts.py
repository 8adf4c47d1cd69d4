"""The models and ranges that the hand-outs of Stanford CS336, assignment 2, ask to profile, by year.

A hand-out's names of sizes are its own: `xl` of 2026 has the shape that `2.7B` has in 2025 and in sweep files.
"""

from typing import NamedTuple


class Shape(NamedTuple):
    """Sizes of a Transformer language model."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int


class Handout(NamedTuple):
    """What a hand-out gives. sizes: shapes by its names."""

    sizes: dict[str, Shape]
    vocab_size: int = 10_000
    batch_size: int = 4


_COMMON = {
    "small": Shape(768, 3072, 12, 12),
    "medium": Shape(1024, 4096, 24, 16),
    "large": Shape(1280, 5120, 36, 20),
}
HANDOUTS = {
    2025: Handout(_COMMON | {"xl": Shape(1600, 6400, 48, 25), "2.7B": Shape(2560, 10240, 32, 32)}),
    2026: Handout(_COMMON | {"xl": Shape(2560, 10240, 32, 32), "10B": Shape(4608, 12288, 50, 36)}),
}
"""By year."""

ATTENTION_RANGES = {"attention_scores": "QKᵀ", "softmax": "the softmax", "attention_output": "the product with V"}
"""Ranges inside attention that question (e) needs, and what they are around."""


def count_parameters(shape: Shape, vocab_size: int) -> int:
    """Count the parameters: embedding and untied head, and per layer four d_model x d_model projections, three
    feed-forward matrices of d_model x d_ff, two norms; one final norm."""
    d, f = shape.d_model, shape.d_ff
    return 2 * vocab_size * d + shape.num_layers * (4 * d * d + 3 * d * f + 2 * d) + d


def find_shapes(size: str) -> dict[int, Shape]:
    """Find the shapes that the hand-outs give this name of a size, in any capitals, by year."""
    by_year = {}
    for year, handout in HANDOUTS.items():
        known = {name.casefold(): shape for name, shape in handout.sizes.items()}
        if shape := known.get(size.casefold()):
            by_year[year] = shape
    return by_year
