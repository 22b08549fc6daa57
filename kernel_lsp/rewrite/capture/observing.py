"""What a forward reads of its module while it is captured: attributes, which code of its own it
calls (overriding.py), and which layers.

A guard compares the same attributes on each call, those of objects inside of lists, tuples and
dicts too (`Items`), and small arrays of NumPy by their content (`ArrayContent`). One object that is
reached in two ways must stay one (`SameObject`). What could not be compared is UNKNOWN and refused
by tracing.py."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from abc import ABCMeta
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.capture.functions import FUNCTIONS, PLAIN, held_function
from kernel_lsp.rewrite.capture.overriding import CalledCode, called_code
from kernel_lsp.rewrite.capture.structure import (
    ENUMERATING,
    Structure,
    is_forward,
    is_library,
    is_own_code,
    reader,
)
from kernel_lsp.rewrite.graph import Graph, ModuleCall

MAX_ITEMS = 64
"""Longest container that a guard compares on each call: about a microsecond."""
UNKNOWN = object()
"""Stands for a value that was read and that no guard could compare."""
MODULE_OWN = frozenset(dir(torch.nn.Module())) - {"training"}
TRACER = "torch.fx.experimental.proxy_tensor"
"""Where torch.export keeps what it puts around layers."""
COMPARED_ARRAYS = "biuf"
"""Kinds of NumPy's dtypes whose values a guard compares: booleans, integers, floats."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list, tuple or dict was read that holds objects: which places it has."""

    kind: type
    """list, tuple or dict."""
    keys: tuple[Any, ...]
    """Of a dict, in order; of a sequence its indices."""


@dataclass(frozen=True, slots=True)
class ArrayContent:
    """A small array of NumPy was read."""

    dtype: str
    values: Any
    """Nested lists of plain values."""


@dataclass(frozen=True, slots=True)
class CalledObject:
    """An object that can be called was read: its class."""

    kind: str


@dataclass(frozen=True, slots=True)
class SameObject:
    """An object was read that is known by another path."""

    path: str


@dataclass(frozen=True, slots=True)
class ObservedReads:
    """What was read of objects, by path."""

    values: dict[str, Any] = field(default_factory=dict)
    """Attributes: what a guard compares, or UNKNOWN."""
    code: dict[str, CalledCode] = field(default_factory=dict)
    """Code of their own classes that was called."""
    paths: set[str] = field(default_factory=set)
    """Everything that was read, tensors too."""
    watched: set[str] = field(default_factory=set)
    """Objects whose reads are seen."""

    def has_read(self, source: str) -> bool:
        """Whether anything of the object at this source was read, or may have been."""
        prefix = f"{source}."
        return source not in self.watched or any(one.startswith(prefix) for one in self.paths)

    def may_have_read(self, source: str) -> bool:
        """Whether what lies at this source, on an object or in a container there, may have been
        read."""
        owner = max((o for o in self.watched if source.startswith(f"{o}.")), key=len, default=None)
        if owner is None:
            return True
        name = re.split(r"[.\[]", source[len(owner) + 1 :], maxsplit=1)[0]
        return f"{owner}.{name}" in self.paths

    def called_modules(self) -> Iterator[str]:
        """Paths of modules of the user's own classes whose forward ran."""
        for path in self.code:
            owner, _, name = path.rpartition(".")
            if name == "forward":
                yield owner


@dataclass(frozen=True, slots=True)
class Observed:
    """What one call of the target did besides what its graph holds; filled while it runs."""

    structure: Structure
    home: str | None = None
    """The module of the target's file."""
    of_self: ObservedReads = field(default_factory=ObservedReads)
    """By paths from the module: ``blocks.0.scale``."""
    of_objects: ObservedReads = field(default_factory=ObservedReads)
    """By the source that names an object among the arguments: ``config.scale``."""
    called: list[tuple[str, bool]] = field(default_factory=list)
    """Layers of torch: path, and whether the call was simple (`_call_recorder`)."""
    classes: dict[type, str] = field(default_factory=dict)
    """Of objects among the results, and how the target's file names them."""


@contextlib.contextmanager
def observe_module(module: Any, observed: Observed, wrote: Callable[[str], None]) -> Iterator[None]:
    """Records, within the block, the attributes that user-defined modules read and set, the code of
    their own that they call, the layers that they have, and how layers of torch are called."""
    handles: list[Any] = []
    classes: list[tuple[Any, type]] = []
    recorder = _ReadRecorder(observed.of_self, classes, wrote, observed.home)
    for path, part in module.named_modules() if module is not None else ():
        if is_library(part):
            handles.append(
                part.register_forward_hook(_call_recorder(path, observed.called), with_kwargs=True)
            )
        else:
            classes.append((part, type(part)))
            part.__class__ = recorder.recording(part, path, observed.structure)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for part, kind in classes:
            part.__class__ = kind


