"""Snapshots of calls in a recorded program: which are kept, and how torch was set when they were
made.

The code that writes them is kernel_lsp/snapshots, loaded by path under a name of its own, because
the program may have another kernel_lsp; cloudpickle comes along in the same way."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from types import FunctionType, ModuleType
from typing import Any

from .sites import target_class

SNAPSHOTS = "_kernel_lsp_snapshots"
CLOUDPICKLE = "_kernel_lsp_cloudpickle"
MAX_CALLS = 4
"""Snapshots of one target in one process."""
MAX_FOLDER_BYTES = 256 * 2**20


class CallKeeper:
    """Keeps the snapshots of one process."""

    def __init__(self, settings: dict[str, str], torch: Any) -> None:
        """``settings``: ``folder`` (where to write), ``code`` (of the snapshots) and
        ``cloudpickle``."""
        self.seconds = 0.0
        """Spent here."""
        self._torch = torch
        self._settings = settings
        self._keeper: Any = None
        self._refused: Any = None
        """The keeper's exception for a call of which there can be no snapshot."""
        self._counts: dict[type | FunctionType, int] = {}
        self._room = MAX_FOLDER_BYTES

    def keep(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: str,
        *,
        training: bool | None = None,
        again: bool = False,
    ) -> dict[str, Any]:
        """Keeps a call on disk and says where: ``snapshot`` (the file's name), or ``not_kept`` (why
        there is none); and ``setting``.

        ``target``: a module's instance, or a function. ``again``: in the place of a call that was
        kept, so that it counts for none more."""
        begun = perf_counter()
        kind = target if isinstance(target, FunctionType) else target_class(type(target))
        setting = setting_of(self._torch, device)
        found: dict[str, Any] = {
            "setting": setting,
            "module": kind.__module__,
            "class": kind.__qualname__,
        }
        try:
            if (again or self._counts.get(kind, 0) < MAX_CALLS) and self._room > 0:
                self._counts[kind] = self._counts.get(kind, 0) + (not again)
                about = {**found, "training": training}
                found |= self._kept(target, args, kwargs, about)
        finally:
            self.seconds += perf_counter() - begun
        return found

    def _kept(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], about: dict[str, Any]
    ) -> dict[str, Any]:
        if self._keeper is None:
            self._load()
        try:
            kept = self._keeper.keep(target, args, kwargs, about)
        except self._refused as error:
            return {"not_kept": str(error)}
        except OSError as error:
            self._room = 0
            return {"not_kept": f"nothing can be written ({error.strerror})"}
        self._room -= kept.size
        return {"snapshot": kept.name}

    def _load(self) -> None:
        cloudpickle = _load_module(CLOUDPICKLE, Path(self._settings["cloudpickle"]))
        _load_module(SNAPSHOTS, Path(self._settings["code"]) / "__init__.py")
        keeping = importlib.import_module(f"{SNAPSHOTS}.keeping")
        self._keeper = keeping.Keeper(self._settings["folder"], cloudpickle, self._torch)
        self._refused = keeping.NotKept


def _load_module(name: str, path: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    folders = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def setting_of(torch: Any, device: str) -> dict[str, Any]:
    """How torch is set now, as far as it decides what a call computes and how fast."""
    found: dict[str, Any] = {
        "gradients": bool(torch.is_grad_enabled()),
        "inference": bool(torch.is_inference_mode_enabled()),
    }
    if torch.is_autocast_enabled(device):
        found["autocast"] = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    asked: dict[str, Callable[[], Any]] = {
        "matmul_precision": torch.get_float32_matmul_precision,
        "cudnn_tf32": lambda: bool(torch.backends.cudnn.allow_tf32),
        "cudnn_benchmark": lambda: bool(torch.backends.cudnn.benchmark),
    }
    for name, ask in asked.items():
        with suppress(Exception):
            # torch refuses to tell where a program has mixed old and new switches.
            found[name] = ask()
    return found


def named_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str | None, Any]]:
    """Arguments with the names that they can be passed by; None where there is none, as for
    ``*args``."""
    names: list[str | None] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names = [None] * len(args)  # what is unnamed cannot follow what is named
        elif parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            names.append(parameter.name)
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            names.append(None)
    return [*zip(names, args, strict=False), *kwargs.items()]
