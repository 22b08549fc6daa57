"""A program and a workload in, a Graph out. Nothing of the user's size is ever allocated.

`capture(program, workload, device) -> Graph` has the target and its inputs under FakeTensorMode
and exports with ``torch.export(strict=False)``, whose training IR keeps aten.linear, aten.conv2d,
aten.layer_norm … whole. A slice's definitions are run and its module is built (loading.py); a
program with a home is opened there, with the object and the arguments of a recorded call
(recorded.py), in the setting of the program (answers.py, autocast.py). Everything is captured on a
fake CPU: ``device`` is a label, because fake CUDA tensors need a CUDA build. Works with torch 2.6
to 2.13. observing.py sees what its forward reads.

What a target writes into its arguments and buffers is part of its graph (writes.py). Refused, with
cause and remedy: data-dependent control flow, in-place changes of views, Python that needs real
values, questions about gradients or tracing, and objects on ``self`` whose
content a guard could not compare. In-place ops on fresh tensors become ordinary ops."""

from __future__ import annotations

import contextlib
import inspect
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Home, Program, TargetKind, TorchSetting, Workload
from kernel_lsp.rewrite.capture import overriding, read_conditions, refusals
from kernel_lsp.rewrite.capture.answers import Answers
from kernel_lsp.rewrite.capture.autocast import Autocast
from kernel_lsp.rewrite.capture.calling import called_directly
from kernel_lsp.rewrite.capture.canonical import unify
from kernel_lsp.rewrite.capture.cleanup import clean
from kernel_lsp.rewrite.capture.fakes import describe_operations
from kernel_lsp.rewrite.capture.functions import FUNCTIONS, held_function
from kernel_lsp.rewrite.capture.growth import decides_by_length, growth_of, with_length
from kernel_lsp.rewrite.capture.inherited import with_forward
from kernel_lsp.rewrite.capture.live import Live, fake_tensors, values_at
from kernel_lsp.rewrite.capture.loading import (
    OnCpu,
    construct,
    conversions,
    execute,
    lookup,
    make_arguments,
)
from kernel_lsp.rewrite.capture.observing import (
    UNKNOWN,
    Observed,
    attribute,
    module_calls,
    observe_module,
    observed_objects,
)
from kernel_lsp.rewrite.capture.opaque import OpaqueLayers
from kernel_lsp.rewrite.capture.places import is_program
from kernel_lsp.rewrite.capture.questions import (
    by_batch,
    changes_gradients,
    definitions_of,
    hides_gradients,
    unanswerable,
)
from kernel_lsp.rewrite.capture.recorded import (
    Argument,
    Call,
    Leaf,
    leaves_of,
    named_call,
    objects_in,
    open_recorded,
    same_kind,
    take_apart,
)
from kernel_lsp.rewrite.capture.results import known_classes, require_plain
from kernel_lsp.rewrite.capture.structure import Structure
from kernel_lsp.rewrite.capture.writes import (
    require_apart,
    require_no_gradients,
    watched_arguments,
)
from kernel_lsp.rewrite.graph import (
    CaptureOrigin,
    FreeLength,
    Graph,
    Input,
    Replaced,
    is_op,
)
from kernel_lsp.rewrite.outlining import outline
from kernel_lsp.snapshots import sources
from kernel_lsp.snapshots.opening import OpenedCall

aten = torch.ops.aten


def capture(
    program: Program, workload: Workload, device: str, batch: int | None = None,
    longer: FreeLength | None = None,
) -> Graph:  # fmt: skip
    """The target's graph for one workload. ``batch`` replaces the size of dimension 0 of the first
    tensor input, and of every input that shares it (to see whether a rewrite depends on it);
    ``longer`` makes what grows about twice as long.

    Raises CaptureError with cause and remedy.
    """
    if program.kind is TargetKind.MODULE:
        program = replace(program, source=with_forward(program.source, program.entry))
    if program.home is None:
        return _capture_slice(program, workload, device, batch)
    if program.part is None and program.kind is TargetKind.MODULE:
        refusals.of_decorators(program.source, program.entry)
    wanted = replace(_wanted(program, workload.setting, device, batch), longer=longer)
    if wanted.live is not None:
        sources.unload(program.home.path)
    return _capture_recorded(wanted, program.home, device)


