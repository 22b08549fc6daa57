"""The graph that skills read and rewrite: an fx graph at the level a person wrote it.

    graph.nodes                       call_function nodes, in order
    graph.inputs / state / outputs    see the attributes
    graph.named(name)                 the call of a name, graph.ordered(some): those calls in order
    graph.val(node)                   fake tensor: shape, dtype, strides, no memory
    graph.fact(node)                  what is proved about its values (facts.Fact)
    graph.users(node)                 call_function users, in order (of outputs is_output tells)
    graph.call(op, args, before=…)    insert an aten call; value and facts follow
    graph.call_generated(kernel, …)   insert a launch of generated source
    graph.replace(old, new)           redirect every use, then drop what nobody uses
    graph.require(source, because)    a condition the dispatch guard must check
    graph.wrap(wrapper)               how the whole target is called: the last rewrite of all
    graph.note(node, text) / caveat   comment above a statement / remark for the evidence

Values are per call: parameters and buffers are never treated as constants, only their shapes are.
Nodes with effects (running statistics, random draws) are never dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from kernel_lsp import devices
from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.facts import transfer_functions
from kernel_lsp.rewrite.facts.tensors import TensorFact
from kernel_lsp.rewrite.generated import GeneratedSource, Wrapper
from kernel_lsp.rewrite.naming import Statements

aten = torch.ops.aten

# Calls that draw random numbers only while they drop something; what else draws has torch's own
# tag.
DROPOUTS = (aten.dropout, aten.feature_dropout, aten.alpha_dropout, aten.feature_alpha_dropout)
DROPPING_INSIDE = (
    aten.scaled_dot_product_attention,
    aten.lstm,
    aten.gru,
    aten.rnn_tanh,
    aten.rnn_relu,
)


@dataclass(frozen=True, kw_only=True)
class Input:
    """One leaf of the target's arguments."""

    source: str
    """How the target's body spells it: ``x``, ``pair[0]``."""
    parameter: str
    """The parameter it belongs to."""
    value: Any
    """Fake tensor, or the plain value."""
    node: fx.Node | None
    """Its placeholder; None for plain values, which the graph has baked in."""
    may_be_absent: bool = False
    """The parameter has a default or sits in a container: another call may pass something else."""
    containers: tuple[tuple[str, int], ...] = ()
    """Source and length of each list, tuple or dict around it."""


@dataclass(frozen=True, kw_only=True)
class ModuleCall:
    """Nodes that one plain call ``self.<path>(x)`` of a torch.nn layer produced."""

    path: str
    nodes: tuple[str, ...]
    argument: str
    result: str


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """A place in the arguments into which the target puts something else."""

    source: str
    """How the target's body spells it: ``cache.layers[0].keys``."""
    spec: Any = None
    """pytree spec of what is put there; its leaves are outputs. None: a constant."""
    constant: Any = None
    """A plain value, or a device, which is that of the inputs."""
    is_append: bool = False
    """It is put at the end of a list, which has no such place before."""


@dataclass(frozen=True, kw_only=True)
class GrowingSize:
    """A size of one argument that follows the length of a cache."""

    place: int
    """Of the tensor among all tensors of the arguments."""
    dim: int
    more: int
    """So much longer than the cache is: a mask counts what is added too."""


@dataclass(frozen=True, kw_only=True)
class FreeLength:
    """A length of the arguments by which the program decides nothing."""

    length: int
    """In the recorded call."""
    lead: str
    """The source of the input that says it: of which every call makes a longer one."""
    sizes: dict[str, GrowingSize]
    """By the source of an input."""


@dataclass(frozen=True, kw_only=True)
class CaptureOrigin:
    """Everything about the captured target that does not change while it is rewritten."""

    program: str
    entry: str
    module: torch.nn.Module | None
    """The instance on fake tensors; None for a function target."""
    method: str = "forward"
    """Of the module: what was captured, when it is no function."""
    path: str | None = None
    """The file that ``program`` is the text of; None: it is a slice."""
    calls: tuple[ModuleCall, ...] = ()
    reads: tuple[tuple[str, Any], ...] = ()
    """Plain attributes that the person's own forward read: ``("scale", 0.5)``."""
    classes: tuple[tuple[type, str], ...] = ()
    """Of objects among the results, each with its name in the target's file."""
    opaque: tuple[str, ...] = ()
    """Paths of layers whose operations stand for a call that must be made as it is."""
    replaced: tuple[Replaced, ...] = ()
    """What it puts into its arguments; the leaves are outputs behind those that are returned."""
    free_length: FreeLength | None = None
    """What may differ in another call, if the rewrite bears it."""
    is_recorded: bool = False
    """It was opened with the arguments of a recorded call."""
    structure: tuple[str, ...] = ()
    """Conditions: the module has the layers that it was captured with (capture/structure.py)."""
    hides_gradients: bool = False
    """A part has another derivative than its operations: no_grad inside, or an
    autograd.Function."""
    may_decide_by_batch: bool | None = None
    """A branch may depend on the size of dimension 0; None: ask the program's text."""
    nodes: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    """Name -> (op, argument names, keyword argument names) as captured."""
    pristine: Graph | None = None
    """The graph as captured. Never rewritten: rewrites work on copies."""

    @property
    def function(self) -> str:
        """The name behind ``def``."""
        return self.method if self.module is not None else self.entry.split(".")[-1]


