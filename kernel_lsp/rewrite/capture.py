"""A sliced program and a workload in, a Graph out. Nothing of the user's size is ever allocated.

`capture(program, workload, device) -> Graph` runs the slice's definitions, builds the module and its
inputs under FakeTensorMode and exports with ``torch.export(strict=False)``, whose training IR keeps
aten.linear, aten.conv2d, aten.layer_norm … whole. Everything is captured on a fake CPU: ``device`` is a
label, because fake CUDA tensors need a CUDA build. Works with torch 2.6 to 2.13.

Refused, with cause and remedy: data-dependent control flow, in-place changes of inputs or views,
Python that needs real values, questions about gradients or tracing, and objects on ``self`` whose content
a guard could not compare. In-place ops on fresh tensors become ordinary ops.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import linecache
import operator
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import ArgSpec, Program, TargetKind, Workload
from kernel_lsp.rewrite import refusals
from kernel_lsp.rewrite.cleanup import clean
from kernel_lsp.rewrite.graph import Graph, Input, ModuleCall, Origin
from kernel_lsp.rewrite.questions import hides_gradients, unanswerable

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
PLAIN = (bool, int, float, str, type(None), torch.dtype)
MOST_ITEMS = 64
"""Longest container that a guard compares on each call: about a microsecond."""
UNKNOWN = object()
"""Stands for a value that was read and that no guard could compare."""
MODULE_OWN = frozenset(dir(torch.nn.Module())) - {"training"}


def capture(program: Program, workload: Workload, device: str, batch: int | None = None) -> Graph:
    """The target's graph for one workload. ``batch`` replaces the size of dimension 0 of the first
    tensor input, and of every input that shares it (to see whether a rewrite depends on it).

    Raises CaptureError with cause and remedy.
    """
    if program.missing:
        raise CaptureError(
            f"{', '.join(program.missing)} is used but not defined in this file",
            "import or define it in the same file",
        )
    if (question := unanswerable(program.source, device)) is not None:
        raise CaptureError(
            f"{program.entry} asks for {question}, which is answered differently while a graph is captured",
            "split the function at that question",
        )
    namespace = _execute(program.source)
    target = _lookup(namespace, program)
    on_cpu = _OnCpu()
    with FakeTensorMode(allow_non_fake_inputs=True), on_cpu, _conversions(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own warnings are not ours to raise
        args, kwargs = _arguments(namespace, workload)
        module = _module(target, namespace, workload) if program.kind is TargetKind.MODULE else None
        function = target if module is None else module.forward
        bound = _bind(function, args, kwargs, batch)
        refusals.of_values(program.entry, bound, on_cpu.places)
        if module is not None:
            refusals.of_module(program.entry, module)
        graph = _export(program, target, module, bound, workload, device, namespace)
        refusals.one_device(program.entry, on_cpu.named)
        return graph


def _export(
    program: Program,
    target: Any,
    module: Any,
    bound: dict[str, Any],
    workload: Workload,
    device: str,
    namespace: dict[str, Any],
) -> Graph:
    callee = _Function(target, tuple(bound)) if module is None else module
    if module is not None and workload.training is not None:
        module.train(workload.training)
    reads: dict[str, Any] = {}
    called: list[tuple[str, bool]] = []
    effects = refusals.Effects(program.entry, namespace, module)
    with torch.no_grad(), _observed(module, reads, called, effects.set), effects.watched():
        try:
            exported = torch.export.export(callee, (), bound, strict=False)
        except (Exception, SystemExit) as error:  # every tracer failure becomes one message with a remedy
            raise _explain(program.entry, error) from error
    effects.refuse()
    defaults = _defaults(target if module is None else module.forward)
    graph = _graph(program, module, exported, bound, device, (reads, called, defaults))
    graph.gradients = _records_gradients(module, bound, workload)
    hidden = bool(effects.derivatives) or hides_gradients(program.source, program.entry)
    graph.origin = replace(graph.origin, hides_gradients=hidden)
    return graph


def _records_gradients(module: Any, bound: dict[str, Any], workload: Workload) -> bool:
    """As the evaluator decides it: a workload in train mode with something to train, or inputs that
    require gradients."""
    leaves = pytree.tree_leaves(bound)
    trained = workload.training is True and module is not None
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves) or (
        trained and any(parameter.requires_grad for parameter in module.parameters())
    )


def _graph(
    program: Program, module: Any, exported: Any, bound: dict[str, Any], device: str, seen: Any
) -> Graph:
    reads, called, defaults = seen
    signature, fxgraph = exported.graph_signature, exported.graph
    by_name = {node.name: node for node in fxgraph.nodes}
    state, constants, user = {}, {}, []
    for spec in signature.input_specs:
        kind, node = spec.kind.name, by_name.get(spec.arg.name)
        if kind == "USER_INPUT":
            user.append(node)
        elif kind in ("PARAMETER", "BUFFER") or _attribute(module, spec.target) is not None:
            state[node] = spec.target
        else:
            constants[node] = exported.constants[spec.target]
    if any(spec.kind.name != "USER_OUTPUT" for spec in signature.output_specs):
        raise CaptureError(
            f"{program.entry} changes a buffer or an input in place", "return the new value instead"
        )
    if (odd := next((path for path, value in reads.items() if value is UNKNOWN), None)) is not None:
        raise CaptureError(
            f"{program.entry} reads self.{odd}, an object whose content cannot be checked before each call",
            "keep what forward needs as numbers, strings, tuples or dicts on the module",
        )
    inputs = _inputs(bound, user, defaults)
    graph = Graph(
        fxgraph,
        inputs=inputs,
        state=state,
        constants=constants,
        training=bool(module.training) if module is not None else False,
        device=device,
        origin=Origin(program=program.source, entry=program.entry, module=module),
        output_spec=exported.call_spec.out_spec,
    )
    refusals.of_graph(program.entry, graph)
    if any(isinstance(n.meta.get("val"), SYMBOLIC) for n in graph.nodes):
        raise CaptureError(
            f"{program.entry} turns a tensor into a Python number",
            "move .item() or int(tensor) out of forward",
        )
    clean(graph)
    graph.origin = Origin(
        program=program.source,
        entry=program.entry,
        module=module,
        calls=_module_calls(graph, module, called),
        reads=tuple(sorted(reads.items())),
        nodes={n.name: (n.target, *shape_of_call(n)) for n in graph.nodes},
        pristine=graph.copy(),
    )
    return graph


def shape_of_call(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with nodes replaced by names: comparable between copies of a graph."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: f"%{n.name}")
    return tuple(args), dict(kwargs)


# --- running the slice -------------------------------------------------------------------


def _execute(source: str) -> dict[str, Any]:
    """Run the slice's definitions. Registered with linecache, so that traces show its lines."""
    name = f"<kernel-lsp {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "kernel_lsp_program", "__file__": name}
    try:
        exec(compile(source, name, "exec"), namespace)
    except ModuleNotFoundError as error:
        raise CaptureError(
            f"the program imports {error.name}, which is not installed",
            "choose the project's interpreter in the settings, or install it there",
        ) from error
    except (Exception, SystemExit) as error:  # anything the user's definitions raise
        raise CaptureError(
            f"the program's definitions failed: {_line(error)}",
            "run the file once by itself to see the full error",
        ) from error
    return namespace


