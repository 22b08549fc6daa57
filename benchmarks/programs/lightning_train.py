"""lightning: a transformer learns to write, by the Trainer's own loop, bfloat16-mixed."""

import sys

import lightning
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

small = "--small" in sys.argv
width, layers, vocabulary, length = (64, 2, 200, 32) if small else (768, 12, 50304, 1024)


class Writer(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=width // 64, n_positions=length, use_cache=False))

    def training_step(self, batch, number):
        return self.model(batch, labels=batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


data = torch.randint(vocabulary, (64 if small else 2000, length))
loader = torch.utils.data.DataLoader(data, batch_size=2 if small else 8)
trainer = lightning.Trainer(max_steps=200, max_epochs=-1, precision="bf16-mixed", logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Writer(), loader)
