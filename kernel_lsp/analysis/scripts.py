"""One file as a training or inference script: which of its statements run at every step.

A step is one round of a loop that calls backward or an optimizer, or one call of a function that
does and that such a loop calls. Recognized by syntax; what only sometimes runs (``if step % 100``)
is no part of a step. Knows no rule, and nothing of other files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from kernel_lsp.analysis.source import DefinitionNode, FunctionNode, ParsedSource, children, walk

ScriptLoop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_Owner: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef

FUSED_OPTIMIZERS = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimizers of torch.optim that have a fused implementation. Rule KL303 suggests it, and
`kernel-lsp optimize -- COMMAND` writes and times it (programs/program_edits.py)."""
IMPLEMENTATION_ARGUMENTS = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Arguments by which a program says which implementation of an optimizer it wants."""

# Without one of these a file has neither a step nor a module's forward nor native code.
_RELEVANT = re.compile(
    r"\.backward\(|DataLoader|training_step|\boptim\b|def forward\b|torch\.cat\(|\.eval\(\)"
    r"|\bload_inline\b"
)
# Without one of these no loop is a step.
_STEPS = re.compile(r"backward\(|\.step\(|training_step|loader|batches", re.IGNORECASE)
_GPU = re.compile(r"\bcuda\b|\bAccelerator\(|\bFabric\(|LightningModule|\bdevice_map\b")
_DEVICE = re.compile(r"\.to\([^()]*device\b")
_OPTIMIZER = re.compile(r"optim|(^|[._])opt([._\d]|$)", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched", re.IGNORECASE)
_LOADER = re.compile(r"loader|batches\b", re.IGNORECASE)
# Always true on the process that prints, or in every step alike.
_STEADY = re.compile(
    r"rank\b.*(==|in)|is_(local_)?main_process|is_master|master_process|\bamp\b|fp16|scaler"
)
_SELDOM = re.compile(r"%|should_|interval|every|freq|period")


def is_script(text: str) -> bool:
    """Whether rules for programs can find anything in the text."""
    return _RELEVANT.search(text) is not None


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """What runs at every step: a loop's body, or that of a function which a loop calls."""

    owner: ScriptLoop | FunctionNode
    statements: tuple[ast.stmt, ...]
    """Unconditional ones in order, those of nested blocks and inner loops included."""
    trains: bool
    """It calls backward or an optimizer; else it only goes through a loader."""
    function: FunctionNode | None
    """Where it stands; None: in the module's own scope."""

    def expressions(self) -> Iterator[tuple[ast.stmt, ast.AST]]:
        """(statement, node) of everything that is evaluated at every step."""
        for statement in self.statements:
            for node in own_nodes(statement):
                yield statement, node

    def calls(self) -> Iterator[tuple[ast.stmt, ast.Call]]:
        """Every call that runs at each step, with the statement that it stands in."""
        for statement, node in self.expressions():
            if isinstance(node, ast.Call):
                yield statement, node

    @property
    def losses(self) -> frozenset[str]:
        """Names of what is differentiated in this step, whether that stands under a condition or
        not."""
        nodes = [n for s in self.owner.body for n in same_scope(s)]
        return frozenset(
            name.id for n in nodes if isinstance(n, ast.Call) for name in differentiated_names(n)
        )


