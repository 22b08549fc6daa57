"""A whole target replayed from a CUDA graph: the source of the wrapper, what it needs, and when it
pays.

`SOURCE` records one call with private copies of its inputs, replays it for later calls of the same
kind, and returns copies; it looks at every layer's settings, hooks and weights' places before each
replay. Used by the skills cuda-graph and compile-target. Not covered: function targets, inputs in
containers, results that are views."""

from __future__ import annotations

import torch
from torch import fx

from kernel_lsp.records import Proof
from kernel_lsp.rewrite import call_time
from kernel_lsp.rewrite.capture.aliasing import root_of
from kernel_lsp.rewrite.generated import Wrapper, proof
from kernel_lsp.rewrite.graph import Graph, argument, has_effect, is_op, is_random
from kernel_lsp.rewrite.printing import guard

aten = torch.ops.aten
TRANSFERS = (aten.pin_memory, aten.copy, aten._copy_from)
MIN_GAIN = 0.05
EFFECTS = (
    "at most buffers of norms, and the device's random stream, which a replay advances as calls do"
)

SOURCE = '''
_recordings = weakref.WeakKeyDictionary()  # module -> kinds of calls, forgotten with the module
MAX_KINDS = 4  # of one module: each keeps the memory of one whole call


class _Kind:
    """Calls with inputs of the same shapes: what was fixed at the last one, and recordings not in use."""

    def __init__(self, fixed):
        self.fixed, self.idle = fixed, None


class _Recording:
    """One call of ``steps`` as a CUDA graph, with the memory that it reads and writes."""

    def __init__(self, steps, arguments):
        self.arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        self.graph = torch.cuda.CUDAGraph()
        # Nothing runs here: running statistics and random numbers move when the graph is replayed. What
        # libraries set up in a first call is there, because the same call has run before.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.result = steps(*self.arguments)

    def replay(self, arguments):
        for kept, new in zip(self.arguments, arguments, strict=True):
            if isinstance(kept, torch.Tensor):
                kept.copy_(new)
        self.graph.replay()
        return {copied}  # the next replay writes over it


def _recorded(steps, arguments):
    """A recording; None for steps that cannot be recorded, and inputs that a copy lays out differently."""
    try:
        with torch.cuda.device(arguments[{first}].device), torch.inference_mode(False), torch.no_grad():
            made = _Recording(steps, arguments)
    except RuntimeError:  # they wait for the device, or there is no memory left: the usual path can say
        random = torch.cuda.default_generators[arguments[{first}].device.index]
        random.graphsafe_set_state(random.clone_state())  # else it waits for the broken recording's end
        return None
    pairs = [(a, b) for a, b in zip(made.arguments, arguments, strict=True) if isinstance(a, torch.Tensor)]
    return made if all(a.stride() == b.stride() for a, b in pairs) else None


def _fixed(module):
    """What a replay does not look at again: settings of every layer, and where its weights lie. None when
    somebody listens to a layer, or a weight is of a kind whose place is unknown."""
    settings, places, layers = [], [], [module]
    for layer in layers:  # grows on the way
        own = vars(layer)
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            return None
        settings += own.values()
        layers += [child for child in own["_modules"].values() if child is not None]
        for tensor in (*own["_parameters"].values(), *own["_buffers"].values()):
            if tensor is not None:
                if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cuda:
                    return None
                places.append((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype))
    return settings, places


def _same(fixed, before):
    """The same objects as settings and weights in the same places; what the weights are may change."""
    (settings, places), (old_settings, old_places) = fixed, before
    return (
        places == old_places
        and len(settings) == len(old_settings)
        and all(map(operator.is_, settings, old_settings))
    )


def _precision():
    """Switches that choose kernels, in whichever of torch's two sets is in use."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision


def _taken(known, steps, arguments):
    """A recording for one thread alone; None while others use it, and where there is none."""
    if known.idle is None:
        known.idle = []
        return _recorded(steps, arguments)
    try:
        return known.idle.pop()
    except IndexError:
        return None


def _replayed(module, steps, *arguments):
    """``steps(*arguments)`` with one launch for all kernels, from the second call of a kind on.

    A CUDA graph repeats its kernels at fixed addresses: inputs are copied in, the result is copied out, and
    weights are read where they lie, so training steps and load_state_dict are seen. When a weight was moved
    or a setting changed, the steps run as usual, and are recorded again once two calls agree.
    """
    fixed = None if torch.cuda.is_current_stream_capturing() else _fixed(module)
    if fixed is None:
        return steps(*arguments)
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    kind = tuple((a.shape, a.stride(), a.dtype, a.device) for a in tensors)
    key = (kind, torch.cuda.current_stream(tensors[0].device), _precision())
    kinds = _recordings.setdefault(module, {})
    known = kinds.get(key)
    if known is None or not _same(fixed, known.fixed):
        if known is not None or len(kinds) < MAX_KINDS:
            kinds[key] = _Kind(fixed)
        return steps(*arguments)
    recording = _taken(known, steps, arguments)
    if recording is None:
        return steps(*arguments)
    result = recording.replay(arguments)
    known.idle.append(recording)
    return result
'''
COPIED = '''
def _copied(value):
    """The same structure with tensors of its own."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return type(value)(map(_copied, value)) if isinstance(value, (list, tuple)) else value


'''


