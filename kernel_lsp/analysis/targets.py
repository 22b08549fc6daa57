"""Find what can be made faster: module classes, tensor functions, Triton kernels and their
launchers.

Recognized through imports and bases of the same file, never by the target's own name. A class
whose base comes from another file is a module where it defines ``forward(self, …)`` and the file
imports torch: so do the layers of most packages, whose bases add checkpointing, loading or
configuration. A class that inherits a layer of PyTorch's is a target without one, too: it
computes by methods of its own, or by the layers that it was given. Not targets: other classes
without a forward of their own, functions inside functions, device helpers of Triton kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kernel_lsp.analysis.source import (
    DefinitionNode,
    FunctionNode,
    ParsedSource,
    definitions,
    walk,
    words,
)
from kernel_lsp.records import TargetKind

JIT = frozenset({"triton.jit", "triton.runtime.jit", "triton.runtime.jit.jit"})
# The input makers of the KernelBench convention take no tensors and are never targets.
INPUT_MAKERS = ("get_inputs", "get_init_inputs")
NO_LAYERS = frozenset({"Module", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Classes of torch.nn that compute nothing by themselves."""
NO_MODULES = frozenset({"abc", "enum", "typing", "typing_extensions"})
"""Packages whose classes are no modules, whatever derives from them."""
_WORKLOAD = re.compile(r"#\s*kernel-lsp:\s*workload\b")


@dataclass(frozen=True, slots=True)
class TargetDraft:
    """A target before it has a fingerprint."""

    qualname: str
    kind: TargetKind
    node: DefinitionNode
    launchers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileStructure:
    """The file's definitions, sorted by what they are."""

    definitions: tuple[tuple[str, DefinitionNode], ...]
    module_classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    jit_functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    launchers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Kernel name -> qualified names of the functions that launch it."""


def structure(file: ParsedSource) -> FileStructure:
    """What of a file targets are found by: its definitions, module classes, Triton kernels and who
    launches them."""
    every = tuple(definitions(file.tree.body))
    jit = {
        name: node
        for name, node in every
        if isinstance(node, ast.FunctionDef) and any(_is_jit(file, d) for d in node.decorator_list)
    }
    return FileStructure(
        definitions=every,
        module_classes=_module_classes(file, every),
        jit_functions=jit,
        launchers=_launchers(file, every, jit) if jit else {},
    )


def find(file: ParsedSource, known: FileStructure) -> list[TargetDraft]:
    """Targets in source order; of two definitions with one name the last counts, as in Python."""
    helpers = _helpers(known)
    launching = {name for names in known.launchers.values() for name in names}
    found: dict[str, TargetDraft] = {}
    for qualname, node in known.definitions:
        found.pop(qualname, None)
        target = _target(file, known, qualname, node)
        if target is None or (target.kind is TargetKind.TRITON_KERNEL and qualname in helpers):
            continue
        if qualname in launching and not _has_workload(file, node):
            continue
        found[qualname] = target
    return list(found.values())


def named(known: FileStructure, qualname: str) -> TargetDraft | None:
    """A class with a ``forward`` or a function, whatever it is made of: what
    a recording has seen called with tensors, and whose text does not say so."""
    node = dict(known.definitions).get(qualname)
    if isinstance(node, ast.ClassDef) and _has_called_forward(node):
        return TargetDraft(qualname, TargetKind.MODULE, node)
    if isinstance(node, ast.FunctionDef) and "." not in qualname and not _is_stub(node):
        return TargetDraft(qualname, TargetKind.FUNCTION, node)
    return None


def launching(known: FileStructure, kernel: str) -> tuple[DefinitionNode, ...]:
    """The functions that launch the kernel; of two with one name the last."""
    nodes = dict(known.definitions)
    return tuple(nodes[name] for name in known.launchers.get(kernel, ()))


def _is_jit(file: ParsedSource, decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return file.dotted(called) in JIT


def own_forward(node: ast.ClassDef) -> FunctionNode | None:
    """The class's own ``forward``; None: it has none or inherits it."""
    return next((s for s in node.body if isinstance(s, FunctionNode) and s.name == "forward"), None)