def _capture_slice(program: Program, workload: Workload, device: str, batch: int | None) -> Graph:
    """Raises CaptureError."""
    if program.missing:
        raise CaptureError(
            f"{', '.join(program.missing)} is used but not defined in this file",
            "import or define it in the same file",
        )
    if (question := unanswerable(program.source, device)) is not None:
        raise CaptureError(
            f"{program.entry} asks for {question}, which is answered differently while a graph is "
            f"captured",
            "split the function at that question",
        )
    namespace = execute(program.source)
    target = lookup(namespace, program)
    on_cpu = OnCpu()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        on_cpu,
        conversions(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the user's own warnings are not ours to raise
        args, kwargs = make_arguments(namespace, workload)
        module = (
            construct(target, namespace, workload) if program.kind is TargetKind.MODULE else None
        )
        function = target if module is None else module.forward
        call = _bind(function, args, kwargs, batch)
        refusals.of_values(
            program.entry, {a.source: a.value for a in call.arguments}, on_cpu.places
        )
        if module is not None:
            refusals.of_module(program.entry, module)
            if workload.training is not None:
                module.train(workload.training)
        callee = _Function(target, tuple(call.kwargs)) if module is None else module
        effects = refusals.Effects(program.entry, namespace, module)
        effects.numbers = on_cpu.numbers
        autocast = Autocast(None, device)  # off where it is called; regions of its own count
        with autocast, autocast.watching():
            graph = _export(program, callee, module, call, device, effects)
        _spell_out_casts(graph, autocast)
        graph.gradients = _records_gradients(module, call, workload)
        require_no_gradients(graph)
        hidden = bool(effects.derivatives) or hides_gradients(program.source, program.entry)
        graph.origin = replace(graph.origin, hides_gradients=hidden)
        refusals.one_device(program.entry, on_cpu.named)
        return graph


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What of a recorded program is captured: one of its methods, or a function."""

    program: Program
    """A part's statements are a method of its text."""
    setting: TorchSetting
    batch: int | None
    method: str = "forward"
    live: Live | None = None
    """What the part is called with; None: the call is the recorded one."""
    outputs: tuple[str, ...] = ()
    """The locals that the part hands on."""
    longer: FreeLength | None = None
    """What is to be about twice as long as it was recorded."""


def _wanted(program: Program, setting: TorchSetting, device: str, batch: int | None) -> _Wanted:
    """Raises CaptureError when a part cannot be a method, or is not reached."""
    if program.part is None:
        return _Wanted(program=program, setting=setting, batch=batch)
    outlined = outline(program.source, program.entry, program.part)
    program = replace(program, source=outlined.text)
    live = values_at(program, outlined.method, setting, device)
    return _Wanted(
        program=program,
        setting=live.setting,
        batch=batch,
        method=outlined.method,
        live=live,
        outputs=outlined.outputs,
    )


def _capture_recorded(wanted: _Wanted, home: Home, device: str) -> Graph:
    """Raises CaptureError."""
    program, mode = wanted.program, FakeTensorMode(allow_non_fake_inputs=True)
    autocast = Autocast.around(wanted.setting, device)
    answers = Answers(device, wanted.setting, autocast)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own warnings are not ours to raise
        opened, maker = open_recorded(home, program.source, mode)
        module = opened.target if isinstance(opened.target, torch.nn.Module) else None
        if module is not None and wanted.live is not None:
            _take_for_forward(module, wanted.method)
        call, tensors = _bind_recorded(wanted, opened, mode)
        refusals.of_values(program.entry, {a.source: a.value for a in call.arguments}, maker.places)
        if module is not None:
            module._forward_hooks.clear()  # of the target itself: they run around its forward,
            module._forward_pre_hooks.clear()  # whatever that is
            refusals.of_module(program.entry, module, is_part=wanted.live is not None)
        elif call.args:
            raise CaptureError(
                f"{program.entry} takes *args or arguments without a name", "name the parameters"
            )
        inputs = ((leaf.source, leaf.value) for leaf in leaves_of(call))
        answers.knows(module, [pair for pair in inputs if isinstance(pair[1], torch.Tensor)])
        callee = _Function(opened.target, tuple(call.kwargs)) if module is None else module
        effects = refusals.Effects(program.entry, opened.namespace, module, of_libraries=True)
        answers.derivatives, effects.numbers = effects.derivatives, answers.numbers
        with mode, answers, autocast, autocast.watching(), answers.watching():
            graph = _export(program, callee, module, call, device, effects, wanted.outputs)
        _spell_out_casts(graph, autocast)
        answers.refuse(program.entry)
    require_apart(graph, opened, tensors)
    _require_recorded(graph, call, answers)
    trained = [*tensors, *(module.parameters() if module is not None else ())]
    has_trained = any(tensor.requires_grad for tensor in trained)
    graph.gradients = wanted.setting.gradients is not False and has_trained
    require_no_gradients(graph)
    graph.autocast = wanted.setting.autocast
    functions = list(definitions_of(answers.codes.values()))
    graph.origin = replace(
        graph.origin,
        hides_gradients=bool(effects.derivatives) or changes_gradients(functions, program.entry),
        may_decide_by_batch=by_batch(functions),
        method=wanted.method,
        free_length=_free_length(wanted, home, device, growth_of(graph, tensors)),
    )
    refusals.one_device(program.entry, answers.named)
    return graph


def _free_length(
    wanted: _Wanted, home: Home, device: str, found: FreeLength | None
) -> FreeLength | None:
    """What grows, if the program does not decide by it."""
    if found is None or wanted.longer is not None or wanted.batch is not None:
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(duck_shape=False))
    autocast = Autocast.around(wanted.setting, device)
    opened, _ = open_recorded(home, wanted.program.source, mode)

    def call(length: Any) -> None:
        with mode, Answers(device, wanted.setting, autocast), autocast, torch.no_grad():
            args, kwargs = opened.bind(with_length(opened.tensors, found, length))
            opened.target(*args, **kwargs)

    return None if decides_by_length(call, found.length, mode) else found


