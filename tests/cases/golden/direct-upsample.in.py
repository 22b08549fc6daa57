"""A segmentation head whose scores are brought to the size of the image."""

import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload features=f16[8,256,128,128]
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.classify = nn.Conv2d(256, 21, 1).half()

    def forward(self, features):
        scores = self.classify(features)
        return F.interpolate(scores, scale_factor=4, mode="bilinear", align_corners=False)
