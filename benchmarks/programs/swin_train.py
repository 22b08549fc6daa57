"""timm: a Swin transformer with stochastic depth learns images; bfloat16 autocast."""

import sys

import timm.loss
import timm.optim
import torch

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = dict(img_size=64, window_size=4, embed_dim=32, depths=(1, 2), num_heads=(2, 4)) if small else {}
model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=100, drop_path_rate=0.1, **sizes).to(device)
optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
images = torch.randn(2 if small else 64, 3, 64 if small else 224, 64 if small else 224, device=device)
labels = torch.randint(100, (len(images),), device=device)
criterion = timm.loss.LabelSmoothingCrossEntropy(0.1)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = criterion(model(images), labels)
    loss.backward(), optimizer.step(), optimizer.zero_grad()
