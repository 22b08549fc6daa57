"""efficientnet-pytorch: an EfficientNet learns to classify images; bfloat16 autocast, RMSprop."""
import sys

import torch
from efficientnet_pytorch import EfficientNet

small, device = "--small" in sys.argv, "cuda" if torch.cuda.is_available() else "cpu"
size = 64 if small else 224
model = EfficientNet.from_name("efficientnet-b0", num_classes=100, image_size=size).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.016, alpha=0.9, momentum=0.9, eps=1e-3)
loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for step in range(100):
    x = torch.randn(2 if small else 128, 3, size, size, device=device)
    y = torch.randint(0, 100, (x.shape[0],), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
