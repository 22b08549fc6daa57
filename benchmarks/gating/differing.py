"""Shows that a candidate differs from its reference, on inputs that the gate does not draw.
Imports torch.

    python -m benchmarks.gating.differing [cuda] < pairs.jsonl > found.jsonl

One line holds {"key", "reference", "candidate"}; the answer is {"key", "where", "share"}: where
they differ (null: nowhere) and in which share of the elements. Both run in float64, so what
differs is not rounding. Inputs: small whole numbers, ramps, magnitudes over six decades, single
ones among zeros, large values, infinities and NaN; a second call, other weights, another batch, a
transposed input; gradients."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from kernel_lsp.evaluator import programs

INFINITE = "infinities"
CLOSE = 1e-4
"""Relative to the larger of the element and the root mean square: less is a matter of rounding."""


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    for line in sys.stdin:
        pair = json.loads(line)
        try:
            found = difference(pair["reference"], pair["candidate"], device)
        except Exception as error:  # a text that does not even load is no wrong candidate
            found = {"where": None, "share": 0.0, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"key": pair["key"], **found}), flush=True)


def difference(reference: str, candidate: str, device: str = "cpu") -> dict[str, Any]:
    """{"where", "share"} of the first difference."""
    theirs, mine = _Loaded(reference, "Model", device), _Loaded(candidate, "ModelNew", device)
    given = theirs.module.get_inputs()[0].double().to(device)
    for where, x in _inputs(given):
        share = _differs(theirs.model, mine.model, x, grad=False, free=where == INFINITE)
        if share:
            return {"where": where, "share": share}
    for where, x in (("backward", next(_inputs(given))[1]), ("backward, again", given)):
        share = _differs(theirs.model, mine.model, x, grad=True)
        if share:
            return {"where": where, "share": share}
    return {"where": None, "share": 0.0}


class _Loaded:
    def __init__(self, text: str, entry: str, device: str) -> None:
        self.module = programs.load(text)
        self.model = programs.find(self.module, entry)().double().to(device)


def _inputs(like: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    draw = torch.Generator(like.device).manual_seed(11)
    about = {"generator": draw, "device": like.device}
    whole = torch.randint(-3, 4, like.shape, **about).double()
    yield "whole numbers", whole
    yield "a second call", whole + 1
    yield "a ramp", torch.linspace(-2, 2, like.numel()).to(like).view(like.shape)
    signs = torch.randint(0, 2, like.shape, **about) * 2 - 1
    yield (
        "six decades",
        signs * 10 ** (6 * torch.rand(like.shape, dtype=torch.float64, **about) - 4),
    )
    one = torch.zeros_like(like)
    one[like.shape[0] // 2, 0] = 1
    yield "one among zeros", one
    yield "large", whole * 100
    in_place = whole.clone()
    yield "at one address", in_place
    in_place.copy_(whole.flip(0) * 0.5)
    yield "at one address", in_place
    yield "another batch", torch.cat([whole, whole + 0.5])[: like.shape[0] + 1]
    yield "transposed", whole.t().contiguous().t() * 0.7
    edge = whole.clone()
    edge[0, 0], edge[-1, -1] = float("-inf"), float("inf")
    yield INFINITE, edge
    edge = whole.clone()
    edge[0, 0] = float("nan")
    yield "not a number", edge


def _differs(theirs: Any, mine: Any, x: torch.Tensor, grad: bool, free: bool = False) -> float:
    """The share of elements that differ; 1 where only the candidate gives no answer. ``free``:
    where the reference has NaN, there is no answer to compare with."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.125)
    mine.load_state_dict(theirs.state_dict(), strict=False)
    outputs = [_run(model, x, grad) for model in (theirs, mine)]
    if outputs[0] is None or outputs[1] is None:
        return float(outputs[0] is not None)  # only what the reference answers
    return max(_share(a, b, free) for a, b in zip(*outputs, strict=True))


def _run(model: Any, x: torch.Tensor, grad: bool) -> list[torch.Tensor] | None:
    try:
        with torch.set_grad_enabled(grad):
            given = x.clone().requires_grad_() if grad else x
            result = model(given)
            if not grad:
                return [result]
            leaves = [given, *model.parameters()]
            found = torch.autograd.grad(result.square().sum(), leaves, allow_unused=True)
            return [torch.zeros(1) if one is None else one for one in found]
    except Exception:  # whatever it raises, it gives no answer
        return None


def _share(a: torch.Tensor, b: torch.Tensor, free: bool) -> float:
    if a.shape != b.shape:
        return 1.0
    finite = torch.isfinite(a)
    scale = a[finite].square().mean().sqrt() if bool(finite.any()) else a.new_zeros(())
    near = (a - b).abs() <= CLOSE * torch.maximum(a.abs(), scale)
    same = near | (a == b) | (torch.isnan(a) & torch.isnan(b)) | (torch.isinf(a) & torch.isnan(b))
    same |= torch.isnan(a) & free
    return float((~same).double().mean()) if a.numel() else 0.0


if __name__ == "__main__":
    main()
