"""x-transformers: a decoder with rotary positions writes text, its cache of keys and values grows; bfloat16."""

import sys

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

small = "--small" in sys.argv
width, depth, prompt, batch = (256, 4, 64, 4) if small else (1024, 24, 512, 16)
device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
layers = Decoder(dim=width, depth=depth, heads=width // 64, rotary_pos_emb=True)
model = AutoregressiveWrapper(TransformerWrapper(num_tokens=256, max_seq_len=1024, attn_layers=layers)).to(device, dtype).eval()
for _ in range(20):
    model.generate(torch.randint(256, (batch, prompt), device=device), 32, cache_kv=True)
