"""Opens the snapshot of a call: the program's own object and arguments, with other numbers in the
tensors.

    opened = open_call(home, source, maker)
    args, kwargs = opened.bind(tensors)  # fresh objects around these tensors, at every call
    result = opened.target(*args, **kwargs)

The file of the target is imported (or, for a script, its definitions run) from ``source``, which
stands in the place of the file. No constructor runs. Runs code of the program: in confined
processes only. Not covered: what the program had changed in its modules after importing them
(monkeypatches)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import math
import pickle
import sys
import threading
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from kernel_lsp.errors import SnapshotError
from kernel_lsp.files import read_source
from kernel_lsp.records import Arguments, Home
from kernel_lsp.snapshots import format, remaking, replaying, script, sources

ValueSpec = dict[str, Any]
CLOUDPICKLE = "_kernel_lsp_cloudpickle"
"""The name under which the recorder had loaded it: pickles of functions ask for it."""
SCRIPT = "kernel_lsp_script"
MAX_MESSAGE_CHARS = 10_000


class TensorMaker(Protocol):
    """Makes the tensors of a call."""

    def make(self, place: int, spec: ValueSpec, room: torch.Tensor | None) -> torch.Tensor:
        """The tensor of this number; ``room``: the memory that it shares with others, None: its
        own."""
        ...

    def fill(self, tensor: torch.Tensor, spec: ValueSpec, values: torch.Tensor | None) -> None:
        """Give it numbers; ``values``: those that were kept, in its shape."""
        ...

    def device(self, name: str) -> torch.device:
        """The device that stands for the program's."""
        ...


@dataclass(frozen=True, kw_only=True)
class OpenedCall:
    """One call of the program, to be made again."""

    target: Any
    """What is called: a module's instance, or a function."""
    specs: tuple[ValueSpec, ...]
    """Of the tensors that come with the arguments, in the order of :meth:`bind`."""
    tensors: tuple[torch.Tensor, ...]
    """Those tensors as the maker made them."""
    header: dict[str, Any]
    namespace: dict[str, Any]
    """Globals of the file that defines the target."""
    _arguments: bytes
    _memo: Any
    _state: dict[int, torch.Tensor]
    _places: tuple[int, ...]
    _maker: TensorMaker
    _script: _OpenedScript

    def bind(self, tensors: Sequence[torch.Tensor]) -> Arguments:
        """Positional and named arguments of one call, around these tensors."""
        given = {**self._state, **dict(zip(self._places, tensors, strict=True))}
        unpickler = _ArgumentsUnpickler(
            self._arguments, given.__getitem__, self._maker, self._script
        )
        unpickler.memo = dict(self._memo)  # type: ignore[attr-defined]
        args, kwargs = unpickler.load()
        return list(args), dict(kwargs)


def header_of(home: Home) -> dict[str, Any]:
    """What the snapshot says of itself. Raises SnapshotError."""
    return _read(home).header


def open_call(home: Home, source: str, maker: TensorMaker, *, live: bool = False) -> OpenedCall:
    """The recorded call, opened with this maker of tensors. Raises SnapshotError, with cause and
    remedy, also for what the program's code raises meanwhile.

    ``live``: the call is to run with what its snapshot lacks, where ``home`` says how the program
    is run again (replaying.py); else a stand-in is in the place of such an object."""
    contents = _read(home)
    _enter(home, source)
    objects = replaying.objects_of_call(home, source, contents.header) if live else {}
    try:
        tensors = _OpenedTensors(contents, maker, objects)
    except (LookupError, TypeError, ValueError) as error:
        raise _unreadable("its header does not describe its tensors") from error
    program = _OpenedScript(home, source, contents, tensors)
    namespace = _namespace(home, program)
    unpickler = _Unpickler(contents.parts["target"], tensors.get, maker, program)
    target = _load(unpickler, "the object that is called")
    state, memo = dict(tensors.made), unpickler.memo.copy()
    arguments = contents.parts["arguments"]
    first = _ArgumentsUnpickler(arguments, tensors.get, maker, program)
    first.memo = dict(memo)  # type: ignore[attr-defined]
    _load(first, "its arguments")
    places = tuple(place for place in tensors.made if place not in state)
    return OpenedCall(
        target=target,
        specs=tuple(contents.header["tensors"][place] for place in places),
        tensors=tuple(tensors.made[place] for place in places),
        header=contents.header,
        namespace=namespace,
        _arguments=arguments,
        _memo=memo,
        _state=state,
        _places=places,
        _maker=maker,
        _script=program,
    )


