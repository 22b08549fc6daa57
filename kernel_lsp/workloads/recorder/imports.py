"""``after(name, action)``: do something with a module as soon as the program has imported it.

Nothing is imported here that the program would not import itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ImportAction = Callable[[Any], None]


def after(name: str, action: ImportAction) -> None:
    """Runs the action when the module has been imported; at once for one that is imported
    already."""
    if name in sys.modules:
        _safely(action, sys.modules[name])
        return
    if not isinstance(sys.meta_path[0], _ImportObserver):
        sys.meta_path.insert(0, _ImportObserver())
    finder = sys.meta_path[0]
    assert isinstance(finder, _ImportObserver)
    finder.waiting[name] = action


class _ImportObserver:
    """Finds nothing itself: it lets the loaders of a few modules tell when they are done."""

    def __init__(self) -> None:
        self.waiting: dict[str, ImportAction] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find for a name that is waited for, and its loader tells of the
        import; None for other names."""
        action = self.waiting.get(name)
        if action is None:
            return None
        place = sys.meta_path.index(self) if self in sys.meta_path else len(sys.meta_path)
        for finder in sys.meta_path[place + 1 :]:  # two hooks that ask each other never end
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._tell(name, spec.loader, action)
                return spec  # type: ignore[no-any-return]
        return None

    def _tell(self, name: str, loader: Any, action: ImportAction) -> None:
        """On the loader itself, so that the module's spec and loader are what they always are."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self.waiting.pop(name, None) is not None:
                _safely(action, module)

        loader.exec_module = exec_module


def _safely(action: ImportAction, module: Any) -> None:
    try:
        action(module)
    except Exception as error:
        # of a version that we do not know: the program's import must not fail for it
        what = (
            f"{module.__name__} of this version is not recorded ({type(error).__name__}: {error})"
        )
        sys.stderr.write(f"kernel-lsp record: {what}\n")
