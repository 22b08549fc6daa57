"""Has another default for an argument that the workload does not give."""

import torch


def blend(x, y, *, weight=0.25, negate=False):
    mixed = torch.lerp(x, y, 0.5 if weight == 0.25 else weight)
    return -mixed if negate else mixed