def _take_for_forward(module: torch.nn.Module, method: str) -> None:
    """Let a call of the instance run this method, under the one name that torch.export looks
    for."""
    vars(module)["forward"] = MethodType(_named_forward(getattr(type(module), method)), module)


def _bind_recorded(
    wanted: _Wanted, opened: OpenedCall, mode: FakeTensorMode
) -> tuple[Call, list[torch.Tensor]]:
    """The call on fake tensors, every argument by its name; and the tensors among them."""
    target = opened.target
    function = target.forward if isinstance(target, torch.nn.Module) else target
    if wanted.live is None:
        with mode:
            tensors = list(opened.tensors)
            if wanted.longer is not None:
                tensors = with_length(tensors, wanted.longer, 2 * wanted.longer.length + 1)
            tensors = _with_batch(tensors, wanted.batch)
        return named_call(function, *opened.bind(tensors)), tensors
    flat, structure = pytree.tree_flatten(fake_tensors(wanted.live, mode))
    with mode:
        leaves = _with_batch(flat, wanted.batch)
    call = named_call(function, pytree.tree_unflatten(leaves, structure), {})
    return call, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _require_recorded(graph: Graph, call: Call, answers: Answers) -> None:
    """The guard asks for what the recorded call was, and for what its questions were answered
    by."""
    for condition in call.conditions:
        graph.require(condition, "the call that was recorded")
    known: dict[int, str] = {}
    for item in graph.inputs:
        if item.node is not None and known.setdefault(id(item.value), item.source) != item.source:
            graph.require(f"{item.source} is {known[id(item.value)]}", "one tensor in two places")
    for condition, reason in answers.requirements.items():
        graph.require(condition, reason)


