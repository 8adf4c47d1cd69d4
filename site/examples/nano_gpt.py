"""A small GPT in the manner of nanoGPT, as a workload whose width, depth and dropout are axes."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, softmax

from profiler_job.jobs.workloads import Built

VOCAB_SIZE = 50304
HEAD_WIDTH = 64


class Attention(nn.Module):
    def __init__(self, width: int, dropout: float, eager: bool):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout, self.eager = nn.Dropout(dropout), eager

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, -1, 3, min(HEAD_WIDTH, width)).permute(3, 0, 2, 1, 4)
        q, k, v = heads.unbind()
        if self.eager:
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
            y = self.dropout(softmax(scores, dim=-1)) @ v
        else:
            y = scaled_dot_product_attention(q, k, v, dropout_p=self.dropout.p * self.training, is_causal=True)
        return self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))


class Block(nn.Module):
    def __init__(self, width: int, dropout: float, eager: bool):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, dropout, eager)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class NanoGPT(nn.Module):
    def __init__(self, width: int, num_layers: int, context_length: int, dropout: float, eager: bool):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB_SIZE, width), nn.Embedding(context_length, width)
        self.blocks = nn.Sequential(*(Block(width, dropout, eager) for _ in range(num_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB_SIZE, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def build(run, device, width: int = 384, num_layers: int = 6, dropout: float = 0.0):
    with device:
        model = NanoGPT(width, num_layers, run["context_length"], dropout, eager=run["attention"] == "naive")
        tokens = torch.randint(VOCAB_SIZE, (run["batch_size"], run["context_length"] + 1))
    targets = tokens[:, 1:].flatten()
    return Built(model, (tokens[:, :-1],), lambda logits: cross_entropy(logits.flatten(0, 1), targets))
