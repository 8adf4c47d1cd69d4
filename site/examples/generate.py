"""Generate text with a Llama of random weights, for `profile`: what a token costs depends on shapes, not on weights.

profiler-job profile -n generate-dynamic-8 -- python generate.py --batch 8
profiler-job profile -n generate-compiled-8 -- python generate.py --batch 8 --cache static --compile
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--prompt", type=int, default=512)
parser.add_argument("--new", type=int, default=64)
parser.add_argument("--texts", type=int, default=40)
parser.add_argument("--cache", default="dynamic")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--device", default="cuda")
args = parser.parse_args()

torch.manual_seed(0)
shape = (
    dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    if args.tiny
    else dict(hidden_size=2048, intermediate_size=5504, num_hidden_layers=24, num_attention_heads=16)
)
config = LlamaConfig(vocab_size=32000, max_position_embeddings=2048, **shape)
with torch.device(args.device):
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f}B parameters", flush=True)
options = {"do_sample": False, "max_new_tokens": args.new, "min_new_tokens": args.new, "pad_token_id": 0}
if args.cache == "static":
    options["cache_implementation"] = "static"
    options["disable_compile"] = not args.compile
for number in range(args.texts):
    prompts = torch.randint(3, 32000, (args.batch, args.prompt), device=args.device)
    mask = torch.ones_like(prompts)
    texts = model.generate(prompts, attention_mask=mask, **options)
    print(f"texts {number}: {tuple(texts.shape)}", flush=True)