def _spell_out_casts(graph: Graph, autocast: Autocast) -> None:
    """A rewritten forward does not open the program's own autocast regions: a layer in which one
    casts is printed as its operations, with their casts, and not as a call of the layer."""
    if not autocast.opened:
        return
    casts = {node.name for node in graph.nodes if is_op(node, aten.to, aten._to_copy)}
    kept = tuple(call for call in graph.origin.calls if not casts & set(call.nodes))
    graph.origin = replace(graph.origin, calls=kept)


def _export(
    program: Program, callee: Any, module: Any, call: Call, device: str, effects: refusals.Effects,
    outputs: tuple[str, ...] = (),
) -> Graph:  # fmt: skip
    """What torch.export makes of one call, as a graph. ``outputs``: the locals that a part hands
    on. Raises CaptureError."""
    describe_operations()
    things = objects_in(call)
    opaque = OpaqueLayers(program.entry, module)
    observed = Observed(Structure(module), home=effects.namespace.get("__name__"))
    names = overriding.names_of(
        callee.function if module is None else type(module).forward, effects.namespace
    )
    with contextlib.ExitStack() as watching:
        watching.enter_context(torch.no_grad())
        watching.enter_context(called_directly(module))
        watching.enter_context(observe_module(module, observed, effects.set))
        watching.enter_context(observed_objects(things, observed, effects.set_of))
        watching.enter_context(effects.watched())
        take_apart((call.args, call.kwargs))
        leaves = leaves_of(call)
        watching.enter_context(
            _knowing_results(program.entry, callee, names, observed.classes, outputs)
        )
        places = watching.enter_context(watched_arguments(callee, program.entry, call.sources))
        exported = _exported(program.entry, callee, call, effects)
    effects.require_known(places.known)
    asked = {leaf.source for leaf in leaves if not isinstance(leaf.value, torch.Tensor)}
    places.require_no_counters(asked | observed.of_objects.values.keys())
    if program.part is not None:
        places.require_none()
    called = {path for path, _ in observed.called}
    opaque.require_unread(called | set(observed.of_self.called_modules()))
    graph = _graph(program, module, exported, leaves, device, observed, tuple(places.found))
    _keep_opaque_layers(graph, opaque, observed, names)
    _require_read(graph, things, observed)
    _require_observed(graph, observed, names)
    return graph


def _require_read(graph: Graph, things: list[tuple[str, Any]], observed: Observed) -> None:
    """The guard asks for the kinds of objects among the arguments, and for what they hold; not for
    those that the call never looks at: the other layers of a cache."""
    read = observed.of_objects
    graph.inputs = tuple(
        item
        for item in graph.inputs
        if (item.node is not None and item.node.users) or read.may_have_read(item.source)
    )
    for source, thing in things:
        if callable(thing) or read.has_read(source):
            condition = _same_argument(graph.origin.entry, source, thing, observed.home)
            graph.require(condition, "the call that was recorded")


def _exported(entry: str, callee: Any, call: Call, effects: refusals.Effects) -> Any:
    """Every failure of the tracer becomes a CaptureError, with a remedy."""
    try:
        return torch.export.export(callee, call.args, call.kwargs, strict=False)
    except CaptureError:
        raise
    except (Exception, SystemExit) as error:
        effects.refuse()  # a cache that grew is what the tracer stumbled over
        raise _explain(entry, error, effects.numbers.line_of(error)) from error