@contextlib.contextmanager
def observed_objects(
    things: list[tuple[str, Any]], observed: Observed, wrote: Callable[[str], None]
) -> Iterator[None]:
    """The same for objects among the arguments, each with the source that names it."""
    classes: list[tuple[Any, type]] = []
    recorder = _ReadRecorder(observed.of_objects, classes, wrote, observed.home)
    for source, thing in things:
        kind = type(thing)
        if isinstance(thing, Enum):
            continue
        with contextlib.suppress(TypeError):  # a class of Python's own: it cannot change
            thing.__class__ = recorder.recording(thing, source)
            classes.append((thing, kind))
            observed.of_objects.watched.add(source)
    try:
        yield
    finally:
        for thing, kind in classes:
            thing.__class__ = kind


def _call_recorder(path: str, called: list[tuple[str, bool]]) -> Any:
    """A call is simple when one tensor goes in and one comes out: an LSTM of whose results one is
    used, or a pool that returns its indices too, is not."""

    def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        lone = len(args) == 1 and isinstance(args[0], torch.Tensor) and not kwargs
        called.append((path, lone and isinstance(result, torch.Tensor)))

    return hook


class _Attributes:
    """Of one object, and of copies that a call makes of it without a constructor: what is set on
    these is the call's own, and the rest they have from the object."""

    def __init__(self, thing: Any, not_seen: frozenset[str]) -> None:
        self._thing, self._not_seen = thing, not_seen
        self._copies: dict[int, tuple[Any, set[str]]] = {}
        """By their identities, with the names of what was set."""

    def are_programs(self, one: Any, name: str) -> bool:
        """Whether reading this one is of interest."""
        _, names = self._copies.get(id(one), (None, frozenset[str]()))
        return name not in names and _is_programs(one, name, self._not_seen)

    def are_written(self, one: Any, name: str) -> bool:
        """Whether setting this one changes the object itself."""
        if one is self._thing:
            return not name.startswith("__")
        self._copies.setdefault(id(one), (one, set()))[1].add(name)
        return False


def _recording(
    thing: Any,
    path: str,
    note: Callable[[str, Any, Any, type], None],
    wrote: Callable[[str, Any], None],
    structure: Structure | None = None,
) -> type:
    """A class for ``thing`` that looks like its own and reports each attribute read, note(path,
    value, owner, kind), and each one set, wrote(path, value); a module's layers and tensors to
    ``structure``. What is made of it within the call is of the class as it was: nothing of the
    program's holds it."""
    kind: Any = type(thing)
    prefix = f"{path}." if path else ""
    original: Any = kind.__getattribute__
    write: Any = kind.__setattr__
    members: dict[str, Any] = {}
    not_seen = MODULE_OWN if issubclass(kind, torch.nn.Module) else frozenset[str]()
    attributes = _Attributes(thing, not_seen)

    def __getattribute__(self: Any, name: str) -> Any:
        value = original(self, name)
        is_own = attributes.are_programs(self, name)
        is_layer_call = name == "forward" and path
        if is_own or is_layer_call:
            note(prefix + name, value, self, kind)
        elif name in ENUMERATING and structure is not None and is_own_code(reader(1)):
            structure.enumerate(path, name)
        return value

    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if self is not thing:
            object.__setattr__(self, "__class__", kind)
        kind.__init__(self, *args, **kwargs)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if attributes.are_written(self, name):
            wrote(prefix + name, value)
        write(self, name, value)

    members["__init__"], members["__setattr__"] = __init__, __setattr__
    members["__slots__"] = ()  # as large as the class itself, which objects with slots need
    if issubclass(kind, torch.nn.Module):

        def __getattr__(self: Any, name: str) -> Any:
            value = kind.__getattr__(self, name)
            if value is None:  # a parameter or layer registered as None may be set later
                note(prefix + name, value, self, kind)
            elif structure is not None and is_forward(reader(1)):
                structure.meet(prefix + name)
            return value

        members["__getattr__"] = __getattr__
    recording = _quiet_subclass(kind, {"__getattribute__": __getattribute__, **members})
    recording.__module__, recording.__qualname__ = kind.__module__, kind.__qualname__
    return recording


