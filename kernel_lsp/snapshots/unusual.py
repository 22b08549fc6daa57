"""What pickle refuses, as parts that it takes: tensors of unusual kinds, parametrized modules, and
the rest.

Each function gives what a pickler's ``reducer_override`` returns. What makes the object again out
of its parts is named by a `Made`, and lies in remaking.py, in the process that opens. Standard
library alone; torch is the program's own and is handed in."""

from __future__ import annotations

from typing import Any


class Made:
    """Names a function of remaking.py in a pickle."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any) -> Any:
        """Pickle asks that it can be called; it never is."""


def is_ordinary(tensor: Any, torch: Any) -> bool:
    """Whether a description of its memory stands for it."""
    known = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
    if type(tensor) not in known:
        # It has no size yet, and is refused by name.
        return bool(torch.nn.parameter.is_lazy(tensor))
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def reduced_tensor(tensor: Any, torch: Any) -> tuple[Any, ...]:
    """A tensor that is not ordinary, as its dense parts."""
    if (fake := _fake(tensor, torch)) is not None:
        return fake
    needs = bool(tensor.requires_grad)
    if hasattr(type(tensor), "__tensor_flatten__"):
        return _flattened(tensor, needs)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        plain = tensor.as_subclass(torch.Tensor)
        parameter = isinstance(tensor, torch.nn.Parameter)
        return Made("subclass"), (plain, type(tensor), dict(vars(tensor)), parameter, needs)
    if tensor.is_nested:
        return Made("nested"), ([part.detach() for part in tensor.unbind()], needs)
    if tensor.is_quantized:
        return _quantized(tensor, torch)
    with torch.no_grad():
        held = tensor.detach()
        parts: tuple[Any, ...]
        if tensor.layout is torch.sparse_coo:
            parts = (held._indices(), held._values())
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = (held.crow_indices(), held.col_indices(), held.values())
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = (held.ccol_indices(), held.row_indices(), held.values())
        else:
            return absent(tensor)
    coalesced = tensor.layout is torch.sparse_coo and tensor.is_coalesced()
    layout = str(tensor.layout).removeprefix("torch.")
    return Made("sparse"), (layout, parts, tuple(tensor.shape), coalesced, needs)


def _fake(tensor: Any, torch: Any) -> tuple[Any, ...] | None:
    """A fake tensor as one of the same look on the meta device."""
    fake = getattr(getattr(torch, "_subclasses", None), "FakeTensor", None)
    if fake is None or not isinstance(tensor, fake):
        return None
    shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    return Made("empty"), (shape, stride, tensor.dtype, bool(tensor.requires_grad))


def _flattened(tensor: Any, needs: bool) -> tuple[Any, ...]:
    """A subclass that wraps other tensors, and says which."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    return Made("wrapped"), (type(tensor), parts, context, size, stride, needs)


def _quantized(tensor: Any, torch: Any) -> tuple[Any, ...]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        numbers = tensor.int_repr()
        return Made("quantized"), (
            numbers,
            float(tensor.q_scale()),
            int(tensor.q_zero_point()),
            tensor.dtype,
        )
    return absent(tensor)


def is_parametrized(module: Any, torch: Any) -> bool:
    """Whether torch has put a class of its own around the module's, which refuses to be pickled."""
    parametrize = torch.nn.utils.parametrize
    return type(module).__name__.startswith("Parametrized") and bool(
        parametrize.is_parametrized(module)
    )


def reduced_parametrized(module: Any, torch: Any) -> tuple[Any, ...]:
    """A module with parametrizations (weight_norm, LoRA) as one without, and what puts them around
    it."""
    plain = torch.nn.utils.parametrize.type_before_parametrizations(module)
    state = (dict(vars(module)), tuple(module.parametrizations))
    return Made("module"), (plain,), state, None, None, Made("parametrized")


def with_state(reduced: Any, thing: Any) -> Any:
    """What pickle has made of a thing; one that hands on what it lacks (``__getattr__``) gets its
    state without being asked for ``__setstate__``: before it has any, it may ask itself for what it
    hands on to, without end."""
    kind = type(thing)
    hands_on = hasattr(kind, "__getattr__") and not hasattr(kind, "__setstate__")
    has_state = isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], dict)
    if not (hands_on and has_state):
        return reduced
    constructor, arguments, state, *items = reduced
    return constructor, arguments, state, *(*items, None, None)[:2], Made("state")


def absent(thing: Any) -> tuple[Any, ...]:
    """A stand-in for what cannot be kept."""
    return Made("absent"), (kind_of(thing),)


def kind_of(thing: Any) -> str:
    """What a stand-in says of the thing in whose place it is."""
    kind = type(thing)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def with_key(reduced: Any, thing: Any, absent: dict[str, Any], within: str) -> Any:
    """What a pickler has made of a thing; a stand-in has a key in ``absent``, which gets the thing.
    ``within``: begins the keys of one pickle."""
    made = reduced[0] if isinstance(reduced, tuple) else None
    if not isinstance(made, Made) or made.name != "absent":
        return reduced
    key = f"{within}{len(absent)}"
    absent[key] = thing
    return made, (*reduced[1], key)
