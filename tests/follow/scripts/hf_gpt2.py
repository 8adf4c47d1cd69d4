"""An ordinary training loop of a Hugging Face GPT-2: BF16 autocast, gradient clipping, AdamW, a DataLoader."""

import time

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
small = {} if device == "cuda" else {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 32}
config = GPT2Config(**small)
model = GPT2LMHeadModel(config).to(device)
model.train()
tokens = torch.randint(0, config.vocab_size, (320, min(512, config.n_positions)))
loader = DataLoader(TensorDataset(tokens), batch_size=4, num_workers=2, pin_memory=device == "cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
start = time.perf_counter()
for step, (batch,) in enumerate(loader):
    batch = batch.to(device, non_blocking=True)
    with torch.autocast(device, torch.bfloat16):
        loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    value = loss.item()
    now = time.perf_counter()
    print(f"step {step} loss {value.hex()} ms {(now - start) * 1e3:.3f}", flush=True)
    start = now
