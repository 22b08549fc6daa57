"""transformers: a Mixtral of experts learns to write; bfloat16 autocast."""

import sys

import torch
from transformers import MixtralConfig, MixtralForCausalLM

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
tiny = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256)
full = dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4)
model = MixtralForCausalLM(MixtralConfig(**(tiny if small else full), output_router_logits=True)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(model.config.vocab_size, (2 if small else 8, 32 if small else 1024), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(), optimizer.zero_grad()