class Graph:
    """See the top of the file."""

    def __init__(
        self,
        graph: fx.Graph,
        *,
        inputs: Sequence[Input],
        state: dict[fx.Node, str],
        constants: dict[fx.Node, torch.Tensor],
        training: bool,
        device: str,
        origin: CaptureOrigin,
        output_spec: Any = None,
    ) -> None:
        self.fx = graph
        self.inputs = tuple(inputs)
        self.state = state
        """Placeholder -> dotted attribute, e.g. ``linear.weight``."""
        self.constants = constants
        """Placeholder -> tensor built from literals on each call."""
        self.training = training
        self.device = device
        """``cuda`` or ``cpu``: where the target will run. Values are always fake and on the CPU."""
        self.hardware = devices.describe(device)
        """By which costs are estimated; the engine sets what it was given of the GPU."""
        self.origin = origin
        self.output_spec = output_spec
        """pytree spec of the return value."""
        self.gradients = False
        """The workload records gradients: kernels need a backward (see `trained` and `carries`)."""
        self.autocast: str | None = None
        """dtype of the autocast under which the target is called, whose casts are nodes; None: it
        is off."""
        self.requirements: dict[str, str] = {}
        self.caveats: list[str] = []
        self.notes: dict[str, list[str]] = {}
        self.wrapper: Wrapper | None = None
        self._facts: dict[fx.Node, TensorFact] = {}

    # --- reading -------------------------------------------------------------------------

    @property
    def nodes(self) -> list[fx.Node]:
        """All calls, in the order in which they run."""
        return [node for node in self.fx.nodes if node.op == "call_function"]

    def named(self, name: str) -> fx.Node:
        """The call of this name: what a match remembers it by. Raises RewriteError when it is
        gone."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise RewriteError(
            f"{name} is no longer in the graph", "apply this rewrite before what removes it"
        )

    def ordered(self, some: Collection[fx.Node]) -> list[fx.Node]:
        """The calls among them, in graph order: sets have none, and sources must stay the same."""
        return [node for node in self.nodes if node in some]

    @property
    def generated(self) -> list[GeneratedSource]:
        """The generated source that the graph calls, each once."""
        return list(dict.fromkeys(n.meta["generated"] for n in self.nodes if "generated" in n.meta))

    @property
    def captured(self) -> list[fx.Node]:
        """The calls as captured, whatever was rewritten since."""
        return (self.origin.pristine or self).nodes

    @property
    def is_pristine(self) -> bool:
        """Nothing was rewritten: the graph does what was captured, node for node."""
        was = self.origin.pristine
        return was is not None and _calls(self) == _calls(was)

    @property
    def output(self) -> fx.Node:
        """The node that returns."""
        return next(node for node in reversed(self.fx.nodes) if node.op == "output")

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Leaves of the return value, in pytree order: nodes or plain values. Behind them those of
        what is put into arguments (`CaptureOrigin.replaced`)."""
        return tuple(self.output.args[0])

    @property
    def leaves_state(self) -> bool:
        """Whether the target writes into its arguments or buffers, or replaces what they hold:
        its caller sees more than what it returns."""
        return bool(self.origin.replaced) or any(map(is_write, self.captured))

    def is_output(self, node: fx.Node) -> bool:
        """Whether the node's value is returned."""
        return self.output in node.users

    def val(self, node: fx.Node) -> Any:
        """Fake tensor (or tuple of them) that the node yields."""
        return node.meta["val"]

    def fact(self, node: fx.Node) -> TensorFact:
        """What is proved of the node's value; found once, with that of all nodes before it."""
        if node not in self._facts:
            for earlier in self.fx.nodes:
                if earlier not in self._facts and earlier.op != "output":
                    self._facts[earlier] = transfer_functions.of(self, earlier, argument)
                if earlier is node:
                    break
        return self._facts[node]

    def trained(self, node: fx.Node) -> bool:
        """A placeholder that requires a gradient in the workload: a parameter, or an input that
        says so."""
        if (path := self.state.get(node)) is not None and self.origin.module is not None:
            found = operator.attrgetter(path)(self.origin.module)
            return isinstance(found, torch.Tensor) and found.requires_grad
        return any(item.node is node and item.value.requires_grad for item in self.inputs)

    def carries(self, node: fx.Node) -> bool:
        """Whether something trained flows into the node's value, and a gradient back."""
        seen, todo = {node}, [node]
        while todo:
            at = todo.pop()
            if is_op(at, aten.detach):
                continue
            if at.op == "placeholder" and self.trained(at):
                return True
            todo += [arg for arg in at.all_input_nodes if arg not in seen]
            seen.update(at.all_input_nodes)
        return False

    def users(self, node: fx.Node) -> list[fx.Node]:
        """Every call that reads the node. The return statement is not one; ask `is_output`."""
        few = node.users if len(node.users) < 2 else self.ordered(node.users)
        return [user for user in few if user.op == "call_function"]

    def only_user(self, node: fx.Node) -> fx.Node | None:
        """The single reader, when there is exactly one and the node is not returned."""
        users = self.users(node)
        return users[0] if len(users) == 1 and not self.is_output(node) else None

    def label(self, *nodes: fx.Node) -> str:
        """A name for a place: the names of its nodes, which survive copies of the graph."""
        return "+".join(node.name for node in nodes)

    def variable(self, node: fx.Node) -> str:
        """What the person called the node's value, or a word for its operation."""
        origin = self.origin
        return Statements(origin.program, origin.function, origin.path).wish(node, self.captured)

    # --- writing -------------------------------------------------------------------------

    def call(
        self,
        op: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        *,
        before: fx.Node,
        name: str | None = None,
    ) -> fx.Node:
        """Insert ``op(*args)``; ``name`` is its variable (without one, a short call is written
        inline).

        Raises RewriteError when the op refuses these shapes.
        """
        kwargs = kwargs or {}
        with self.fx.inserting_before(before):
            node = self.fx.create_node("call_function", op, tuple(args), kwargs, name)
        try:
            node.meta["val"] = self._propagate(op, node.args, node.kwargs)
        except Exception as error:  # whatever the op says is the skill's mistake, in one place
            self.fx.erase_node(node)
            raise RewriteError(f"{op} cannot be inserted: {error}") from error
        if name is not None:
            node.meta["name"] = name
        return node

    def call_generated(
        self,
        kernel: GeneratedSource,
        args: Sequence[Any],
        *,
        like: Any,
        before: fx.Node,
        name: str | None = None,
    ) -> fx.Node:
        """Insert a launch of ``kernel``; ``like`` is the fake value (or tuple) that it returns."""
        with self.fx.inserting_before(before):
            node = self.fx.create_node(
                "call_function", launch, tuple(args), {}, name or kernel.name
            )
        node.meta["val"] = like
        node.meta["generated"] = kernel
        if name is not None:
            node.meta["name"] = name
        return node

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """Redirect every use of ``old``. Raises RewriteError when shape or dtype would change."""
        was, now = self.val(old), self.val(new)
        if isinstance(was, torch.Tensor) and (was.shape != now.shape or was.dtype != now.dtype):
            raise RewriteError(
                f"{new.name} is {now.dtype} of {tuple(now.shape)} where {old.name} was"
                f" {was.dtype} of {tuple(was.shape)}"
            )
        if "stack_trace" not in new.meta and new.op == "call_function":
            new.meta.setdefault("replaces", old.meta.get("replaces", old.name))
        old.replace_all_uses_with(new)
        self.drop_unused()
        if isinstance(was, torch.Tensor) and was.stride() != now.stride():
            self._refresh(new)

    def drop_unused(self) -> list[str]:
        """Remove calls that nobody reads and that have no effect; returns their names."""
        dropped = []
        for node in reversed(self.nodes):
            if not node.users and not has_effect(node):
                dropped.append(node.name)
                self._facts.pop(node, None)
                self.fx.erase_node(node)
        return dropped

    def require(self, condition: str, because: str) -> None:
        """``condition`` is Python over the target's own names, e.g. ``not self.training``."""
        self.requirements[condition] = because

    def wrap(self, wrapper: Wrapper) -> None:
        """Call the whole target through ``wrapper``. Raises RewriteError when something else does
        already."""
        if self.wrapper is not None:
            raise RewriteError(
                f"{self.wrapper.name} is around the target already", "choose one of them"
            )
        self.wrapper = wrapper

    def note(self, node: fx.Node, text: str) -> None:
        """Puts a comment above the node's statement in the printed source."""
        self.notes.setdefault(node.name, []).append(text)

    def caveat(self, text: str) -> None:
        """Adds a sentence to what a user must know of this rewrite, once."""
        if text not in self.caveats:
            self.caveats.append(text)

    def copy(self) -> Graph:
        """An independent graph with the same node names."""
        twin, mapping = fx.Graph(), dict[fx.Node, fx.Node]()
        output = twin.graph_copy(self.fx, mapping)
        twin.output(output)
        at = {old: mapping[old] for old in self.fx.nodes if old.op == "placeholder"}
        made = Graph(
            twin,
            inputs=[_move_input(item, at) for item in self.inputs],
            state={at[node]: path for node, path in self.state.items()},
            constants={at[node]: tensor for node, tensor in self.constants.items()},
            training=self.training,
            device=self.device,
            origin=self.origin,
            output_spec=self.output_spec,
        )
        made.gradients, made.autocast = self.gradients, self.autocast
        made.requirements, made.caveats = dict(self.requirements), list(self.caveats)
        made.wrapper = self.wrapper
        made.hardware = self.hardware
        made.notes = {name: list(texts) for name, texts in self.notes.items()}
        return made

    def _refresh(self, changed: fx.Node) -> None:
        """Values again for everything that reads ``changed``: its strides are new."""
        stale = {changed}
        for node in self.nodes:
            if stale & set(node.all_input_nodes) and "generated" not in node.meta:
                node.meta = {
                    **node.meta,
                    "val": self._propagate(node.target, node.args, node.kwargs),
                }
                self._facts.pop(node, None)
                stale.add(node)

    def _propagate(self, op: Any, args: Any, kwargs: Any) -> Any:
        values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        mode = next((v.fake_mode for v in _tensors(values)), None) or self._mode()
        with mode, torch.no_grad():
            return op(*values[0], **values[1])

    def _mode(self) -> Any:
        return next(v.fake_mode for n in self.fx.nodes for v in _tensors(n.meta.get("val")))


