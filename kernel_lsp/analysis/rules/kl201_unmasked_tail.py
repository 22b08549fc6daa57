"""KL201: a tile's load or store that reaches past the end of the tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import language_name
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, argument, hit
from kernel_lsp.analysis.rules.tritonops import constexprs, runtime_parameters
from kernel_lsp.analysis.source import DefinitionNode, FunctionNode, blocks, children, walk
from kernel_lsp.analysis.targets import parameters
from kernel_lsp.records import TargetKind

# Position of the mask in a memory access.
_ACCESSES = {"load": 1, "store": 2, "atomic_add": 2, "atomic_max": 2, "atomic_min": 2}
# An index that went through one of these stays inside the tensor.
_BOUNDING = frozenset({"where", "minimum", "clamp"})


class _MaskedKernel:
    """Marks of each local: ``pid`` (a program index), ``lanes:B`` (arange of B), ``tile:B`` (pid ×
    B), ``round:B`` (the variable of a loop in steps of B)."""

    def __init__(self, site: RuleSite, function: FunctionNode) -> None:
        self.file = site.file
        self.constexprs = constexprs(site, function)
        self.runtime = runtime_parameters(site, function)
        self.compared = _compared_names(function, self.runtime)
        self.facts = site.kernels[0]
        self.masked = {_index(a.pointer) for a in self.facts.accesses if a.mask is not None} - {
            None
        }
        # A kernel that counts whole tiles and compares nothing takes multiples only, by contract.
        self.takes_multiples = _counts_whole_tiles(function) and not self.compared
        self.partial = _rounded_up(site)
        self.marks: dict[str, frozenset[str]] = {}

    def check(self, body: list[ast.stmt], *, in_loop: bool) -> Iterator[Hit]:
        """Loads and stores of these statements whose tail is not masked; `in_loop`: they stand in a
        loop."""
        for statement in body:
            if isinstance(statement, DefinitionNode) or self._chooses_at_compile_time(statement):
                continue
            for child in children(statement):
                if isinstance(child, ast.expr):
                    yield from self._accesses(child, in_loop=in_loop)
            self._remember(statement)
            inside = in_loop or isinstance(statement, ast.For | ast.While)
            if isinstance(statement, ast.For) and any(
                a.startswith("pid") for a in self.facts.atoms(statement.iter)
            ):
                continue  # the program's own share of tiles: its end may have been rounded down
            for block in blocks(statement):
                yield from self.check(block, in_loop=inside)

    def _chooses_at_compile_time(self, statement: ast.stmt) -> bool:
        """``if EVEN_N:`` picks an unmasked fast path where the launcher proved that it is safe."""
        return isinstance(statement, ast.If) and any(
            isinstance(n, ast.Name) and n.id in self.constexprs for n in walk(statement.test)
        )

    def _remember(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.marks[name] = self._marks(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self.marks[name] = self.marks.get(name, frozenset()) | self._marks(value)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=arguments)):
                self.marks[name] = self._loop_marks(arguments)

    def _loop_marks(self, arguments: list[ast.expr]) -> frozenset[str]:
        match arguments:
            # Up to a parameter: the last round may be partial. Any other bound may be rounded down
            # already.
            case [_, ast.Name(id=end), ast.Name(id=step)] if end in self.runtime:
                return frozenset({f"round:{step}"})
        return frozenset()

    def _marks(self, node: ast.AST) -> frozenset[str]:
        match node:
            case ast.Name(id=name):
                return self.marks.get(name, frozenset())
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                a, b = self._marks(left), self._marks(right)
                sizes = [
                    n.id
                    for n in (left, right)
                    if isinstance(n, ast.Name) and n.id in self.constexprs
                ]
                return a | b | {f"tile:{size}" for size in sizes if "pid" in a | b}
            case ast.BinOp(left=left, op=ast.Mod()):
                return self._marks(left) & {"pid"}
            case ast.BinOp(left=left, op=ast.Sub()):
                return self._marks(left)
            case ast.Compare():
                return frozenset()
            case ast.Call(func=func):
                return self._call_marks(node, language_name(self.file, func))
        return frozenset().union(*(self._marks(child) for child in children(node)))

    def _call_marks(self, node: ast.Call, name: str | None) -> frozenset[str]:
        if name == "program_id":
            return frozenset({"pid"})
        if name == "arange":
            return frozenset(f"lanes:{a.id}" for a in node.args[1:] if isinstance(a, ast.Name))
        if name in _BOUNDING or name in _ACCESSES:
            return frozenset()
        return frozenset().union(*(self._marks(child) for child in children(node)))

    def _accesses(self, root: ast.expr, *, in_loop: bool) -> Iterator[Hit]:
        for node in walk(root):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = language_name(self.file, node.func)
            if name not in _ACCESSES or _is_guarded(node, _ACCESSES[name]):
                continue
            marks = self._marks(node.args[0])
            lengths = [m[6:] for m in marks if m.startswith("lanes:")]
            tails = sorted(length for length in lengths if self._may_be_partial(length, marks))
            if tails and not self.takes_multiples:
                yield _hit(
                    node, name, f"the last block of {tails[0]} elements may reach past the end"
                )
            elif not in_loop and (lanes := self._compared_lanes(node.args[0])):
                yield _hit(
                    node,
                    name,
                    f"{lanes} is compared with a bound elsewhere in this kernel but not here",
                )

    def _may_be_partial(self, size: str, marks: frozenset[str]) -> bool:
        return f"round:{size}" in marks or (f"tile:{size}" in marks and size in self.partial)

    def _compared_lanes(self, pointer: ast.expr) -> str | None:
        """Lanes that another access with this very index compares with an argument."""
        names = [n.id for n in walk(pointer) if isinstance(n, ast.Name)]
        is_lanes = (n for n in names if any(m.startswith("lanes:") for m in self.marks.get(n, ())))
        lanes = next((n for n in is_lanes if n in self.compared), None)
        is_masked_elsewhere = _index(pointer) is not None and _index(pointer) in self.masked
        return lanes if is_masked_elsewhere else None


def _index(pointer: ast.expr) -> str | None:
    """What is added to the base of a pointer, as text: the same for ``x_ptr + i`` and ``y_ptr +
    i``."""
    terms: list[str] = []
    while isinstance(pointer, ast.BinOp) and isinstance(pointer.op, ast.Add):
        terms.append(ast.dump(pointer.right))
        pointer = pointer.left
    return " ".join(terms) if terms and isinstance(pointer, ast.Name) else None


def _rounded_up(site: RuleSite) -> set[str]:
    """Block sizes by which a launch divides and rounds up; without a launch, all where a size is
    unused."""
    kernel = site.kernels[0]
    if not site.launches:
        used = {n.id for n in kernel.nodes if isinstance(n, ast.Name)}
        is_unused = set(kernel.parameters) - kernel.constexprs - used
        return kernel.constexprs if is_unused else set()
    axes = [(launch, axis) for launch in site.launches for axis in launch.grid_axes() or ()]
    divisors = [divisor for launch, axis in axes for divisor in _divisors(launch, axis)]
    dumps = {ast.dump(d) for d in divisors}
    passed = {
        name
        for launch in site.launches
        for name in kernel.constexprs & launch.arguments.keys()
        if ast.dump(launch.arguments[name]) in dumps
    }
    return passed | (_named_in_meta(divisors) & kernel.constexprs)


def _named_in_meta(divisors: list[ast.expr]) -> set[str]:
    """Of ``meta["BLOCK"]``."""
    found: set[str] = set()
    for divisor in divisors:
        match divisor:
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                found.add(name)
    return found


def _divisors(launch: LaunchExpression, axis: ast.expr) -> Iterator[ast.expr]:
    """B of ``cdiv(n, B)`` and of ``(n + B - 1) // B``."""
    node = launch.resolve(axis)
    match node:
        case ast.Call(func=ast.Attribute(attr="cdiv") | ast.Name(id="cdiv"), args=[_, divisor]):
            yield divisor
        case ast.BinOp(left=ast.BinOp(op=ast.Add() | ast.Sub()), op=ast.FloorDiv(), right=divisor):
            yield divisor


