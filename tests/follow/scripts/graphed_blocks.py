"""A training loop whose blocks the script captures in CUDA graphs: forward and backward of each are replayed, and the
rest, loss and optimizer with it, is launched as usual."""

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

NUM_STEPS = 40
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
width, num_layers, vocab_size, length, batch_size = (768, 6, 50304, 256, 8) if cuda else (32, 2, 100, 16, 2)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, width)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64 or 1, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(num_layers)
        )
        self.lm_head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


torch.manual_seed(0)
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
tokens = torch.randint(vocab_size, (batch_size, length), device=device)
if cuda:
    like_input = torch.randn(batch_size, length, width, device=device, requires_grad=True)
    model.h = nn.ModuleList(torch.cuda.make_graphed_callables(block, (like_input,)) for block in model.h)
for step in range(NUM_STEPS):
    start = time.perf_counter()
    tokens.copy_(torch.randint(vocab_size, (batch_size, length)))
    optimizer.zero_grad()
    loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    value = loss.item()
    print(f"step {step} loss {value.hex()} ms {(time.perf_counter() - start) * 1e3:.3f}", flush=True)
