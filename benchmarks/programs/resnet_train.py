"""torchvision: a ResNet learns to classify images; channels-last, bfloat16 autocast, SGD with momentum."""

import sys

import torch
import torchvision

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torchvision.models.resnet18() if small else torchvision.models.resnet50()
model = model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
images = torch.randn(4 if small else 64, 3, 64 if small else 224, 64 if small else 224, device=device)
images, labels = images.to(memory_format=torch.channels_last), torch.randint(1000, (len(images),), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
