"""transformers: a T5 learns to translate; bfloat16 autocast."""

import sys

import torch
from transformers import T5Config, T5ForConditionalGeneration

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
tiny = dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=256)
config = T5Config(**(tiny if small else {}), decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).to(device).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
source = torch.randint(2, config.vocab_size, (2 if small else 32, 32 if small else 512), device=device)
target = torch.randint(2, config.vocab_size, (len(source), 16 if small else 128), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(input_ids=source, attention_mask=torch.ones_like(source), labels=target).loss
    loss.backward(), optimizer.step(), optimizer.zero_grad()
