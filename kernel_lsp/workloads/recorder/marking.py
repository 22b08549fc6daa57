"""A function of the program that its user has named as its step: tells when it has returned.

The function is replaced where the program's files and classes hold it, as soon as it is defined: we
look when modules are imported, when parameters are made, at forward calls, backward passes and
optimizer steps, and at none of these any more once it is found. Standard library alone; torch is
the program's. Not covered: a function that a local variable held before it was found; its first
call where nothing of the above happened before it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

from . import functions, imports

Ended = Callable[[Any], None]
"""Called with what the function returned."""


class StepMark:
    """Watches one function."""

    def __init__(self, named: Sequence[str], ended: Ended) -> None:
        """``named``: module (``__main__`` for the program's script) and name, ``Class.method``
        too."""
        self._module, self._qualname = named
        self._ended = ended
        self._inside = 0
        self._stop: list[Callable[[], None]] = []
        self.is_found = False

    def saw_torch(self, torch: Any) -> None:
        """Begin to look for it."""
        if self._module != "__main__":
            imports.after(self._module, lambda _: self.look())
        hooks = torch.nn.modules.module
        for register in (
            hooks.register_module_parameter_registration_hook,
            hooks.register_module_module_registration_hook,
            hooks.register_module_forward_pre_hook,
        ):
            self._stop.append(register(lambda *_: self.look()).remove)
        for name in ("backward", "grad"):
            self._look_before(torch.autograd, name)
        imports.after("torch.optim.optimizer", self._saw_optimizers)
        self.look()

    def _saw_optimizers(self, module: Any) -> None:
        if not self.is_found:
            handle = module.register_optimizer_step_pre_hook(lambda *_: self.look())
            self._stop.append(handle.remove)

    def _look_before(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def looking(*args: Any, **kwargs: Any) -> Any:
            self.look()
            return original(*args, **kwargs)

        setattr(owner, name, looking)
        self._stop.append(lambda: setattr(owner, name, original))

    def look(self) -> None:
        """Replace the function if it is there by now."""
        if self.is_found:
            return
        owner: Any = sys.modules.get(self._module)
        *path, name = self._qualname.split(".")
        for part in path:
            owner = vars(owner).get(part) if isinstance(owner, ModuleType | type) else None
        found = vars(owner).get(name) if isinstance(owner, ModuleType | type) else None
        if owner is None or not (callable(found) or isinstance(found, staticmethod)):
            return
        self.is_found = True
        if isinstance(found, staticmethod):
            setattr(owner, name, staticmethod(self._watching(found.__func__)))
        else:
            watching = self._watching(found)
            setattr(owner, name, watching)
            if isinstance(owner, ModuleType) and isinstance(found, FunctionType):
                modules = [one for one in list(sys.modules.values()) if isinstance(one, ModuleType)]
                functions.replace({found: watching}, [vars(one) for one in modules])
        for stop in self._stop:
            with suppress(Exception):  # a hook that its program has removed
                stop()
        self._stop.clear()

    def _watching(self, function: Any) -> Any:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            self._inside += 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._inside -= 1
            if not self._inside:
                self._ended(result)
            return result

        return marked
