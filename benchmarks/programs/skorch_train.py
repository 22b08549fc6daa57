"""skorch: a classifier as of scikit-learn learns from a table, the package's own loop and optimizer; float32."""

import sys

import torch
from skorch import NeuralNetClassifier

small = "--small" in sys.argv
width, batch = (256, 128) if small else (4096, 4096)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(40, width), torch.nn.Linear(width, width)
        self.norm, self.last = torch.nn.LayerNorm(width), torch.nn.Linear(width, 10)
    def forward(self, x):
        x = torch.nn.functional.gelu(self.first(x))
        return torch.softmax(self.last(self.norm(x + torch.nn.functional.gelu(self.second(x)))), -1)
net = NeuralNetClassifier(Net, max_epochs=6, lr=1e-3, optimizer=torch.optim.AdamW, batch_size=batch,
                          device="cuda" if torch.cuda.is_available() else "cpu", train_split=None)
net.fit(torch.randn(60 * batch, 40), torch.randint(10, (60 * batch,)))