def parameters(node: FunctionNode) -> list[ast.arg]:
    """A function's parameters without *args and **kwargs."""
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _target(
    file: ParsedSource, known: FileStructure, qualname: str, node: DefinitionNode
) -> TargetDraft | None:
    if qualname in known.module_classes:
        current = known.module_classes[qualname]
        computes = own_forward(current) is not None or _inherits_layer(file, known, current)
        is_target = current is node and computes
        return TargetDraft(qualname, TargetKind.MODULE, node) if is_target else None
    if known.jit_functions.get(qualname) is node:
        launchers = known.launchers.get(node.name, ())
        return TargetDraft(qualname, TargetKind.TRITON_KERNEL, node, launchers)
    if isinstance(node, ast.FunctionDef) and "." not in qualname:
        names = {name for name, _ in known.definitions}
        if _takes_tensors(file, node) or f"_{qualname}_eager" in names:  # which we have rewritten
            return TargetDraft(qualname, TargetKind.FUNCTION, node)
    return None


def _module_classes(
    file: ParsedSource, every: tuple[tuple[str, DefinitionNode], ...]
) -> dict[str, ast.ClassDef]:
    found: dict[str, ast.ClassDef] = {}
    names: set[str] = set()
    elsewhere: set[str] = set()
    """Classes that may be modules by a base from another file."""
    uses_torch = any(name.partition(".")[0] == "torch" for name in file.imports.values())
    for qualname, node in every:
        if not isinstance(node, ast.ClassDef):
            continue
        if uses_torch and any(_is_from_elsewhere(file, base, elsewhere) for base in node.bases):
            elsewhere.add(node.name)
        is_module = any(_is_module_base(file, base, names) for base in node.bases)
        if is_module or (node.name in elsewhere and _has_called_forward(node)):
            found[qualname] = node
            names.add(node.name)
    return found


def _inherits_layer(file: ParsedSource, known: FileStructure, node: ast.ClassDef) -> bool:
    """Whether the forward of a class without one is a layer's of torch.nn."""
    seen: set[str] = set()
    while own_forward(node) is None and node.bases and node.name not in seen:
        seen.add(node.name)
        base = node.bases[0]
        if isinstance(base, ast.Name) and base.id in known.module_classes:
            node = known.module_classes[base.id]
            continue
        space, _, name = (file.dotted(base) or "").rpartition(".")
        return space in ("torch.nn", "torch.nn.modules") and name not in NO_LAYERS
    return False


def _has_called_forward(node: ast.ClassDef) -> bool:
    """Whether it has a ``forward`` that is called on an instance; that of an autograd Function is
    not."""
    forward = own_forward(node)
    if forward is None or not parameters(forward) or parameters(forward)[0].arg != "self":
        return False
    return not any(
        isinstance(d, ast.Name) and d.id in ("staticmethod", "classmethod")
        for d in forward.decorator_list
    )


def _is_from_elsewhere(file: ParsedSource, base: ast.expr, elsewhere: set[str]) -> bool:
    """Whether it is imported from a place that could define a module, or such a class of this
    file."""
    base = base.value if isinstance(base, ast.Subscript) else base
    if isinstance(base, ast.Name) and base.id in elsewhere:
        return True
    dotted = file.dotted(base)
    return dotted is not None and dotted.partition(".")[0] not in NO_MODULES


def _is_module_base(file: ParsedSource, base: ast.expr, names: set[str]) -> bool:
    if isinstance(base, ast.Subscript):  # Generic-like bases: Block[T]
        base = base.value
    if isinstance(base, ast.Name) and base.id in names:
        return True
    dotted = file.dotted(base)
    if dotted is not None:
        return dotted.endswith("nn.Module") or dotted.startswith("torch.nn.")
    # An nn that nobody imported here is still torch.nn to its reader.
    return isinstance(base, ast.Attribute) and ast.unparse(base).endswith("nn.Module")


def _takes_tensors(file: ParsedSource, node: ast.FunctionDef) -> bool:
    if node.name in INPUT_MAKERS or node.name.startswith("test_") or _is_stub(node):
        return False
    if any(_is_tensor_annotation(file, p.annotation) for p in parameters(node)):
        return True
    return _calls_torch_on_parameters(file, node) or _has_workload(file, node)


def _is_stub(node: ast.FunctionDef) -> bool:
    """Overloads, protocols and abstract functions have no code to make faster."""
    return all(
        isinstance(s, ast.Pass | ast.Raise)
        or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in node.body
    )


