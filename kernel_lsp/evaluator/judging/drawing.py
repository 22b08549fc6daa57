"""Inputs and parameters of one trial, drawn from a session's seed as its descriptor (planning.py) says."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.evaluator.judging import inputs, variations
from kernel_lsp.evaluator.judging.oracle import Reference, Trial
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves


def draw(reference: Reference, seed: int, descriptor: dict[str, Any]) -> Trial:
    """Inputs and parameters of one trial; the same seed and descriptor give the same trial everywhere."""
    if descriptor.get("edit"):
        return _edited(reference, seed, descriptor)
    seed = (seed * 1_000_003 + descriptor["number"] * 7919 + 17) % 2**48
    family, layout, batch = descriptor["family"], descriptor["layout"], descriptor["batch"]
    generator = reference.generator(seed ^ 0x5EED)
    arguments = reference.arguments(seed)
    if batch is not None and reference.batch is not None:
        arguments = variations.rebatched(arguments, reference.batch[0], batch, generator)
    arguments = inputs.vary(arguments, family, generator, reference.subject.fixed)
    # The last trial keeps the parameters as constructed: that is what users start from.
    keep = not reference.is_module or family == "as_given_again"
    fresh = reference.own_state if keep else inputs.random_state(reference.pristine(), generator)
    special = [f"{layout} inputs"] * (layout != "as_given") + [f"batch of {batch}"] * (batch is not None)
    return {
        **descriptor,
        "arguments": map_tensors(lambda t: reference.relaid(t, layout), arguments),
        "state": {k: v.clone() for k, v in fresh.items() if isinstance(v, torch.Tensor)},
        "noise_seed": seed % 2**31,
        "draw": generator,
        "label": ", ".join([family, *special]),
    }


def _edited(reference: Reference, seed: int, descriptor: dict[str, Any]) -> Trial:
    """The first trial again, with a row of its parameters or of its inputs from another drawing."""
    what, plain = descriptor["edit"], {**descriptor, "edit": None}
    other = draw(reference, seed, plain)
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


def rescale(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """The change that makes each timed input new; the worker applies the same one."""
    if not tensor.dtype.is_floating_point:
        return tensor
    return (tensor.detach() * scale).requires_grad_(tensor.requires_grad)
