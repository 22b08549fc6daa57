"""torchscale: a retentive network learns to write; float32 with TF32."""

import sys

import torch
from torchscale.architecture.config import RetNetConfig
from torchscale.architecture.retnet import RetNetDecoder

torch.set_float32_matmul_precision("high")
width, depth, length, batch = (32, 2, 32, 2) if "--small" in sys.argv else (512, 8, 512, 8)
device = "cuda" if torch.cuda.is_available() else "cpu"
config = RetNetConfig(vocab_size=256, decoder_embed_dim=width, decoder_value_embed_dim=2 * width, decoder_ffn_embed_dim=2 * width, decoder_layers=depth, decoder_retention_heads=4)
model = RetNetDecoder(config, embed_tokens=torch.nn.Embedding(256, width)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(200):
    tokens = torch.randint(256, (batch, length + 1), device=device)
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
