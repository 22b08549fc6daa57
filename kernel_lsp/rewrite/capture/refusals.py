"""What a program may hold or do that its graph does not show; each is one line that leaves the
target alone.

    of_module(entry, module)     before capture: backward hooks, scripted layers, odd weights
    of_values(entry, values)     arguments that are no ordinary dense tensors, or lie apart
    Effects(namespace, module)   around capture: attributes set, lists and globals changed,
                                 printing, functions with a derivative of their own
    of_graph(entry, graph)       after it: parts under other modes, results in containers of
                                 their own, numbers and sizes that only the data could tell

All raise CaptureError. Not seen: files, sockets, loggers, caches that imported code keeps, hooks
registered for all modules at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernel_lsp.errors import CaptureError
from kernel_lsp.rewrite.capture.numbers import AskedNumbers
from kernel_lsp.rewrite.capture.places import is_program
from kernel_lsp.rewrite.outlining import NO_GRAD, decorators_of

HOOKS = {
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
CONTAINERS = (tuple, list, dict)
DEEP = 3
"""How deep lists in lists are compared."""
MACHINERY = frozenset({"__name__", "__file__", "__builtins__", "__warningregistry__", "print"})
"""Names of a namespace that are none of the person's."""
MODULE_OWN = frozenset(vars(torch.nn.Module()))


def of_module(entry: str, module: torch.nn.Module, *, is_part: bool = False) -> None:
    """Call before anything of ours is registered on the module. ``is_part``: some of its
    statements, which need not touch every tensor that it holds; `of_graph` sees those that they
    read."""
    for path, part in module.named_modules():
        name = f"{entry}.{path}" if path else entry
        for attribute, kind in HOOKS.items():
            if hooks := getattr(part, attribute, None):
                who = name_of_hook(next(iter(hooks.values())))
                raise CaptureError(
                    f"{name} has a {kind} ({who}), which a rewritten forward would run twice or "
                    f"not at all",
                    "remove it while the target is rewritten",
                )
        if isinstance(part, torch.jit.ScriptModule):
            raise CaptureError(
                f"{name} is TorchScript, whose code cannot be read", "use the module itself"
            )
    if is_part:
        return
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors |= {
        name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)
    }
    for name, tensor in tensors.items():
        _require_dense(f"{entry}.{name}", tensor)


def of_decorators(source: str, entry: str) -> None:
    """The text of a module's ``forward``: a decorator runs around whatever stands below it."""
    for text in decorators_of(source, entry):
        if text not in NO_GRAD:
            raise CaptureError(
                f"{entry}.forward is decorated with @{text}, which a rewrite of the whole would go "
                f"around",
                "its statements can be rewritten in parts, or the modules that it calls",
            )


def of_values(entry: str, bound: dict[str, Any], devices: dict[int, str]) -> None:
    """Raises CaptureError for arguments or attributes that a graph cannot show. ``devices``: id of
    a tensor -> where it was made, for those whose making said so."""
    places: dict[str, str] = {}
    for path, leaf in pytree.tree_flatten_with_path(bound)[0]:
        name = f"{getattr(path[0], 'key', path[0])}{pytree.keystr(path[1:])}"
        if isinstance(leaf, torch.Tensor):
            _require_dense(f"the input {name} of {entry}", leaf)
            if leaf.dim() and (place := devices.get(id(leaf))):
                # Tensors of one number may stay on the host.
                places.setdefault(place, name)
    if len(places) > 1:
        where = ", ".join(f"{name} on {place}" for place, name in places.items())
        raise CaptureError(
            f"the inputs of {entry} lie on several devices: {where}", "move them to one"
        )


def one_device(entry: str, devices: Iterable[str]) -> None:
    """A model that is spread over several GPUs."""
    found = sorted(set(devices))
    if len(found) > 1:
        raise CaptureError(
            f"{entry} is spread over {' and '.join(found)}", "rewrite the parts one by one"
        )


