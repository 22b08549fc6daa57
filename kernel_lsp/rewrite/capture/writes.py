"""What a target leaves behind besides its result: tensors that it writes into, and attributes,
items and keys of its arguments that it replaces. A cache of keys and values is both.

Writes in place stay calls of the graph, in their order. After each, everybody reads the tensor as
`after_write` gives it, so that no value of a graph is two things: what reads the old content reads
another node than what reads the new one (`keep_write`). `require_order` proves of a rewritten
graph that what reads an old content still reads it before the write. Replaced attributes are
outputs of the graph behind those that are returned (`ReplacedPlaces`); the printed forward sets
them last.

Refused, each with its reason: views that are read after what they are views of was written,
tensors that the gate does not compare (attributes that are no buffers), writes while gradients are
recorded, numbers that a call reads and replaces (another graph for each call), containers and
objects that are exchanged or lose something. Not covered: arguments that share memory in another
call than the recorded one."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from kernel_lsp.errors import CaptureError, RewriteError
from kernel_lsp.rewrite.capture.aliasing import may_alias, root_of
from kernel_lsp.rewrite.capture.functions import PLAIN
from kernel_lsp.rewrite.graph import Graph, Replaced, after_write, is_op, is_write
from kernel_lsp.snapshots.opening import OpenedCall

aten = torch.ops.aten
VIEWS = (
    *(aten.slice, aten.select, aten.view, aten.transpose, aten.permute, aten.unsqueeze),
    *(aten.squeeze, aten.narrow, aten.alias, aten.diagonal, aten.t, aten.detach),
)
"""They give a view of their first argument in any case."""
REMEDY = "its parts and the modules that it calls can be rewritten"


# --- writes in place -----------------------------------------------------------------------


def keep_write(graph: Graph, node: fx.Node) -> bool:
    """Whether the call writes into an argument or a buffer, and stays. What follows it in the graph
    reads the new content from then on. Raises CaptureError for a write that a graph
    cannot hold."""
    target = node.args[0]
    base = _written_base(target) if isinstance(target, fx.Node) else None
    source = _source_of(graph, base) if base is not None else None
    if source is None or not isinstance(target, fx.Node):
        return False
    _require_plain_write(node, source)
    order = {one: place for place, one in enumerate(graph.fx.nodes)}
    before = {one for one, place in order.items() if place <= order[node]}
    if target.op == "call_function" and target.target is not after_write:
        _redirect(target, node, before)
    version = _version(target)
    for view in before - {target, version, node}:
        late = view.users.keys() - before
        if view.op == "call_function" and late and _root(view) is base:
            first = min(late, key=order.__getitem__)
            raise CaptureError(
                f"`{_line(first)}` reads a view of {source} that was made before "
                f"`{_line(node)}` wrote into it",
                "take the view after the write",
            )
    _read_after(graph, node, version, before)
    return True


def _read_after(graph: Graph, node: fx.Node, version: fx.Node, before: set[fx.Node]) -> None:
    """What comes after the write reads what it has left of this version."""
    node.meta["writes"] = True
    if version.users.keys() - before:
        after = graph.call(after_write, (version, node), before=node.next)
        after.meta |= {key: node.meta[key] for key in ("stack_trace",) if key in node.meta}
        _redirect(version, after, before | {after})


def _redirect(old: fx.Node, new: fx.Node, kept: set[fx.Node]) -> None:
    """Whoever reads the old node reads the new one, but for those that are kept."""
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in kept)


def _written_base(target: fx.Node) -> fx.Node | None:
    """The placeholder whose memory is written; None where it is none, or perhaps a copy of it."""
    while target.op == "call_function":
        seen_through = is_op(target, *VIEWS) or target.target is after_write or is_write(target)
        if not seen_through or not isinstance(target.args[0], fx.Node):
            return None
        target = target.args[0]
    return target if target.op == "placeholder" else None


def _root(node: fx.Node) -> fx.Node | None:
    return root_of(node) if may_alias(node) else None


def _require_plain_write(node: fx.Node, source: str) -> None:
    """Raises CaptureError for an operation that writes into more than its first argument."""
    arguments = node.target._schema.arguments
    written = [one.name for one in arguments if one.alias_info and one.alias_info.is_write]
    if written != [arguments[0].name]:
        raise CaptureError(
            f"`{_line(node)}` writes into {source} by an operation that a graph cannot hold",
            "use copy_, index_copy_ or an assignment to a slice",
        )


def _source_of(graph: Graph, base: fx.Node) -> str | None:
    """What a user calls a tensor that may be written to: an argument of a recorded call, by which
    rewrites of slices are not judged, or a buffer. Raises CaptureError for a buffer that the gate
    does not compare."""
    path, module = graph.state.get(base), graph.origin.module
    if base in graph.constants:
        return None
    if path is None:
        named = (item.source for item in graph.inputs if item.node is base)
        return next(named) if graph.origin.is_recorded else None
    assert module is not None
    if path not in dict(module.named_buffers(remove_duplicate=False)):
        return None
    if not graph.origin.is_recorded and path not in module.state_dict():
        raise CaptureError(
            f"{graph.origin.entry} writes into self.{path}, a buffer that is not saved with the "
            f"module: nobody would compare it",
            "record the program, or register it as a persistent buffer",
        )
    return f"self.{path}"


def require_apart(graph: Graph, opened: OpenedCall, tensors: Sequence[torch.Tensor]) -> None:
    """Raises CaptureError where the recorded call writes into an argument that shares memory with
    another tensor: what is read of that one would depend on the order. ``tensors``: of the
    arguments, as they were passed."""
    written = {root_of(node) for node in writes_of(graph)}
    if not written:
        return
    storages = [spec["storage"] for spec in opened.header["tensors"]]
    own = {id(tensor): spec["storage"] for tensor, spec in zip(tensors, opened.specs, strict=True)}
    for item in graph.inputs:
        if item.node in written and storages.count(own[id(item.value)]) > 1:
            raise CaptureError(
                f"{graph.origin.entry} writes into {item.source}, which shares memory with another "
                f"tensor of the call",
                REMEDY,
            )


def require_no_gradients(graph: Graph) -> None:
    """Raises CaptureError where a write would be part of what is differentiated."""
    if graph.gradients and (node := next(iter(writes_of(graph)), None)) is not None:
        raise CaptureError(
            f"{graph.origin.entry} writes into a tensor (`{_line(node)}`) while gradients are "
            f"recorded",
            REMEDY,
        )


def writes_of(graph: Graph) -> list[fx.Node]:
    """The calls that write into arguments and buffers, in order."""
    return [node for node in graph.nodes if is_write(node)]


def require_order(graph: Graph) -> None:
    """Checks that the writes are those that were captured, in their order, and that whatever reads
    a tensor as it was before a write does so before that write. Raises RewriteError."""
    pristine = graph.origin.pristine
    assert pristine is not None
    writes, were = writes_of(graph), writes_of(pristine)
    if not were:
        return
    if [node.name for node in writes] != [node.name for node in were]:
        raise RewriteError("a write into an argument or a buffer would be lost or moved")
    order = {node: place for place, node in enumerate(graph.fx.nodes)}
    for write in writes:
        version = _version(write.args[0])
        for node in order:
            reads = any(_version(arg) is version for arg in node.all_input_nodes)
            is_own = node is write or node.target is after_write
            if reads and not is_own and order[node] > order[write]:
                raise RewriteError(
                    f"{node.name} would read a tensor after {write.name} has written into it",
                    "it is kept as it is",
                )


def _version(node: fx.Node) -> fx.Node:
    """The content of its tensor that a value is (a view of): that before all writes, or that after
    the last one on the way to it."""
    while node.op == "call_function" and not is_write(node) and node.target is not after_write:
        if not may_alias(node) or not node.all_input_nodes:
            return node
        node = node.all_input_nodes[0]
    return node


def _line(node: fx.Node) -> str:
    return (node.meta.get("stack_trace") or node.name).strip().split("\n")[-1].strip()


# --- what is replaced in arguments -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldValue:
    """Something that an argument holds."""

    held: Any
    keys: tuple[Any, ...] | None
    """Of a container or an object: of what it holds."""
    owner: Any
    """The container or object that holds it; None: it is the argument itself."""
    key: Any
    around: str
    """The source of the owner."""


class ReplacedPlaces:
    """What one call replaces in its arguments; filled while it is captured."""

    def __init__(self, entry: str, sources: Mapping[int | str, str]) -> None:
        """``sources``: position or name of an argument -> what the target's body calls it."""
        self.entry, self.sources = entry, sources
        self.found: list[Replaced] = []
        self.known: frozenset[str] = frozenset()
        """Sources of everything that the arguments hold after the call."""
        self._before: dict[str, _HeldValue] = {}

    def look(self, _module: Any, args: Any, kwargs: Any) -> None:
        """Before the call."""
        self._before = self._places(args, kwargs)

    def compare(self, _module: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """After the call: the result and, beside it, the tensors that were put into arguments. The
        arguments are as before."""
        after = self._places(args, kwargs)
        self.known = frozenset(after)
        changed = [source for source in after if self._is_to_set(source, after)]
        self.found = [self._replaced(source, after[source]) for source in changed]
        values = [after[one.source].held for one in self.found if one.spec is not None]
        for source in reversed(changed):
            _restore(after[source], self._before.get(source))
        return (result, values) if self.found else None

    def require_none(self) -> None:
        """Raises CaptureError where anything is replaced: by a part of a function."""
        for one in self.found:
            raise CaptureError(
                f"{self.entry} changes its argument {one.source} in a part of itself",
                "keep what is computed apart from what is remembered",
            )

    def require_no_counters(self, read: Collection[str]) -> None:
        """Raises CaptureError for a number that the call reads and replaces: each call would need
        another graph. ``read``: sources of plain values that the guard asks for."""
        for one in self.found:
            if type(one.constant) in (int, float) and one.source in read:
                raise CaptureError(
                    f"{self.entry} counts in {one.source}, so that each call has another graph",
                    "count in a tensor, or outside of forward",
                )

    def _places(self, args: Any, kwargs: dict[str, Any]) -> dict[str, _HeldValue]:
        found: dict[str, _HeldValue] = {}
        for number, value in enumerate(args):
            _collect(self.sources[number], value, found, frozenset())
        for name, value in kwargs.items():
            _collect(self.sources[name], value, found, frozenset())
        return found

    def _is_to_set(self, source: str, after: dict[str, _HeldValue]) -> bool:
        """Whether the place holds something else than before, and what holds it does not."""
        was, now = self._before.get(source), after[source]
        if now.around and self._is_other(now.around, after):
            return False
        if was is None or not _is_same(was.held, now.held):
            return True
        if lost := [key for key in was.keys or () if key not in (now.keys or ())]:
            raise self._refusal(source, f"takes {lost[0]!r} out of it")
        return False

    def _is_other(self, source: str, after: dict[str, _HeldValue]) -> bool:
        """Whether the container or object, or what holds it, is not the one of before."""
        was, now = self._before.get(source), after[source]
        if was is None or was.held is not now.held:
            return True
        return bool(now.around) and self._is_other(now.around, after)

    def _replaced(self, source: str, place: _HeldValue) -> Replaced:
        owner, key, value = place.owner, place.key, place.held
        if owner is None or isinstance(owner, tuple) or type(key) not in (str, int):
            raise self._refusal(source, "exchanges it")
        if isinstance(value, (torch.device, *PLAIN)):
            if isinstance(owner, list) and source not in self._before:
                raise self._refusal(source, "puts a plain value there")
            return Replaced(source=source, constant=value)
        leaves, spec = pytree.tree_flatten(value, is_leaf=_is_leaf)
        odd = [leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, *PLAIN))]
        if odd:
            raise self._refusal(source, f"puts a {type(odd[0]).__name__} there")
        is_append = isinstance(owner, list) and source not in self._before
        return Replaced(source=source, spec=spec, is_append=is_append)

    def _refusal(self, source: str, what: str) -> CaptureError:
        return CaptureError(
            f"{self.entry} changes {source} on each call in a way that a rewritten forward would "
            f"not: it {what}",
            REMEDY,
        )