def _quiet_subclass(kind: type, members: dict[str, Any]) -> type:
    """A subclass of which the program's own code does not hear: a metaclass or an
    ``__init_subclass__`` may ask for keywords, or put every subclass into a table."""
    meta: Any = type(kind)
    make = ABCMeta.__new__ if issubclass(meta, ABCMeta) else type.__new__
    if not any("__init_subclass__" in vars(base) for base in kind.__mro__[:-1]):
        return make(meta, kind.__name__, (kind,), members)
    known = vars(kind).get("__init_subclass__")
    type.__setattr__(kind, "__init_subclass__", classmethod(lambda *_, **__: None))
    try:
        return make(meta, kind.__name__, (kind,), members)
    finally:
        if known is None:
            type.__delattr__(kind, "__init_subclass__")
        else:
            type.__setattr__(kind, "__init_subclass__", known)


def _is_programs(thing: Any, name: str, not_seen: frozenset[str]) -> bool:
    """Whether the program has put the attribute there, and not torch. torch.export stands in for
    all layers of a module that has one layer in two places."""
    if name.startswith("__") or name in not_seen:
        return False
    owner = next((base for base in type(thing).__mro__ if name in vars(base)), None)
    return owner is None or owner.__module__ != TRACER


class _ReadRecorder:
    """What each attribute read leaves in ``reads``; objects are opened, so that their fields are
    seen."""

    def __init__(
        self,
        reads: ObservedReads,
        classes: list[tuple[Any, type]],
        wrote: Callable[[str], None],
        home: str | None,
    ) -> None:
        self._home = home
        self.reads, self.code, self.read = reads.values, reads.code, reads.paths
        self.classes, self.wrote = classes, wrote
        self._paths: dict[int, str] = {}
        """id of an opened object -> how it was reached first."""
        self._recordings: set[type] = set()
        self._written: set[str] = set()
        """Paths that the call has set: what is read there from then on is the call's own."""
        self._tensors: dict[int, tuple[torch.Tensor, set[str]]] = {}
        """Those that were read, by identity, with the paths that gave them."""

    def recording(self, thing: Any, path: str, structure: Structure | None = None) -> type:
        """A class for the object at this path, which reports to this recorder."""
        made = _recording(thing, path, self.note, self._wrote, structure)
        self._recordings.add(made)
        return made

    def _wrote(self, path: str, value: Any) -> None:
        tensor, paths = self._tensors.get(id(value), (None, set[str]()))
        if tensor is not None and paths == {path}:
            return  # `self.table = self.tables(x)` puts back what it has read there
        self._written.add(path)
        self.wrote(path)

    def note(self, path: str, value: Any, owner: Any, kind: type) -> None:
        """Keep what reading this path gave: the code behind it, if it runs code, and the value."""
        self.read.add(path)
        if path in self._written:
            return
        if isinstance(value, torch.Tensor):
            self._tensors.setdefault(id(value), (value, set()))[1].add(path)
        name = path.split(".")[-1]
        own = called_code(name, value, owner, kind)
        if own is not None:
            self.code.setdefault(path, own)
        if own is None or not callable(value):  # otherwise its class says what runs
            self._read(path, value, owner)

    def _read(self, path: str, value: Any, owner: Any = None) -> None:
        if _is_plain(value):
            self.reads.setdefault(path, value)
        elif isinstance(value, Enum):
            self.reads.setdefault(f"{path}.name", value.name)
        elif isinstance(value, FUNCTIONS):
            held = held_function(value, owner, self._home)
            self.reads.setdefault(path, UNKNOWN if held is None else held)
        elif type(value) is functools.partial:
            self._read_partial(path, value)
        elif _is_called_object(value):
            self.reads.setdefault(path, CalledObject(type(value).__qualname__))
            if not self._opens(path, value):
                self.reads[path] = UNKNOWN
        elif _is_followed(value):
            pass
        elif isinstance(value, (dict, list, tuple)):
            self._read_items(path, value, owner)
        elif (content := _array_content(value)) is not None:
            self.reads.setdefault(path, content)
        elif not self._opens(path, value):
            self.reads.setdefault(path, UNKNOWN)

    def _read_items(self, path: str, value: Any, owner: Any) -> None:
        items = _items(value)
        if items is None:
            self.reads.setdefault(path, UNKNOWN)
        elif path not in self.reads:
            self.reads[path] = items
            for key in items.keys:
                self._read(f"{path}[{key!r}]", value[key], owner)

    def _read_partial(self, path: str, value: functools.partial[Any]) -> None:
        if path not in self.reads:
            self.reads[path] = CalledObject("partial")
            self._read(f"{path}.func", value.func)
            self._read(f"{path}.args", value.args)
            self._read(f"{path}.keywords", value.keywords)

    def _opens(self, path: str, value: Any) -> bool:
        known = self._paths.get(id(value))
        if known is not None:
            if known != path:
                self.reads.setdefault(path, SameObject(known))
            return True
        kind = type(value)
        if kind in self._recordings:  # an argument, or the copy of one that torch.export makes
            return True
        try:
            value.__class__ = self.recording(value, path)
        except TypeError:  # a class of Python's own, or one that cannot be inherited from
            return False
        self.classes.append((value, kind))
        self._paths[id(value)] = path
        return True


