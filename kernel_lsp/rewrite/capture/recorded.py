"""A recorded call on fake tensors, where the program's own object and arguments are captured as
they were.

`open_recorded` opens the snapshot and names every argument as the target's body does: ``x``,
``state[0]``, ``cache.layers[0].keys``, ``kwargs["mask"]``. Objects that hold tensors become nodes
of the pytrees, so that torch.export takes them apart and puts them together again."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kernel_lsp.errors import CaptureError, SnapshotError
from kernel_lsp.records import Home
from kernel_lsp.snapshots import making
from kernel_lsp.snapshots.opening import OpenedCall, ValueSpec, dtype_of, open_call

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of a call, as the target's body names it."""

    source: str
    """``x``, ``rest[0]``, ``kwargs["mask"]``."""
    value: Any
    has_default: bool
    """The parameter has a default: another call may leave it out."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of the target as they are passed, and as its body names them; in the same order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: tuple[Argument, ...]
    conditions: tuple[str, ...] = ()
    """What the guard asks about collected arguments: how many there are."""

    @property
    def sources(self) -> dict[int | str, str]:
        """Position or name, as it is passed -> how the target's body names the argument."""
        keys: list[int | str] = [*range(len(self.args)), *self.kwargs]
        return {key: one.source for key, one in zip(keys, self.arguments, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One tensor or plain value among the arguments."""

    argument: Argument
    source: str
    value: Any
    containers: tuple[tuple[str, int], ...]
    """Source and length of each list, tuple or dict around it."""


class Faked:
    """A `Maker` of fake tensors on the CPU; where they would lie is remembered in ``places``."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.places: dict[int, str] = {}
        """id -> ``cuda`` or ``cpu``."""

    def device(self, name: str) -> torch.device:
        """The CPU: fake tensors hold nothing, and where they were is kept apart."""
        return torch.device("cpu")

    def make(self, place: int, spec: ValueSpec, room: torch.Tensor | None) -> torch.Tensor:
        """A fake tensor as described; its device is kept in `places`."""
        with self.mode:
            made = making.make_strided(spec, dtype_of(spec), None, torch.device("cpu"))
        self.places[id(made)] = spec["device"].partition(":")[0]
        return made

    def fill(self, tensor: torch.Tensor, spec: ValueSpec, values: torch.Tensor | None) -> None:
        """Nothing to fill: fake tensors have no values."""
        pass


def open_recorded(home: Home, source: str, mode: FakeTensorMode) -> tuple[OpenedCall, Faked]:
    """The recorded call on fake tensors. Raises CaptureError."""
    maker = Faked(mode)
    try:
        return open_call(home, source, maker), maker
    except SnapshotError as error:
        raise CaptureError(error.cause, error.remedy) from error


def named_call(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """The call with its arguments by the names of the signature. Raises CaptureError when the
    arguments do not fit the signature, as after an edit."""
    try:
        signature = inspect.signature(function)
        filled = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise CaptureError(
            f"the recorded call does not fit the signature: {error}", "record the program again"
        ) from error
    filled.apply_defaults()  # baked into the graph, so the guard has to know them
    parameters = signature.parameters
    spread = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    placed: list[Any] = []
    named: dict[str, Any] = {}
    first: list[Argument] = []
    second: list[Argument] = []
    conditions = []
    for name, value in filled.arguments.items():
        parameter = parameters[name]
        has_default = parameter.default is not inspect.Parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            conditions.append(f"len({name}) == {len(value)}")
            placed += value
            first += [
                Argument(source=f"{name}[{i}]", value=v, has_default=False)
                for i, v in enumerate(value)
            ]
        elif parameter.kind is parameter.VAR_KEYWORD:
            known = ", ".join(f'"{key}"' for key in sorted(value))
            conditions.append(f"{name}.keys() == {{{known}}}" if value else f"not {name}")
            named |= value
            second += [
                Argument(source=f'{name}["{k}"]', value=v, has_default=False)
                for k, v in value.items()
            ]
        elif parameter.kind is parameter.POSITIONAL_ONLY or (
            spread and parameter.kind in POSITIONAL
        ):
            placed.append(value)
            first.append(Argument(source=name, value=value, has_default=has_default))
        else:
            named[name] = value
            second.append(Argument(source=name, value=value, has_default=has_default))
    return Call(
        args=tuple(placed), kwargs=named, arguments=(*first, *second), conditions=tuple(conditions)
    )


class _WithoutTensors:
    """What is left of an object without its tensors; equal to itself alone."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing


def take_apart(thing: Any) -> None:
    """Register the classes of objects in ``thing`` that torch's pytrees do not know. Raises
    CaptureError."""
    for leaf in pytree.tree_leaves(thing):
        if isinstance(leaf, (torch.Tensor, bool, int, float, str, bytes, type(None))):
            continue
        kind = type(leaf)
        if kind in pytree.SUPPORTED_NODES:
            continue
        pytree.register_pytree_node(
            kind,
            _flatten,
            _unflatten,
            flatten_with_keys_fn=_flatten_with_keys,
            serialized_type_name=None,
        )
        take_apart(_flatten(leaf)[0])


def _flatten(thing: Any) -> tuple[list[Any], Any]:
    names, own = _holders(thing), _own(thing)
    return [own[name] for name in names], (names, _WithoutTensors(thing))


def _flatten_with_keys(thing: Any) -> tuple[list[tuple[Any, Any]], Any]:
    values, context = _flatten(thing)
    keys = [pytree.GetAttrKey(name) for name in context[0]]
    return list(zip(keys, values, strict=True)), context


def _unflatten(values: Any, context: Any) -> Any:
    names, shape = context
    made = copy.copy(shape.thing) if names else shape.thing
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def _holders(thing: Any) -> tuple[str, ...]:
    """Attributes that hold tensors."""
    return tuple(name for name, value in _own(thing).items() if _holds_tensor(value, set()))


def _own(thing: Any) -> dict[str, Any]:
    """What lies on an object, by name."""
    own: dict[str, Any] | None = getattr(thing, "__dict__", None)
    if own is None and dataclasses.is_dataclass(thing):  # with slots
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return own or {}


def _holds_tensor(value: Any, seen: set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if id(value) in seen or isinstance(value, (type, torch.nn.Module)) or callable(value):
        return False
    seen.add(id(value))
    if isinstance(value, dict):
        return any(_holds_tensor(item, seen) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor(item, seen) for item in value)
    return any(_holds_tensor(item, seen) for item in _own(value).values())


def leaves_of(call: Call) -> list[Leaf]:
    """Every leaf of the arguments, in the order in which torch.export takes them."""
    return [
        Leaf(
            argument=argument,
            source=argument.source + pytree.keystr(path),
            value=value,
            containers=_around(argument.value, argument.source, path),
        )
        for argument in call.arguments
        for path, value in pytree.tree_flatten_with_path(argument.value)[0]
    ]


def _around(value: Any, source: str, path: tuple[Any, ...]) -> tuple[tuple[str, int], ...]:
    """Source and length of every list, tuple or dict on the way to a leaf."""
    found = []
    for key in path:
        if isinstance(value, (list, tuple, dict)):
            found.append((source, len(value)))
        value, source = _at(value, key), source + pytree.keystr((key,))
    return tuple(found)


def _at(value: Any, key: Any) -> Any:
    """What lies there. On an object without asking it: what a call reads of it is watched."""
    own = _own(value)
    name = getattr(key, "name", None)
    return own[name] if name in own else key.get(value)


def objects_in(call: Call) -> list[tuple[str, Any]]:
    """Objects among the arguments that are no containers of Python's own, each with its source."""
    found: list[tuple[str, Any]] = []
    for argument in call.arguments:
        _collect(argument.source, argument.value, found)
    return found


def _collect(source: str, value: Any, found: list[tuple[str, Any]]) -> None:
    if isinstance(value, (torch.Tensor, bool, int, float, str, bytes, type(None))):
        return
    if isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            _collect(f"{source}[{place}]", item, found)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(f"{source}[{key!r}]", item, found)
    else:
        found.append((source, value))
        for name in _holders(value):
            _collect(f"{source}.{name}", _own(value)[name], found)


def same_kind(source: str, thing: Any) -> str:
    """A condition of the guard: another call's object is of the same kind. functions.py tells
    functions and classes apart. Raises CaptureError where the content of an object counts and
    cannot be watched."""
    if isinstance(thing, Enum):
        return f'getattr({source}, "name", None) == "{thing.name}"'
    if isinstance(thing, torch.device):
        return f'torch.device({source}).type == "{thing.type}"'
    if isinstance(thing, (torch.dtype, torch.memory_format, torch.layout)):
        return f"{source} == {thing}"
    if callable(thing) and not hasattr(thing, "__dict__"):
        return f'getattr({source}, "__name__", None) == "{thing.__name__}"'
    if not hasattr(thing, "__dict__"):
        raise CaptureError(
            f"{source} is a {type(thing).__name__}, whose content cannot be checked before "
            f"each call",
            "pass numbers, strings, tuples, lists or dicts",
        )
    return f'type({source}).__name__ == "{type(thing).__name__}"'
