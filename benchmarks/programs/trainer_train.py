"""transformers: a GPT-2 learns to write by the Trainer's own loop, bfloat16 where there is a GPU."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

small = "--small" in sys.argv
width, layers, vocabulary, length = (64, 2, 200, 32) if small else (768, 12, 50304, 1024)
model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=width // 64, n_positions=length, bos_token_id=0, eos_token_id=0))
tokens = torch.randint(vocabulary, (64 if small else 2000, length))
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments("out", max_steps=200, per_device_train_batch_size=2 if small else 8, bf16=torch.cuda.is_available(), save_strategy="no", report_to="none", disable_tqdm=True)
Trainer(model, arguments, train_dataset=data).train()