def _is_called_object(value: Any) -> bool:
    """An instance of somebody's class that can be called: what it does follows from its fields."""
    kind = type(value)
    known = isinstance(value, (type, torch.nn.Module, torch.Tensor, torch.Generator))
    ours = kind.__module__.split(".")[0] in ("torch", "builtins", "functools")
    return callable(value) and not known and not ours


def _items(value: Any) -> Items | None:
    """The places of a container of Python's own whose keys can be written down; None for others."""
    kind = type(value)
    if kind not in (list, tuple, dict) or len(value) > MAX_ITEMS:
        return None
    if kind is not dict:
        return Items(kind, tuple(range(len(value))))
    written = all(type(k) is int or (type(k) is str and k.isidentifier()) for k in value)
    return Items(kind, tuple(value)) if written else None


def _array_content(value: Any) -> ArrayContent | None:
    kind = type(value)
    if (kind.__module__, kind.__name__) != ("numpy", "ndarray") or value.size > MAX_ITEMS:
        return None
    return (
        ArrayContent(str(value.dtype), value.tolist())
        if value.dtype.kind in COMPARED_ARRAYS
        else None
    )


def _is_followed(value: Any) -> bool:
    """Values that the graph itself depends on."""
    if isinstance(value, (list, tuple)):
        return all(_is_followed(item) for item in value)
    if isinstance(value, dict):
        return all(_is_followed(item) for item in value.values())
    return isinstance(value, (torch.Tensor, torch.nn.Module, torch.device, torch.Generator))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) <= MAX_ITEMS and all(_is_plain(x) for pair in value.items() for x in pair)
    if isinstance(value, (tuple, list)):
        return len(value) <= MAX_ITEMS and all(_is_plain(item) for item in value)
    return type(value) in PLAIN or isinstance(value, float)


def module_calls(
    graph: Graph, module: Any, called: list[tuple[str, bool]]
) -> tuple[ModuleCall, ...]:
    """Layers called once, as ``layer(x)``, whose nodes have one way in and one tensor as their way
    out."""
    if module is None:
        return ()
    groups: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        path = module_path(node)
        if path:
            groups.setdefault(path, []).append(node)
    made = []
    for path, nodes in groups.items():
        layer = attribute(module, path)
        if is_called_simply(path, called) and not list(layer.children()):
            call = single_call(graph, path, nodes)
            made += [call] if call is not None else []
    return tuple(made)


def is_called_simply(path: str, called: list[tuple[str, bool]]) -> bool:
    """Whether the layer is called once, and one tensor goes in and one comes out."""
    return [simple for known, simple in called if known == path] == [True]


def single_call(graph: Graph, path: str, nodes: list[fx.Node]) -> ModuleCall | None:
    """The submodule at ``path`` as one call; None where more than one value goes in or out."""
    inside = set(nodes)
    outside = {
        arg
        for n in nodes
        for arg in n.all_input_nodes
        if arg not in inside and arg not in graph.state
    }
    results = [n for n in nodes if any(user not in inside for user in n.users)]
    if len(outside) != 1 or len(results) != 1 or isinstance(results[0].meta["val"], (tuple, list)):
        return None
    names = tuple(n.name for n in nodes)
    return ModuleCall(path=path, nodes=names, argument=outside.pop().name, result=results[0].name)


def module_path(node: fx.Node) -> str | None:
    """Dotted path of the torch.nn layer the node was traced in; None in the person's own code."""
    if (opaque := node.meta.get("opaque")) is not None:
        return str(opaque)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return None
    path, kind = stack[-1]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return str(path).split("@")[0] if name.startswith("torch.nn.modules") else None


def attribute(module: Any, path: str) -> Any:
    """What is found at the dotted path below the module; None: nothing."""
    try:
        return operator.attrgetter(path)(module)
    except AttributeError:
        return None
