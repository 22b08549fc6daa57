"""litgpt: a Llama writes text by the package's own loop and its fixed cache of keys and values; bfloat16."""

import sys

import torch
from litgpt import GPT, Config
from litgpt.generate.base import generate

small = "--small" in sys.argv
device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
sizes = dict(n_layer=2, n_head=4, n_query_groups=2, n_embd=64, intermediate_size=128, padded_vocab_size=256) if small else {}
model = GPT(Config.from_name("Llama-3.2-1B", **sizes)).to(device, dtype).eval()
with torch.inference_mode(), torch.device(device):
    model.max_seq_length = 128 if small else 1024
    model.set_kv_cache(batch_size=1, device=device, dtype=dtype)
    for _ in range(20):
        generate(model, torch.randint(256, (16,)), 64 if small else 256, temperature=0.8, top_k=50)
