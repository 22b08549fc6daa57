"""Makes again what unusual.py took apart, from tensors of the opening process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.nn.utils import parametrize

from kernel_lsp.errors import SnapshotError


def made(name: str) -> Callable[..., Any]:
    """The function that a pickle names. Raises SnapshotError."""
    if name not in MAKERS:
        raise SnapshotError(
            f"the snapshot names a {name}, which this version does not know",
            "record the program again",
        )
    return MAKERS[name]


KINDS = {
    "_io.": "an open file",
    "socket.": "a socket",
    "threading.": "a thread or what waits for one",
    "generator": "a generator",
    "sqlite3.": "a database",
}
"""By the beginning of a type's name: what people call its objects."""


class AbsentError(RuntimeError):
    """The target uses what a recorded call cannot hold."""


class Absent:
    """Stands where the program had an object that cannot be pickled; says so when it is used."""

    def __init__(self, kind: str, key: str = "") -> None:
        """``key``: by which a program that is run again has the object (replaying.py)."""
        object.__setattr__(self, "_kind", kind)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        kind = object.__getattribute__(self, "_kind")
        words = next(
            (words for start, words in KINDS.items() if kind.startswith(start)), "an object"
        )
        raise AbsentError(
            f"it uses {words} ({kind}), which a recorded call cannot hold: keep that use out of "
            "forward, or make the object within it"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):  # what copying and inspecting ask for
            raise AttributeError(name)
        self._refuse()

    __call__ = __enter__ = __iter__ = __len__ = __getitem__ = __setitem__ = __contains__ = _refuse
    __setattr__ = __add__ = __radd__ = __mul__ = __rmul__ = __next__ = _refuse

    def __deepcopy__(self, _: Any) -> Absent:
        return self


def _sparse(
    layout: str,
    parts: tuple[torch.Tensor, ...],
    shape: tuple[int, ...],
    coalesced: bool,
    needs: bool,
) -> torch.Tensor:
    if layout == "sparse_coo":
        found = torch.sparse_coo_tensor(parts[0], parts[1], shape, check_invariants=False)
        if coalesced:
            found._coalesced_(True)
    else:
        found = torch.sparse_compressed_tensor(
            *parts, shape, layout=getattr(torch, layout), check_invariants=False
        )
    return found.requires_grad_() if needs and not found.requires_grad else found


def _nested(parts: list[torch.Tensor], needs: bool) -> torch.Tensor:
    return torch.nested.nested_tensor(parts, requires_grad=needs)


def _quantized(numbers: torch.Tensor, scale: float, zero: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.quantize_per_tensor((numbers.double() - zero).float() * scale, scale, zero, dtype)


def _empty(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, needs: bool
) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta", requires_grad=needs)


def _wrapped(
    kind: Any, parts: dict[str, torch.Tensor], context: Any, size: Any, stride: Any, needs: bool
) -> torch.Tensor:
    found: torch.Tensor = kind.__tensor_unflatten__(parts, context, size, stride)
    return found.requires_grad_() if needs and not found.requires_grad else found


def _subclass(
    plain: torch.Tensor, kind: Any, attributes: dict[str, Any], parameter: bool, needs: bool
) -> torch.Tensor:
    found: torch.Tensor = plain.detach().as_subclass(kind)
    if parameter:
        found._is_param = True
    found = found.requires_grad_(needs)
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


def _module(kind: Any) -> Any:
    return kind.__new__(kind)


def _parametrized(module: Any, state: tuple[dict[str, Any], tuple[str, ...]]) -> None:
    vars(module).update(state[0])
    parametrize._inject_new_class(module)
    for name in state[1]:
        parametrize._inject_property(module, name)


def _state(thing: Any, state: dict[str, Any]) -> None:
    vars(thing).update(state)


MAKERS: dict[str, Callable[..., Any]] = {
    "absent": Absent,
    "empty": _empty,
    "module": _module,
    "nested": _nested,
    "parametrized": _parametrized,
    "quantized": _quantized,
    "sparse": _sparse,
    "state": _state,
    "subclass": _subclass,
    "wrapped": _wrapped,
}
