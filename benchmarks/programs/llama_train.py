"""transformers: a Llama of 12 layers learns to write, bfloat16 autocast, float32 weights."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

small, device = "--small" in sys.argv, "cuda" if torch.cuda.is_available() else "cpu"
width, layers, heads, vocabulary = (64, 2, 2, 200) if small else (768, 12, 12, 32000)
config = LlamaConfig(
    hidden_size=width, intermediate_size=2 * width if small else 2048, num_hidden_layers=layers,
    num_attention_heads=heads, num_key_value_heads=heads, vocab_size=vocabulary, use_cache=False,
)
torch.set_float32_matmul_precision("high")
model = LlamaForCausalLM(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(200):
    tokens = torch.randint(vocabulary, (2, 32) if small else (8, 1024), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