def fits(graph: Graph) -> bool:
    """A target of the kind that can be replayed at all."""
    tensors = [item for item in graph.inputs if item.node is not None]
    return (
        graph.device == "cuda"
        and not graph.gradients
        and graph.origin.module is not None
        and not graph.origin.opaque  # a replay runs no hooks
        and not graph.leaves_state  # it reads and writes at the addresses of the recorded call
        and bool(tensors)
    )


def benefit(graph: Graph) -> float:
    """Share of the target's time that a replay saves, by the estimate; 0 below MIN_GAIN."""
    before, after = call_time.seconds(graph), call_time.replay_seconds(graph)
    return 1.0 - after / before if after < (1.0 - MIN_GAIN) * before else 0.0


def proofs(graph: Graph) -> list[Proof]:
    """Everything that must hold where a CUDA graph stands for the target's calls, each shown or
    refuted."""
    changing = [
        n.name for n in graph.nodes if has_effect(n) and not (_is_counted(graph, n) or is_random(n))
    ]
    waiting = [n.name for n in graph.nodes if _waits(n)] + [n.name for n in graph.constants]
    strange = [
        item.source for item in graph.inputs if item.containers or item.source != item.parameter
    ]
    loose = sorted(set(graph.state.values()) - _registered_names(graph))
    odd = _odd_results(graph)
    kept = [kernel.name for kernel in graph.generated if "_version" in kernel.definitions]
    return [
        proof("a replay has the effects of a call", not changing, _list_names(changing, EFFECTS)),
        proof(
            "the host is not waited for",
            not waiting,
            _list_names(waiting, "no transfers, no sizes from data"),
        ),
        proof(
            "inputs can be copied in", not strange, _list_names(strange, "tensors and plain values")
        ),
        proof(
            "weights can be found again",
            not loose,
            _list_names(loose, "parameters and buffers only"),
        ),
        proof(
            "nothing is kept from call to call",
            not kept,
            _list_names(kept, "no values kept by version"),
        ),
        proof("results can be copied out", not odd, _list_names(odd, "dense, memory of their own")),
    ]


def wrap(
    graph: Graph, name: str, note: str, imports: tuple[str, ...] = (), definitions: str = ""
) -> None:
    """Put the replay around the target; ``definitions`` may add a wrapper ``name`` that uses it."""
    single = len(graph.outputs) == 1 and isinstance(graph.output_spec.unflatten([0]), int)
    copied = "self.result.clone()" if single else "_copied(self.result)"
    first = next(i for i, item in enumerate(graph.inputs) if item.node is not None)
    source = SOURCE.replace("{copied}", copied).replace("{first}", str(first))
    text = ("" if single else COPIED) + source + definitions
    needed = ("import operator", "import weakref", *imports, "import torch")
    graph.wrap(Wrapper(name=name, imports=needed, definitions=text, note=note))
    if condition := guard.no_gradients(graph):
        graph.require(condition, "a replay leaves nothing for a backward pass")
    graph.require(
        "not torch.compiler.is_compiling()", "a tracer must see the operations themselves"
    )
    graph.caveat("a recorded call keeps its memory, for at most four kinds of calls of a module")


# --- what is sound -----------------------------------------------------------------------


def _is_counted(graph: Graph, node: fx.Node) -> bool:
    """Updates buffers of the module in place, on the device: running statistics and their
    counter."""
    touched = [argument(node, name) for name in ("running_mean", "running_var")]
    if not is_op(node, aten.batch_norm, aten.instance_norm):
        touched = [node.args[0]]
    known = all(item in graph.state for item in touched if isinstance(item, fx.Node))
    return known and is_op(node, aten.batch_norm, aten.instance_norm, aten.add_)


def _waits(node: fx.Node) -> bool:
    """The call needs the host between its kernels, or memory of the host."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        return True
    moves = is_op(node, aten.to, aten._to_copy) and argument(node, "device") is not None
    return moves or is_op(node, *TRANSFERS)


def _registered_names(graph: Graph) -> set[str]:
    module = graph.origin.module
    assert module is not None
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name for name, _ in named}


def _odd_results(graph: Graph) -> list[str]:
    """Results that are views of an input or of each other, or that a copy would lay out
    differently; objects."""
    found, roots = [named for _, named in graph.origin.classes], []
    for leaf in graph.outputs:
        if not isinstance(leaf, fx.Node):
            continue
        root = root_of(leaf)
        assert root is not None
        if root.op == "placeholder" or root in roots or not _is_dense(graph.val(leaf)):
            found.append(leaf.name)
        roots.append(root)
    return found


def _is_dense(value: torch.Tensor) -> bool:
    """Every element of a block of memory once, in any order of dimensions: then a clone keeps the
    strides."""
    step = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _list_names(names: list[str], otherwise: str) -> str:
    return ", ".join(names[:4]) or otherwise
