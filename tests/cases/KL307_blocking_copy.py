from torch.utils.data import DataLoader


def main(model, images, optimizer, device):
    loader = DataLoader(images, num_workers=4, pin_memory=True)
    for x, y in loader:
        x = x.to(device)  #! KL307
        y = y.to(device)
        model(x, y).backward()
        optimizer.step()
    for batch in loader:
        model(batch["x"].cuda())  #! KL307


# Near misses.


def good(model, train_loader, optimizer, device, weights):
    for x, y in train_loader:
        x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)
        model(x, y.to(device, None, True), weights.to(device)).backward()
        optimizer.step()
