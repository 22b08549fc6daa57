import math

import torch
import wandb


def train(model, loader, optimizer, device):
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = out.sum()
        loss.backward()
        optimizer.step()
        total += loss.item()  #! KL301
        correct += (out == y).sum().item()
    return total, correct


def prints(model, batches, opt, device):
    for i in range(100):
        loss = model(batches[i].to(device)).mean()
        loss.backward()
        opt.step()
        print(f"step {i}: {loss}")  #! KL301


def tests(model, opt, x, best):
    while True:
        loss = model(x)
        loss.backward()
        opt.step()
        if loss < best:  #! KL301
            break


def finite(model, opt, x, scaler, bar):
    for _ in range(10):
        loss = model(x)
        if not math.isfinite(loss):  #! KL301
            break
        scaler.scale(loss).backward()
        scaler.step(opt)
        bar.set_postfix({"loss": loss})


def logs(model, optimizer, x, accelerator):
    for step in range(10):
        loss = model(x)
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.is_main_process:
            wandb.log({"loss": loss}, step=step)  #! KL301


def keeps(model, optimizer, loader):
    history = []
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.step()
        history.append(float(loss))  #! KL301


def train_step(model, x, optimizer):
    loss = model(x)
    loss.backward()
    optimizer.step()
    return loss.item()  #! KL301


def run(model, data, optimizer):
    for x in data:
        train_step(model, x, optimizer)


@torch.no_grad()
def evaluate(model, test_loader):
    hits = 0
    for x, y in test_loader:
        hits += (model(x).argmax(1) == y).sum().item()  #! KL301
    return hits


# Near misses.


def now_and_then(model, optimizer, loader, every):
    for step, x in enumerate(loader):
        loss = model(x)
        loss.backward()
        optimizer.step()
        if step % every == 0:
            print(loss.item())
        if step % every:
            continue
        print(float(loss))
    print(loss.item())


def epochs(model, optimizer, loader, scheduler):
    for epoch in range(10):
        for x in loader:
            loss = model(x)
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(epoch, loss.item())


def acts(policy, env, optimizer, state):
    while True:
        action = policy(state)
        state, reward = env.step(action.item())
        loss = -reward * action.log()
        loss.backward()
        optimizer.step()


def reports(model, optimizer, loader, logger):
    for step, x in enumerate(loader):
        loss = model(x)
        loss.backward()
        optimizer.step()
        if not logger.should_log(step):
            continue
        logger.log(loss.item())


def replays(model, optimizer, loader, memory):
    for x in loader:
        errors = model(x)
        memory.put(errors.tolist())
        loss = errors.mean()
        loss.backward()
        optimizer.step()
        memory.log(loss.item())


def collects(model, test_loader):
    found, total = [], 0.0
    for x in test_loader:
        out = model(x)
        total += out.mean().item()
        found.append(out.cpu().numpy())
    return found, total


def shapes(model, optimizer, loader):
    import numpy as np

    seen = 0
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.step()
        seen += x.shape[0]
        if loss is None:
            print("nothing")
        value = loss.detach() if seen > 100 else loss.detach() / 2
    return np.mean(seen), value
