"""torchvision: a Faster R-CNN learns to find things; bfloat16 autocast, SGD."""

import sys

import torch
import torchvision

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
size = dict(min_size=96, max_size=128) if small else {}
model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_fpn(weights=None, weights_backbone=None, **size).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
side = 96 if small else 800
images = [torch.rand(3, side, side, device=device) for _ in range(2 if small else 8)]
box = torch.tensor([[0.1, 0.1, 0.6, 0.7], [0.3, 0.4, 0.9, 0.8]], device=device) * side
targets = [{"boxes": box, "labels": torch.tensor([1, 2], device=device)} for _ in images]
for step in range(100):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = sum(model(images, targets).values())
    loss.backward(), optimizer.step(), optimizer.zero_grad()
