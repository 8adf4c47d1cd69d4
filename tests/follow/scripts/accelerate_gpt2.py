"""A Hugging Face GPT-2 under `accelerate launch`: BF16, gradients of two batches, clipping, AdamW; ran on two GPUs."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=6))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
data = DataLoader(torch.randint(0, 50257, (640, 512)), batch_size=4, shuffle=True)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for step, tokens in enumerate(data):
    with accelerator.accumulate(model):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {accelerator.process_index} {step} {loss.item().hex()}\n", end="", flush=True)
accelerator.end_training()
