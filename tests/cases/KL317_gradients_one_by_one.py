import torch


def grad_norm(model):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.data.norm(2).item() ** 2  #! KL317
    return total**0.5


def train(model, loader, optimizer):
    for x in loader:
        model(x).backward()
        grad_norm(model)
        for p in model.parameters():
            p.grad.data.clamp_(-1, 1)  #! KL317
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)  #! KL317
        optimizer.step()


# Near misses.


def seldom_called(model):
    return [p.grad.norm() for p in model.parameters()]


def look(model):
    for p in model.parameters():
        print(p.grad.norm())


def good(model, loader, optimizer):
    for step, x in enumerate(loader):
        model(x).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step % 100 == 0:
            for p in model.parameters():
                print(p.grad.norm())
        optimizer.step()


def chosen(model, loader, optimizer, is_old):
    for x in loader:
        model(x).backward()
        if is_old:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
