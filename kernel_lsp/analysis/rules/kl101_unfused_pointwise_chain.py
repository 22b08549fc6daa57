"""KL101: several pointwise operations in a row, each a pass over memory of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.flow import LocalFacts
from kernel_lsp.analysis.rules.torchops import POINTWISE, POINTWISE_MODULES, REDUCTIONS, operation
from kernel_lsp.analysis.source import COMPILERS, FunctionNode, children, words
from kernel_lsp.analysis.targets import is_tensor_operation, parameters
from kernel_lsp.records import TargetKind

# Two operations fused save a third of the traffic at best; below three a launch and a branch eat
# the gain.
_MIN_LENGTH = 3
_NOT_TENSORS = words(
    "size dim ndimension numel item tolist stride data_ptr element_size get_device"
)
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}


@dataclass(frozen=True, slots=True)
class _UnfusedChain:
    """Pointwise operations between a tensor and the last one that had to be in memory anyway."""

    nodes: tuple[ast.expr, ...] = ()
    names: tuple[str, ...] = ()
    is_number: bool = False
    """A single number in a tensor: what is computed from it costs launches, and no traffic."""

    def then(self, other: _UnfusedChain | None, node: ast.expr, name: str) -> _UnfusedChain:
        """This chain, what the other has beside it, and one operation more behind both."""
        extra = (
            [(n, m) for n, m in zip(other.nodes, other.names, strict=True) if n not in self.nodes]
            if other
            else []
        )
        return _UnfusedChain(
            (*self.nodes, *(n for n, _ in extra), node), (*self.names, *(m for _, m in extra), name)
        )


class _PointwiseChainFinder:
    def __init__(self, site: RuleSite) -> None:
        self.site = site
        self.longest = _UnfusedChain()

    def evaluate(self, node: ast.expr, env: dict[str, _UnfusedChain]) -> _UnfusedChain | None:
        """The chain that ends in this expression; None when it may be no tensor."""
        chain = self._evaluate(node, env)
        has_function = chain is not None and any(isinstance(n, ast.Call) for n in chain.nodes)
        if chain is not None and has_function and len(chain.nodes) > len(self.longest.nodes):
            self.longest = chain
        return chain

    def _evaluate(self, node: ast.expr, env: dict[str, _UnfusedChain]) -> _UnfusedChain | None:
        match node:
            case ast.Name(id=name):
                return env.get(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operator(node, op, self.evaluate(left, env), self.evaluate(right, env))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.evaluate(operand, env)
                return inner.then(None, node, "neg") if inner else None
            case ast.Call():
                return self._call(node, env)
            case (
                ast.Subscript(value=value) | ast.Attribute(value=value, attr="T" | "mT" | "values")
            ):
                return None if self.evaluate(value, env) is None else _UnfusedChain()
        for child in children(node):
            if isinstance(child, ast.expr):
                self.evaluate(child, env)
        return None

    def _operator(
        self,
        node: ast.expr,
        op: ast.operator,
        left: _UnfusedChain | None,
        right: _UnfusedChain | None,
    ) -> _UnfusedChain | None:
        if left is None and right is None:
            return None
        if all(side is None or side.is_number for side in (left, right)):
            return _NUMBER
        name = _OPERATORS.get(type(op))
        return (left or _UnfusedChain()).then(right, node, name) if name else _UnfusedChain()

    def _call(self, node: ast.Call, env: dict[str, _UnfusedChain]) -> _UnfusedChain | None:
        values = {
            id(a): self.evaluate(a, env) for a in (*node.args, *(k.value for k in node.keywords))
        }
        made = self.site.submodule_class(node)
        if made is not None:
            inner = values.get(id(node.args[0])) if node.args else None
            name = made.rpartition(".")[2]
            return (
                (inner or _UnfusedChain()).then(None, node, name)
                if made in POINTWISE_MODULES
                else _UnfusedChain()
            )
        called = operation(self.site, node)
        if called is None:
            return (
                _UnfusedChain() if is_tensor_operation(self.site.file.dotted(node.func)) else None
            )
        name, tensor, rest = called
        is_method = id(tensor) not in values
        inner = self.evaluate(tensor, env) if is_method else values[id(tensor)]
        if is_method and inner is None:
            return None
        return self._operation(node, name, [inner, *(values[id(r)] for r in rest)], rest)

    def _operation(
        self,
        node: ast.Call,
        name: str,
        operands: list[_UnfusedChain | None],
        rest: list[ast.expr],
    ) -> _UnfusedChain | None:
        if name in POINTWISE:
            known = [operand for operand in operands if operand is not None]
            if known and all(operand.is_number for operand in known):
                return _NUMBER
            chain = known[0] if known else _UnfusedChain()
            for other in known[1:]:
                chain = _merge(chain, other)
            return chain.then(None, node, name)
        if name in REDUCTIONS and not rest and not node.keywords:
            return _NUMBER
        return None if name in _NOT_TENSORS or name.startswith("is_") else _UnfusedChain()


_NUMBER = _UnfusedChain(is_number=True)


def _merge(chain: _UnfusedChain, other: _UnfusedChain) -> _UnfusedChain:
    if not other.nodes:
        return chain
    shorter = _UnfusedChain(other.nodes[:-1], other.names[:-1])
    return (
        chain
        if other.nodes[-1] in chain.nodes
        else chain.then(shorter, other.nodes[-1], other.names[-1])
    )


def _check(site: RuleSite) -> Iterator[Hit]:
    has_modules = any(made in POINTWISE_MODULES for _, made in site.submodules.values())
    if not has_modules and not site.called_names & POINTWISE:
        return
    for function in site.functions:
        finder = _PointwiseChainFinder(site)
        LocalFacts(finder.evaluate).run(function, _tensors(site, function))
        chain = finder.longest
        if len(chain.nodes) >= _MIN_LENGTH and not _is_compiled(site, function):
            yield hit(
                chain.nodes[-1],
                f"{len(chain.nodes)} pointwise operations in a row ({_list_names(chain.names)}): "
                "each is a kernel with its own pass over memory, fused they are one",
                operations=list(chain.names),
            )


def _is_compiled(site: RuleSite, function: FunctionNode) -> bool:
    """Whether this file gives the function, or the target that it is of, to a compiler that
    fuses."""
    node = site.found.node
    decorators = [*function.decorator_list, *node.decorator_list]
    if any(_is_compiler(site, d.func if isinstance(d, ast.Call) else d) for d in decorators):
        return True
    return not site.file.compiled_names.isdisjoint({node.name, function.name})


def _is_compiler(site: RuleSite, function: ast.expr) -> bool:
    return site.file.dotted(function) in COMPILERS


def _tensors(site: RuleSite, function: FunctionNode) -> dict[str, _UnfusedChain]:
    """Parameters that are tensors: by annotation, or forward's own without a default."""
    is_forward = site.found.kind is TargetKind.MODULE and function.name == "forward"
    plain = (
        parameters(function)[1 : len(function.args.args) - len(function.args.defaults)]
        if is_forward
        else []
    )
    annotated = [
        p
        for p in parameters(function)
        if p.annotation is not None and site.file.dotted(p.annotation) == "torch.Tensor"
    ]
    return {
        p.arg: _UnfusedChain() for p in (*annotated, *(p for p in plain if p.annotation is None))
    }


def _list_names(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 6 else ", ".join(names[:5]) + ", …"


KL101 = Rule(
    id="KL101",
    name="unfused-pointwise-chain",
    summary="three or more pointwise operations in a row, each with its own pass over memory",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE, TargetKind.FUNCTION}),
    check=_check,
)
