"""fastai: an XResNet learns by the Learner's own loop, with an optimizer that is not torch's; float32."""

import sys

import torch
from fastai.vision.all import CrossEntropyLossFlat, DataLoaders, Learner
from fastai.vision.models.xresnet import xresnet18

small = "--small" in sys.argv
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
size, batch = (64, 8) if small else (160, 64)
pictures = list(zip(torch.randn(64 * batch, 3, size, size), torch.randint(10, (64 * batch,))))
loaders = DataLoaders.from_dsets(pictures, pictures[:batch], bs=batch, num_workers=0, device=device)
learner = Learner(loaders, xresnet18(n_out=10), loss_func=CrossEntropyLossFlat())
with learner.no_bar():
    learner.fit_one_cycle(3, 1e-3)
