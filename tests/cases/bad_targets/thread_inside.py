# expect: refused: Model computes a part (c_lifted_tensor_0) where it cannot be traced: in another thread, or by a gradient inside of forward
"""Another thread does a part of the work."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        import threading
        box = []
        worker = threading.Thread(target=lambda: box.append(x * 2))
        worker.start()
        worker.join()
        return torch.relu(box[0]) + 1


def get_inputs():
    return [torch.randn(6, 8)]
