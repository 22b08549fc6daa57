"""A launch and the elementwise one after it, which reads what it stored, become one launch."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels import effects, launchers, places
from kernel_lsp.rewrite.kernels.launch_pair import Side, side_of
from kernel_lsp.rewrite.kernels.source import (
    FunctionNode,
    find_calls,
    names_in,
    only_value,
    operand,
)
from kernel_lsp.rewrite.kernels.values import LANEWISE
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

BENEFIT = 0.3
ELEMENTWISE = LANEWISE | {"load", "store", "where", "cast", "to", "arange", "zeros", "full"}
TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")


@dataclass(frozen=True, slots=True)
class NeighboringLaunches:
    first: Side
    second: Side
    statements: tuple[ast.stmt, ast.stmt]
    between: tuple[ast.stmt, ...]
    tensor: str
    """The launcher's name of what the first stores and the second reads."""
    store: ast.Expr
    """The first kernel's statement."""


def match(kernel: Kernel) -> list[KernelMatch]:
    if len(kernel.source.launches()) != 1 or places.language(kernel) is None:
        return []
    found = _neighbors(kernel)
    if found is None:
        return []
    names = f"{found.first.kernel.name} and {found.second.kernel.name}"
    summary = f"{names} in one launch, without {found.tensor} in between"
    return [
        KernelMatch(f"{found.second.kernel.name} of {found.tensor}", summary, BENEFIT, data=found)
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    found: NeighboringLaunches = match.data
    first, second, store = found.first, found.second, found.store.value
    assert isinstance(store, ast.Call)
    grids = [launchers.grid(kernel.launcher, side.kernel, side.call) for side in (first, second)]
    pointer, mask = (first.address(operand(store, i, n)) for i, n in ((0, "pointer"), (2, "mask")))
    read = _places_read(found)
    masks = {second.address(operand(c, 2, "mask")) for c in second.stores()}
    strange = _strange(second.kernel)
    between = [ast.unparse(s) for s in found.between if not _harmless(s)]
    return [
        places.only_launch(kernel),
        proof(
            "what lies between the launches needs neither",
            not between and _is_settled(kernel.launcher, found),
            "; ".join(between) or "only tensors are made and sizes named there",
        ),
        proof(
            "both have the same grid",
            grids[0] is not None and grids[0] == grids[1],
            f"{' x '.join(grids[0] or ('?',))} and {' x '.join(grids[1] or ('?',))}",
        ),
        proof(
            f"the second reads {found.tensor} where the first's same program stored it",
            read == {(pointer, mask)},
            f"at {pointer} under {mask}",
        ),
        proof(
            "the second is elementwise, under the same mask",
            not strange and masks == {mask},
            ", ".join(strange) or "each lane follows from the same lane",
        ),
        proof(
            "the first stores it in every program, once, and does not read it",
            _plain_store(kernel, found),
            "at the top of the kernel, without a return before it",
        ),
        proof(
            "no program of one meets what programs of the other do elsewhere",
            _apart(kernel.launcher, found, pointer),
            "the launcher makes what is stored",
        ),
        proof(
            f"the dtype of {found.tensor} is known",
            _dtype(kernel, found) is not None,
            "from how it is made",
        ),
    ]


def _places_read(found: NeighboringLaunches) -> set[tuple[object, object]]:
    """(pointer, mask) of the second's loads of the tensor."""
    second = found.second
    return {
        (second.address(operand(c, 0, "pointer")), second.address(operand(c, 1, "mask")))
        for c in second.loads()
        if found.tensor in second.names(c)
    }


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {}


@dataclass(frozen=True, slots=True)
class MergedParameters:
    """What becomes of the second's parameters in the first."""

    inherited: dict[str, str]
    """Those that the first has, too: their names there."""
    added: dict[str, str]
    """Those that it gets."""
    heir: str | None
    """The one that takes the place of the tensor's; None: the tensor's stays."""


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    found: NeighboringLaunches = match.data
    stays = _is_needed(kernel.launcher, found)
    merged = _merge_parameters(found, stays)
    lines = _following_statements(kernel, found, {**merged.inherited, **merged.added})
    if stays:
        lines = [*places.with_comments(kernel, found.store), *lines]
    kernel.replace(found.store, places.indent_lines(lines, found.store))
    if merged.heir is not None:
        mine = found.first.parameter(found.tensor)
        node = next(a for a in found.first.kernel.args.args if a.arg == mine)
        kernel.replace(places.across(node, node), merged.added[merged.heir])
    _launch(kernel, found, merged)


def _launch(kernel: Kernel, found: NeighboringLaunches, merged: MergedParameters) -> None:
    second = found.second
    changed: dict[ast.expr, str] = {}
    keywords: dict[str, str] = {}
    if merged.heir is not None:
        mine = found.first.parameter(found.tensor)
        changed[found.first.passed[mine]] = ast.unparse(second.passed[merged.heir])
        keywords[mine] = merged.added[merged.heir]
    others = {name: new for name, new in merged.added.items() if name != merged.heir}
    passed = [f"{new}={ast.unparse(second.passed[name])}" for name, new in others.items()]
    kernel.replace(second.call, places.launch_text(kernel, changed, passed, keywords))
    kernel.replace(found.statements[0], "")
    if others:
        places.add_parameters(kernel, _with_annotations(second, others))
    if merged.heir is not None and not _is_mentioned(kernel.launcher, found, merged.added):
        every = (s for s in ast.walk(kernel.launcher) if isinstance(s, ast.Assign))
        kernel.replace(next(s for s in every if _makes(s, found.tensor)), "")


def _with_annotations(side: Side, renamed: Mapping[str, str]) -> list[str]:
    """The new names, with the annotations of the old ones."""
    notes = {a.arg: a.annotation for a in side.kernel.args.args}
    return [
        f"{new}: {ast.unparse(note)}" if (note := notes[old]) is not None else new
        for old, new in renamed.items()
    ]


# --- the second kernel's text in the first --------------------------------------------------------


def _merge_parameters(found: NeighboringLaunches, stays: bool) -> MergedParameters:
    """``stays``: the tensor is needed by others."""
    first, second = found.first, found.second
    known = {(first.passed_text(n), _is_constexpr(first.kernel, n)): n for n in first.passed}
    stored = second.tensors(second.stores())
    reads = second.tensors(second.loads()) - stored
    inherited, added = dict[str, str](), dict[str, str]()
    for name in second.passed:
        parts = (second.passed_text(name), _is_constexpr(second.kernel, name))
        is_handed_on = name in reads and parts[0] == found.tensor
        if parts in known:
            inherited[name] = known[parts]
        elif not is_handed_on and name in _used_names(second.kernel):
            added[name] = places.fresh(first.kernel, name)
    in_place = found.tensor in {second.passed_text(n) for n in stored}
    heir = None
    if not stays and not in_place:
        heir = next(n for n in second.passed if n in added and n in stored)
    return MergedParameters(inherited, added, heir)


def _following_statements(
    kernel: Kernel, found: NeighboringLaunches, names: dict[str, str]
) -> list[str]:
    """The second's statements with the first's names."""
    first, second = found.first, found.second
    store = found.store.value
    assert isinstance(store, ast.Call)
    kind, value = _dtype(kernel, found), operand(store, 1, "value")
    assert kind is not None and value is not None
    taken = {*names_in(first.kernel), *first.passed, *names.values()}
    held = _unused_name("stored", taken)
    taken.add(held)
    text = ast.unparse(value).replace(f"{first.parameter(found.tensor)}.dtype.element_ty", kind)
    lines = [f"{held} = {places.language(kernel)}.cast({text}, {kind})"]
    before = first.kernel.body[: first.kernel.body.index(found.store)]
    known = {
        first.address(s.value): s.targets[0].id for s in before if _is_plain_name(first.kernel, s)
    }  # type: ignore
    renamed = dict(names)
    for statement in second.kernel.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            own = statement.targets[0].id
            place = second.address(statement.value)
            if not find_calls(statement, "load") and place in known:
                renamed[own] = known[place]
                continue
            renamed[own] = _unused_name(own, taken)
            taken.add(renamed[own])
        said = _Follows(second, found.tensor, held, renamed).visit(copy.deepcopy(statement))
        lines.append(ast.unparse(said))
    return lines


class _Follows(ast.NodeTransformer):
    """The first's names, and the value instead of its load."""

    def __init__(self, side: Side, tensor: str, held: str, renamed: Mapping[str, str]) -> None:
        self.side, self.tensor, self.held, self.renamed = side, tensor, held, renamed

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node in find_calls(node, "load") and self.tensor in self.side.names(node):
            return ast.Name(self.held, ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)


# --- what is recognized ---------------------------------------------------------------------------


def _neighbors(kernel: Kernel) -> NeighboringLaunches | None:
    functions = (n for n in kernel.source.tree.body if isinstance(n, ast.FunctionDef))
    kernels = {function.name: function for function in functions if _is_jit(function)}
    here = places.launch_statement(kernel)
    if here is None or kernel.source.kernel not in kernels:
        return None
    following = _following(kernel, here)
    for place, statement in enumerate(following):
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Subscript(value=ast.Name(id=name))) as call) if (
                name in kernels
            ):
                first = _known_side(
                    kernel, kernels[kernel.source.kernel], kernel.source.launches()[0].call
                )
                second = _known_side(kernel, kernels[name], call)
                if first is None or second is None or name == kernel.source.kernel:
                    return None
                found = _tensor_of(first, second)
                return found and NeighboringLaunches(
                    first, second, (here, statement), tuple(following[:place]), *found
                )
            case ast.Assign():
                continue
        return None
    return None


