from torch.utils.data import DataLoader


def main(model, images, optimizer, workers):
    loader = DataLoader(images, batch_size=8, num_workers=4)  #! KL306
    second = DataLoader(images, num_workers=workers, pin_memory=False)  #! KL306
    for x in loader:
        model(x.cuda()).backward()
        optimizer.step()
    return second


# Near misses.


def other(images, workers, options, use_cuda):
    yield DataLoader(images, num_workers=workers, pin_memory=use_cuda)
    yield DataLoader(images, num_workers=workers, **options)
