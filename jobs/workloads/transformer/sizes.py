"""The model sizes: five after Stanford CS336 (assignment 2, systems), and one more.

`2.7B` is that course's largest: its gated feed-forward gives it more parameters than the name says, so reports state
`num_parameters`. `1.3B` has the shape of GPT-3's, with a gated feed-forward of as many parameters."""

from typing import NamedTuple

from profiler_job.jobs.contract.handouts import HANDOUTS, Shape, count_parameters

VOCAB_SIZE = HANDOUTS[2025].vocab_size


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
        return count_parameters(Shape(*self), vocab_size)


MODEL_SIZES = {
    **{name: ModelSize(*shape) for name, shape in HANDOUTS[2025].sizes.items()},
    "1.3B": ModelSize(2048, 5504, 24, 16),
}
