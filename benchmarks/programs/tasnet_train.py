"""asteroid: a Conv-TasNet learns to separate two speakers; float32."""

import sys

import torch
from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
from asteroid.models import ConvTasNet

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = dict(n_blocks=3, n_repeats=1, bn_chan=32, hid_chan=64, skip_chan=32, n_filters=64) if small else {}
model = ConvTasNet(n_src=2, **sizes).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_of = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
speakers = torch.randn(2 if small else 8, 2, 4000 if small else 24000, device=device)
for step in range(200):
    loss = loss_of(model(speakers.sum(1)), speakers)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