def of_graph(entry: str, graph: Any) -> None:
    """A `Graph` right after its making."""
    for node, value in graph.constants.items():
        if isinstance(value, torch.Generator):
            raise CaptureError(
                f"{entry} draws from a generator of its own", "pass it as an argument"
            )
        if not isinstance(value, torch.Tensor) or type(value).__name__ == "FakeTensor":
            raise CaptureError(
                f"{entry} computes a part ({node.name}) where it cannot be traced: in another "
                f"thread, or"
                " by a gradient inside of forward",
                "move that part out of forward",
            )
    for node in graph.fx.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            mode = str(node.target).removeprefix("wrap_with_").replace("_", " ")
            raise CaptureError(
                f"{entry} runs a part under {mode}, which a graph cannot say",
                "make that part a target",
            )
        if "quantize" in (name := _operation(node)) and "fake_quantize" not in name:
            # Fake tensors have no quantized kind: they stand for the numbers alone.
            raise CaptureError(
                f"{entry} computes on quantized tensors ({name})", "dequantize outside of it"
            )
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.Tensor):
                _require_dense(f"{node.name} in {entry}", leaf)
    _require_plain_containers(entry, graph.output_spec, [kind for kind, _ in graph.origin.classes])
    _require_known_sizes(entry, graph)


def _require_known_sizes(entry: str, graph: Any) -> None:
    """Numbers that only the data can tell: one that the program asks for, or the size of a
    selection."""
    odd = next(
        (node for node in graph.fx.nodes if isinstance(node.meta.get("val"), SYMBOLIC)), None
    )
    if odd is None:
        return
    line = (odd.meta.get("stack_trace") or "").strip().split("\n")[-1].strip()
    code = f": `{line[:100]}`" if line else ""
    if not _operation(odd).startswith("aten::sym_"):
        raise CaptureError(
            f"{entry} turns a tensor into a Python number{code}",
            "move .item() or int(tensor) out of forward",
        )
    raise CaptureError(
        f"{entry} makes a tensor whose size depends on values{code}",
        "keep every element, and give those that do not count no weight: torch.where(condition, "
        "value, 0)",
    )


def _operation(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name) if schema is not None else ""


