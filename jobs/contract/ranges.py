"""The vocabulary of NVTX range names: what the workload annotates and what the analysis may look for.

Ranges nest like this (a step of mode `forward` has only the forward phase, `forward_backward` has no optimizer phase):

    step
      forward
        embedding
        block_0 ... block_{L-1}
          norm
          attention
            qkv_proj  rope
            attention_scores  softmax  attention_output      (attention = naive)
            fused_attention                                  (any other attention)
            o_proj
          norm
          ffn
        norm
        lm_head
      loss
      backward
      optimizer
"""

STEP = "step"

FORWARD = "forward"
LOSS = "loss"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
PHASES = (FORWARD, LOSS, BACKWARD, OPTIMIZER)

EMBEDDING = "embedding"
NORM = "norm"
ATTENTION = "attention"
QKV_PROJ = "qkv_proj"
ROPE = "rope"
ATTENTION_SCORES = "attention_scores"
SOFTMAX = "softmax"
ATTENTION_OUTPUT = "attention_output"
FUSED_ATTENTION = "fused_attention"
O_PROJ = "o_proj"
FFN = "ffn"
LM_HEAD = "lm_head"
MODULES = (
    EMBEDDING,
    NORM,
    ATTENTION,
    QKV_PROJ,
    ROPE,
    ATTENTION_SCORES,
    SOFTMAX,
    ATTENTION_OUTPUT,
    FUSED_ATTENTION,
    O_PROJ,
    FFN,
    LM_HEAD,
)

BLOCK_PREFIX = "block_"


def block(index: int) -> str:
    """Name of the range around Transformer block `index` (from 0)."""
    return f"{BLOCK_PREFIX}{index}"