def _counts_whole_tiles(function: FunctionNode) -> bool:
    """``M // TILE`` somewhere in the kernel."""
    names = {p.arg for p in parameters(function)}
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.FloorDiv)
        and isinstance(node.left, ast.Name)
        and isinstance(node.right, ast.Name)
        and {node.left.id, node.right.id} <= names
        for node in walk(function)
    )


def _is_guarded(call: ast.Call, position: int) -> bool:
    if any(k.arg is None or k.arg == "boundary_check" for k in call.keywords):
        return True
    mask = argument(call, position, "mask")
    has_star = any(isinstance(a, ast.Starred) for a in call.args)
    return has_star or not (mask is None or (isinstance(mask, ast.Constant) and mask.value is None))


def _compared_names(function: FunctionNode, bounds: set[str]) -> set[str]:
    """Names on the left of ``name < bound``, ``name[:, None] < bound``."""
    found: set[str] = set()
    for node in walk(function):
        match node:
            case ast.Compare(
                left=left, ops=[ast.Lt() | ast.LtE()], comparators=[ast.Name(id=bound)]
            ) if bound in bounds:
                name = left.value if isinstance(left, ast.Subscript) else left
                if isinstance(name, ast.Name):
                    found.add(name.id)
    return found


def _hit(node: ast.Call, name: str, reason: str) -> Hit:
    return hit(node, f"tl.{name} without a mask: {reason}", access=name)


def _checks_divisibility(site: RuleSite) -> bool:
    """An assert or raise with a remainder, in a launcher or as tl.static_assert: sizes are proved
    to fit."""
    launchers = [node for name, node in site.known.definitions if name in site.found.launchers]
    for root in (*launchers, *site.functions):
        for node in walk(root):
            is_check = isinstance(node, ast.Assert | ast.If) or (
                isinstance(node, ast.Call)
                and language_name(site.file, node.func)
                in ("static_assert", "device_assert", "assume")
            )
            if is_check:
                tested = node.args[0] if isinstance(node, ast.Call) else node.test  # type: ignore[attr-defined]
                if any(
                    isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in walk(tested)
                ):
                    return True
    return False


def _check(site: RuleSite) -> Iterator[Hit]:
    if _checks_divisibility(site):
        return
    for function in site.functions[:1]:
        yield from _MaskedKernel(site, function).check(function.body, in_loop=False)


KL201 = Rule(
    id="KL201",
    name="unmasked-tail",
    summary="a tile's load or store without a mask, where the last tile may be partial",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
