import torch
from torch import optim

model = torch.nn.Embedding(4, 4).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  #! KL303
slow = optim.RMSprop(model.parameters(), foreach=False)  #! KL303
groups = optim.SGD([{"params": model.parameters()}], lr=0.1)  #! KL303
for x in range(8):
    model(x).backward()
    optimizer.step()

# Near misses.
chosen = optim.Adam(model.parameters(), foreach=True)
single = optim.Adam([x], lr=0.1)
other = optim.RMSprop(model.parameters())
outside = optim.Adam(model.parameters(), **settings)
