"""A Hugging Face Llama under the Trainer: BF16, gradient accumulation over two batches, gradient checkpointing."""

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(0)
cuda = torch.cuda.is_available()
config = LlamaConfig(
    hidden_size=768 if cuda else 32,
    intermediate_size=2048 if cuda else 64,
    num_hidden_layers=12 if cuda else 2,
    num_attention_heads=12 if cuda else 2,
    vocab_size=32000 if cuda else 100,
    max_position_embeddings=512,
)
model = LlamaForCausalLM(config)
length = 512 if cuda else 16


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * 60

    def __getitem__(self, index):
        tokens = torch.randint(0, config.vocab_size, (length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **others):
        now = time.perf_counter()
        if logs and "loss" in logs:
            took = (now - getattr(self, "last", now)) * 1e3
            print(f"step {state.global_step - 1} loss {logs['loss']} ms {took:.3f}", flush=True)
        self.last = now


arguments = TrainingArguments(
    output_dir="trainer",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=50,
    bf16=cuda,
    use_cpu=not cuda,
    gradient_checkpointing=True,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    dataloader_num_workers=2,
)
Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Print()]).train()
