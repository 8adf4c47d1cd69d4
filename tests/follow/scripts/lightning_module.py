"""A small Transformer as a Lightning module, with automatic optimization."""

import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, width // 64 or 1, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)
        self.last = time.perf_counter()

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(1))

    def training_step(self, batch, index):
        tokens, labels = batch
        loss = nn.functional.cross_entropy(self(tokens), labels)
        now = time.perf_counter()
        print(f"step {index} loss {loss.item().hex()} ms {(now - self.last) * 1e3:.3f}", flush=True)
        self.last = now
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


lightning.seed_everything(0)
cuda = torch.cuda.is_available()
data = TensorDataset(torch.randint(0, 1000, (8 * 60, 256 if cuda else 16)), torch.randint(0, 10, (8 * 60,)))
trainer = lightning.Trainer(
    max_epochs=1,
    precision="bf16-mixed" if cuda else "32-true",
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    accelerator="auto",
    devices=1,
)
trainer.fit(Classifier(512 if cuda else 32, 6 if cuda else 2), DataLoader(data, batch_size=8, num_workers=2))
