"""What every form is made of: the record of one kernel, its random choices, and text put
together."""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass
from functools import reduce

DTYPES = (("f32", 6), ("bf16", 3), ("f16", 1))
UNARY = {
    "relu": ("tl.maximum({v}, 0.0)", "torch.relu(v)"),
    "silu": ("{v} * tl.sigmoid({v})", "v * torch.sigmoid(v)"),
    "square": ("{v} * {v}", "v * v"),
    "bell": ("tl.exp(-{v} * {v})", "torch.exp(-v * v)"),
    "abs": ("tl.abs({v})", "torch.abs(v)"),
    "clamp": ("tl.minimum(tl.maximum({v}, -1.5), 1.5)", "torch.clamp(v, -1.5, 1.5)"),
    "log": ("tl.log(1.0 + tl.abs({v}))", "torch.log(1.0 + torch.abs(v))"),
    "root": ("tl.sqrt(tl.abs({v}) + 0.25)", "torch.sqrt(torch.abs(v) + 0.25)"),
    "gelu": (
        "0.5 * {v} * (1.0 + tl.erf({v} * 0.70710678))",
        "0.5 * v * (1.0 + torch.erf(v * 0.70710678))",
    ),
    "shift": ("{v} * 0.5 + 0.125", "v * 0.5 + 0.125"),
}
"""Name -> how a kernel writes it of {v}, and PyTorch of v."""
Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the workload and of the twin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelForm:
    """One kernel with its launcher."""

    kernel: str
    """Text of the function ``kernel``, without its decorator."""
    launcher: str
    """Text of the function ``launch``, without its workload."""
    inputs: dict[str, tuple[str, Shapes]]
    """Argument -> dtype (index:N for indices below N) and shapes."""
    plain: str
    """What ``launch`` returns, as an expression of its arguments in float32."""


class Draw:
    """The choices of one kernel."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dtype = rng.choices([name for name, _ in DTYPES], [weight for _, weight in DTYPES])[0]

    def one(self, *choices: int) -> int:
        """One of these numbers."""
        return self.rng.choice(choices)

    def shape(self, *choices: tuple[int, ...]) -> tuple[int, ...]:
        """One of these shapes."""
        return self.rng.choice(choices)

    def options(self) -> str:
        """Of the launch; most people write none."""
        warps = self.rng.choice((None, None, None, None, 1, 2, 8, 16))
        return f", num_warps={warps}" if warps else ""

    def chain(self, v: str, least: int, most: int) -> tuple[str, str]:
        """Some pointwise operations on the variable ``v``: lines of a kernel, and a function in
        PyTorch."""
        names = self.rng.sample(sorted(UNARY), self.rng.randint(least, most))
        lines = "".join(f"    {v} = {UNARY[name][0].format(v=v)}\n" for name in names)
        return lines, reduce(
            lambda inner, name: f"(lambda v: {UNARY[name][1]})({inner})", names, "{v}"
        )


def inside(*parts: str) -> str:
    """Lines one level deeper; of each part its own indentation does not count."""
    return "".join(
        textwrap.indent(textwrap.dedent(part).rstrip("\n"), "    ") + "\n" for part in parts if part
    )


def function(head: str, *parts: str) -> str:
    """Text of a function with this head, its parts indented; empty parts are left out."""
    return f"def {head}:\n{inside(*parts)}"


def loop(head: str, *parts: str) -> str:
    """Text of a ``for`` with this head, its parts indented; empty parts are left out."""
    return f"for {head}:\n{inside(*parts)}"