def _following(kernel: Kernel, here: ast.stmt) -> list[ast.stmt]:
    """What stands behind a statement in its block."""
    for node in ast.walk(kernel.launcher):
        block = getattr(node, "body", None)
        if isinstance(block, list) and here in block:
            return block[block.index(here) + 1 :]
    return []


def _known_side(kernel: Kernel, function: ast.FunctionDef, call: ast.Call) -> Side | None:
    side = side_of(kernel.launcher, function, call)
    return side if side is not None and not side.unknown() else None


def _is_jit(function: ast.FunctionDef) -> bool:
    said = [ast.unparse(d) for d in function.decorator_list]
    return len(said) == 1 and said[0].split(".")[-1] == "jit"


def _tensor_of(first: Side, second: Side) -> tuple[str, ast.Expr] | None:
    """(launcher's name, store) of a tensor that the first stores by one statement and the second
    loads."""
    for statement in first.kernel.body:
        if isinstance(statement, ast.Expr) and statement.value in first.stores():
            assert isinstance(statement.value, ast.Call)
            reads = {second.passed_text(n) for n in second.tensors(second.loads())}
            given = [first.passed[n] for n in first.tensors([statement.value])]
            found = [e.id for e in given if isinstance(e, ast.Name) and e.id in reads]
            if len(found) == 1:
                return found[0], statement
    return None