def _require_dense(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested:
        raise CaptureError(
            f"{name} is a nested tensor", "its rows have sizes that no kernel of ours knows"
        )
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise CaptureError(f"{name} is {kind}", "only dense tensors are rewritten")
    if tensor.dtype in QUANTIZED:
        raise CaptureError(
            f"{name} is quantized ({tensor.dtype})", "dequantize outside of the target"
        )
    known = ("Tensor", "FakeTensor", "Parameter", "Buffer")
    if type(tensor).__name__ not in known or not type(tensor).__module__.startswith("torch"):
        raise CaptureError(
            f"{name} is a {type(tensor).__name__}, a subclass of Tensor that may redefine any "
            f"operation",
            "pass an ordinary tensor: x.as_subclass(torch.Tensor)",
        )


def _require_plain_containers(entry: str, spec: Any, known: Collection[type]) -> None:
    if spec is None or spec.is_leaf():
        return
    kind = spec.context if isinstance(spec.context, type) else spec.type
    if spec.type not in CONTAINERS and kind not in known:
        raise CaptureError(
            f"{entry} returns a {_class_of(spec)}", "return a tensor, tuple, list or dict of them"
        )
    for child in children_of(spec):
        _require_plain_containers(entry, child, known)


def children_of(spec: Any) -> list[Any]:
    """The specs below one of torch's pytrees: 2.9 has made a method of the list."""
    return list(
        spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    )


def _class_of(spec: Any) -> str:
    """A named tuple keeps its class beside its kind."""
    kind = spec.context if isinstance(spec.context, type) else spec.type
    own = kind.__module__ if kind.__module__.startswith("torch") else ""
    return f"{own}.{kind.__name__}" if own else str(kind.__name__)


def name_of_hook(hook: Any) -> str:
    """The name of a hook's function or class, without the function that it was made in."""
    hook = getattr(hook, "func", hook)
    return getattr(hook, "__qualname__", type(hook).__name__).split("<locals>.")[-1].strip("<>")


class Effects:
    """What the person's code does besides computing: seen while it is traced."""

    def __init__(
        self,
        entry: str,
        namespace: dict[str, Any],
        module: torch.nn.Module | None,
        *,
        of_libraries: bool = False,
    ) -> None:
        """``of_libraries``: what the code of installed packages sets counts too."""
        self.entry, self.namespace, self.module = entry, namespace, module
        self.of_libraries = of_libraries
        self.seen: list[str] = []
        self.set_in_arguments: list[str] = []
        """Sources of attributes of objects among the arguments that were set."""
        self.derivatives: list[str] = []
        """Classes of autograd functions that ran."""
        self.numbers = AskedNumbers()
        """What it asks of tensors."""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the block. Call `refuse` after it."""
        before = self._state()
        apply, prints = torch.autograd.Function.__dict__["apply"], "print" not in self.namespace
        torch.autograd.Function.apply = classmethod(self._applied(apply))
        if prints:
            self.namespace["print"] = lambda *args, **kwargs: self.seen.append("prints")
        try:
            yield
        finally:
            torch.autograd.Function.apply = apply
            if prints:
                del self.namespace["print"]
        for name, (
            value,
            content,
        ) in before.items():  # torch.export puts attributes back, not their content
            if _content(value) != content:
                self.seen.append(f"changes {name}")
        self.seen += [f"sets {name}" for name in self._rebound(before)]

    def _rebound(self, before: dict[str, tuple[Any, Any]]) -> Iterator[str]:
        for name in self.namespace.keys() - MACHINERY:
            known = before.get(f"the global {name}", (None, None))
            if known[0] is not self.namespace[name]:
                yield f"the global {name}"

    def set(self, path: str) -> None:
        """The person's forward has set an attribute."""
        filename = sys._getframe(3).f_code.co_filename
        if filename.startswith("<kernel-lsp") or (self.of_libraries and is_program(filename)):
            self.seen.append(f"sets self.{path}")

    def set_of(self, source: str) -> None:
        """An attribute of an argument was set: what an argument holds after the call is compared
        (writes.py); what is set elsewhere is refused by `require_known`."""
        if is_program(sys._getframe(3).f_code.co_filename):
            self.set_in_arguments.append(source)

    def require_known(self, known: Collection[str]) -> None:
        """Raises CaptureError for an attribute that was set on something that no argument holds.
        ``known``: sources of what they hold."""
        for source in self.set_in_arguments:
            if source not in known:
                self.seen.append(f"sets {source}")
        self.refuse()

    def refuse(self) -> None:
        """Raises CaptureError when there was anything."""
        if self.seen:
            raise CaptureError(
                f"{self.entry} {self.seen[0]} when it is called, which a rewritten forward would not",
                "keep what is computed apart from what is remembered or shown",
            )

    def _applied(self, apply: Any) -> Any:
        def recorder(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if not cls.__module__.startswith("torch."):
                self.derivatives.append(cls.__name__)
            return apply.__get__(None, cls)(*args, **kwargs)  # torch 2.14 has it in C

        return recorder

    def _state(self) -> dict[str, tuple[Any, Any]]:
        """Name -> object and content, of the person's globals and of the lists and dicts on their
        modules."""
        names = self.namespace.keys() - MACHINERY
        found = {f"the global {name}": self.namespace[name] for name in names}
        for path, part in self.module.named_modules() if self.module is not None else ():
            if not type(part).__module__.startswith("torch."):
                prefix = f"self.{path}." if path else "self."
                items = vars(part).items()
                found |= {
                    f"{prefix}{name}": value
                    for name, value in items
                    if name not in MODULE_OWN and isinstance(value, (list, dict, set))
                }
        return {name: (value, _content(value)) for name, value in found.items()}


def _content(value: Any, depth: int = DEEP) -> Any:
    """What tells whether a list or dict has changed; for other objects, which one it is."""
    if depth and isinstance(value, dict):
        return tuple((key, _content(item, depth - 1)) for key, item in value.items())
    if depth and isinstance(value, (list, tuple)):
        return tuple(_content(item, depth - 1) for item in value)
    if isinstance(value, set):
        return frozenset(map(id, value))
    return value if isinstance(value, (bool, int, float, str)) else id(value)
