from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2)
        self.first = nn.Conv2d(64, width, kernel_size=3, padding=1)  #! KL106
        self.second = nn.Conv2d(width, width, 3)

    def forward(self, x):
        return self.second(self.first(self.stem(x)))


# Near misses.


class Patches(nn.Module):
    """A kernel that equals its stride is one matrix product."""

    def __init__(self, hidden, patch):
        super().__init__()
        self.project = nn.Conv2d(hidden, hidden, kernel_size=patch, stride=patch)

    def forward(self, x):
        return self.project(x)


class Depthwise(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.conv = nn.Conv2d(hidden, hidden, 3, groups=hidden)

    def forward(self, x):
        return self.conv(x)


class Sequence(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.conv = nn.Conv1d(hidden, hidden, 3)

    def forward(self, x):
        return self.conv(x)


class Unused(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.conv = nn.Conv2d(hidden, hidden, 3)

    def forward(self, x):
        return x
