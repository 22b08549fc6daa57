"""A running average with a decay for each feature."""

import torch
import torch.nn as nn


# kernel-lsp: workload frames=f32[128,64,256]
class RunningAverage(nn.Module):
    def __init__(self, features=256):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(features))

    def forward(self, frames):
        keep = torch.sigmoid(self.decay)
        average = torch.zeros_like(frames[0])
        averages = []
        for frame in frames:
            average = keep * average + (1 - keep) * frame
            averages.append(average)
        return torch.stack(averages)
