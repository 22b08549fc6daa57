import torch


def evaluate(model, loader):
    model.eval()
    found = []
    for x in loader:
        found.append(model(x).argmax(-1))  #! KL315
    return found


def main(model, loader):
    return evaluate(model, loader), careful(model, loader), attack(model, loader)


# Near misses.


def careful(model, loader):
    model.eval()
    with torch.inference_mode():
        for x in loader:
            model(x)


@torch.no_grad()
def decorated(model, loader):
    model.eval()
    return [helper(model, x) for x in loader]


@torch.no_grad()
def caller(model, loader):
    return called(model, loader)


def called(model, loader):
    model.eval()
    for x in loader:
        model(x)


def attack(model, loader):
    model.eval()
    for x in loader:
        torch.autograd.grad(model(x).sum(), x)


def elsewhere(model, loader):
    model.eval()
    for x in loader:
        model(x)  # nobody here calls it
