"""timm: a ConvNeXt learns to classify images; channels-last, bfloat16 autocast, moving average of weights."""

import sys

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
model = timm.create_model("convnext_atto" if small else "convnext_tiny", drop_path_rate=0.1, num_classes=100)
model = model.to(device, memory_format=torch.channels_last)
average = ModelEmaV3(model, decay=0.999)
optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
images = torch.randn(4 if small else 64, 3, 64 if small else 224, 64 if small else 224, device=device)
images, labels = images.to(memory_format=torch.channels_last), torch.randint(100, (len(images),), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
    loss.backward()
    optimizer.step(), optimizer.zero_grad(), average.update(model, step=step)