def _keep_opaque_layers(
    graph: Graph, opaque: OpaqueLayers, observed: Observed, names: Mapping[str, Any]
) -> None:
    """Layers with hooks or parametrizations are called as they are."""
    layers = opaque.calls(graph, observed.called)
    for condition in opaque.conditions(layers, names, read_conditions.self_path):
        graph.require(condition, "its hooks and parametrizations were traced")
    kept = {call.path for call in layers}
    calls = [call for call in graph.origin.calls if call.path not in kept]
    graph.origin = replace(graph.origin, calls=(*calls, *layers), opaque=tuple(sorted(kept)))


def _require_observed(graph: Graph, observed: Observed, names: Mapping[str, Any]) -> None:
    """The guard asks whether another call finds the same objects, code and layers. What the module
    itself was asked for is in the origin's ``reads``."""
    for source, value in observed.of_objects.values.items():
        if value is UNKNOWN:
            raise _unreadable(graph.origin.entry, source)
        graph.require(read_conditions.unchanged(source, value, str), "the target reads it")
    own = observed.of_self.code.items()
    owners = [(read_conditions.self_path(path.rpartition(".")[0]), one) for path, one in own]
    theirs = observed.of_objects.code.items()
    owners += [(source.rpartition(".")[0], one) for source, one in theirs]
    for owner, one in owners:
        for condition in overriding.conditions(owner, one, names):
            graph.require(condition, "the target calls it")
    layers = tuple(
        observed.structure.conditions(names, read_conditions.self_path, read_conditions.equals)
    )
    graph.origin = replace(graph.origin, structure=layers)


@contextlib.contextmanager
def _knowing_results(
    entry: str, callee: torch.nn.Module, names: Mapping[str, Any], classes: dict[type, str],
    outputs: tuple[str, ...],
) -> Iterator[None]:  # fmt: skip
    """``classes`` receives those of objects among the results, before they are taken apart."""

    def look(_module: Any, _args: Any, result: Any) -> None:
        if outputs:
            require_plain(entry, outputs, result)
        classes.update(known_classes(entry, result, names))

    handle = callee.register_forward_hook(look)
    try:
        yield
    finally:
        handle.remove()


def _unreadable(entry: str, source: str) -> CaptureError:
    return CaptureError(
        f"{entry} reads {source}, an object whose content cannot be checked before each call",
        "keep what forward needs as numbers, strings, tuples, dicts or functions that have a name at "
        "the top of a file",
    )


def _same_argument(entry: str, source: str, thing: Any, home: str | None) -> str:
    """A condition: another call's argument is the same function, or an object of the same kind."""
    if not isinstance(thing, FUNCTIONS):
        return same_kind(source, thing)
    held = held_function(thing, None, home)
    if held is None:
        raise _unreadable(entry, source)
    return read_conditions.unchanged(source, held, str)


def _records_gradients(module: Any, call: Call, workload: Workload) -> bool:
    """As the evaluator decides it: a workload in train mode with something to train, or inputs that
    require gradients."""
    if workload.setting.gradients is False or workload.setting.inference:
        return False
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    trained = workload.training is True and module is not None
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves) or (
        trained and any(parameter.requires_grad for parameter in module.parameters())
    )


