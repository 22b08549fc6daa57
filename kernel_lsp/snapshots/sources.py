"""An edited text in the place of a file of the program, for this process and without touching the
file.

`serve({path: text})` before the program's modules are imported. Imports compile the text under the
file's own name; linecache, and with it tracebacks, inspect and Triton, reads the same lines. What
opens the file itself (child processes, ``open(__file__)``) sees it only where the confinement has
mounted it there as well."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
"""Asked once: an answer takes 0.3 ms, and two for each of 2,600 modules made opening a program a
second longer."""
_real = functools.cache(os.path.realpath)
"""Of a module's file, which stays where it was when it was imported."""


def serve(texts: Mapping[str, str]) -> None:
    """Serve these texts from now on, instead of those that were served before."""
    known = next(
        (finder for finder in sys.meta_path if isinstance(finder, _ServedSourceFinder)), None
    )
    finder = known or _ServedSourceFinder()
    if known is None:
        sys.meta_path.insert(0, finder)
    finder.texts = {os.path.realpath(path): text for path, text in texts.items()}
    for path, text in texts.items():
        remember_lines(path, text)
    importlib.invalidate_caches()


def remember_lines(path: str, text: str) -> None:
    """Have linecache show this text. Without a time of change it is never compared with the
    disk."""
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)


def unload(path: str) -> None:
    """Forget the module of a file, and every other that is neither installed nor Python's own, so
    that the next import runs their texts anew. What is installed stays: it may not bear being
    imported twice."""
    place = os.path.realpath(path)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (_is_own(name, file) or _real(file) == place):
            del sys.modules[name]


def _is_own(name: str, file: str) -> bool:
    """Whether a module belongs to the program itself."""
    if name.partition(".")[0] in (
        "kernel_lsp",
        "_kernel_lsp_cloudpickle",
        "__main__",
        "torch",
        "triton",
    ):
        return False
    installed = "site-packages" in file or "dist-packages" in file
    return file.endswith(".py") and not installed and not file.startswith(STANDARD_LIBRARY)


class _ServedSourceFinder:
    """Gives the modules of served files another loader; everything else is found as ever."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the finders behind this one find, its text replaced where another is served; None
        where they find nothing."""
        place = sys.meta_path.index(self) if self in sys.meta_path else len(sys.meta_path)
        for finder in sys.meta_path[place + 1 :]:  # two hooks that ask each other never end
            find = getattr(finder, "find_spec", None)
            if find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return self._served(spec)
        return None

    def _served(self, spec: ModuleSpec) -> ModuleSpec:
        text = self.texts.get(os.path.realpath(spec.origin)) if spec.origin else None
        if text is not None and spec.origin is not None:
            spec.loader = _ServedText(spec.name, spec.origin, text)
            spec.cached = None
        return spec


class _ServedText(SourceFileLoader):
    """Compiles the text it was given; neither reads nor writes compiled files."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_source(self, fullname: str) -> str:
        """The text that is served for the module."""
        return self._text

    def get_code(self, fullname: str) -> CodeType:
        """The served text, compiled as the file of the module."""
        return InspectLoader.source_to_code(self._text, self.path)
