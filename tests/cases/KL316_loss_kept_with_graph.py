import torch  # noqa: F401


def train(model, loader, optimizer):
    losses, total, mean = [], 0, 0
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.step()
        losses.append(loss)  #! KL316
        total += loss  #! KL316
        mean += loss * len(x)  #! KL316
    return losses, total, mean


# Near misses.


def detached(model, loader, optimizer):
    losses, total = [], 0
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        total += loss.detach()
    return losses, total


def summed(model, loader, optimizer):
    for x in loader:
        total, losses = 0, []
        for part in x:
            loss = model(part)
            total += loss
            losses.append(loss)
        loss = sum(losses)
        total.backward()
        optimizer.step()


def numbers(model, loader, optimizer):
    total = 0
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        total += loss
    return total
