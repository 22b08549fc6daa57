from torch.utils.data import DataLoader


def main(model, images, held_out, optimizer, workers, options):
    loader = DataLoader(images, batch_size=8, shuffle=True)  #! KL305
    again = DataLoader(images, num_workers=0)  #! KL305
    test_loader = DataLoader(held_out)
    counts = DataLoader(range(10))
    for x in loader:
        model(x.to("cuda")).backward()
        optimizer.step()
    return again, test_loader, counts


# Near misses.


def other(images, workers, options):
    return DataLoader(images, num_workers=workers, pin_memory=True), DataLoader(images, **options)