def launch(*args: Any) -> Any:
    """Stands as the target of every node of generated source; never runs inside the engine."""
    raise RewriteError("generated source runs in the worker only")


def after_write(tensor: Any, write: Any) -> Any:
    """``tensor`` itself: its content after the call ``write``. No operation, but the place where
    what reads the new content begins."""
    return tensor


def is_write(node: fx.Node) -> bool:
    """Whether the call writes into an argument or a buffer (capture/writes.py)."""
    return "writes" in node.meta


def is_op(node: Any, *ops: Any) -> bool:
    """``is_op(node, aten.relu)`` is true for every overload of relu."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    packet = _packet(node.target)
    return any(packet == _packet(op) for op in ops)


def _packet(op: Any) -> Any:
    """Asked by its type: a packet looks for an attribute that it lacks among its overloads, for 14
    us."""
    return op.overloadpacket if isinstance(op, torch._ops.OpOverload) else op


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """An argument by its schema name, positional or keyword, with the schema's default."""
    if name in node.kwargs:
        return node.kwargs[name]
    schema = getattr(node.target, "_schema", None)
    for index, item in enumerate(schema.arguments if schema else ()):
        if item.name == name:
            if index < len(node.args):
                return node.args[index]
            return item.default_value if item.has_default_value() else default
    return default


