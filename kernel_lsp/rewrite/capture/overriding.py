"""The code that a forward calls on its objects: own methods, and layers of the user's own classes.

A graph holds what they compute, not the calls, so another call must find the same code: a subclass
may override a method, an instance may have been given another one, a layer may be exchanged or get
a hook. `conditions(source, called, names)` are what the guard asks. Methods that a class itself is
given later are not seen, as module globals are not."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class CalledCode:
    """A member that a class gives to its objects and that a forward called, or a property that it
    read."""

    kind: type
    """The class of the object."""
    holder: type
    """Where the member is defined: ``kind`` or a class that it inherits from."""
    member: str

    @property
    def definition(self) -> Any:
        """The attribute as it stands in the class: a function, a staticmethod, a property and so
        on."""
        return vars(self.holder)[self.member]


def called_code(name: str, value: Any, owner: Any, kind: type) -> CalledCode | None:
    """What was called, where the class and not the object says what runs; None otherwise.
    ``owner``: an object of the class ``kind``, from which ``name`` gave ``value``."""
    holder = next((one for one in kind.__mro__ if name in vars(one)), None)
    if holder is None or name in getattr(owner, "__dict__", {}):
        return None
    if not (callable(value) or isinstance(vars(holder)[name], property)):
        return None
    return CalledCode(kind=kind, holder=holder, member=name)


def conditions(source: str, called: CalledCode, names: Mapping[str, Any]) -> list[str]:
    """Expressions, all true while an object runs the same code. ``source``: the expression of the
    object; ``names``: what the names of the target's file stand for. torch.compile follows them
    under ``fullgraph=True``."""
    of_same_class = same_class(source, called.kind, names)
    if isinstance(called.definition, property):
        return [of_same_class]
    if called.member == "forward" and issubclass(called.kind, torch.nn.Module):
        hooks = f"not ({source}._forward_hooks or {source}._forward_pre_hooks)"
        return [of_same_class, _same_member(source, called, names), hooks]
    return [_same_member(source, called, names)]


def _same_member(source: str, called: CalledCode, names: Mapping[str, Any]) -> str:
    """The class gives the same member and the object has none of its own. Asked of the class:
    torch.compile (2.13) finds no ``__func__`` of a method by getattr with a default, and a method
    of another object has the same one."""
    found, holder = f"type({source}).{called.member}", expression(called.holder, names)
    if holder is not None:
        function = ".__func__" if isinstance(called.definition, classmethod) else ""
        same = f"{found}{function} is {holder}.{called.member}{function}"
    else:
        code = getattr(getattr(called.holder, called.member), "__code__", None)
        if code is None:  # an object that can be called: only its class names it
            return same_class(source, called.kind, names)
        own_code = f'getattr(getattr({found}, "__code__", None), "co_qualname", None)'
        same = f"{own_code} == {code.co_qualname!r}"
    if called.kind.__dictoffset__ == 0:  # slots: no object has members of its own
        return f"{same_class(source, called.kind, names)} and {same}"
    return f'{same} and "{called.member}" not in {source}.__dict__'


def same_class(source: str, kind: type, names: Mapping[str, Any]) -> str:
    """A condition: the object at ``source`` is of this class and of none that inherits from it."""
    if getattr(torch.nn, kind.__name__, None) is kind:
        return f"type({source}) is torch.nn.{kind.__name__}"
    known = expression(kind, names)
    if known is not None:
        return f"type({source}) is {known}"
    return f'type({source}).__qualname__ == "{kind.__qualname__}"'


def expression(kind: type, names: Mapping[str, Any]) -> str | None:
    """How the target's file names the class; None: it does not."""
    first, *rest = kind.__qualname__.split(".")
    found = names.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return kind.__qualname__ if found is kind else None


def names_of(function: Any, namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the names of the target's file stand for within a function of it, without those that are
    its own. ``namespace``: of the file; a decorator may have put a function of another file in the
    place of the person's."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(plain, FunctionType):
        return {}
    own = {*plain.__code__.co_varnames, *plain.__code__.co_freevars}
    return {name: value for name, value in namespace.items() if name not in own}
