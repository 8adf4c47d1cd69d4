"""A Llama as a workload: token ids at random, mean cross-entropy of the next token.

Pre-norm blocks, RMSNorm, RoPE, causal attention with grouped queries, SwiGLU, no biases, untied embedding and head,
as in Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, table 3), whose 8B has the default shape.

Shapes: B batch_size, T context_length, D d_model, H num_heads, G num_kv_heads, K = D / H, V vocab_size.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiler_job.jobs.workloads import Built
from profiler_job.jobs.workloads.llama.costs import LLAMA_8B
from profiler_job.jobs.workloads.transformer.model import RotaryEmbedding, compute_loss

THETA = 5e5
"""Base of the frequencies of RoPE."""


class GroupedQueryAttention(nn.Module):
    """Causal attention, [B, T, D] -> [B, T, D], in which H / G heads share the keys and values of one: `naive` writes
    the scores out, the others are PyTorch's scaled_dot_product_attention as it chooses."""

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int, rope: RotaryEmbedding, attention: str):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.is_fused = num_heads, num_kv_heads, attention != "naive"
        d_head = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, num_kv_heads * d_head, bias=False)
        self.v_proj = nn.Linear(d_model, num_kv_heads * d_head, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.rope = rope

    def forward(self, x: Tensor) -> Tensor:
        q = self.rope(self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2))  # [B, H, T, K]
        k = self.rope(self.k_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2))  # [B, G, T, K]
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)
        if self.is_fused:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = (shared.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for shared in (k, v))
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(future, float("-inf"))
            heads = scores.softmax(-1).to(v.dtype) @ v
        output: Tensor = self.o_proj(heads.transpose(1, 2).flatten(-2))
        return output


class FeedForward(nn.Module):
    """w2(silu(w1 x) * w3 x), [B, T, D] -> [B, T, D]."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.w1 = nn.Linear(d_model, d_ff, bias=False)
        self.w2 = nn.Linear(d_ff, d_model, bias=False)
        self.w3 = nn.Linear(d_model, d_ff, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return output


class LlamaBlock(nn.Module):
    def __init__(self, d_model: int, d_ff: int, attention: GroupedQueryAttention):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(d_model, eps=1e-5), nn.RMSNorm(d_model, eps=1e-5)
        self.attention = attention
        self.ffn = FeedForward(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.ffn(self.ffn_norm(x))
        return x


class Llama(nn.Module):
    """Token ids [B, T] -> logits [B, T, V]. The blocks share one table of angles."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        vocab_size: int,
        context_length: int,
        attention: str,
    ):
        super().__init__()
        rope = RotaryEmbedding(d_model // num_heads, context_length, THETA)
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(
            LlamaBlock(d_model, d_ff, GroupedQueryAttention(d_model, num_heads, num_kv_heads, rope, attention))
            for _ in range(num_layers)
        )
        self.final_norm = nn.RMSNorm(d_model, eps=1e-5)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.lm_head(self.final_norm(x))
        return logits


def build(
    run: Mapping[str, Any],
    device: torch.device,
    d_model: int = LLAMA_8B["d_model"],
    d_ff: int = LLAMA_8B["d_ff"],
    num_layers: int = LLAMA_8B["num_layers"],
    num_heads: int = LLAMA_8B["num_heads"],
    num_kv_heads: int = LLAMA_8B["num_kv_heads"],
    vocab_size: int = LLAMA_8B["vocab_size"],
) -> Built:
    """The model of a run and its batch, tokens [B, T]; the loss takes logits [B, T, V]."""
    with device:
        model = Llama(
            d_model=d_model,
            d_ff=d_ff,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            vocab_size=vocab_size,
            context_length=run["context_length"],
            attention=run["attention"],
        )
        tokens = torch.randint(vocab_size, (run["batch_size"], run["context_length"] + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Built(model, (inputs,), partial(compute_loss, targets=targets))