def _is_tensor_annotation(file: ParsedSource, annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.removeprefix("torch.") == "Tensor"
    if isinstance(annotation, ast.BinOp):
        return _is_tensor_annotation(file, annotation.left) or _is_tensor_annotation(
            file, annotation.right
        )
    if isinstance(annotation, ast.Subscript) and file.dotted(annotation.value) == "typing.Optional":
        return _is_tensor_annotation(file, annotation.slice)
    return annotation is not None and file.dotted(annotation) in (
        "torch.Tensor",
        "torch.FloatTensor",
    )


def _calls_torch_on_parameters(file: ParsedSource, node: ast.FunctionDef) -> bool:
    if not parameters(node):
        return False
    names = {p.arg for p in parameters(node)}
    for statement in node.body:
        for call in walk(statement):
            if not isinstance(call, ast.Call):
                continue
            operand = _root(call.args[0]) if call.args else None
            if operand in names and is_tensor_operation(file.dotted(call.func)):
                return True
            method = call.func if isinstance(call.func, ast.Attribute) else None
            if method is not None and method.attr in _METHODS and _root(method) in names:
                return True
    return False


def _root(node: ast.expr) -> str | None:
    """``x`` of ``x.view(-1)[0]``: the name that a chain of attributes, calls and subscripts begins
    with."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


# Methods that tensors have and arrays and tables of other libraries have not.
_METHODS = words(
    """
    unsqueeze masked_fill softmax log_softmax sigmoid rsqrt contiguous logsumexp index_select bmm topk
    scatter scatter_add gather permute amax amin multinomial requires_grad_
    """
)
# Lower-case functions of torch that take something other than tensors.
_NOT_OPERATIONS = words(
    """
    tensor as_tensor zeros ones empty full rand randn randint arange eye linspace manual_seed save
    load device compile is_tensor from_numpy get_default_dtype set_default_dtype set_num_threads
    finfo iinfo dtype no_grad is_storage typename randperm Generator set_grad_enabled inference_mode
    autocast asarray Size
    """
)
_SPACES = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft")


def is_tensor_operation(dotted: str | None) -> bool:
    """``torch.relu``, ``torch.nn.functional.linear`` …: functions whose first argument is a
    tensor."""
    if dotted is None:
        return False
    space, _, name = dotted.rpartition(".")
    return space in _SPACES and name[:1].islower() and name not in _NOT_OPERATIONS


def _has_workload(file: ParsedSource, node: DefinitionNode) -> bool:
    if "kernel-lsp:" not in file.text:
        return False
    line = file.first_line(node) - 1
    while line >= 1 and (text := file.line_text(line).lstrip()).startswith("#"):
        if _WORKLOAD.match(text):
            return True
        line -= 1
    return False


def _launchers(
    file: ParsedSource,
    every: tuple[tuple[str, DefinitionNode], ...],
    jit: dict[str, ast.FunctionDef],
) -> dict[str, tuple[str, ...]]:
    kernels = {node.name for node in jit.values()}
    named = _other_names(file.tree.body, {name: {name} for name in kernels})
    found: dict[str, list[str]] = {}
    for qualname, node in every:
        if isinstance(node, FunctionNode) and qualname not in jit:
            for kernel in _taken_kernels(node, named):
                found.setdefault(kernel, []).append(qualname)
    return {kernel: tuple(names) for kernel, names in found.items()}


def _taken_kernels(function: FunctionNode, named: dict[str, set[str]]) -> set[str]:
    """Kernels of which the function takes ``name[grid]``, whether it calls that at once or not."""
    nodes = walk(function)
    places = {
        n.value.id for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)
    }
    names = _other_names(nodes, named)
    return set[str]().union(*(names.get(name, ()) for name in places))


def _other_names(nodes: Iterable[ast.AST], named: dict[str, set[str]]) -> dict[str, set[str]]:
    """With what these nodes name so: ``other = kernel``."""
    found = {name: set(kernels) for name, kernels in named.items()}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=kernel)) if (
                kernel in found
            ):
                found.setdefault(name, set()).update(found[kernel])
    return found


def launches(node: ast.AST) -> Iterator[ast.Call]:
    """Calls of the form ``name[grid](...)``."""
    for call in walk(node):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Subscript)
            and isinstance(call.func.value, ast.Name)
        ):
            yield call


def _helpers(known: FileStructure) -> set[str]:
    """Jit functions that other kernels call or hand to a scan and nobody launches: part of those
    kernels."""
    called: set[str] = set()
    for node in known.jit_functions.values():
        names = [n for n in walk(node) if isinstance(n, ast.Name)]
        own = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {
            a.arg for a in parameters(node)
        }
        called |= {n.id for n in names} - own - {node.name}
    return {
        qualname
        for qualname, node in known.jit_functions.items()
        if node.name in called and node.name not in known.launchers
    }
