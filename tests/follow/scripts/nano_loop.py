"""A training loop in the manner of nanoGPT: batches by hand, gradients of four batches, BF16, clipping, fused AdamW."""

import math
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

NUM_STEPS, BATCHES_A_STEP, WARM_UP = 40, 4, 10
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
width, num_layers, num_heads, vocab_size, length, batch_size = (
    (768, 12, 12, 50304, 512, 8) if cuda else (32, 2, 2, 100, 16, 2)
)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        heads = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in self.c_attn(x).split(width, dim=-1))
        return self.c_proj(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(width), Attention(), nn.LayerNorm(width), MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block() for _ in range(num_layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())


def next_batch():
    starts = torch.randint(len(data) - length, (batch_size,))
    pairs = [torch.stack([data[start + shift : start + shift + length] for start in starts]) for shift in (0, 1)]
    return [part.pin_memory().to(device, non_blocking=True) if cuda else part for part in pairs]


torch.manual_seed(0)
data = torch.randint(vocab_size, (length * 400,))
model = GPT().to(device)
decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=cuda)
tokens, targets = next_batch()
start = time.perf_counter()
for step in range(NUM_STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * min((step + 1) / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * step / NUM_STEPS))
    for _ in range(BATCHES_A_STEP):
        with torch.autocast(device, torch.bfloat16):
            logits, loss = model(tokens, targets)
            loss = loss / BATCHES_A_STEP
        tokens, targets = next_batch()
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item() * BATCHES_A_STEP
    now = time.perf_counter()
    print(f"step {step} loss {value.hex()} ms {(now - start) * 1e3:.3f}", flush=True)
    start = now
