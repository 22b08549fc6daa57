"""A generated task in the making: its lines, its shape so far, and what it starts from.

All randomness is the draft's own generator, and every decision asks it alike whether sizes are
real or tiny, so the tiny twin of a task has the same lines with small numbers: that is run to see
that values depend on the inputs. Not covered: what follows (moves.py), whether the result is worth
learning from (generated.py)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

TaskLayout = Literal["rows", "tokens", "maps"]
"""(n, features), (batch, length, features) or (batch, channels, space...)."""

TINY_CHANNELS, TINY_ODD, TINY_BATCH, TINY_SPACE = 16, 9, 4, 16
"""Sizes of the twin: groups of 8 fit, pools twice, and a batch has statistics."""


@dataclass
class TaskDraft:
    """A task in the making; ``h`` is its current value."""

    rng: random.Random
    tiny: bool = False
    large: bool = True
    """Sizes for a GPU (0.05 to 5 ms in eager), else for a CPU."""
    dtype: str = "float32"
    odd: bool = False
    """Features are no multiple of anything."""
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    layout: TaskLayout = "rows"
    shape: tuple[int, ...] = ()
    kept: tuple[int, ...] | None = None
    """Shape of ``kept``, an earlier value that a residual may use."""
    pools: int = 0
    joins: int = 0
    flat: bool = False
    """Reduced to what most moves do not fit any more."""
    _names: int = 0

    # --- sizes ----------------------------------------------------------------------------

    def size(self, tiny: int, *sizes: int) -> int:
        """One of these, each an eighth of it on a CPU; its twin's is always ``tiny``."""
        chosen = self.rng.choice(sizes)
        if self.tiny:
            return tiny
        return chosen if self.large else max(2, chosen // 8)

    def channels(self, *sizes: int) -> int:
        """A number of features, one of these: an eighth of it on a CPU, made odd where the task is; its
        twin's is always the same small one."""
        chosen = self.rng.choice(sizes)
        slack = self.rng.randrange(1, 30, 2)
        if self.tiny:
            return TINY_ODD if self.odd else TINY_CHANNELS
        chosen = chosen if self.large else max(16, chosen // 8 // 8 * 8)
        return chosen + slack if self.odd else chosen

    @property
    def channel(self) -> int:
        """The dimension of features."""
        return 1 if self.layout == "maps" else len(self.shape) - 1

    @property
    def width(self) -> int:
        """How many features there are."""
        return self.shape[self.channel]

    @property
    def space(self) -> int:
        """Dimensions of space after the channels."""
        return len(self.shape) - 2 if self.layout == "maps" else 0

    # --- text -----------------------------------------------------------------------------

    @property
    def typed(self) -> str:
        """The dtype as a further argument of a call; empty for float32, which is torch's own."""
        return "" if self.dtype == "float32" else f", dtype=torch.{self.dtype}"

    def name(self, stem: str) -> str:
        """A name that the task does not have yet: the stem and a number."""
        self._names += 1
        return f"{stem}{self._names}"

    def layer(self, constructor: str, stem: str = "layer") -> str:
        """Adds ``self.<stem>N = constructor`` and gives its name."""
        name = self.name(stem)
        self.init.append(f"self.{name} = {constructor}")
        return f"self.{name}"

    def parameter(self, shape: Sequence[int], stem: str = "weight", scale: str = "0.1 * ") -> str:
        """Adds ``self.<stem>N``, a parameter of normal numbers times ``scale``, and gives its name."""
        dims = ", ".join(map(str, shape))
        return self.layer(f"nn.Parameter({scale}torch.randn({dims}{self.typed}))", stem)

    def per_channel(self) -> tuple[int, ...]:
        """Shape of a value per channel that broadcasts against ``h``."""
        return (self.width, *[1] * self.space)

    def tensor(self, name: str, shape: Sequence[int]) -> str:
        """Adds an argument of normal numbers and gives its name."""
        self.inputs[name] = f"torch.randn({', '.join(map(str, shape))}{self.typed})"
        return name

    def say(self, *lines: str) -> bool:
        """Adds lines to ``forward``. True, so that a move can end with it."""
        self.forward += lines
        return True

    def set(self, *shape: int, layout: TaskLayout | None = None) -> None:
        """From here on ``h`` has this shape, and this layout where one is given."""
        self.shape = shape
        self.layout = layout or self.layout


# --- starts ------------------------------------------------------------------------------------


def rows(d: TaskDraft) -> None:
    """Begin with a matrix (B, F)."""
    d.set(
        d.size(TINY_BATCH, 1024, 2048, 4096, 8192),
        d.channels(256, 512, 1024, 2048, 4096),
        layout="rows",
    )
    d.say(f"h = {d.tensor('x', d.shape)}")


def tokens(d: TaskDraft) -> None:
    """Begin with sequences (B, T, F)."""
    batch, length = d.size(TINY_BATCH, 2, 4, 8, 16), d.size(TINY_SPACE, 128, 256, 512, 1024)
    d.set(batch, length, d.channels(128, 256, 512, 1024), layout="tokens")
    d.say(f"h = {d.tensor('x', d.shape)}")


def maps(d: TaskDraft) -> None:
    """Begin with images (B, C, ...) of one to three dimensions of space."""
    space = d.rng.choice((1, 2, 2, 2, 3))
    length = {1: (1024, 2048, 4096), 2: (32, 48, 64, 96), 3: (12, 16, 24)}[space]
    side = d.size(TINY_SPACE, *length)
    if d.rng.random() < 0.15 and not d.tiny:
        side += 1
    batch, width = d.size(TINY_BATCH, 8, 16, 32), d.channels(16, 24, 32, 48, 64)
    d.set(batch, width, *[side] * space, layout="maps")
    d.say(f"h = {d.tensor('x', d.shape)}")


def products(d: TaskDraft) -> None:
    """Two batches of matrices."""
    batch, n, k, m = (
        d.size(3, 16, 32, 64),
        d.size(TINY_SPACE, 128, 256, 512),
        d.size(TINY_SPACE, 64, 128, 256),
        d.channels(128, 256, 512),
    )
    d.tensor("x", (batch, n, k))
    d.tensor("y", (batch, k, m))
    d.set(batch, n, m, layout="tokens")
    d.say(d.rng.choice(("h = torch.bmm(x, y)", "h = x @ y", "h = torch.matmul(x, y)")))


def gather_rows(d: TaskDraft) -> None:
    """Rows of a table."""
    words, width = d.size(11, 1000, 8000, 32000), d.channels(128, 256, 512)
    batch, length = d.size(TINY_BATCH, 4, 8, 16), d.size(TINY_SPACE, 128, 256, 512)
    table = d.layer(f"nn.Embedding({words}, {width}{d.typed})", "table")
    d.inputs["x"] = f"torch.randint(0, {words}, ({batch}, {length}))"
    d.set(batch, length, width, layout="tokens")
    d.say(f"h = {table}(x)")


def heads(d: TaskDraft) -> None:
    """Queries, keys and values of several heads."""
    batch, number = d.size(2, 2, 4, 8), d.size(2, 4, 8, 16)
    length, width = d.size(TINY_SPACE, 128, 256, 512), d.rng.choice((32, 64, 64, 128))
    width = 8 if d.tiny else width
    for name in "qkv":
        d.tensor(name, (batch, number, length, width))
    scale = d.rng.choice((f"{width**-0.5:.6g}", "0.125", None))
    causal, cap, fused = d.rng.random() < 0.4, d.rng.random() < 0.2, d.rng.random() < 0.3
    if fused:
        d.say(f"h = F.scaled_dot_product_attention(q, k, v{', is_causal=True' if causal else ''})")
    else:
        d.say("s = q @ k.transpose(-2, -1)" + (f" * {scale}" if scale else ""))
        if cap:
            d.say("s = 20.0 * torch.tanh(s / 20.0)")
        if causal:
            d.say(
                f"hidden = torch.ones({length}, {length}, dtype=torch.bool, "
                f"device=s.device).triu(1)",
                'h = torch.softmax(s.masked_fill(hidden, float("-inf")), dim=-1) @ v',
            )
        else:
            d.say("h = torch.softmax(s, dim=-1) @ v")
    d.say(f"h = h.transpose(1, 2).reshape({batch}, {length}, {number * width})")
    d.odd = False
    d.set(batch, length, number * width, layout="tokens")


def pairs(d: TaskDraft) -> None:
    """Two inputs of one shape."""
    d.rng.choice((rows, tokens, maps))(d)
    d.tensor("y", d.shape)
    d.say(
        d.rng.choice(
            (
                "h = h - y",
                "h = h * y",
                "h = h + y",
                "h = torch.maximum(h, y)",
                "h = h * torch.sigmoid(y)",
            )
        )
    )


STARTS: tuple[tuple[Callable[[TaskDraft], None], int], ...] = (
    (rows, 6),
    (tokens, 5),
    (maps, 8),
    (products, 3),
    (gather_rows, 1),
    (heads, 2),
    (pairs, 2),
)
