"""transformers: a Qwen2 writes text with a cache of keys and values; bfloat16, greedy decoding."""

import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
tiny = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256)
full = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)
model = Qwen2ForCausalLM(Qwen2Config(**(tiny if small else full))).to(device, torch.bfloat16).eval()
model.generation_config.eos_token_id = None
prompts = torch.randint(model.config.vocab_size, (2 if small else 16, 16 if small else 256), device=device)
for batch in range(20):
    model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=16, do_sample=False, pad_token_id=0)
