import torch


def train(model, loader, optimizer, scaler):
    for x in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)
            loss.backward()  #! KL308
        optimizer.step()
    for x in loader:
        with torch.cuda.amp.autocast():
            loss = model(x)
            scaler.scale(loss).backward()  #! KL308
            scaler.step(optimizer)


# Near misses.


def good(model, loader, optimizer):
    for x in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)
        loss.backward()
        optimizer.step()
        with torch.autocast("cuda", enabled=False):
            model(x).backward()
