import torch

torch.autograd.set_detect_anomaly(True)  #! KL321


def train(model, x):
    with torch.autograd.detect_anomaly():  #! KL321
        model(x).backward()


# Near misses.


def good(args):
    torch.autograd.set_detect_anomaly(False)
    torch.autograd.set_detect_anomaly(args.debug)
    if args.debug:
        torch.autograd.set_detect_anomaly(True)