def _read(home: Home) -> format.Contents:
    try:
        contents = format.read(Path(home.snapshot))
    except (OSError, format.Unreadable) as error:
        raise _unreadable(error) from error
    if lacking := ({"target", "arguments"} - contents.parts.keys()):
        raise _unreadable(f"it has no {' and no '.join(sorted(lacking))}")
    return contents


def _unreadable(why: object) -> SnapshotError:
    return SnapshotError(f"the recorded call cannot be read: {why}", "record the program again")


def _load(unpickler: Any, what: str) -> Any:
    try:
        return unpickler.load()
    except SnapshotError:
        raise
    except ModuleNotFoundError as error:
        raise _not_found(error) from error
    except BaseException as error:  # the program's own code runs here, and raises what it likes
        raise SnapshotError(
            f"{what} could not be opened: {_describe_error(error)}",
            "record the program again; what it changes in its own modules after importing them is "
            "not kept",
        ) from error


# --- the program's modules ---------------------------------------------------------------


def _enter(home: Home, source: str) -> None:
    """Imports find what the program's did, and the texts in the place of its files."""
    _load_cloudpickle(home.pickler)
    known = set(sys.path)
    sys.path[:0] = [entry for entry in home.search_path if entry not in known]
    sources.serve({**dict(home.others), home.path: source})


