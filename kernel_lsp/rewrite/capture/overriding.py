"""The code that a forward calls on its objects: own methods, and layers of the user's own classes.

A graph holds what they compute, not the calls, so another call must find the same code: a subclass
may override a method, an instance may have been given another one, a layer may be exchanged or get
a hook. `conditions(source, called, names)` are what the guard asks. Methods that a class itself is
given later are not seen, as module globals are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class CalledCode:
    """A member of a class that was read from an object to be called, or a property that was
    asked."""

    kind: type
    """The class of the object."""
    member: str
    bound: bool
    """It is a method of the object, as opposed to a static or class method or another callable."""


def called_code(name: str, value: Any, owner: Any, kind: type) -> CalledCode | None:
    """What was called, where the class and not the object says what runs; None otherwise.
    ``owner``: an object of the class ``kind``, from which ``name`` gave ``value``."""
    if name in vars(owner) or (holder := _holder(kind, name)) is None:
        return None
    if not (callable(value) or isinstance(vars(holder)[name], property)):
        return None
    bound = isinstance(value, MethodType) and value.__self__ is owner
    return CalledCode(kind=kind, member=name, bound=bound)


def conditions(source: str, called: CalledCode, names: Mapping[str, Any]) -> list[str]:
    """Expressions, all true while an object runs the same code. ``source``: the expression of the
    object; ``names``: what the names of the target's file stand for. torch.compile and torch.export
    can follow all of them."""
    if called.member == "forward" and issubclass(called.kind, torch.nn.Module):
        hooks = f"not ({source}._forward_hooks or {source}._forward_pre_hooks)"
        kind = _same_class(source, called.kind, names)
        return [kind, _same_member(source, called, names), hooks]
    holder = _holder(called.kind, called.member)
    if holder is not None and isinstance(vars(holder)[called.member], property):
        return [_same_class(source, called.kind, names)]
    return [_same_member(source, called, names)]


def _same_member(source: str, called: CalledCode, names: Mapping[str, Any]) -> str:
    found = f"{source}.{called.member}"
    holder = _holder(called.kind, called.member)
    assert holder is not None
    known = _expression(holder, names)
    if known is None:
        member = getattr(holder, called.member)
        return (
            f'getattr({found}, "__qualname__", None) == {getattr(member, "__qualname__", None)!r}'
        )
    if called.bound:
        return f'getattr({found}, "__func__", None) is {known}.{called.member}'
    if isinstance(vars(holder)[called.member], classmethod):
        return f'getattr({found}, "__func__", None) is {known}.{called.member}.__func__'
    return f"{found} is {known}.{called.member}"


def _same_class(source: str, kind: type, names: Mapping[str, Any]) -> str:
    known = _expression(kind, names)
    if known is not None:
        return f"type({source}) is {known}"
    return f'type({source}).__qualname__ == "{kind.__qualname__}"'


def _expression(kind: type, names: Mapping[str, Any]) -> str | None:
    """How the target's file names the class; None: it does not."""
    first, *rest = kind.__qualname__.split(".")
    found = names.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return kind.__qualname__ if found is kind else None


def _holder(kind: type, name: str) -> type | None:
    return next((one for one in kind.__mro__ if name in vars(one)), None)


def names_of(function: Any) -> Mapping[str, Any]:
    """What the names in a function's file stand for, without those that are its own."""
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        return {}
    own = {*plain.__code__.co_varnames, *plain.__code__.co_freevars}
    return {name: value for name, value in plain.__globals__.items() if name not in own}