def _is_constexpr(function: FunctionNode, name: str) -> bool:
    return any(a.arg == name and a.annotation is not None for a in function.args.args)


def _used_names(function: FunctionNode) -> set[str]:
    return {n for s in function.body for n in names_in(s)}


def _unused_name(wanted: str, taken: set[str]) -> str:
    return next(n for n in (wanted, *(f"{wanted}_{i}" for i in range(2, 1000))) if n not in taken)


def _is_plain_name(function: FunctionNode, statement: ast.stmt) -> bool:
    """A plain assignment of a name that has no other value."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return only_value(function, name) is statement.value
    return False


def _strange(function: FunctionNode) -> list[str]:
    """What is no statement in a straight line, or mixes lanes."""
    found = []
    for statement in function.body:
        plain = isinstance(statement, ast.Expr) or _is_plain_name(function, statement)
        found += [] if plain else [ast.unparse(statement)[:60]]
        for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
            name = (
                call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
            )
            known = name in ELEMENTWISE or ast.unparse(call.func).startswith("libdevice.")
            found += [] if known else [name]
    return found


def _harmless(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name()], value=ast.Lambda()):
            return True
        case ast.Assign(targets=[ast.Name()], value=ast.Tuple(elts=items)):
            return all(launchers.repeatable(item) for item in items)
        case ast.Assign(targets=[ast.Name()], value=value):
            return launchers.repeatable(value) or launchers.is_allocation(value)
    return False


def _is_settled(launcher: FunctionNode, found: NeighboringLaunches) -> bool:
    """No name that the launches pass is set again, and neither kernel changes a parameter."""
    for side in (found.first, found.second):
        if any(
            not isinstance(n.ctx, ast.Load) and n.id in side.passed for n in _names(side.kernel)
        ):
            return False
    names = {n for side in (found.first, found.second) for n in names_in(side.call)}
    return launchers.steady(launcher, names)


def _names(function: FunctionNode) -> list[ast.Name]:
    return [n for n in ast.walk(function) if isinstance(n, ast.Name)]


def _plain_store(kernel: Kernel, found: NeighboringLaunches) -> bool:
    first, store = found.first, found.store.value
    assert isinstance(store, ast.Call)
    times = sum(ast.unparse(e) == found.tensor for e in first.passed.values())
    knows_all = not effects.waits(first.kernel) and not effects.helpers(kernel, first.kernel)
    return (
        knows_all
        and effects.is_straight(first.kernel)
        and times == 1
        and not _is_accessed_elsewhere(first, store, first.parameter(found.tensor))
        and operand(store, 1, "value") is not None
    )


def _is_accessed_elsewhere(first: Side, store: ast.Call, name: str) -> bool:
    """Something but the store uses the parameter, or an address that was made of it."""
    parts = (*store.args[:2], *(k.value for k in store.keywords))
    inside = {id(n) for part in parts for n in ast.walk(part)}
    named = any(n.id == name and id(n) not in inside for n in _names(first.kernel))
    accesses = (c for c in (*first.stores(), *first.loads()) if c is not store)
    return named or any(name in first.tensors([c]) for c in accesses)


def _apart(launcher: FunctionNode, found: NeighboringLaunches, pointer: str) -> bool:
    if not launchers.allocates(launcher, found.tensor):
        return False
    second, written = found.second, found.first.tensors(found.first.stores())
    used = found.first.tensors([*found.first.loads(), *found.first.stores()])
    for name in second.tensors(second.stores()):
        if second.passed_text(name) == found.tensor:
            if not _stores_in_place(second, name, pointer):
                return False
        elif not _lies_apart(launcher, found, name, used):
            return False
    read = {n for n in second.tensors(second.loads()) if second.passed_text(n) != found.tensor}
    return all(_lies_apart(launcher, found, name, written) for name in read)


def _stores_in_place(side: Side, name: str, pointer: str) -> bool:
    """Where it was read."""
    calls = [c for c in side.stores() if name in side.tensors([c])]
    return all(side.address(operand(c, 0, "pointer")) == pointer for c in calls)


def _lies_apart(
    launcher: FunctionNode, found: NeighboringLaunches, name: str, others: Iterable[str]
) -> bool:
    """A tensor of the second meets none of these of the first."""
    own = found.second.passed[name]
    return all(launchers.apart(launcher, own, found.first.passed[other]) for other in others)


def _is_needed(launcher: FunctionNode, found: NeighboringLaunches) -> bool:
    """Something but the two launches reads the tensor's values."""
    inside = {id(n) for side in (found.first, found.second) for n in ast.walk(side.call)}
    return any(id(n) not in inside for n in _values_of(launcher, found.tensor))


