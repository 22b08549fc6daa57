"""Which gradients a call has and how they are made; the same for reference and candidate.

Runs in judge and worker. Does not cover: gradients of gradients of gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.evaluator.tensors import tensor_leaves

GradientsByName = dict[str, torch.Tensor | None]


def is_differentiable(tensor: torch.Tensor) -> bool:
    """Whether a program could ask for its gradient."""
    return tensor.dtype.itemsize > 1 and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def leaves_with_gradients(arguments: Any, target: Any) -> dict[str, torch.Tensor]:
    """What gradients are asked for: the inputs and parameters that require them, by name."""
    named = {f"input {i}": t for i, t in enumerate(tensor_leaves(arguments)) if t.requires_grad}
    if isinstance(target, torch.nn.Module):
        named |= {f"parameter {k!r}": p for k, p in target.named_parameters() if p.requires_grad}
    return named


def backward(
    result: Any,
    wanted: dict[str, torch.Tensor],
    cotangents: list[torch.Tensor],
    *,
    keep: bool = False,
) -> GradientsByName:
    """Gradients of the outputs that carry any, in order, weighted with ``cotangents``.

    ``keep``: the graph will be used once more.
    """
    outputs = [t for t in tensor_leaves(result) if t.requires_grad]
    if not outputs or not wanted:
        return dict.fromkeys(wanted)
    found = torch.autograd.grad(
        outputs, list(wanted.values()), cotangents, allow_unused=True, retain_graph=keep
    )
    return dict(zip(wanted, found, strict=True))


def second_order(
    result: Any,
    wanted: dict[str, torch.Tensor],
    cotangents: list[torch.Tensor],
    weights: dict[str, torch.Tensor],
) -> GradientsByName:
    """Gradients of the gradients that :func:`backward` makes, weighted with ``weights`` by the
    names of those; its graph must still be there. Raises what torch raises where a backward pass
    cannot be differentiated: `once_differentiable` marks it where the cotangents require
    gradients, and only who asks for the gradients of everything comes by such a mark."""
    outputs = [t for t in tensor_leaves(result) if t.requires_grad]
    if not outputs or not wanted:
        return dict.fromkeys(wanted)
    leaves = list(wanted.values())
    cotangents = [one.detach().requires_grad_() for one in cotangents]
    first = torch.autograd.grad(
        outputs, leaves, cotangents, allow_unused=True, create_graph=True, retain_graph=True
    )
    named = zip(wanted, first, strict=True)
    carrying = {name: one for name, one in named if one is not None and one.requires_grad}
    if not carrying:
        return dict.fromkeys(wanted)
    gradients, chosen = list(carrying.values()), [weights[name] for name in carrying]
    own = [(leaf, leaf.grad) for leaf in leaves if leaf.is_leaf]
    try:
        torch.autograd.backward(gradients, chosen, retain_graph=True)
    finally:
        for leaf, grad in own:
            leaf.grad = grad
    found = torch.autograd.grad(gradients, leaves, chosen, allow_unused=True)
    return dict(zip(wanted, found, strict=True))