def _lookup(namespace: dict[str, Any], program: Program) -> Any:
    found: Any = namespace.get(program.entry.split(".")[0])
    for part in program.entry.split(".")[1:]:
        found = getattr(found, part, None)
    if found is None:
        raise CaptureError(f"{program.entry} is not defined by the program")
    return found


def _module(target: Any, namespace: dict[str, Any], workload: Workload) -> Any:
    if workload.init is not None:
        args, kwargs = _from_specs(workload.init)
    else:
        args, kwargs = _call_maker(namespace, "get_init_inputs", optional=True), {}
        if len(args) == 2 and isinstance(args[0], list) and isinstance(args[1], dict):
            args, kwargs = args[0], args[1]
    try:
        return target(*args, **kwargs)
    except (Exception, SystemExit) as error:  # the constructor is the user's code
        if "UninitializedParameter" in str(error):
            raise CaptureError(
                f"{target.__name__} has a lazy layer, whose size its first call decides", "write the size"
            ) from error
        raise CaptureError(
            f"{target.__name__}(…) failed: {_line(error)}",
            "give its constructor arguments with get_init_inputs() or `| init name=value` in the pragma",
        ) from error


def _arguments(namespace: dict[str, Any], workload: Workload) -> tuple[list[Any], dict[str, Any]]:
    if workload.inputs is not None:
        return _from_specs(workload.inputs)
    return _call_maker(namespace, "get_inputs"), {}


def _call_maker(namespace: dict[str, Any], name: str, optional: bool = False) -> list[Any]:
    maker = namespace.get(name)
    if maker is None:
        if optional:
            return []
        raise CaptureError(f"no {name}() in the file", "add one, or a `# kernel-lsp: workload` comment")
    try:
        return list(maker())
    except (Exception, SystemExit) as error:  # the user's code
        for words, meaning in MAKERS.items():
            if words in str(error):
                raise CaptureError(f"{name}() makes {meaning}", "give it ordinary tensors") from error
        raise CaptureError(f"{name}() failed: {_line(error)}", "run the file once by itself") from error