def _values_of(launcher: FunctionNode, name: str) -> list[ast.Name]:
    """Uses of a tensor that are not about its sizes or dtype."""
    about: set[int] = set()
    for node in ast.walk(launcher):
        match node:
            case ast.Attribute(
                value=inner, attr="shape" | "numel" | "size" | "stride" | "dtype" | "device"
            ):
                about.add(id(inner))
            case ast.Call(func=ast.Attribute(attr=made), args=[inner, *_]) if made.endswith(
                "_like"
            ):
                about.add(id(inner))
    found = (n for n in _names(launcher) if n.id == name)
    return [n for n in found if isinstance(n.ctx, ast.Load) and id(n) not in about]


def _is_mentioned(
    launcher: FunctionNode, found: NeighboringLaunches, added: Mapping[str, str]
) -> bool:
    """Its size or dtype is asked for in what stays of the launcher."""
    gone = [e for name, e in found.second.passed.items() if name not in added]
    out = {id(n) for e in gone for n in ast.walk(e)} | {
        id(n) for n in _values_of(launcher, found.tensor)
    }
    uses = (n for n in _names(launcher) if n.id == found.tensor and isinstance(n.ctx, ast.Load))
    return any(id(n) not in out for n in uses)


def _makes(statement: ast.Assign, name: str) -> bool:
    return isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == name


def _dtype(kernel: Kernel, found: NeighboringLaunches) -> str | None:
    """The tensor's, as an expression of the first kernel."""
    value = only_value(kernel.launcher, found.tensor)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    said = [k.value for k in value.keywords if k.arg == "dtype"]
    like = value.args[0] if value.func.attr.endswith("_like") and value.args else None
    match said[0] if said else like:
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in TYPES:
            return f"{places.language(kernel)}.{name}"
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="dtype"):
            return _dtype_of(kernel, found, name)
    return None


def _dtype_of(kernel: Kernel, found: NeighboringLaunches, tensor: str) -> str | None:
    """Of a tensor of the launcher that the first kernel has besides what it stores."""
    mine = found.first.parameter(found.tensor)
    for name, given in found.first.passed.items():
        if name in kernel.pointers() and ast.unparse(given) == tensor and name != mine:
            return f"{name}.dtype.element_ty"
    return None
