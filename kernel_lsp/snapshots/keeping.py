"""Writes the snapshot of one call, inside of the user's program.

Tensors, devices, generators, locks and whatever the program's script defines are named in the
pickle and made anew where it is opened (opening.py): a tensor from its description, a class of the
script from the script's text as it is then, and what a module of a package has assigned, where a
function within a function reads it, from that module. Everything else is pickled by cloudpickle,
which is handed in as a module. Tensors of unusual kinds (sparse, nested, quantized, subclasses) are
pickled as their dense parts (unusual.py). What cannot be pickled (open files, sockets, threads,
objects of extensions) is left out: a stand-in takes its place, which says what it was when the
target uses it.

Relative imports and the standard library alone; loaded by path, under another name, by
workloads/recorder. Not covered: objects whose pickle fails beyond its first step, as of a class
that extensions hide: `NotKept` says what was in the way."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import format, unusual
from .describing import NotDescribed, Tensors

MAX_GLOBAL_BYTES = 16 * 2**10
"""Of the pickle of one global of the program's script."""
MAX_PICKLE_BYTES = 16 * 2**20
LOCKS = (type(threading.Lock()), type(threading.RLock()))
SCRIPT = "__main__"
RECORDERS = ("_kernel_lsp_recorder", "kernel_lsp.workloads.recorder")
"""Modules of what watches the program's functions: as a program has them, and in tests."""
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class NotKept(Exception):
    """A call of which there can be no snapshot; the message says what is in the way."""


@dataclass(frozen=True, kw_only=True)
class WrittenSnapshot:
    """A snapshot that was written."""

    name: str
    """Of its file: a hash of its contents."""
    size: int