MAKERS = {
    "not a subclass of the requested type": "a subclass of Tensor, which may redefine any operation",
    "shape_env must not be None": "a nested tensor, whose rows have sizes of their own",
}
"""What fake tensors say about inputs that they cannot stand for."""


def _line(error: BaseException) -> str:
    """Kind and first line of what the user's code raised."""
    said = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _from_specs(specs: tuple[ArgSpec, ...]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = [_make(spec) for spec in specs if spec.name is None]
    return args, {spec.name: _make(spec) for spec in specs if spec.name is not None}


def _make(spec: ArgSpec) -> Any:
    if spec.dtype is None or spec.shape is None:
        return spec.value
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CaptureError(f"{spec.dtype} is no torch dtype", "use a name such as float32 or int64")
    if spec.stride is None:
        made = torch.empty(spec.shape, dtype=dtype)
    else:
        made = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
    return made.requires_grad_() if spec.requires_grad else made


# --- arguments ---------------------------------------------------------------------------


def _bind(function: Any, args: list[Any], kwargs: dict[str, Any], batch: int | None) -> dict[str, Any]:
    try:
        signature = inspect.signature(function)
        filled = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"the workload does not fit the signature: {error}") from error
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
        raise CaptureError("*args and **kwargs in the signature are not supported", "name the parameters")
    filled.apply_defaults()  # baked into the graph, so the guard has to know them
    return _with_batch(dict(filled.arguments), batch)


def _defaults(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.default is not inspect.Parameter.empty}


def _with_batch(bound: dict[str, Any], batch: int | None) -> dict[str, Any]:
    leaves, spec = pytree.tree_flatten(bound)
    size = next((t.shape[0] for t in leaves if isinstance(t, torch.Tensor) and t.dim()), None)
    if batch is None or size is None:
        return bound
    resized = [
        t.new_empty((batch, *t.shape[1:]), requires_grad=t.requires_grad)
        if isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == size
        else t
        for t in leaves
    ]
    return dict(pytree.tree_unflatten(resized, spec))


def _inputs(bound: dict[str, Any], user: list[fx.Node | None], defaults: set[str]) -> list[Input]:
    found = []
    leaves, _ = pytree.tree_flatten_with_path(bound)
    for (path, value), node in zip(leaves, user, strict=True):
        name = path[0].key
        keep = node if isinstance(value, torch.Tensor) else None
        source = name + pytree.keystr(path[1:])
        around = _around(bound[name], name, path[1:])
        absent = bool(around) or name in defaults
        made = Input(source=source, parameter=name, value=value, node=keep, may_be_absent=absent)
        found.append(replace(made, containers=around))
    return found


def _around(value: Any, source: str, path: tuple[Any, ...]) -> tuple[tuple[str, int], ...]:
    """Source and length of every container on the way to a leaf."""
    found = []
    for key in path:
        found.append((source, len(value)))
        value, source = key.get(value), source + pytree.keystr((key,))
    return tuple(found)


class _Function(torch.nn.Module):
    """A function target in the shape torch.export wants."""

    def __init__(self, function: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.function = _as_forward(function)
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        self.__signature__ = inspect.Signature(parameters)

    def forward(self, **kwargs: Any) -> Any:
        return self.function(**kwargs)


def _as_forward(function: Any) -> Any:
    """The same function under the one name whose frames torch.export keeps in its stack traces: they say
    which statement made a node. Decorated functions stay as they are."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_filename.startswith("<kernel-lsp"):
        return function
    named = FunctionType(
        code.replace(co_name="forward"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    named.__kwdefaults__ = function.__kwdefaults__
    return named


class _OnCpu(TorchFunctionMode):
    """Sends every explicit device to the CPU: fake CUDA tensors need a CUDA build of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, str] = {}
        """id of a tensor -> ``cuda`` or ``cpu``, where that is certain."""
        self.named: set[str] = set()
        """CUDA devices that the program names by their number."""
        self._alive: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        place = self._place(func, args, kwargs)
        if func is torch.Tensor.cuda:
            made = args[0].view_as(args[0]) if isinstance(args[0], torch.Tensor) else args[0]
            return self._placed(made, place)
        if func is torch.Tensor.to:
            args = (args[0], *(_cpu_if_cuda(a) for a in args[1:]))
        if "device" in kwargs:
            kwargs["device"] = _cpu_if_cuda(kwargs["device"])
        return self._placed(func(*args, **kwargs), place)

    def _place(self, func: Any, args: Any, kwargs: dict[str, Any]) -> str | None:
        """Where the result lies: as asked for, else where the first tensor does, else on the CPU."""
        asked = [kwargs.get("device"), *(args[1:] if func is torch.Tensor.to else ())]
        names = [str(item) for item in asked if isinstance(item, (str, torch.device))]
        self.named |= {name for name in names if name.startswith("cuda:")}
        if func is torch.Tensor.cuda or any(name.startswith("cuda") for name in names):
            return "cuda"
        if names:  # an x.device that we have turned into the CPU, or really the CPU
            return None
        first = next((item for item in args if isinstance(item, torch.Tensor)), None)
        return "cpu" if first is None else self.places.get(id(first))

    def _placed(self, made: Any, place: str | None) -> Any:
        if place is not None and isinstance(made, torch.Tensor):
            self.places[id(made)] = place
            self._alive.append(made)  # no other tensor may get its id
        return made


