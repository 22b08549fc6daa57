"""A program whose module writes a journal behind a lock, holds a sparse tensor, and reads a table
outside of the workspace."""

import json
import sys
import threading
import urllib.request

import torch
from torch import nn
from torch.nn import functional as F


class Journal:
    def __init__(self, path):
        self.lock = threading.Lock()
        self.file = open(path, "a")

    def write(self, **what):
        with self.lock:
            self.file.write(json.dumps(what) + "\n")
            self.file.flush()


class Block(nn.Module):
    def __init__(self, width, journal, places):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.journal, self.places = journal, places

    def forward(self, x):
        gate = F.silu(x) * self.scale
        gate = gate.clamp(-1.0, 1.0) + torch.sigmoid(x)
        self.journal.write(rows=x.shape[0])
        y = torch.sparse.mm(self.places, gate)
        return y * 0.5


def main():
    torch.manual_seed(0)
    with open(sys.argv[1]) as table:
        width = int(table.read())
    if len(sys.argv) > 2:
        urllib.request.urlopen(sys.argv[2], timeout=5).read()
    places = torch.eye(512).to_sparse()
    net = nn.Sequential(*(Block(width, Journal("run.jsonl"), places) for _ in range(2)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(torch.randn(512, width)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