class Keeper:
    """Writes snapshots into one folder."""

    def __init__(self, folder: str, cloudpickle: Any, torch: Any) -> None:
        self._folder, self._cloudpickle, self._torch = Path(folder), cloudpickle, torch

    def keep(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], about: dict[str, Any]
    ) -> WrittenSnapshot:
        """Snapshot of ``target(*args, **kwargs)``, which is about to be called.

        ``about``: plain values for the header. Raises NotKept, and OSError when nothing can be
        written."""
        header, parts = self._pickled(target, args, kwargs)
        content = format.encode({**about, **header, **_program(self._torch)}, parts)
        if len(content) > format.MAX_BYTES:
            raise NotKept(f"its snapshot takes {len(content) >> 20} MB")
        path = self._folder / format.name_of(content)
        if not path.exists():
            fresh = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                fresh.replace(path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
        return WrittenSnapshot(name=path.name, size=len(content))

    def _pickled(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        header, parts, _ = self._taken(target, args, kwargs)
        return header, parts

    def look(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The header of a snapshot of this call, and the objects that it would lack, by their keys
        in it. Raises NotKept."""
        header, _, absent = self._taken(target, args, kwargs)
        return header, absent

    def _taken(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, bytes], dict[str, Any]]:
        """Header, parts, and what no part holds."""
        tensors, absent = Tensors(torch=self._torch), dict[str, Any]()
        stream = _Bounded(MAX_PICKLE_BYTES)
        pickler = self._pickler(stream, tensors, absent)
        try:
            pickler.kind = "state"
            pickler.dump(target)
            first = stream.tell()
            pickler.kind = "argument"
            pickler.dump((args, kwargs))  # the same pickler: what both parts hold stays one object
        except NotDescribed as error:
            raise NotKept(f"it holds {error}") from error
        except _Full as error:
            raise NotKept(
                f"what it holds besides tensors takes over {MAX_PICKLE_BYTES >> 20} MB"
            ) from error
        except Exception as error:  # objects may refuse to be pickled in any way
            raise NotKept(f"it holds what cannot be pickled ({_describe_error(error)})") from error
        pickles = stream.getvalue()
        found = self._globals(tensors, absent)
        parts = {"target": pickles[:first], "arguments": pickles[first:], **tensors.blobs, **found}
        names = [name.removeprefix("global ") for name in found]
        lacks = {key: unusual.kind_of(thing) for key, thing in absent.items()}
        return {"tensors": tensors.specs, "globals": names, "absent": lacks}, parts, absent

    def _pickler(
        self,
        stream: io.BytesIO,
        tensors: Tensors | _SmallTensors,
        absent: dict[str, Any],
        within: str = "",
    ) -> Any:
        return _pickler_class(self._cloudpickle, self._torch)(stream, tensors, absent, within)

    def _globals(self, tensors: Tensors, absent: dict[str, Any]) -> dict[str, bytes]:
        """What the script has assigned and its classes may read: small objects, each by itself."""
        script, found = sys.modules.get(SCRIPT), {}
        for name, value in list(vars(script).items()) if script is not None else ():
            if (
                name.startswith("__")
                or isinstance(value, types.ModuleType)
                or _by_name(value) is not None
            ):
                continue
            stream = _Bounded(MAX_GLOBAL_BYTES)
            lacks: dict[str, Any] = {}
            pickler = self._pickler(stream, _SmallTensors(tensors), lacks, within=f"{name} ")
            try:
                pickler.dump(value)
            except Exception:  # too large, or not to be pickled: whoever needs it says so
                continue
            absent.update(lacks)
            found[f"global {name}"] = stream.getvalue()
        return found


class _Full(Exception):
    pass


class _Bounded(io.BytesIO):
    """Memory for a pickle that may not grow without end."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        """Bytes written. Raises _Full where the limit would be passed."""
        if self.tell() + len(data) > self._limit:
            raise _Full
        return super().write(data)


class _SmallTensors:
    """The tensors of a snapshot, for a global that may hold small ones."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def place(self, tensor: Any, kind: str) -> int:
        """The number of the tensor in the snapshot. Raises NotDescribed above MAX_GLOBAL_BYTES."""
        if tensor.numel() * tensor.element_size() > MAX_GLOBAL_BYTES:
            raise NotDescribed("a large tensor")
        return self._tensors.place(tensor, kind)


_classes: dict[int, Any] = {}


def _pickler_class(cloudpickle: Any, torch: Any) -> Any:
    """A Pickler of cloudpickle's that names what is made anew; one class for each cloudpickle."""
    if id(cloudpickle) in _classes:
        return _classes[id(cloudpickle)]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Pickles one call; tensors go into ``tensors``."""

        kind = "state"

        def __init__(
            self,
            stream: io.BytesIO,
            tensors: Tensors | _SmallTensors,
            absent: dict[str, Any],
            within: str,
        ) -> None:
            super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
            self._tensors, self._absent, self._within = tensors, absent, within
            self._named: dict[int, tuple[str, str]] = {}
            """Identities of objects that a module of the program has assigned: module, name."""

        def persistent_id(self, thing: Any) -> Any:
            if id(thing) in self._named:
                return ("assigned", self._named[id(thing)])
            if isinstance(thing, torch.Tensor):
                if unusual.is_ordinary(thing, torch):
                    return ("tensor", self._tensors.place(thing, self.kind))
                return None
            return _name_of(thing, torch)

        def reducer_override(self, thing: Any) -> Any:
            return unusual.with_key(self._reduce(thing), thing, self._absent, self._within)

        def _reduce(self, thing: Any) -> Any:
            if (made := _taken_apart(thing, torch)) is not None:
                return made
            if isinstance(thing, types.FunctionType):
                self._named |= _assigned_names(thing, (torch.Tensor, torch.nn.Module))
            known = _reduced_by(super().reducer_override, thing)
            if known is not NotImplemented or isinstance(thing, (type, types.FunctionType)):
                return known
            return _reduced(thing, self.dispatch_table)

    _classes[id(cloudpickle)] = Pickler
    return Pickler


def _reduced(thing: Any, table: Any) -> Any:
    """As pickle reduces it; a stand-in for what refuses. Its parts are pickled in their turn.
    ``table``: kinds -> functions that reduce them."""
    try:
        known = table.get(type(thing))
        reduced = (
            known(thing) if known is not None else thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        )
    except Exception:  # objects may refuse in any way
        return unusual.absent(thing)
    if isinstance(reduced, str) and not _is_named(thing, reduced):
        return unusual.absent(thing)
    return unusual.with_state(reduced, thing)


def _reduced_by(reduce: Callable[[Any], Any], thing: Any) -> Any:
    """``reduce``: cloudpickle's, of classes and functions. Of a function that is watched, and that
    no module gives by its name, it is the program's own that is kept."""
    known = reduce(thing)
    if known is NotImplemented or not isinstance(thing, types.FunctionType):
        return known
    return reduce(_unwatched(thing))


def _unwatched(function: types.FunctionType) -> types.FunctionType:
    """The program's own function in the place of the one that watches it while it is recorded."""
    while str(function.__globals__.get("__name__")).startswith(RECORDERS):
        watched = getattr(function, "__wrapped__", None)
        if not isinstance(watched, types.FunctionType):
            break
        function = watched
    return function


def _is_named(thing: Any, name: str) -> bool:
    """A module gives it by that name; sys.excepthook as it was before somebody set another does
    not have one."""
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def _name_of(thing: Any, torch: Any) -> tuple[str, Any] | None:
    """What stands in a pickle for a thing that is made anew; None for everything else."""
    if isinstance(thing, unusual.Made):
        return "made", thing.name
    if isinstance(thing, torch.device):
        return "device", str(thing)
    if isinstance(thing, torch.Generator):
        return "generator", str(thing.device)
    if isinstance(thing, LOCKS):
        return "lock", type(thing).__name__
    if (name := _by_name(thing)) is not None:
        return "script", name
    names = _of_torch(thing, torch)
    return None if names is None else ("torch", names)


def _taken_apart(thing: Any, torch: Any) -> tuple[Any, ...] | None:
    """The parts of a thing that pickle takes otherwise, or not at all; None for everything else."""
    if type(thing) is weakref.ReferenceType and thing() is not None:
        return (weakref.ref, (thing(),))
    if isinstance(thing, torch.Tensor):
        return unusual.reduced_tensor(thing, torch)
    if isinstance(thing, torch.nn.Module) and unusual.is_parametrized(thing, torch):
        return unusual.reduced_parametrized(thing, torch)
    if isinstance(thing, io.IOBase) and not isinstance(thing, (io.StringIO, io.BytesIO)):
        return unusual.absent(thing)  # cloudpickle would read a whole file
    return None


def _assigned_names(function: types.FunctionType, kept: tuple[type, ...]) -> dict[int, Any]:
    """The objects of its module that a function within a function reads, by identity. Other
    functions of that module read the same ones (a hook finds what a decorator has prepared), and
    they may hold what cannot be pickled. ``kept``: types that are kept by value."""
    module = sys.modules.get(function.__module__)
    is_found = getattr(module, "__spec__", None) is not None and function.__module__ != SCRIPT
    if not is_found or vars(module) is not function.__globals__:
        return {}
    if "<locals>" not in function.__qualname__:
        return {}
    found = {}
    for name in _names_in(function.__code__):
        value = function.__globals__.get(name)
        if not isinstance(value, (*PLAIN, *kept, type, types.FunctionType, types.ModuleType)):
            found[id(value)] = (function.__module__, name)
    return found


def _names_in(code: types.CodeType) -> set[str]:
    inside = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inside))


def _by_name(thing: Any) -> str | None:
    """The name of a class or function that the program's script defines; None for everything
    else."""
    if not isinstance(thing, (type, types.FunctionType)) or thing.__module__ != SCRIPT:
        return None
    found: Any = sys.modules.get(SCRIPT)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return thing.__qualname__ if found is thing else None


def _of_torch(thing: Any, torch: Any) -> list[str] | None:
    """How torch is asked for one of its C++ classes, or for a member of a C++ enum, which do not
    pickle."""
    kind = thing if isinstance(thing, type) else type(thing)
    if type(kind).__name__ != "pybind11_type" or not kind.__module__.startswith("torch"):
        return None
    name = next((name for name, value in vars(torch._C).items() if value is kind), None)
    if name is None or kind is thing:
        return None if name is None else [name]
    member = getattr(thing, "name", None)
    known = getattr(kind, "__members__", {})
    return [name, str(member)] if member in known else None


def _program(torch: Any) -> dict[str, Any]:
    """Where the program's modules are found, and by which versions."""
    script = sys.modules.get(SCRIPT)
    path = getattr(script, "__file__", None)
    spec = getattr(script, "__spec__", None)
    return {
        "search_path": [str(Path(entry or ".").absolute()) for entry in sys.path],
        "folder": str(Path.cwd()),
        "script": None if path is None else str(Path(path).absolute()),
        "script_package": None if spec is None else spec.parent,
        "python": ".".join(map(str, sys.version_info[:2])),
        "torch": str(torch.__version__),
    }


def _describe_error(error: Exception) -> str:
    """Kind and first line of an error, short: it may quote the program's own data."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
