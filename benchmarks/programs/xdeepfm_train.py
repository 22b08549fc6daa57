"""deepctr-torch: an xDeepFM learns to recommend, the package's own loop; float32."""

import sys

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import xDeepFM

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 4096 if small else 262144
columns = [SparseFeat(f"c{i}", 100 if small else 10000, 8) for i in range(20)] + [DenseFeat(f"d{i}", 1) for i in range(6)]
values = {one.name: np.random.randint(0, 100, rows) if isinstance(one, SparseFeat) else np.random.rand(rows) for one in columns}
labels = np.random.randint(0, 2, rows)
model = xDeepFM(columns, columns, device=device)
model.compile("adam", "binary_crossentropy", metrics=["auc"])
model.fit(values, labels, batch_size=64 if small else 4096, epochs=4, verbose=0)
