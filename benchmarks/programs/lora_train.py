"""peft: a language model (Qwen2) is fine-tuned by LoRA; bfloat16 autocast, activation checkpointing."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
tiny = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256)
full = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)
base = Qwen2ForCausalLM(Qwen2Config(**(tiny if small else full), use_cache=False)).to(device)
base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
base.enable_input_require_grads()
names = ["q_proj", "k_proj", "v_proj", "o_proj"]
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=names)).train()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
tokens = torch.randint(base.config.vocab_size, (2 if small else 8, 32 if small else 1024), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step(), optimizer.zero_grad()
