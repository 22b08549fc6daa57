"""What the tests of the algebra skills share: rewrite wherever the proofs hold, worth it or not,
and compare.

The estimate of time is left out on purpose: shapes that a test can afford on a CPU rarely pay.
"""

from __future__ import annotations

from typing import Any

import torch
from rewrite_helpers import instance, session

from kernel_lsp.records import Candidate, Step
from kernel_lsp.rewrite.engine import EngineSession


def proved_sites(opened: EngineSession, name: str) -> list[str]:
    """Labels of all matches with every precondition proved, also those that would not pay."""
    module = opened.rewrites[name]
    assert not opened.notes
    return [
        found.label
        for found in module.match(opened.graph)
        if all(item.holds for item in module.preconditions(opened.graph, found))
    ]


def applied(
    source: str, name: str, training: bool | None = None, **parameters: Any
) -> Candidate | None:
    """The program after the first match of the skill; None when nothing is proved."""
    opened = session(source, name, training=training)
    labels = proved_sites(opened, name)
    if not labels:
        return None
    return opened.propose([Step(skill=name, site=labels[0], parameters=parameters)]).candidate


def assert_rewritten(
    source: str,
    name: str,
    *inputs: torch.Tensor,
    training: bool | None = None,
    gradients: bool = False,
    **parameters: Any,
) -> Candidate:
    """The rewrite applies, its guard accepts the inputs, and both forms agree in float64."""
    made = applied(source, name, training, **parameters)
    assert made is not None, f"{name} does not apply"
    wide = made.program.replace("torch.float32", "torch.float64")
    before, after = (instance(text, training, torch.float64) for text in (source, wide))

    def never(*_args: object) -> None:
        raise AssertionError("the guard refused the verified workload")

    after._forward_eager = never
    with torch.set_grad_enabled(gradients):
        expected, got = before(*inputs), after(*inputs)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(dict(after.named_buffers()), dict(before.named_buffers()))
    if gradients:
        for one in (before, after):
            torch.manual_seed(1)
            out = one(*inputs)
            out.backward(torch.randn(out.shape, dtype=out.dtype))
        pairs = zip(before.named_parameters(), after.named_parameters(), strict=True)
        for (label, left), (_, right) in pairs:
            torch.testing.assert_close(right.grad, left.grad, rtol=1e-8, atol=1e-8, msg=label)
    return made
