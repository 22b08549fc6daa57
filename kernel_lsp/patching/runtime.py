"""Verified rewrites of installed packages, one file for each module that they are of. Written by
kernel-lsp.

    import kernel_lsp_patches; kernel_lsp_patches.apply()

puts them into place for this process. The line belongs behind the program's imports, before its
models are made. A package in another version than the rewrite was verified with runs unpatched,
with one warning. `kernel-lsp guard` judges the rewrites again, `kernel-lsp patches remove` removes
them and the line."""

# Copied into workspaces as kernel_lsp_patches/__init__.py: standard library alone, Python 3.10 and
# later.
from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import sys
import warnings
from pathlib import Path
from typing import Any

_BLANK = frozenset(vars(type("Blank", (), {}))) | {
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
}
_warned: set[str] = set()


class OtherVersion(ImportError):
    """What is installed is not what the rewrite was made of."""


def apply() -> tuple[str, ...]:
    """Patch every module that is installed as it was; the names of what is patched. May be called
    again."""
    patched: list[str] = []
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        try:
            part = importlib.import_module(f"{__name__}.{file.stem}")
        except OtherVersion as other:
            if file.stem not in _warned:
                _warned.add(file.stem)
                warnings.warn(f"{other}; it runs unpatched (kernel-lsp patches list)", stacklevel=2)
            continue
        patched.extend(part.apply())
    return tuple(patched)


class Library:
    """A module of an installed package whose source is the one that was rewritten."""

    def __init__(
        self, module: str, *, sha256: str, package: str | None = None, version: str | None = None
    ) -> None:
        """``sha256``: of the module's file. Raises OtherVersion."""
        self.name = module
        try:
            self.module: Any = importlib.import_module(module)
            installed = importlib.metadata.version(package) if package else None
            source = Path(str(self.module.__file__)).read_bytes()
        except (ImportError, OSError, TypeError) as error:
            raise OtherVersion(f"{module} cannot be patched: {error}") from error
        if installed != version:
            raise OtherVersion(
                f"{module} is of {package} {installed}, its rewrite of {package} {version}"
            )
        if hashlib.sha256(source).hexdigest() != sha256:
            raise OtherVersion(f"{module} is not the file that was rewritten")
        self._patched: tuple[str, ...] | None = None

    def patch(self, made: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
        """Put what stands in ``made`` under these names into the library; afterwards the names
        mean the library's own there too. Of a class the methods are put into the library's class,
        which stays the same class: its instances, subclasses and pickles know of nothing."""
        if self._patched is None:
            parts = {name: made[name] for name in names if "." not in name}
            for name, part in parts.items():
                if isinstance(part, type):
                    self._fill(getattr(self.module, name), part)
                    made[name] = getattr(self.module, name)
                else:
                    _replace(name, getattr(self.module, name), part)
            self._patched = tuple(f"{self.name}.{name}" for name in names)
        return self._patched

    def _fill(self, kind: type, part: type) -> None:
        for name, value in vars(part).items():
            if name in _BLANK:
                continue
            if isinstance(value, type) and isinstance(vars(kind).get(name), type):
                self._fill(vars(kind)[name], value)  # a class within the class
                continue
            _bind(value, kind)
            setattr(kind, name, value)


def _bind(value: Any, kind: type) -> None:
    """Have `super()` in a method mean the library's class."""
    value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    while value is not None:
        code, closure = getattr(value, "__code__", None), getattr(value, "__closure__", None)
        for name, cell in zip(code.co_freevars if code else (), closure or (), strict=False):
            if name == "__class__":
                cell.cell_contents = kind
        value = getattr(value, "__wrapped__", None)


def _replace(name: str, old: Any, new: Any) -> None:
    """A function, also in modules that have imported it from there."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)