class Script:
    """Steps, loops and calls of one file. Everything is found once and shared by all rules."""

    def __init__(self, file: ParsedSource) -> None:
        self.file = file

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All syntax nodes of the file, outer ones first."""
        return tuple(walk(self.file.tree))

    @cached_property
    def functions(self) -> tuple[FunctionNode, ...]:
        """All functions of the file, of every depth, methods included."""
        return tuple(n for n in self.nodes if isinstance(n, FunctionNode))

    @cached_property
    def calls(self) -> tuple[tuple[ast.Call, str | None], ...]:
        """All calls with the imported name that they resolve to."""
        return tuple((n, self.file.dotted(n.func)) for n in self.nodes if isinstance(n, ast.Call))

    @cached_property
    def uses_gpu(self) -> bool:
        """The text names CUDA, moves things to a device, or leaves that to a library."""
        return _GPU.search(self.file.text) is not None or _DEVICE.search(self.file.text) is not None

    @cached_property
    def names_cuda(self) -> bool:
        """Whether the text has the word cuda, in code or comments."""
        return re.search(r"\bcuda\b", self.file.text) is not None

    @cached_property
    def scopes(self) -> tuple[tuple[_Owner, tuple[ScriptLoop, ...]], ...]:
        """(module or function, its own loops of every depth), where there are any."""
        found: dict[_Owner, list[ScriptLoop]] = {}
        for node in self.nodes:
            if isinstance(node, ast.For | ast.AsyncFor | ast.While):
                found.setdefault(self.function_of(node) or self.file.tree, []).append(node)
        return tuple((owner, tuple(loops)) for owner, loops in found.items())

    @cached_property
    def step_functions(self) -> tuple[FunctionNode, ...]:
        """Functions that are one step: they train outside any loop of theirs, and a loop calls
        them."""
        found = {
            owner
            for call in self._training_calls
            if isinstance(owner := self._owner_of(call), FunctionNode)
        }
        names = {f.name for f in found}
        calls = [call for call, _ in self.calls if callee(call) in names]
        looped = {callee(call) for call in calls if isinstance(self._owner_of(call), ScriptLoop)}
        is_lightning = "LightningModule" in self.file.text
        return tuple(
            f
            for f in self.functions
            if (f in found and f.name in looped)
            or (f.name == "training_step" and (is_lightning or f in found))
        )

    @cached_property
    def steps(self) -> tuple[ScriptStep, ...]:
        """Training steps and passes over a loader; a loop that only holds such a loop is none."""
        if _STEPS.search(self.file.text) is None:
            return ()
        loops = [(owner, loop) for owner, loops in self.scopes for loop in loops]
        trains = self._training_loops()
        own = frozenset(loop for _, loop in loops if loop in trains or _is_loader_loop(loop))
        found = [
            ScriptStep(loop, tuple(each_time(loop.body, own)), loop in trains, _function(owner))
            for owner, loop in loops
            if loop in own
        ]
        once = [(f, tuple(each_time(f.body, own))) for f in self.step_functions]
        return (*found, *(ScriptStep(function, body, True, function) for function, body in once))

    def _training_loops(self) -> set[ScriptLoop]:
        names = frozenset(f.name for f in self.step_functions)
        calls = [*self._training_calls, *(call for call, _ in self.calls if callee(call) in names)]
        return {owner for call in calls if isinstance(owner := self._owner_of(call), ScriptLoop)}

    @cached_property
    def _training_calls(self) -> tuple[ast.Call, ...]:
        return tuple(call for call, _ in self.calls if is_backward(call) or is_optimizer_step(call))

    def _owner_of(self, node: ast.AST) -> ScriptLoop | _Owner:
        """The innermost loop or function that the node stands in."""
        return next(
            (n for n in self.around(node) if isinstance(n, ScriptLoop | FunctionNode)),
            self.file.tree,
        )

    @cached_property
    def training(self) -> tuple[ScriptStep, ...]:
        """The steps that call backward or an optimizer."""
        return tuple(step for step in self.steps if step.trains)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Each node but the root -> the node that it stands in."""
        return {child: node for node in self.nodes for child in children(node)}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Everything that the node stands in, from the inside."""
        while (up := self.parents.get(node)) is not None:
            yield up
            node = up

    def function_of(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function around the node; None: it stands at module level."""
        return next((n for n in self.around(node) if isinstance(n, FunctionNode)), None)

    def constructed(self, *classes: str) -> Iterator[tuple[ast.Call, str]]:
        """Calls of these imported names."""
        for call, dotted in self.calls:
            if dotted in classes:
                yield call, dotted

    def assigned_name(self, value: ast.expr) -> str | None:
        """``name`` of ``name = value``; ``self.name`` for an attribute."""
        match self.parents.get(value):
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                return name
            case ast.Assign(targets=[ast.Attribute() as target]):
                return ast.unparse(target)
        return None


