"""Pieces of the programs' and the candidates' texts."""

from textwrap import dedent, indent

_WEIGHTS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter({weight})
        self.bias = nn.Parameter({bias})

    def forward(self, {given}):
{body}
"""
_NOTHING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, {given}):
{body}
"""


def weighted(weight: str, bias: str, given: str, body: str) -> str:
    """A class with two parameters."""
    return _WEIGHTS.format(weight=weight, bias=bias, given=given, body=_within(body))


def plain(given: str, body: str) -> str:
    """A class without parameters."""
    return _NOTHING.format(given=given, body=_within(body))


def after(given: str, change: str) -> str:
    """A candidate that changes the original's result y."""
    first = f"def forward(self, {given}):\n    y = super().forward({given})\n"
    return first + indent(lines(change), "    ") + "\n    return y\n"


def lines(text: str) -> str:
    """The text at the left margin, without empty lines around it."""
    return dedent(text).strip("\n").rstrip()


def _within(body: str) -> str:
    return indent(lines(body), " " * 8)
