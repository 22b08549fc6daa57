from torch.utils.data import DataLoader


def main(model, images, held_out, optimizer, workers, options):
    loader = DataLoader(images, batch_size=8, shuffle=True)  #! KL305
    test_loader = DataLoader(held_out, num_workers=0)  #! KL305
    for x in loader:
        model(x.to("cuda")).backward()
        optimizer.step()
    return test_loader


# Near misses.


def other(images, workers, options):
    return DataLoader(images, num_workers=workers, pin_memory=True), DataLoader(images, **options)
