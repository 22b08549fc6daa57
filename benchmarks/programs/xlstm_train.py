"""xlstm: a language model of matrix and scalar memories; bfloat16 autocast."""

import sys

import torch
from xlstm import FeedForwardConfig, mLSTMBlockConfig, sLSTMBlockConfig, sLSTMLayerConfig, xLSTMLMModel, xLSTMLMModelConfig

width, depth, length, batch = (32, 2, 32, 2) if "--small" in sys.argv else (384, 8, 256, 8)
device = "cuda" if torch.cuda.is_available() else "cpu"
slstm = sLSTMBlockConfig(slstm=sLSTMLayerConfig(backend="vanilla", num_heads=4), feedforward=FeedForwardConfig(proj_factor=1.3, act_fn="gelu"))
config = xLSTMLMModelConfig(vocab_size=256, context_length=length, embedding_dim=width, num_blocks=depth, slstm_at=[1], mlstm_block=mLSTMBlockConfig(), slstm_block=slstm)
model = xLSTMLMModel(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(200):
    tokens = torch.randint(256, (batch, length + 1), device=device)
    with torch.autocast(device, torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
