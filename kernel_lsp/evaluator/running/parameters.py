"""Give a candidate new parameters, in the ways in which programs do: loading, stepping, replacing,
casting.

Runs in the worker. A candidate that folded its weights once is stale after any of these; one that
keys its fold on version and address of the weights notices all of them."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.errors import EvaluationError


def update(target: Any, state: dict[str, torch.Tensor], way: str) -> None:
    """Set the module's parameters and buffers; "none" leaves them, as between two calls of a
    program.

    Raises EvaluationError when the module does not take them.
    """
    if way == "none" or not isinstance(target, torch.nn.Module):
        return
    own = tensors_of(target)
    # A module that translates names while loading has no tensor of the reference's name to write
    # to.
    if way == "load_state_dict" or not state.keys() <= own.keys():
        _load(target, state)
    elif way == "round_trip":
        _round_trip(target, state)
    elif way == "data":
        for name, tensor in own.items():
            if name in state:
                tensor.data = state[name].to(tensor.device).clone()
    else:
        _copy(own, state)


def tensors_of(target: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer by its name."""
    own: dict[str, torch.Tensor] = dict(target.named_parameters(remove_duplicate=False))
    own.update(target.named_buffers(remove_duplicate=False))
    return own


def cast(target: torch.nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    """Each parameter and buffer to the dtype that its name has: a batch norm of a model in 16 bits
    may keep its statistics in float32, and ``module.to`` makes new buffers."""
    for name, tensor in tensors_of(target).items():
        if name in dtypes and tensor.dtype != dtypes[name]:
            tensor.data = tensor.data.to(dtypes[name])


def switch_mode(target: Any) -> None:
    """Calls train(), eval() and back, as a validation between two steps does it; every module keeps
    its mode."""
    if not isinstance(target, torch.nn.Module):
        return
    modes = {module: module.training for module in target.modules()}
    target.train(not target.training)
    target.train(not target.training)
    for module, training in modes.items():
        module.training = training


def _load(target: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    try:
        target.load_state_dict(state, strict=True)
    except (RuntimeError, KeyError) as error:
        text = " ".join(str(error).split())[:500]
        raise EvaluationError(
            f"the candidate does not take the reference's parameters: {text}"
        ) from None


def _copy(own: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)


def _round_trip(target: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    dtypes = {name: tensor.dtype for name, tensor in tensors_of(target).items()}
    target.to(torch.float64)
    _copy(tensors_of(target), state)
    cast(target, dtypes)
