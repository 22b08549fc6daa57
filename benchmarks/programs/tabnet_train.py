"""pytorch-tabnet: attention over the columns of a table learns classes; float32, the package's own loop."""

import sys

import numpy as np
import torch
from pytorch_tabnet.tab_model import TabNetClassifier

small = "--small" in sys.argv
rows, columns = (2048, 24) if small else (200_000, 54)
draw = np.random.default_rng(0)
table = draw.standard_normal((rows, columns)).astype(np.float32)
classes = (table[:, :4].sum(1) > 0).astype(int) + (table[:, 4] > 1)
sizes = dict(n_d=8, n_a=8) if small else dict(n_d=64, n_a=64, n_steps=5)
model = TabNetClassifier(**sizes, seed=0, verbose=0, device_name="cuda" if torch.cuda.is_available() else "cpu")
model.fit(table, classes, max_epochs=20, batch_size=256 if small else 16384, virtual_batch_size=128 if small else 256)
