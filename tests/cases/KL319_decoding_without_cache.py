import torch


def generate(model, tokens, count, window):
    for _ in range(count):
        seen = tokens if tokens.size(1) <= window else tokens[:, -window:]
        logits = model(seen)[:, -1]  #! KL319
        token = torch.multinomial(logits.softmax(-1), 1)
        tokens = torch.cat((tokens, token), dim=1)
    return tokens


# Near misses.


def cached(model, tokens, count):
    past = None
    for _ in range(count):
        logits, past = model(tokens, past)
        tokens = torch.cat((tokens, logits.argmax(-1)), dim=1)
    return tokens


def one(model, tokens, count):
    for _ in range(count):
        logits = model(tokens[:, -1:])
        tokens = torch.cat((tokens, logits.argmax(-1)), dim=1)
    return tokens


def search(fit_model, ask, found, count):
    for _ in range(count):
        fitted = fit_model(found, num_samples=128)
        found = torch.cat((found, ask(fitted)), dim=0)
    return found


def collect(model, loader, found):
    for x in loader:
        found = torch.cat((found, model(x).argmax(-1)))
    return found
