"""A sliced program and a workload in, a Graph out. Nothing of the user's size is ever allocated.

`capture(program, workload, device) -> Graph` runs the slice's definitions, builds the module and its
inputs under FakeTensorMode and exports with ``torch.export(strict=False)``, whose training IR keeps
aten.linear, aten.conv2d, aten.layer_norm … whole. Everything is captured on a fake CPU: ``device`` is a
label, because fake CUDA tensors need a CUDA build. Works with torch 2.6 to 2.13. loading.py runs the slice,
observing.py sees what its forward reads.

Refused, with cause and remedy: data-dependent control flow, in-place changes of inputs or views,
Python that needs real values, questions about gradients or tracing, and objects on ``self`` whose content
a guard could not compare. In-place ops on fresh tensors become ordinary ops.
"""

from __future__ import annotations

import inspect
import traceback
import warnings
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Program, TargetKind, Workload
from kernel_lsp.rewrite import refusals
from kernel_lsp.rewrite.cleanup import clean
from kernel_lsp.rewrite.graph import Graph, Input, Origin
from kernel_lsp.rewrite.loading import OnCpu, construct, conversions, execute, lookup, make_arguments
from kernel_lsp.rewrite.observing import UNKNOWN, attribute, module_calls, observed
from kernel_lsp.rewrite.questions import hides_gradients, unanswerable
from kernel_lsp.rewrite.spelling import unify


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
    namespace = execute(program.source)
    target = lookup(namespace, program)
    on_cpu = OnCpu()
    with FakeTensorMode(allow_non_fake_inputs=True), on_cpu, conversions(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own warnings are not ours to raise
        args, kwargs = make_arguments(namespace, workload)
        module = construct(target, namespace, workload) if program.kind is TargetKind.MODULE else None
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
    with torch.no_grad(), observed(module, reads, called, effects.set), effects.watched():
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
        elif kind in ("PARAMETER", "BUFFER") or attribute(module, spec.target) is not None:
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
    clean(graph)
    unify(graph)
    graph.origin = Origin(
        program=program.source,
        entry=program.entry,
        module=module,
        calls=module_calls(graph, module, called),
        reads=tuple(sorted(reads.items())),
        nodes={n.name: (n.target, *shape_of_call(n)) for n in graph.nodes},
        pristine=graph.copy(),
    )
    return graph


def shape_of_call(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with nodes replaced by names: comparable between copies of a graph."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: f"%{n.name}")
    return tuple(args), dict(kwargs)


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
    where = f" at `{line}`" if line else ""
    for words, (meaning, remedy) in TRACER.items():
        if words in text:
            return CaptureError(f"{entry} {meaning}{where}", remedy)
    if any("/triton/runtime/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)):
        return CaptureError(
            f"{entry} launches a Triton kernel itself{where}, which a graph of torch cannot hold",
            "optimize that kernel (FILE::kernel), launched by a function with a workload above it",
        )
    return CaptureError(
        f"{entry} could not be traced{where}: {kind}: {text}", "run it once to see the full error"
    )


def _place_of(error: BaseException) -> str:
    """The line of the person's code that raised it; empty when it was none of theirs."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<kernel-lsp")]
    return (frames[-1].line or "").strip() if frames else ""
