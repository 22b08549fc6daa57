import torch


def train(model, optimizer, loader):
    for x in loader:
        optimizer.zero_grad(set_to_none=False)  #! KL302
        model(x).backward()
        optimizer.step()


def by_hand(model, x, rate):
    model(x).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= rate * p.grad
            p.grad.data.zero_()  #! KL302


# Near misses.


def drops(model, optimizer, keep):
    optimizer.zero_grad()
    model.zero_grad(set_to_none=True)
    optimizer.zero_grad(set_to_none=keep)
    for p in model.parameters():
        p.grad = None
        p.data.zero_()


def one(x):
    x.grad.zero_()  # a tensor of its own, and no loop


class Wrapper:
    def zero_grad(self):
        for p in self.parameters():
            p.grad.zero_()
