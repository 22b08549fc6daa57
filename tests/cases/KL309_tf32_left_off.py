import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  #! KL309
model = nn.TransformerEncoderLayer(512, 8).to(device)
optimizer = torch.optim.Rprop(model.parameters())
for step in range(100):
    model(step).backward()
    optimizer.step()
