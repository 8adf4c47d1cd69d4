"""Transformer language model of Stanford CS336: pre-norm blocks, RMSNorm, RoPE, eager causal attention, SwiGLU,
no biases, untied embedding and head.

Written operation by operation, as a student writes it, so that each kernel can be seen. Separate Q, K, V and output
projections: a forward pass launches 9L + 1 matmuls (seven linears, QK^T and AV a layer, and the head).

Shapes: B batch_size, T context_length, D d_model, H num_heads, K = D / H, F d_ff, V vocab_size.
"""

import re
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from profiler_job.jobs.contract import ranges
from profiler_job.jobs.workloads.annotation import annotate


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, computed in float32 whatever the autocast type."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        with annotate(ranges.NORM):
            x = x.float()
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class RotaryEmbedding(nn.Module):
    """Rotates each pair (x[2i], x[2i+1]) of a head by position * theta^(-2i/K). Input and output [B, H, T, K]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, d_head: int, context_length: int, theta: float = 1e4):
        super().__init__()
        frequency = theta ** (-torch.arange(0, d_head, 2).float() / d_head)
        angle = torch.outer(torch.arange(context_length).float(), frequency)  # [T, K/2]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        even, odd = x[..., 0::2], x[..., 1::2]
        rotated = torch.stack((even * self.cos - odd * self.sin, even * self.sin + odd * self.cos), dim=-1)
        return rotated.flatten(-2).to(x.dtype)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis as max, subtract, exp, sum, divide: five operations, none of them called softmax.

    The gradient flows through the maximum too, as in the textbook form, although it adds up to zero.
    """
    with annotate(ranges.SOFTMAX):
        exponential = torch.exp(x - x.max(dim=-1, keepdim=True).values)
        return exponential / exponential.sum(dim=-1, keepdim=True)


SDPA_BACKENDS = {
    "sdpa": (),  # PyTorch chooses
    "flash": (SDPBackend.FLASH_ATTENTION,),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION,),
    "cudnn": (SDPBackend.CUDNN_ATTENTION,),
}


class CausalSelfAttention(nn.Module):
    """Multi-head attention, [B, T, D] -> [B, T, D]: `naive` writes the scores out, the others are PyTorch's
    scaled_dot_product_attention, as it chooses or by one of its backends."""

    future: Tensor

    def __init__(self, d_model: int, num_heads: int, context_length: int, attention: str):
        super().__init__()
        self.num_heads = num_heads
        self.attend = self.attend_naive if attention == "naive" else self.attend_sdpa
        self.backends = SDPA_BACKENDS.get(attention, ())
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.rope = RotaryEmbedding(d_model // num_heads, context_length)
        future = torch.ones(context_length, context_length, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def split_heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, T, D] -> [B, H, T, K]
        return heads

    def forward(self, x: Tensor) -> Tensor:
        with annotate(ranges.ATTENTION):
            with annotate(ranges.QKV_PROJ):
                q, k, v = (self.split_heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
            with annotate(ranges.ROPE):
                q, k = self.rope(q), self.rope(k)
            heads = self.attend(q, k, v)
            with annotate(ranges.O_PROJ):
                output: Tensor = self.o_proj(heads.transpose(1, 2).flatten(-2))
            return output

    def attend_naive(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with annotate(ranges.ATTENTION_SCORES):
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # [B, H, T, T]
            scores = scores.masked_fill(self.future, float("-inf"))
        weights = softmax(scores)
        with annotate(ranges.ATTENTION_OUTPUT):
            return weights @ v

    def attend_sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with annotate(ranges.FUSED_ATTENTION), sdpa_kernel(list(self.backends)) if self.backends else nullcontext():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class SwiGLU(nn.Module):
    """w2(silu(w1 x) * w3 x), [B, T, D] -> [B, T, D] through F."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.w1 = nn.Linear(d_model, d_ff, bias=False)
        self.w2 = nn.Linear(d_ff, d_model, bias=False)
        self.w3 = nn.Linear(d_model, d_ff, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        with annotate(ranges.FFN):
            gate = self.w1(x)
            output: Tensor = self.w2(gate * torch.sigmoid(gate) * self.w3(x))
        return output


class Block(nn.Module):
    def __init__(self, d_model: int, d_ff: int, num_heads: int, context_length: int, attention: str):
        super().__init__()
        self.attention_norm = RMSNorm(d_model)
        self.attention = CausalSelfAttention(d_model, num_heads, context_length, attention)
        self.ffn_norm = RMSNorm(d_model)
        self.ffn = SwiGLU(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.ffn(self.ffn_norm(x))
        return x


class TransformerLM(nn.Module):
    """Token ids [B, T] -> logits [B, T, V]."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        num_layers: int,
        num_heads: int,
        vocab_size: int,
        context_length: int,
        attention: str = "naive",
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, d_ff, num_heads, context_length, attention) for _ in range(num_layers)
        )
        self.final_norm = RMSNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        with annotate(ranges.EMBEDDING):
            x = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            with annotate(ranges.name_block(i)):
                x = block(x)
        x = self.final_norm(x)
        with annotate(ranges.LM_HEAD):
            logits: Tensor = self.lm_head(x)
        return logits


_RANGE_OF = {
    **dict.fromkeys(("attention_norm", "ffn_norm", "final_norm"), ranges.NORM),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), ranges.QKV_PROJ),
    **dict.fromkeys(("w1", "w2", "w3"), ""),
}
"""The range that a module opens where it has another name; "" where the module around it has opened one."""


def name_ranges(path: str) -> str:
    """Name the ranges that are open in a module, by its path.

    blocks.0/attention/q_proj -> block_0/attention/qkv_proj
    """
    names = (re.sub(r"^blocks\.(\d+)$", rf"{ranges.BLOCK_PREFIX}\1", name) for name in path.split("/"))
    return "/".join(filter(None, (_RANGE_OF.get(name, name) for name in names)))


def compute_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits [B, T, V] against token ids [B, T]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
