"""A rewritten graph back to source a colleague would have written.

`emit(graph, generic_batch) -> Emission`. The class stays as it is; its ``forward`` becomes
``_forward_eager``, byte for byte (place.py), and a new ``forward`` checks the guard (guard.py),
falls back to it, or runs one statement per step (statements.py); layers are looked up once
(lookups.py). With a wrapper (`Graph.wrap`) the statements become ``_forward_steps``, which
``forward`` hands to the wrapper. A function becomes ``_<name>_eager`` beside a new ``<name>``."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Span
from kernel_lsp.rewrite.capture import read_conditions
from kernel_lsp.rewrite.generated import GeneratedSource, Wrapper
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.printing import guard, lookups, repeated
from kernel_lsp.rewrite.printing.place import UNIT, TargetPlace
from kernel_lsp.rewrite.printing.statements import LINE_LENGTH, StatementWriter, comment


@dataclass(frozen=True, kw_only=True)
class Emission:
    span: Span
    """The target in the program."""
    target: str
    """Its complete new source, dedented."""
    imports: tuple[str, ...]
    definitions: str
    body: str
    """The statements of the fast path and what they call: equal bodies mean equal computations."""


def emit(graph: Graph, generic_batch: bool, *, free_length: bool = False) -> Emission:
    """The rewritten target's source with all that it needs. ``free_length``: what grows from call
    to call may have another length (`CaptureOrigin.free_length`). Raises RewriteError when the target's
    source has a form that cannot be kept."""
    place = TargetPlace(graph)
    writer = StatementWriter(graph, place)
    body = writer.statements()
    replaced = [node for node in writer.captured if node.name not in writer.untouched]
    checks = guard.conditions(graph, generic_batch, replaced, free_length=free_length)
    of_layers = repeated.LayerChecks(graph.origin.entry, place.program, _paths(graph))
    if graph.wrapper is None:
        guarded, steps = _looked_up_once(of_layers.move_out(checks), body, graph, place)
        new = place.assemble([(place.name, [*_guard_lines(guarded, place, graph), *steps])])
    else:
        outer = guard.conditions(graph, generic_batch, [], free_length=free_length)
        new = place.assemble(_wrap_steps(graph, place, outer, checks, body, of_layers))
    kernels: list[GeneratedSource | Wrapper] = [*graph.generated]
    if graph.wrapper is not None:
        kernels.append(graph.wrapper)
    return Emission(
        span=place.span,
        target=new,
        imports=_imports(place, "\n".join([*checks, *body]), kernels),
        definitions="\n\n\n".join(
            [*filter(None, [_definitions(kernels)]), *map(_condition_function, of_layers.functions)]
        ),
        body="\n".join([*body, *map(_describe_computation, graph.generated)]),
    )


def _describe_computation(kernel: GeneratedSource) -> str:
    """What a generated function computes. A Triton kernel takes any size, or says which it holds,
    and blocks may follow the batch; PyTorch's operations hold the sizes that they were captured
    with."""
    if kernel.is_triton:
        return f"{kernel.numbers!r}{kernel.sizes}"
    return f"{kernel.numbers!r}\n{kernel.definitions}"


def _wrap_steps(
    graph: Graph, place: TargetPlace, outer: list[str], checks: list[str], body: list[str],
    of_layers: repeated.LayerChecks,
) -> list[tuple[str, list[str]]]:  # fmt: skip
    """The steps as a method of their own, with the conditions on layers and weights; in front of
    them the call of the wrapper, with the conditions on inputs. A graph without a rewrite needs no
    such method. ``outer``: the conditions on inputs."""
    assert graph.wrapper is not None
    inner = [text for text in checks if text not in outer]
    note = comment(graph.wrapper.note)
    steps = place.eager if graph.is_pristine else place.steps
    call = f"return {place.wrapper_call(graph.wrapper.name, steps, graph.requirements)}"
    guarded, _ = _looked_up_once(of_layers.move_out(outer), [], graph, place)
    methods = [(place.name, [*_guard_lines(guarded, place, graph), *note, call])]
    if steps != place.eager:
        inner, body = _looked_up_once(of_layers.move_out(inner), body, graph, place)
        methods.insert(0, (steps, [*_refusal(inner, place), *body]))
    return methods


def _looked_up_once(
    checks: list[str], body: list[str], graph: Graph, place: TargetPlace
) -> tuple[list[str], list[str]]:
    """The same conditions and statements with local names for layers and weights."""
    if graph.origin.module is None:
        return checks, body
    arguments = {node.arg for node in ast.walk(place.arguments) if isinstance(node, ast.arg)}
    return lookups.bound_once(checks, body, _paths(graph), arguments)


def _paths(graph: Graph) -> set[str]:
    """Sources of all layers and weights."""
    module = graph.origin.module
    if module is None:
        return set()
    named = (module.named_modules, module.named_parameters, module.named_buffers)
    found = [path for each in named for path, _ in each(remove_duplicate=False) if path]
    return set(map(read_conditions.self_path, found))


def _definitions(kernels: Sequence[GeneratedSource | Wrapper]) -> str:
    """The source of all kernels; a helper that several of them bring along is written once."""
    blocks = [
        block for kernel in kernels for block in kernel.definitions.strip("\n").split("\n\n\n")
    ]
    own = list(dict.fromkeys(block.strip("\n") for block in blocks))
    names = Counter(
        name for block in own for name in re.findall(r"^def (\w+)", block, re.MULTILINE)
    )
    if twice := [name for name, count in names.items() if count > 1]:
        raise RewriteError(
            f"two generated functions would be called {twice[0]}, and the first never run",
            "a skill names its functions by codegen.launching.named or unique_name",
        )
    return "\n\n\n".join(own)


def _guard_lines(checks: list[str], place: TargetPlace, graph: Graph) -> list[str]:
    if not checks:
        return []
    shapes = "; ".join(
        f"{i.source}: {str(i.value.dtype).removeprefix('torch.')} {tuple(i.value.shape)}"
        for i in graph.inputs
        if i.node is not None
    )
    head = [
        f"# Verified on {graph.device} for {shapes}."
        if shapes
        else f"# Verified on {graph.device}."
    ]
    head.append("# Anything that the reasoning below does not cover takes the original path.")
    return [*head, *_refusal(checks, place)]


def _refusal(checks: list[str], place: TargetPlace) -> list[str]:
    if not checks:
        return []
    one = f"if not ({' and '.join(checks)}):"
    if len(one) + 8 <= LINE_LENGTH:
        test = [one]
    else:
        test = ["if not (", *(f"{UNIT}{line}" for line in _conjunction(checks)), "):"]
    return [*test, f"{UNIT}return {place.eager_call()}"]


def _conjunction(checks: Sequence[str]) -> list[str]:
    return [
        line
        for index, text in enumerate(checks)
        for line in _fold_condition(f"{'and ' if index else ''}{text}")
    ]


def _condition_function(function: tuple[str, list[str]]) -> str:
    name, checks = function
    body = "\n".join(f"        {line}" for line in _conjunction(checks)).replace(UNIT, "    ")
    return f"def {name}({repeated.VARIABLE}):\n    return (\n{body}\n    )"


def _fold_condition(check: str) -> list[str]:
    """A long condition on several lines, broken where it is an alternative, a comparison or a
    list; one that is asked of every layer in a list, a line for each part."""
    if len(check) > LINE_LENGTH - 12 and (of_every := repeated.lines(check, UNIT)) is not None:
        return of_every
    lines = [check]
    while len(lines[-1]) > LINE_LENGTH - 12:
        text = lines[-1]
        spots = [m.start() for m in re.finditer(r" or | == \(|, (?=[\w('])", text)]
        spot = max((at for at in spots if 8 < at <= LINE_LENGTH - 14), default=None)
        if spot is None:
            break
        spot += text[spot] == ","
        lines[-1:] = [text[:spot], f"{UNIT}{text[spot:].lstrip()}"]
    return lines


def _imports(
    place: TargetPlace, text: str, kernels: Sequence[GeneratedSource | Wrapper]
) -> tuple[str, ...]:
    found = [line for kernel in kernels for line in kernel.imports]
    if guard.mentions(text, "torch"):
        found.append("import torch")
    if place.functional is None and re.search(r"\bF\.", text):
        found.append("import torch.nn.functional as F")
    return tuple(dict.fromkeys(found))