def _graph(
    program: Program,
    module: Any,
    exported: Any,
    leaves: list[Leaf],
    device: str,
    observed: Observed,
    replaced: tuple[Replaced, ...],
) -> Graph:
    reads, classes = observed.of_self.values, observed.classes
    signature, fxgraph = exported.graph_signature, exported.graph
    state, constants, user = _placeholders(exported, module)
    if any(spec.kind.name != "USER_OUTPUT" for spec in signature.output_specs):
        raise CaptureError(
            f"{program.entry} changes a buffer or an input in place", "return the new value instead"
        )
    if (odd := next((path for path, value in reads.items() if value is UNKNOWN), None)) is not None:
        raise _unreadable(program.entry, f"self.{odd}")
    inputs = _inputs(leaves, user)
    origin = CaptureOrigin(
        program=program.source,
        entry=program.entry,
        module=module,
        path=_path_of(program),
        classes=tuple(classes.items()),
        replaced=replaced,
        is_recorded=program.home is not None,
    )
    spec = exported.call_spec.out_spec
    graph = Graph(
        fxgraph,
        inputs=inputs,
        state=state,
        constants=constants,
        training=bool(module.training) if module is not None else False,
        device=device,
        origin=origin,
        output_spec=refusals.children_of(spec)[0] if replaced else spec,
    )
    refusals.of_graph(program.entry, graph)
    clean(graph, may_write=program.part is None)
    unify(graph)
    graph.origin = replace(
        origin,
        calls=module_calls(graph, module, observed.called),
        reads=tuple(sorted(reads.items())),
        nodes={n.name: (n.target, *shape_of_call(n)) for n in graph.nodes},
        pristine=graph.copy(),
    )
    return graph


def _placeholders(
    exported: Any, module: Any
) -> tuple[dict[fx.Node, str], dict[fx.Node, torch.Tensor], list[Any]]:
    """What each placeholder is: an attribute of the module, a constant, or an argument."""
    by_name = {node.name: node for node in exported.graph.nodes}
    state, constants, user = {}, {}, []
    for spec in exported.graph_signature.input_specs:
        kind, node = spec.kind.name, by_name.get(spec.arg.name)
        if kind == "USER_INPUT":
            user.append(node)
        elif kind in ("PARAMETER", "BUFFER") or attribute(module, spec.target) is not None:
            state[node] = spec.target
        else:
            constants[node] = exported.constants[spec.target]
    return state, constants, user


def _path_of(program: Program) -> str | None:
    return program.home.path if program.home is not None else None


def shape_of_call(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with nodes replaced by names: comparable between copies of a graph."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: f"%{n.name}")
    return tuple(args), dict(kwargs)


# --- arguments ---------------------------------------------------------------------------


def _bind(function: Any, args: list[Any], kwargs: dict[str, Any], batch: int | None) -> Call:
    """The call of a slice: every argument by its name."""
    try:
        signature = inspect.signature(function)
        filled = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"the workload does not fit the signature: {error}") from error
    parameters = signature.parameters
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
        raise CaptureError(
            "*args and **kwargs in the signature are not supported", "name the parameters"
        )
    filled.apply_defaults()  # baked into the graph, so the guard has to know them
    leaves, spec = pytree.tree_flatten(dict(filled.arguments))
    bound = dict(pytree.tree_unflatten(_with_batch(leaves, batch), spec))
    arguments = [
        Argument(
            source=name,
            value=value,
            has_default=parameters[name].default is not inspect.Parameter.empty,
        )
        for name, value in bound.items()
    ]
    return Call(args=(), kwargs=bound, arguments=tuple(arguments))


def _with_batch(leaves: list[Any], batch: int | None) -> list[Any]:
    """The leaves of the arguments with another batch size, where they have one."""
    size = next((t.shape[0] for t in leaves if isinstance(t, torch.Tensor) and t.dim()), None)
    if batch is None or size is None:
        return leaves
    return [
        t.new_empty((batch, *t.shape[1:]), requires_grad=t.requires_grad)
        if isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == size
        else t
        for t in leaves
    ]


def _inputs(leaves: list[Leaf], user: list[fx.Node | None]) -> list[Input]:
    return [
        Input(
            source=leaf.source,
            parameter=leaf.argument.source,
            value=leaf.value,
            node=node if isinstance(leaf.value, torch.Tensor) else None,
            may_be_absent=bool(leaf.containers) or leaf.argument.has_default,
            containers=leaf.containers,
        )
        for leaf, node in zip(leaves, user, strict=True)
    ]