@contextlib.contextmanager
def _conversions() -> Iterator[None]:
    """Let ``layer.half()`` work in constructors: torch cannot swap fake parameters in place."""
    original = torch.nn.Module._apply

    def convert(self: Any, fn: Any, recurse: bool = True) -> Any:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for name, old in self._parameters.items():
            if old is not None:
                self._parameters[name] = torch.nn.Parameter(fn(old), old.requires_grad)
        self._buffers.update({name: fn(old) for name, old in self._buffers.items() if old is not None})
        return self

    torch.nn.Module._apply = convert
    try:
        yield
    finally:
        torch.nn.Module._apply = original


def _cpu_if_cuda(value: Any) -> Any:
    """Leaves ``meta`` alone: the fake mode itself needs it."""
    named = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return "cpu" if named else value


# --- what the person's forward read ------------------------------------------------------


@contextlib.contextmanager
def _observed(
    module: Any, reads: dict[str, Any], called: list[tuple[str, bool]], wrote: Callable[[str], None]
) -> Iterator[None]:
    """Record the attributes that user-defined modules read and set, and how layers are called."""
    handles: list[Any] = []
    classes: list[tuple[Any, type]] = []
    note = _recorder(reads, classes, wrote)
    for path, part in module.named_modules() if module is not None else ():
        if is_library(part):
            handles.append(part.register_forward_pre_hook(_call_recorder(path, called), with_kwargs=True))
        else:
            classes.append((part, type(part)))
            part.__class__ = _recording(type(part), path, note, wrote)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for part, kind in classes:
            part.__class__ = kind


def is_library(module: torch.nn.Module) -> bool:
    """A layer of torch itself: its code does not change under the user's hands."""
    return type(module).__module__.startswith("torch.nn.modules")


def _call_recorder(path: str, called: list[tuple[str, bool]]) -> Any:
    def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        called.append((path, len(args) == 1 and isinstance(args[0], torch.Tensor) and not kwargs))

    return hook


def _recording(
    kind: type, path: str, note: Callable[[str, Any, Any], None], wrote: Callable[[str], None]
) -> type:
    """A subclass that looks like ``kind`` and reports each attribute read, note(path, value, owner), and
    each one set, wrote(path)."""
    prefix = f"{path}." if path else ""
    original: Any = kind.__getattribute__
    write: Any = kind.__setattr__
    members: dict[str, Any] = {}

    def __getattribute__(self: Any, name: str) -> Any:
        value = original(self, name)
        if not name.startswith("__") and name not in MODULE_OWN:
            note(prefix + name, value, self)
        return value

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if not name.startswith("__"):
            wrote(prefix + name)
        write(self, name, value)

    members["__setattr__"] = __setattr__
    if issubclass(kind, torch.nn.Module):

        def __getattr__(self: Any, name: str) -> Any:
            value = kind.__getattr__(self, name)  # type: ignore[attr-defined]
            if value is None:  # a parameter or layer registered as None may be set later
                note(prefix + name, value, self)
            return value

        members["__getattr__"] = __getattr__
    recording = type(kind.__name__, (kind,), {"__getattribute__": __getattribute__, **members})
    recording.__module__, recording.__qualname__ = kind.__module__, kind.__qualname__
    return recording


