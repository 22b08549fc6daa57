"""transformers: a Llama of 8 layers reads prompts, bfloat16, no gradients."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

small = "--small" in sys.argv
sizes = (
    dict(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
    )
    if small
    else dict(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=4,
        vocab_size=32000,
    )
)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False)).to(device, torch.bfloat16).eval()
tokens = torch.randint(sizes["vocab_size"], (2, 16) if small else (8, 1024), device=device)
with torch.inference_mode():
    for step in range(200):
        model(tokens)
