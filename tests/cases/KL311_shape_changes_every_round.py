import torch


def score(model, tokens):
    model = torch.compile(model)
    total = 0
    for t in range(1, 100):
        total += model(tokens[:, :t])  #! KL311
    return total


@torch.compile
def step(x):
    return x


def grow(x):
    for _ in range(10):
        y = step(x)  #! KL311
        x = torch.cat([x, y], dim=1)
    return x


# Near misses.


def windows(model, tokens, size):
    model = torch.compile(model)
    anything = torch.compile(model, dynamic=True)
    for t in range(0, 100, 10):
        model(tokens[:, t : t + size])
        model(tokens[t])
        anything(tokens[:, :t])
