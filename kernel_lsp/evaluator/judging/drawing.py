"""Inputs and parameters of one trial, drawn from a session's seed as its descriptor (planning.py)
says."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.evaluator import circumstances
from kernel_lsp.evaluator.gradients import is_differentiable
from kernel_lsp.evaluator.judging import inputs, numerics, variations
from kernel_lsp.evaluator.judging.oracle import Reference, TrialInputs
from kernel_lsp.evaluator.tensors import as_stored, map_tensors, tensor_leaves, with_arithmetic


def draw(reference: Reference, seed: int, descriptor: dict[str, Any]) -> TrialInputs:
    """Inputs and parameters of one trial; the same seed and descriptor give the same trial
    everywhere."""
    made = (_edit_trial if descriptor.get("edit") else _draw_trial)(reference, seed, descriptor)
    if reference.ordered:
        made["arguments"] = variations.in_order(made["arguments"], reference.ordered)
    return {**made, "descriptor": descriptor}


def _draw_trial(reference: Reference, seed: int, descriptor: dict[str, Any]) -> TrialInputs:
    seed = (seed * 1_000_003 + descriptor["number"] * 7919 + 17) % 2**48
    family, layout, batch = descriptor["family"], descriptor["layout"], descriptor["batch"]
    generator = reference.generator(seed ^ 0x5EED)
    arguments = reference.arguments(seed)
    if batch is not None and reference.batch is not None:
        arguments = variations.change_batch(arguments, reference.batch[0], batch, generator)
    if descriptor.get("group") is not None:
        group = tuple((place, dim) for place, dim in descriptor["group"])
        arguments = variations.resize_inputs(arguments, group, descriptor["size"], generator)
    arguments = inputs.vary(arguments, family, generator, reference.subject.fixed)
    # The last trial keeps the parameters as constructed: that is what users start from.
    keep = not reference.is_module or family == "as_given_again"
    fresh = reference.own_state if keep else inputs.random_state(reference.pristine(), generator)
    if descriptor.get("single"):
        arguments = map_tensors(lambda t: _single(t, generator), arguments)
        fresh = {k: _single(v, generator) for k, v in fresh.items() if isinstance(v, torch.Tensor)}
    if descriptor.get("grad") and reference.may_record_gradients:
        arguments = map_tensors(_differentiable, arguments)
    return {
        **descriptor,
        "arguments": map_tensors(lambda t: reference.relaid(t, layout), arguments),
        "state": {k: v.clone() for k, v in fresh.items() if isinstance(v, torch.Tensor)},
        "noise_seed": seed % 2**31,
        "draw": generator,
        **reference.behavior(descriptor.get("circumstance", "")),
        "label": _label(reference, descriptor),
    }


def _label(reference: Reference, descriptor: dict[str, Any]) -> str:
    """A trial in words."""
    layout, batch = descriptor["layout"], descriptor["batch"]
    circumstance = descriptor.get("circumstance", "")
    special = {
        f"{layout} inputs": layout != "as_given",
        f"batch of {batch}": batch is not None,
        f"another size ({descriptor.get('size')})": descriptor.get("group") is not None,
        "in float32": descriptor.get("single"),
        "with gradients": descriptor.get("grad") and reference.may_record_gradients,
        circumstances.in_words(circumstance, reference.target): circumstance,
    }
    return ", ".join([descriptor["family"], *(text for text, holds in special.items() if holds)])


def _edit_trial(reference: Reference, seed: int, descriptor: dict[str, Any]) -> TrialInputs:
    """The first trial again, with a row of its parameters or of its inputs from another drawing."""
    what, plain = descriptor["edit"], {**descriptor, "edit": None}
    other = draw(reference, seed, plain)
    if what == "batch":  # another one under the parameters of the trial before
        before = draw(reference, seed, {**plain, "number": descriptor["number"] - 1})
        label = f"{other['label']}, another batch under the same parameters"
        return {**other, **descriptor, "state": before["state"], "label": label}
    if what == "inputs":  # under the parameters of the trial before
        before = {**descriptor, "edit": "parameters", "number": descriptor["number"] - 1}
        made = draw(reference, seed, before)
        fresh = iter(tensor_leaves(other["arguments"]))
        made["arguments"] = map_tensors(
            lambda t: variations.with_row_of(t, next(fresh), other["draw"]), made["arguments"]
        )
    else:
        made = draw(reference, seed, {**plain, "number": 1})
        made["state"] = {
            key: variations.with_row_of(value, other["state"][key], other["draw"])
            for key, value in made["state"].items()
        }
    return {
        **made,
        **descriptor,
        "draw": other["draw"],
        "label": f"{descriptor['family']}, one row of the {what} changed",
    }


def _single(tensor: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Values of 16 bits as others nearby in float32: products of two that have few bits would be
    exact."""
    if tensor.dtype not in (torch.float16, torch.bfloat16):
        return tensor
    made = numerics.nudge(tensor.detach().double(), tensor.dtype, draw).float()
    return made.requires_grad_(tensor.requires_grad)


def _differentiable(tensor: torch.Tensor) -> torch.Tensor:
    """It requires a gradient, if it can."""
    return tensor.detach().requires_grad_() if is_differentiable(tensor) else tensor


def rescale(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """The change that makes each timed input new; the worker applies the same one."""
    if not tensor.dtype.is_floating_point:
        return tensor
    scaled = with_arithmetic(tensor.detach()) * scale
    return as_stored(scaled, tensor.dtype).requires_grad_(tensor.requires_grad)