def each_time(body: list[ast.stmt], own: frozenset[ScriptLoop] = frozenset()) -> Iterator[ast.stmt]:
    """Statements that run whenever the body does, in order.

    ``own``: inner loops that are steps themselves and have their own findings.
    """
    for statement in body:
        if isinstance(statement, DefinitionNode | ast.Raise | ast.Assert):
            continue
        yield statement
        if isinstance(statement, ast.If):
            test = ast.unparse(statement.test)
            if _SELDOM.search(test) and _leaves(statement.body):
                return  # what follows runs as seldom
            if _STEADY.search(test) and not _SELDOM.search(test):
                yield from each_time(statement.body, own)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            if statement not in own:
                yield from each_time(statement.body, own)
        elif isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
            yield from each_time(statement.body, own)


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes of the statement's own expressions: no nested blocks, lambdas, halves of ``x if y else
    z``."""
    queue: list[ast.AST] = [n for n in children(statement) if not isinstance(n, ast.stmt)]
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.IfExp):
            queue.insert(0, node.test)
            continue
        if isinstance(node, ast.Lambda | ast.excepthandler | ast.match_case):
            continue
        yield node
        queue[:0] = children(node)


def same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, without the bodies of nested functions and classes."""
    queue = [node]
    for current in queue:  # grows meanwhile
        if isinstance(current, DefinitionNode):
            continue
        yield current
        queue.extend(children(current))


def differentiated_names(call: ast.Call) -> Iterator[ast.Name]:
    """``loss`` of ``loss.backward()``, ``scaler.scale(loss).backward()``,
    ``accelerator.backward(loss)``."""
    if not (
        isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "manual_backward")
    ):
        return
    inner: list[ast.expr] = [call.func.value, *call.args]
    for value in inner:
        match value:
            case ast.Name():
                yield value
            case ast.Call(func=ast.Attribute(attr="scale"), args=[ast.Name() as scaled]):
                yield scaled
            case ast.BinOp(left=ast.Name() as left):
                yield left


def is_backward(node: ast.AST) -> bool:
    """Whether the node is a call of ``backward`` or Lightning's ``manual_backward``, and not of a
    base class's."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("backward", "manual_backward")
        and not (
            isinstance(node.func.value, ast.Call) and ast.unparse(node.func.value.func) == "super"
        )
    )


def is_optimizer_step(node: ast.AST) -> bool:
    """``optimizer.step()``, ``scaler.step(optimizer)``; schedulers step too and are none."""
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
    ):
        return False
    receiver = ast.unparse(node.func.value)
    if _SCHEDULER.search(receiver):
        return False
    words = [receiver, *(ast.unparse(a) for a in node.args)]
    return any(_OPTIMIZER.search(word) for word in words)


def callee(call: ast.Call) -> str | None:
    """The name of what is called, ``f`` of ``f(..)`` and ``self.f(..)``; None for any other
    call."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return None


def method(call: ast.AST) -> str | None:
    """``item`` of ``anything.item(..)``."""
    return (
        call.func.attr
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        else None
    )


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The argument that is passed by that name; None: it is not, or only within ``**``."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def has_star(call: ast.Call) -> bool:
    """Arguments that are not written out here."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    )


def is_literal(node: ast.expr | None, value: object) -> bool:
    """The literal True, False, None or number; ``1`` is not ``True``."""
    return (
        isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value
    )


def _function(owner: _Owner) -> FunctionNode | None:
    return owner if isinstance(owner, FunctionNode) else None


def _is_loader_loop(loop: ScriptLoop) -> bool:
    """``for batch in loader``, through enumerate, tqdm and the like; not ``for loader in
    loaders``."""
    if not isinstance(loop, ast.For) or _LOADER.search(ast.unparse(loop.target)):
        return False
    names = (n.id if isinstance(n, ast.Name) else getattr(n, "attr", "") for n in walk(loop.iter))
    return any(_LOADER.search(name) for name in names)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Continue | ast.Break | ast.Return)
