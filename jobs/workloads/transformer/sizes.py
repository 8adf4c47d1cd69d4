"""The five model sizes, after Stanford CS336 (assignment 2, systems). `2.7B` is that course's name for the largest:
with a gated feed-forward of this width it has more parameters than the name says, so reports state `num_parameters`."""

from typing import NamedTuple

VOCAB_SIZE = 10_000


class ModelSize(NamedTuple):
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int

    @property
    def d_head(self) -> int:
        return self.d_model // self.num_heads

    def num_parameters(self, vocab_size: int) -> int:
        """Embedding and untied head, and per layer: four d_model x d_model projections, three feed-forward matrices
        of d_model x d_ff, two norms; one final norm."""
        d, f = self.d_model, self.d_ff
        return 2 * vocab_size * d + self.num_layers * (4 * d * d + 3 * d * f + 2 * d) + d


MODEL_SIZES = {
    "small": ModelSize(768, 3072, 12, 12),
    "medium": ModelSize(1024, 4096, 24, 16),
    "large": ModelSize(1280, 5120, 36, 20),
    "xl": ModelSize(1600, 6400, 48, 25),
    "2.7B": ModelSize(2560, 10240, 32, 32),
}
