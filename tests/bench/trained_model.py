"""A model of Transformers that is trained on random tokens, until it is ended: a script whose changes are expected and
measured by `tests.bench.expected_changes`.

python tests/bench/trained_model.py --kind gpt2 --layers 6 --batch 4 --tokens 128 --attention sdpa
"""

import argparse

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    ElectraConfig,
    GPT2Config,
    GPTNeoConfig,
    MistralConfig,
    OlmoConfig,
    PhiConfig,
    Qwen2Config,
)

CONFIGS = {"gpt2": GPT2Config, "gpt_neo": GPTNeoConfig, "electra": ElectraConfig}
CONFIGS |= {"qwen2": Qwen2Config, "mistral": MistralConfig, "olmo": OlmoConfig, "phi": PhiConfig}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=CONFIGS, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = AutoModelForMaskedLM if args.kind == "electra" else AutoModelForCausalLM
    model = make.from_config(describe_model(args), attn_implementation=args.attention).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, args.vocabulary, (args.batch, args.tokens), device=device)
    while True:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def describe_model(args: argparse.Namespace):
    """Return the model's configuration: of layers with biases MLPs are four times as wide, of others three times."""
    wide = args.width * (4 if args.kind in ("gpt2", "gpt_neo", "electra", "phi") else 3)
    sizes = {"num_hidden_layers": args.layers, "hidden_size": args.width, "num_attention_heads": args.heads}
    more = {"intermediate_size": wide, "max_position_embeddings": max(args.tokens, 512), "vocab_size": args.vocabulary}
    if args.kind == "electra":
        more["embedding_size"] = args.width
    if args.kind == "gpt_neo":
        sizes = {"num_layers": args.layers, "hidden_size": args.width, "num_heads": args.heads}
        more["attention_types"] = [[["global", "local"], args.layers // 2]]
    if args.kind in ("qwen2", "mistral", "olmo"):
        more["num_key_value_heads"] = args.heads // 2
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return CONFIGS[args.kind](**sizes, **more, **special, use_cache=False)


if __name__ == "__main__":
    main()