class _Function(torch.nn.Module):
    """A function target in the shape torch.export wants."""

    def __init__(self, function: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.function = _as_forward(function)
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        self.__signature__ = inspect.Signature(parameters)

    def forward(self, **kwargs: Any) -> Any:
        """What the function returns for these arguments."""
        return self.function(**kwargs)


def _as_forward(function: Any) -> Any:
    """The same function under the one name whose frames torch.export keeps in its stack traces:
    they say which statement made a node. Decorated functions stay as they are."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_name != function.__name__ or not is_program(code.co_filename):
        return function
    return _named_forward(function)


def _named_forward(function: FunctionType) -> FunctionType:
    named = FunctionType(
        function.__code__.replace(co_name="forward"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    named.__kwdefaults__ = function.__kwdefaults__
    return named


TRACER = {
    ".numpy() is not supported": ("leaves torch by .numpy()", "do that part outside of the target"),
    "no fake impl": (
        "calls an operator that has no rule for shapes",
        "add one: torch.library.register_fake",
    ),
    "not a known type": (
        "returns an object of its own",
        "return a tensor, tuple, list or dict of them",
    ),
    "object has no attribute 'constant'": (
        "maps or differentiates a function inside of forward (torch.func)",
        "rewrite what stands around that call, or the modules that it calls",
    ),
    "maximum recursion depth": ("calls itself without end", "run it once to see where"),
    "is not an instance of torch.nn.Parameter": (
        "was called with tensors in the place of its weights (torch.func.functional_call)",
        "optimize what calls it",
    ),
}
"""What torch.export says -> what that means, and the way out."""
UNKNOWN_INPUT = re.compile(r"Unsupported input type <class '(?P<path>[^']{1,200})'>")


def _explain(entry: str, error: BaseException, asked: str = "") -> CaptureError:
    """The tracer's exception as one sentence, with the usual way out. ``asked``: the line that
    asked for the number that is in the way; empty: none did, or it is not known."""
    kind, text = type(error).__name__, str(error).strip().split("\n")[0][:300]
    line = asked or _place_of(error)
    if "DataDependent" in kind or "GuardOnDataDependent" in kind or "data-dependent" in text:
        if not asked and _is_raised_in(error, "/torch/distributions/"):
            return CaptureError(
                f"{entry} makes a distribution, which checks the values of its parameters"
                f"{f': `{line}`' if line else ''}",
                "give it validate_args=False, or call set_default_validate_args(False)",
            )
        return CaptureError(
            f"{entry} decides by tensor values, which a graph cannot "
            f"express{f': `{line}`' if line else ''}",
            "move the branch, .item() or int(tensor) out of forward",
        )
    if isinstance(error, SystemExit):
        return CaptureError(f"{entry} ends the process", "raise an exception instead")
    where = f" at `{line}`" if line else ""
    for words, (meaning, remedy) in TRACER.items():
        if words in text:
            return CaptureError(f"{entry} {meaning}{where}", remedy)
    if refused := UNKNOWN_INPUT.search(text):
        return CaptureError(
            f"{entry} is given a {refused['path'].rpartition('.')[2]}, an object that a graph cannot take",
            "optimize the modules that it calls, or pass the object's tensors",
        )
    if _is_raised_in(error, "/triton/runtime/"):
        return CaptureError(
            f"{entry} launches a Triton kernel itself{where}, which a graph of torch cannot hold",
            "optimize that kernel (FILE::kernel), launched by a function with a workload above it",
        )
    return CaptureError(
        f"{entry} could not be traced{where}: {kind}: {text}", "run it once to see the full error"
    )


def _is_raised_in(error: BaseException, folder: str) -> bool:
    """Whether the error went through code of this folder."""
    return any(folder in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def _place_of(error: BaseException) -> str:
    """The line of the program's code that raised it; empty when it was none of its own."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_program(f.filename)]
    return (frames[-1].line or "").strip() if frames else ""
