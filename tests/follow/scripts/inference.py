"""A model that is only asked: no optimizer, one forward pass after the other."""

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
cuda = torch.cuda.is_available()
shape = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(**(shape if cuda else tiny), vocab_size=32000 if cuda else 100)
model = LlamaForCausalLM(config).to("cuda" if cuda else "cpu", torch.bfloat16 if cuda else torch.float32).eval()
tokens = torch.randint(0, config.vocab_size, (8, 512 if cuda else 16), device=model.device)
start = time.perf_counter()
with torch.inference_mode():
    for step in range(60):
        logits = model(input_ids=tokens).logits
        value = logits[:, -1].float().sum().item()
        now = time.perf_counter()
        print(f"step {step} loss {value.hex()} ms {(now - start) * 1e3:.3f}", flush=True)
        start = now
