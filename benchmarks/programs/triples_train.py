"""pykeen: a knowledge graph's triples are embedded by RotatE, the package's own loop; float32."""

import sys

import torch
from pykeen.datasets import Nations
from pykeen.models import RotatE
from pykeen.training import SLCWATrainingLoop

small = "--small" in sys.argv
data = Nations()
model = RotatE(triples_factory=data.training, embedding_dim=32 if small else 512)
model = model.to("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loop = SLCWATrainingLoop(model=model, triples_factory=data.training, optimizer=optimizer)
loop.train(triples_factory=data.training, num_epochs=40, batch_size=64 if small else 1024, use_tqdm=False)
