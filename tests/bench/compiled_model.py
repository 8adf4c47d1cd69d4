"""A model whose training step is compiled, for `tests.bench.compiled_scripts`: steps on random tokens, and the loss of
each, to the bit, in a file.

python tests/bench/compiled_model.py --kind llmc --mode reduce-overhead --losses losses.txt
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to add up in one order
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, rms_norm, scaled_dot_product_attention

KINDS = ("llmc", "nano", "gpt2", "llama")
MODES = ("default", "reduce-overhead", "regional", "broken", "none")


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int, kind: str):
        super().__init__()
        self.num_heads, self.has_norm = num_heads, kind == "nano"
        self.c_attn = nn.Linear(width, 3 * width, bias=not self.has_norm)
        self.c_proj = nn.Linear(width, width, bias=not self.has_norm)

    def forward(self, x):
        parts = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        if self.has_norm:
            q, k = (rms_norm(part, part.shape[-1:]) for part in (q, k))
        return self.c_proj(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int, kind: str):
        super().__init__()
        self.is_squared = kind == "nano"
        self.c_fc = nn.Linear(width, 4 * width, bias=not self.is_squared)
        self.c_proj = nn.Linear(4 * width, width, bias=not self.is_squared)

    def forward(self, x):
        x = self.c_fc(x)
        return self.c_proj(x.relu().square() if self.is_squared else gelu(x, approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, kind: str):
        super().__init__()
        norm = nn.RMSNorm if kind == "nano" else nn.LayerNorm
        self.ln_1, self.ln_2 = norm(width), norm(width)
        self.attn, self.mlp = Attention(width, num_heads, kind), MLP(width, kind)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A GPT as llm.c writes it, or with nanochat's norms and squared ReLU. is_broken: a number is read in the middle,
    which breaks the graph."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(args.vocabulary, args.width), nn.Embedding(args.tokens, args.width)
        self.h = nn.ModuleList(Block(args.width, args.heads, args.kind) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        self.lm_head = nn.Linear(args.width, args.vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        self.is_broken = args.mode == "broken"

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for place, block in enumerate(self.h):
            x = block(x)
            if self.is_broken and place == 1 and float(x.detach().abs().max()) > 1e9:
                print("large")
        return self.lm_head(self.ln_f(x))


def make_model(args: argparse.Namespace) -> tuple[nn.Module, nn.ModuleList]:
    """Return a model, and its blocks."""
    if args.kind == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"n_layer": args.layers, "n_embd": args.width, "n_head": args.heads, "vocab_size": args.vocabulary}
        gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
        return gpt2, gpt2.transformer.h
    if args.kind == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": args.width, "intermediate_size": 3 * args.width, "vocab_size": args.vocabulary}
        sizes |= {"num_hidden_layers": args.layers, "num_attention_heads": args.heads}
        llama = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False))
        return llama, llama.model.layers
    gpt = GPT(args)
    return gpt, gpt.h


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--losses", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, blocks = make_model(args)
    called = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if args.mode == "regional":
        for block in blocks:
            block.compile()
    elif args.mode != "none":
        called = torch.compile(model, mode=args.mode if args.mode == "reduce-overhead" else "default")
    tokens = torch.randint(args.vocabulary, (args.batch, args.tokens + 1), device=device)
    with args.losses.open("w") as file:
        for _ in range(args.steps):
            with torch.autocast(device, torch.bfloat16):
                logits = called(tokens[:, :-1])
                logits = getattr(logits, "logits", logits)
                loss = cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            file.write(f"{loss.item().hex()}\n")
            file.flush()


if __name__ == "__main__":
    main()
