"""Functions that an object holds: what tells one from all others, so that a guard can ask for it.

A function at the top of a file is known by its module and name. A lambda, or a function within a
function, is known by these where its file defines one of that name and it encloses nothing. What it
encloses cannot be asked for: torch.compile (2.13) fails in a function of whose cells one was read.
`held_function` says what a guard compares (printing/guard.py)."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type)
PLAIN = (bool, int, float, str, type(None), torch.dtype)


@dataclass(frozen=True, slots=True)
class HeldFunction:
    """A function or class that an object or a container holds, by what tells it from all others."""

    module: str | None
    """None: the function has none."""
    name: str
    is_own_method: bool = False
    """A method of the object that holds it, bound to that object."""
    is_of_own_file: bool = False
    """Defined in the target's file, whose module may be called otherwise in another process."""
    code: str | None = None
    """The name of its code, where Python code defines it. torch.compile follows this name and not
    the function's own, and a decorated function has the name of what it decorates."""
    defaults: tuple[Any, ...] = ()
    """Plain values, of a function that is not at the top of a file."""


def held_function(value: Any, owner: Any, home: str | None) -> HeldFunction | None:
    """What a guard compares of a function or class that ``owner`` holds; None where nothing tells
    it from others, as for a method of another object, which may have changed. ``home``: the module
    of the target's file."""
    bound = getattr(value, "__self__", None)
    is_own_method = isinstance(value, MethodType) and bound is owner
    if not (is_own_method or bound is None or isinstance(bound, (type, ModuleType))):
        return None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if name is None:
        return None
    code = getattr(value, "__code__", None)
    found = HeldFunction(
        module,
        name,
        is_own_method=is_own_method,
        is_of_own_file=module is not None and module == home,
        code=code.co_qualname if isinstance(code, CodeType) else None,
    )
    if _is_named(value, module, name):
        return found
    if isinstance(value, FunctionType) and _is_only_one(value):
        return replace(found, defaults=value.__defaults__ or ())
    return None


def _is_named(value: Any, module: str | None, name: str) -> bool:
    """Its name means nothing else: a module that is loaded gives this very function by it, or no
    Python code defines it, or the compiler made it."""
    if not isinstance(value, FunctionType):
        return "<" not in name
    # torch.compile puts such a forward on its module, whose own layer is observed like any other.
    if str(value.__globals__.get("__name__")).startswith("torch._dynamo."):
        return True
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_only_one(function: FunctionType) -> bool:
    """Its file defines no other function of that name, and all that could differ between two of
    them are plain defaults."""
    is_plain = all(type(value) in PLAIN for value in function.__defaults__ or ())
    is_closed = not function.__closure__ and not function.__kwdefaults__
    if not (is_plain and is_closed):
        return False
    return _definitions(_source(function))[function.__code__.co_qualname] == 1


def _source(function: FunctionType) -> str:
    return "".join(linecache.getlines(function.__code__.co_filename, function.__globals__))


@lru_cache(maxsize=64)
def _definitions(source: str) -> Counter[str]:
    """How often a file defines a function or class of each name; of no file none."""
    try:
        codes = [compile(source, "<definitions>", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return Counter()
    found: Counter[str] = Counter()
    while codes:
        code = codes.pop()
        found[code.co_qualname] += 1
        codes += [item for item in code.co_consts if isinstance(item, CodeType)]
    return found
