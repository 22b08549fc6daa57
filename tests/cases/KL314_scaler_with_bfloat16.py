import torch

scaler = torch.amp.GradScaler("cuda")  #! KL314
off = torch.amp.GradScaler("cuda", enabled=False)


def train(model, loader, optimizer):
    for x in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
