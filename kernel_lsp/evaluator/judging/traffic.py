"""Which bytes a program cannot do without: what its result depends on. Runs in the judge.

An element whose derivative is not zero changes the result and so has to be read, whatever the
rewrite. The count is a lower bound: elements that happen not to matter (behind a ReLU, in an
embedding table) are left out, and so is all that has no derivative. None where the program has no
float64 oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.evaluator.judging.oracle import Reference, TrialInputs
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves

NEGLIGIBLE = 1e-9
"""Of the largest derivative: rounding of terms that cancel (rows of a softmax that are summed)."""


def needed_bytes(reference: Reference, trial: TrialInputs) -> dict[str, int] | None:
    """{"read": bytes, "written": bytes} of one call."""
    ran = reference.run(trial, trial["noise_seed"])
    outputs = tensor_leaves(ran.output)
    shares = any(ran.relations)
    written = 0 if shares else sum(t.numel() * t.dtype.itemsize for t in outputs)
    gradients = _gradients(reference, trial, outputs)
    if gradients is None:
        return None
    sizes = _sizes(trial)
    read = sum(
        _count(g) * sizes[name] for name, g in gradients.items() if g is not None and name in sizes
    )
    return {"read": read, "written": written}


def _gradients(
    reference: Reference, trial: TrialInputs, outputs: list[torch.Tensor]
) -> dict[str, Any] | None:
    """In float64, of a random weighting of all floating outputs, by every floating input and
    parameter."""

    def mark(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().requires_grad_(tensor.dtype.is_floating_point)

    marked = {**trial, "arguments": map_tensors(mark, trial["arguments"])}
    draw = torch.Generator(outputs[0].device).manual_seed(trial["noise_seed"])
    weights = [
        torch.randn(t.shape, generator=draw, dtype=torch.float64, device=draw.device).to(t.device)
        for t in outputs
        if t.dtype.is_floating_point
    ]
    note = reference.oracle_note
    try:
        return reference.gradients_wide(marked, weights)
    finally:  # a program that cannot be differentiated still has an oracle
        reference.oracle_note = note


def _sizes(trial: TrialInputs) -> dict[str, int]:
    """Bytes of an element, by the names that gradients have; expanded inputs are left out."""
    inputs = {
        f"input {i}": t.dtype.itemsize
        for i, t in enumerate(tensor_leaves(trial["arguments"]))
        if 0 not in t.stride()
    }
    return inputs | {f"parameter {key!r}": t.dtype.itemsize for key, t in trial["state"].items()}


def _count(gradient: torch.Tensor) -> int:
    size = gradient.detach().abs().nan_to_num()
    return int((size > NEGLIGIBLE * size.max()).sum()) if size.numel() else 0