def _load_cloudpickle(path: str) -> None:
    if CLOUDPICKLE in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(CLOUDPICKLE, path)
    if spec is None or spec.loader is None:
        raise SnapshotError(f"cloudpickle is not found at {path}", "install kernel-lsp again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[CLOUDPICKLE] = module
    spec.loader.exec_module(module)


def _namespace(home: Home, program: _OpenedScript) -> dict[str, Any]:
    """Globals of the file of the target: of a module, or of the program's script."""
    if home.module == "__main__":
        return program.namespace()
    try:
        return vars(importlib.import_module(home.module))
    except ModuleNotFoundError as error:
        raise _not_found(error) from error
    except BaseException as error:  # the program's own code runs here
        raise SnapshotError(
            f"{home.module} could not be imported: {_describe_error(error)}",
            "run `python -c 'import …'` in the program's folder to see the full error",
        ) from error


def _not_found(error: ModuleNotFoundError) -> SnapshotError:
    return SnapshotError(
        f"the program imports {error.name}, which is not found in its interpreter",
        "choose the interpreter that the program was recorded with",
    )


def _describe_error(error: BaseException) -> str:
    try:
        line = (str(error)[:MAX_MESSAGE_CHARS].strip().splitlines() or [""])[0][:300]
    except BaseException:  # the program's own text of it is code, too
        line = ""
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


class _OpenedScript:
    """The program's script as a module: its definitions, and what it had assigned when the call
    was kept."""

    def __init__(
        self, home: Home, source: str, contents: format.Contents, tensors: _OpenedTensors
    ) -> None:
        self._path: str | None = contents.header.get("script")
        self._source = {**dict(home.others), home.path: source}.get(self._path or "")
        self._contents, self._tensors = contents, tensors
        self._module: types.ModuleType | None = None

    def find(self, name: str) -> Any:
        """A class or function that the script defines. Raises SnapshotError."""
        self.namespace()
        found: Any = self._module
        for part in name.split("."):
            found = getattr(found, part, None)
            if found is None:
                raise SnapshotError(
                    f"{self._path} defines no {name} any more", "record the program again"
                )
        return found

    def live_or_absent(self, kind: str, key: str = "") -> Any:
        """The program's own object where it was run again; else what stands in its place."""
        objects = self._tensors.objects
        return objects[key] if key in objects else remaking.Absent(kind, key)

    def namespace(self) -> dict[str, Any]:
        """Globals of the script; its definitions run when they are first asked for."""
        if self._module is None:
            self._module = self._run()
        return vars(self._module)

    def _run(self) -> types.ModuleType:
        if self._path is None:
            raise SnapshotError("the program has no file", "record it as `python FILE`")
        try:
            text = self._source if self._source is not None else read_source(Path(self._path)).text
            tree = script.definitions(text)
            code = compile(tree, self._path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            raise SnapshotError(
                f"{self._path} cannot be read: {_describe_error(error)}", "mend the file"
            ) from error
        sources.remember_lines(self._path, text)
        module = types.ModuleType(SCRIPT)
        module.__file__ = self._path
        module.__package__ = self._contents.header.get("script_package") or ""
        sys.modules[SCRIPT] = module
        self._module = module  # what it had assigned may name its own classes
        try:
            self._assign(module)  # a class body or a default may ask for it
            exec(code, module.__dict__)
            self._assign(module)  # the rest: instances of these classes
        except ModuleNotFoundError as error:
            raise _not_found(error) from error
        except BaseException as error:  # the program's own code runs here
            raise SnapshotError(
                f"the definitions of {self._path} could not be run by themselves: "
                f"{_describe_error(error)}",
                "keep what a class or function needs at its definition in constants above it",
            ) from error
        return module

    def _assign(self, module: types.ModuleType) -> None:
        """What the script had assigned; what cannot be loaded is missing where it is asked for."""
        for name in self._contents.header["globals"]:
            if name in module.__dict__:
                continue
            part = self._contents.parts[f"global {name}"]
            unpickler = _Unpickler(part, self._tensors.get, self._tensors.maker, self)
            with contextlib.suppress(BaseException):
                module.__dict__[name] = unpickler.load()


# --- tensors and other things that are made anew -----------------------------------------


class _OpenedTensors:
    """The tensors of a snapshot, each made when it is first asked for."""

    def __init__(
        self, contents: format.Contents, maker: TensorMaker, objects: Mapping[str, Any]
    ) -> None:
        """``objects``: of the program, by the keys of their stand-ins."""
        self.maker, self.objects = maker, objects
        self.made: dict[int, torch.Tensor] = {}
        self._specs: list[ValueSpec] = contents.header["tensors"]
        self._blobs = contents.parts
        self._rooms: dict[int, torch.Tensor] = {}
        self._extents = _extents(self._specs)

    def get(self, place: int) -> torch.Tensor:
        """The tensor of this number, made and filled at its first use."""
        if place not in self.made:
            spec = self._specs[place]
            made = self.maker.make(place, spec, self._room(spec))
            with torch.no_grad():
                self.maker.fill(made.detach(), spec, self._values(spec))
            self.made[place] = _restore_kind(made, spec)
        return self.made[place]

    def _room(self, spec: ValueSpec) -> torch.Tensor | None:
        """Bytes for every tensor of one storage, where several share it."""
        count, size = self._extents[spec["storage"]]
        if count < 2:
            return None
        if spec["storage"] not in self._rooms:
            device = self.maker.device(spec["device"])
            self._rooms[spec["storage"]] = torch.empty(size, dtype=torch.uint8, device=device)
        return self._rooms[spec["storage"]]

    def _values(self, spec: ValueSpec) -> torch.Tensor | None:
        if "blob" not in spec:
            return None
        shape = [
            1 if step == 0 else size
            for size, step in zip(spec["shape"], spec["stride"], strict=True)
        ]
        dtype = dtype_of(spec)
        size = math.prod(shape) * dtype.itemsize
        unpacked = zlib.decompressobj().decompress(self._blobs[spec["blob"]], size + 1)
        if len(unpacked) > size:  # 64 MB may unpack to 64 GB
            raise SnapshotError("a tensor's values are more than it holds", "record again")
        raw = bytearray(unpacked)
        flat = (
            torch.frombuffer(raw, dtype=torch.uint8).view(dtype)
            if raw
            else torch.empty(0, dtype=dtype)
        )
        return flat.reshape(shape).expand(spec["shape"])


def dtype_of(spec: ValueSpec) -> torch.dtype:
    """The dtype that the spec names. Raises SnapshotError for a dtype that this torch does not
    have."""
    dtype = getattr(torch, spec["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise SnapshotError(
            f"torch {torch.__version__} has no dtype {spec['dtype']}", "record again with it"
        )
    return dtype


def _extents(specs: Sequence[ValueSpec]) -> dict[int, tuple[int, int]]:
    """Storage -> how many tensors lie in it, and the bytes from its start to the last of them."""
    found: dict[int, tuple[int, int]] = {}
    for spec in specs:
        count, size = found.get(spec["storage"], (0, 0))
        found[spec["storage"]] = count + 1, max(size, _end(spec))
    return found


def _end(spec: ValueSpec) -> int:
    """Bytes from the start of its storage to its end."""
    if 0 in spec["shape"]:
        return 0
    last = sum((size - 1) * step for size, step in zip(spec["shape"], spec["stride"], strict=True))
    return int((spec["offset"] + last + 1) * dtype_of(spec).itemsize)


def _restore_kind(made: torch.Tensor, spec: ValueSpec) -> torch.Tensor:
    """As the program's was: a parameter, a buffer, with the program's own attributes."""
    needs = bool(spec["requires_grad"])
    if spec["class"] == "parameter":
        made = torch.nn.Parameter(made, requires_grad=needs)
    elif spec["class"] == "buffer":
        made = torch.nn.Buffer(made)
    elif needs:
        made = made.requires_grad_()
    for name, value in spec.get("attributes", {}).items():
        setattr(made, name, value)
    return made


class _Named:
    """What the names in a pickle of keeping.py stand for."""

    def __init__(
        self,
        pickled: bytes,
        tensor: Callable[[int], torch.Tensor],
        maker: TensorMaker,
        program: _OpenedScript,
    ) -> None:
        super().__init__(io.BytesIO(pickled))  # type: ignore[call-arg]
        self._tensor, self._maker, self._script = tensor, maker, program

    def persistent_load(self, name: Any) -> Any:
        """What a name in the pickle stands for: a tensor, a part of the script, a value made
        anew."""
        kind, value = name
        if kind == "tensor":
            return self._tensor(value)
        if kind == "script":
            return self._script.find(value)
        if kind == "assigned":
            module, assigned = value
            return getattr(importlib.import_module(module), assigned)
        if kind == "made":
            return self._script.live_or_absent if value == "absent" else remaking.made(value)
        if kind == "device":
            return self._maker.device(value)
        if kind == "generator":
            return torch.Generator(self._maker.device(value))
        if kind == "torch":
            found: Any = torch._C
            for part in value:
                found = getattr(found, part)
            return found
        if kind == "lock":
            return threading.RLock() if value == "RLock" else threading.Lock()
        raise SnapshotError(
            f"the snapshot names a {kind}, which this version does not know", "record again"
        )


class _Unpickler(_Named, pickle.Unpickler):
    pass


class _ArgumentsUnpickler(_Named, pickle._Unpickler):
    """For the second of two pickles, whose memo goes on from the first's. In Python, because C's
    Unpickler forgets how long a memo is that it was given (3.11 to 3.14); 0.3 ms for the arguments
    of a decoder layer."""
