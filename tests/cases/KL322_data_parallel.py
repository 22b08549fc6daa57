from torch import nn


def train(model, loader, optimizer):
    model = nn.DataParallel(model)  #! KL322
    for x in loader:
        model(x).backward()
        optimizer.step()


def again(model):
    return nn.DataParallel(model)  # the same decision


# Near misses.


def good(model):
    return nn.Sequential(model)
