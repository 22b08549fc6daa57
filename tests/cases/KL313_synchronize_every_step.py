import torch


def train(model, loader, optimizer):
    for x in loader:
        model(x).backward()
        optimizer.step()
        torch.cuda.synchronize()  #! KL313


# Near misses.


def timed(model, loader, optimizer, clock):
    for x in loader:
        start = clock.perf_counter()
        model(x).backward()
        optimizer.step()
        torch.cuda.synchronize()
        print(clock.perf_counter() - start)


def once(model, loader, optimizer):
    for x in loader:
        model(x).backward()
        optimizer.step()
    torch.cuda.synchronize()
