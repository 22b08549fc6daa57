"""Work on images, rows and heads of sizes that no power of two divides, as models have them:
7 x 7 and 63 x 61 images, 151 classes, a vocabulary of 50257 words.

`python -m benchmarks.suite FOLDER --odd` writes the files, and
`python -m benchmarks.training_times FOLDER --out FILE` times them. Forward and backward, but where
the result is a place. Not covered: float32, which is as odd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.suite.task import SuiteTask

DTYPES = ("bfloat16", "float16")
IMAGES = [(64, 192, 63, 61), (128, 768, 7, 7), (16, 96, 127, 129)]
CLASSES = [(16, 151, 127, 129), (8, 19, 513, 511)]
LOGITS = [(8192, 50257), (65536, 151)]
OddForm: TypeAlias = tuple[str, str, Sequence[tuple[int, ...]]]
"""(name, expression, shapes)."""

FORMS: Sequence[OddForm] = [
    ("channel_softmax", "torch.softmax(x, 1)", CLASSES),
    ("channel_scores", "F.log_softmax(x / 0.7, dim=1)", CLASSES),
    ("channel_norm",
     "u = x.mean(1, keepdim=True)\ns = (x - u).pow(2).mean(1, keepdim=True)\n"
     "return self.weight[:, None, None] * ((x - u) / torch.sqrt(s + 1e-6)) + self.bias[:, None, None]",
     IMAGES),
    ("unit_channels", "F.normalize(x, dim=1)", IMAGES),
    ("channel_mean_square", "F.relu(x).square().mean(1)", IMAGES),
    ("channel_argmax", "x.argmax(1)", CLASSES),
    ("argmax", "x.argmax(-1)", LOGITS),
]  # fmt: skip


WEIGHTS = """self.weight = nn.Parameter(torch.ones({1}, dtype={d}))
self.bias = nn.Parameter(torch.zeros({1}, dtype={d}))"""


def tasks() -> list[SuiteTask]:
    """Shapes take turns, so that the beginning of a run has every form."""
    turns = max(len(shapes) for _, _, shapes in FORMS)
    rows = [
        (name, forward, shapes[turn])
        for turn in range(turns)
        for name, forward, shapes in FORMS
        if turn < len(shapes)
    ]
    return [_task(number, *row) for number, row in enumerate(rows)]


def _task(number: int, name: str, forward: str, shape: tuple[int, ...]) -> SuiteTask:
    dtype = DTYPES[number % 2]
    setup = WEIGHTS.replace("{1}", str(shape[1])).replace("{d}", f"torch.{dtype}")
    given = f"torch.randn({', '.join(map(str, shape))}, dtype=torch.{dtype}, requires_grad=True)"
    return SuiteTask(
        name=f"{number:02}_{name}_{'x'.join(map(str, shape))}_{dtype}",
        doc=f"{name.replace('_', ' ').capitalize()} at an odd size, {dtype}.",
        family=name,
        forward=forward,
        inputs={"x": given},
        setup=setup if "self." in forward else "pass",
    )
