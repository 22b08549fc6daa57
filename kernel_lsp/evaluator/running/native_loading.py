"""Libraries that were built for a candidate, under its own `load_inline` calls.

`install` replaces the function before the candidate is watched: a call finds the library of exactly
its arguments, and starts no compiler. Anything else that it asks for is refused."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.evaluator import native

FOLDER = Path("native")
"""In the process's own scratch folder, where it starts."""


def install(extensions: Sequence[dict[str, Any]], libraries: Sequence[bytes]) -> None:
    """Makes torch's loading of extensions take these libraries instead of compiling.
    ``extensions``: as `native.build` gives them, one library each."""
    from torch.utils import cpp_extension  # 0.3 s, for those who need it

    places: dict[str, tuple[str, Path]] = {}
    for number, (extension, library) in enumerate(zip(extensions, libraries, strict=True)):
        folder = FOLDER.absolute() / str(number)
        folder.mkdir(parents=True)
        place = folder / f"{extension['name']}.so"
        place.write_bytes(library)
        places[extension["key"]] = extension["name"], place
    loaded: dict[str, Any] = {}
    signature = inspect.signature(cpp_extension.load_inline)

    def load_inline(*arguments: Any, **named: Any) -> Any:
        given = dict(signature.bind(*arguments, **named).arguments)
        given.update(given.pop("kwargs", {}))
        key = native.key(native.normalized(given))
        if key not in places:
            raise RuntimeError("this extension was not built: its arguments are made at run time")
        if key not in loaded:
            loaded[key] = _load(*places[key])
        return loaded[key]

    cpp_extension.load_inline = load_inline


def _load(name: str, place: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