def _recorder(
    reads: dict[str, Any], classes: list[tuple[Any, type]], wrote: Callable[[str], None]
) -> Callable[[str, Any, Any], None]:
    """What each attribute read leaves in ``reads``; objects are opened, so that their fields are seen."""

    def note(path: str, value: Any, owner: Any) -> None:
        name = path.split(".")[-1]
        if _is_plain(value):
            reads.setdefault(path, value)
        elif isinstance(value, (FunctionType, BuiltinFunctionType)) and name in vars(owner):
            reads.setdefault(f"{path}.__name__", value.__name__)
        elif not _is_followed(value) and not _opened(path, value):
            reads.setdefault(path, UNKNOWN)

    def _opened(path: str, value: Any) -> bool:
        if any(value is known for known, _ in classes):
            return True
        kind = type(value)
        try:
            value.__class__ = _recording(kind, path, note, wrote)
        except TypeError:  # no class of Python's own
            return False
        classes.append((value, kind))
        return True

    return note


def _is_followed(value: Any) -> bool:
    """Values that the graph itself depends on, and code."""
    if isinstance(value, (list, tuple)):
        return all(_is_followed(item) for item in value)
    if isinstance(value, dict):
        return all(_is_followed(item) for item in value.values())
    return isinstance(value, (torch.Tensor, torch.nn.Module, torch.device, torch.Generator)) or callable(
        value
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) <= MOST_ITEMS and all(_is_plain(x) for pair in value.items() for x in pair)
    if isinstance(value, (tuple, list)):
        return len(value) <= MOST_ITEMS and all(_is_plain(item) for item in value)
    return type(value) in PLAIN or isinstance(value, float)


def _module_calls(graph: Graph, module: Any, called: list[tuple[str, bool]]) -> tuple[ModuleCall, ...]:
    """Layers that were called once, as ``layer(x)``, and produced nodes with one way in and one out."""
    if module is None:
        return ()
    groups: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        path = module_path(node)
        if path:
            groups.setdefault(path, []).append(node)
    once = {path for path, simple in called if simple and sum(p == path for p, _ in called) == 1}
    made = []
    for path, nodes in groups.items():
        layer = _attribute(module, path)
        if path in once and not list(layer.children()) and (call := _single(graph, path, nodes)):
            made.append(call)
    return tuple(made)


def _single(graph: Graph, path: str, nodes: list[fx.Node]) -> ModuleCall | None:
    inside = set(nodes)
    outside = {
        arg for n in nodes for arg in n.all_input_nodes if arg not in inside and arg not in graph.state
    }
    results = [n for n in nodes if any(user not in inside for user in n.users)]
    if len(outside) != 1 or len(results) != 1 or isinstance(results[0].meta["val"], (tuple, list)):
        return None
    names = tuple(n.name for n in nodes)
    return ModuleCall(path=path, nodes=names, argument=outside.pop().name, result=results[0].name)


def module_path(node: fx.Node) -> str | None:
    """Dotted path of the torch.nn layer the node was traced in; None in the person's own code."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return None
    path, kind = stack[-1]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return str(path).split("@")[0] if name.startswith("torch.nn.modules") else None


def _attribute(module: Any, path: str) -> Any:
    try:
        return operator.attrgetter(path)(module)
    except AttributeError:
        return None


TRACER = {
    ".numpy() is not supported": ("leaves torch by .numpy()", "do that part outside of the target"),
    "no fake impl": ("calls an operator that has no rule for shapes", "add one: torch.library.register_fake"),
    "not a known type": ("returns an object of its own", "return a tensor, tuple, list or dict of them"),
    "maximum recursion depth": ("calls itself without end", "run it once to see where"),
}
"""What torch.export says -> what that means, and the way out."""


def _explain(entry: str, error: BaseException) -> CaptureError:
    """The tracer's exception as one sentence, with the usual way out."""
    kind, text, line = type(error).__name__, str(error).strip().split("\n")[0][:300], _place_of(error)
    if "DataDependent" in kind or "GuardOnDataDependent" in kind or "data-dependent" in text:
        return CaptureError(
            f"{entry} decides by tensor values, which a graph cannot express{f': `{line}`' if line else ''}",
            "move the branch, .item() or int(tensor) out of forward",
        )
    if isinstance(error, SystemExit):
        return CaptureError(f"{entry} ends the process", "raise an exception instead")
    for words, (meaning, remedy) in TRACER.items():
        if words in text:
            return CaptureError(f"{entry} {meaning}", remedy)
    where = f" at `{line}`" if line else ""
    return CaptureError(
        f"{entry} could not be traced{where}: {kind}: {text}", "run it once to see the full error"
    )


def _place_of(error: BaseException) -> str:
    """The line of the person's code that raised it; empty when it was none of theirs."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<kernel-lsp")]
    return (frames[-1].line or "").strip() if frames else ""