def has_effect(node: fx.Node) -> bool:
    """Whether dropping the call changes more than its own result."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return "generated" in node.meta and bool(node.meta["generated"].has_effect)
    if schema.is_mutable or is_op(node, aten._assert_tensor_metadata):
        return bool(schema.is_mutable)
    if is_op(node, aten.batch_norm, aten.instance_norm):
        live = argument(node, "training") or argument(node, "use_input_stats")
        return bool(live) and argument(node, "running_mean") is not None
    return is_random(node)


def is_random(node: fx.Node) -> bool:
    """Draws from the generator: dropping or repeating it shifts every later draw."""
    if is_op(node, *DROPOUTS, *DROPPING_INSIDE):
        return drops(node)
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return argument(node, "train", argument(node, "training", True)) is not False


def drops(node: fx.Node) -> bool:
    """Whether a dropout, or one inside of the operation, drops anything: in eval mode, and with a
    probability of 0, torch draws nothing."""
    probability = argument(node, "p", argument(node, "dropout_p", argument(node, "dropout")))
    return argument(node, "train") is not False and bool(probability)


def _calls(graph: Graph) -> list[tuple[Any, ...]]:
    """Every call with nodes replaced by their names, and what is returned: equal for equal
    graphs."""
    named = (
        (n, fx.map_arg((n.args, dict(n.kwargs)), lambda arg: f"%{arg.name}"))
        for n in graph.fx.nodes
    )
    return [
        (n.name, n.target, arguments)
        for n, arguments in named
        if n.op in ("call_function", "output")
    ]


def _move_input(item: Input, at: dict[fx.Node, fx.Node]) -> Input:
    node = at[item.node] if item.node is not None else None
    return replace(item, node=node)


def _tensors(value: Any) -> list[FakeTensor]:
    if isinstance(value, FakeTensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _tensors(item)] if isinstance(value, (list, tuple)) else []
