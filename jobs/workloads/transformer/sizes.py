"""The five model sizes, after Stanford CS336 (assignment 2, systems). `2.7B` is that course's name for the largest:
with a gated feed-forward of this width it has more parameters than the name says, so reports state `num_parameters`."""

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
}