@contextlib.contextmanager
def watched_arguments(
    callee: torch.nn.Module, entry: str, sources: Mapping[int | str, str]
) -> Iterator[ReplacedPlaces]:
    """What a call within the block replaces in its arguments. The callee's result becomes a pair
    where there is anything: what it returns, and the values that were put into arguments."""
    places = ReplacedPlaces(entry, sources)
    first = callee.register_forward_pre_hook(places.look, with_kwargs=True)
    second = callee.register_forward_hook(places.compare, with_kwargs=True)
    try:
        yield places
    finally:
        first.remove()
        second.remove()


def _collect(
    source: str,
    value: Any,
    found: dict[str, _HeldValue],
    inside: frozenset[int],
    owner: Any = None,
    key: Any = None,
    around: str = "",
) -> None:
    items = None if id(value) in inside else _items(value)
    keys = None if items is None else tuple(items)
    found[source] = _HeldValue(held=value, keys=keys, owner=owner, key=key, around=around)
    is_object = not isinstance(value, (list, tuple, dict))
    for name, item in (items or {}).items():
        inner = f"{source}.{name}" if is_object else f"{source}[{name!r}]"
        _collect(inner, item, found, inside | {id(value)}, value, name, source)


def _items(value: Any) -> dict[Any, Any] | None:
    """What a container or an object holds, by key; None for what holds nothing that is followed."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)) or type(value) in PLAIN:
        return None
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return dict(value)
    return dict(vars(value)) if hasattr(value, "__dict__") and not callable(value) else None


def _is_leaf(value: Any) -> bool:
    return type(value) not in (list, tuple, dict)


def _restore(now: _HeldValue, was: _HeldValue | None) -> None:
    """The arguments of a capture are looked at again, and must not hold what was traced."""
    owner, key = now.owner, now.key
    if isinstance(owner, (list, dict)):
        if was is None:
            del owner[key]
        else:
            owner[key] = was.held
    elif was is None:
        object.__delattr__(owner, key)
    else:
        object.__setattr__(owner, key, was.held)


def _is_same(one: Any, other: Any) -> bool:
    if type(one) in PLAIN and type(other) in PLAIN:
        return type(one) is type(other) and bool(one == other or one is other)
    return one is other
