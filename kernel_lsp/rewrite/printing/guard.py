"""When the fast path may be taken: the conditions a rewritten forward checks before anything else.

Checked: device, dtype and sizes of every tensor input; plain arguments, and the length of lists and
dicts; attributes the person's forward reads; functions that an object holds; which layers an
instance has; train or eval mode where the rewrite depends on it; the person's own methods,
properties and layers that the captured forward called; type, settings and hooks of the torch.nn
layers whose call was replaced; shapes and dtypes of the weights next to the change; autocast as it
was captured; gradients where a kernel or a constant has none; contiguity before a kernel. Not
checked: module globals, methods that a class is given later, hooks registered for all modules at
once."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import fx

from kernel_lsp.rewrite.capture import read_conditions
from kernel_lsp.rewrite.capture.observing import (
    module_path,
)
from kernel_lsp.rewrite.graph import DROPOUTS, FreeLength, Graph, argument, drops, is_op
from kernel_lsp.rewrite.printing import repeated

aten = torch.ops.aten

MODAL = (aten.batch_norm, aten.instance_norm, aten.dropout, aten.feature_dropout,
         aten.alpha_dropout,
         aten.rrelu, aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu)  # fmt: skip
TRAINING_ONLY = ("momentum", "p", "dropout")
STRUCTURE = (
    "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode", "output_padding",
    "ceil_mode",
    "count_include_pad", "divisor_override", "output_size", "dim", "start_dim", "end_dim",
    "approximate",
    "normalized_shape", "num_groups", "track_running_stats", "affine", "min_val", "max_val",
    "reduction",
    "ignore_index", "log_target",
)  # fmt: skip
NO_TRANSFORMS = "not torch._C._are_functorch_transforms_active()"
"""False inside of torch.func: the tensors of vmap, grad and the like have no memory that a kernel
could read. No public function says it; torch.compile knows this one."""
HYPERPARAMETERS = ("eps", "momentum", "p", "negative_slope", "alpha", "beta", "threshold", "lambd",
                   "dropout",
                   "delta", "margin", "label_smoothing")  # fmt: skip


def conditions(
    graph: Graph, generic_batch: bool, replaced: list[fx.Node], *, free_length: bool = False
) -> list[str]:
    """Python expressions, each true when the fast path is right; ``replaced`` are captured nodes
    that the new forward does not print as the person wrote them."""
    found = [*_containers(graph), *_inputs(graph, generic_batch, free_length)]
    found += [*_autocast(graph), *graph.origin.structure, *_attributes(graph)]
    found += [*_layers(graph, replaced), *_modes(replaced), *_hyperparameters(graph, replaced)]
    found += _weights(graph, replaced)
    found += list(graph.requirements)
    if graph.origin.hides_gradients:
        found += [condition for condition in [no_gradients(graph)] if condition]
    if any(kernel.is_triton for kernel in graph.generated):
        found += _kernels(graph)
    return repeated.fold(list(dict.fromkeys(found)), _size_of(graph.origin.module))


def _size_of(module: torch.nn.Module | None) -> Callable[[str], int | None]:
    """How many layers a list has, by the source that names it."""
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    parts = module.named_modules(remove_duplicate=False) if module is not None else ()
    sizes = {
        read_conditions.self_path(path): len(part)
        for path, part in parts
        if isinstance(part, lists)
    }
    return sizes.get


def _autocast(graph: Graph) -> list[str]:
    """Autocast is as it was captured: dtypes of the graph would be others."""
    enabled = f'torch.is_autocast_enabled("{graph.device}")'
    if graph.autocast is None:
        return [f"not {enabled}"]
    return [enabled, f'torch.get_autocast_dtype("{graph.device}") == torch.{graph.autocast}']


def _inputs(graph: Graph, generic_batch: bool, free_length: bool) -> list[str]:
    found, lead = [], None
    growing = graph.origin.free_length if free_length else None
    for item in graph.inputs:
        if item.node is None:
            found.append(read_conditions.equals(item.source, item.value))
            continue
        shape = tuple(item.value.shape)
        if item.may_be_absent:  # None or a number has no device to ask for
            found.append(f"isinstance({item.source}, torch.Tensor)")
        device = (
            f"{item.source}.is_cuda"
            if graph.device == "cuda"
            else f'{item.source}.device.type == "cpu"'
        )
        found += [device, f"{item.source}.dtype == {item.value.dtype}"]
        if growing is not None and item.source in growing.sizes:
            found += _growing(item.source, shape, growing, lead if generic_batch else None)
        elif not generic_batch or not shape:
            found.append(f"{item.source}.shape == {_size(shape)}")
        elif lead is None:
            lead = item.source, shape[0]
            found.append(
                f"{item.source}.shape[1:] == {_size(shape[1:])}"
                if shape[1:]
                else f"{lead[0]}.ndim == 1"
            )
        elif shape[0] == lead[1]:
            sizes = ", ".join([f"{lead[0]}.shape[0]", *map(str, shape[1:])])
            found.append(f"{item.source}.shape == ({sizes}{',' if len(shape) == 1 else ''})")
        else:
            found.append(f"{item.source}.shape == {_size(shape)}")
    return found


def _growing(
    source: str, shape: tuple[int, ...], growing: FreeLength, lead: tuple[str, int] | None
) -> list[str]:
    """The sizes of an input that follows the length of a cache. ``lead``: the input whose
    dimension 0 is free, and how long it was."""
    first = growing.sizes[growing.lead]
    length, size = f"{growing.lead}.shape[{first.dim}]", growing.sizes[source]
    sizes = list(map(str, shape))
    if lead is not None and shape[0] == lead[1]:
        sizes[0] = f"{lead[0]}.shape[0]"
    sizes[size.dim] = f"{length} + {size.more}" if size.more else length
    least = [f"{length} > 1"] if source == growing.lead else []
    return [f"{source}.shape == ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})", *least]


def _size(shape: tuple[int, ...]) -> str:
    return repr(tuple(shape))


def _containers(graph: Graph) -> list[str]:
    """Lists, tuples and dicts among the arguments keep their length: leaves are checked one by
    one."""
    sizes = {source: size for item in graph.inputs for source, size in item.containers}
    return [f"len({source}) == {size}" for source, size in sizes.items()]


def _attributes(graph: Graph) -> list[str]:
    found = []
    for path, value in graph.origin.reads:
        source = read_conditions.self_path(path)
        if path.split(".")[-1] == "training":
            found.append(source if value else f"not {source}")
        else:
            found.append(read_conditions.unchanged(source, value, read_conditions.self_path))
    return found


def _layers(graph: Graph, replaced: list[fx.Node]) -> list[str]:
    """Layers that the fast path bypasses: still of the same kind, set as they were, and without
    hooks."""
    found = []
    for path in dict.fromkeys(path for node in replaced if (path := module_path(node))):
        layer = graph.origin.module.get_submodule(path) if graph.origin.module is not None else None
        if layer is None:
            continue
        source = read_conditions.self_path(path)
        if hasattr(torch.nn, type(layer).__name__):
            found.append(f"type({source}) is torch.nn.{type(layer).__name__}")
        names = [name for name in STRUCTURE if name in vars(layer) and name not in HYPERPARAMETERS]
        if names:
            left = ", ".join(f"{source}.{name}" for name in names)
            right = ", ".join(read_conditions.literal(getattr(layer, name)) for name in names)
            found.append(f"({left}) == ({right})" if len(names) > 1 else f"{left} == {right}")
        found.append(f"not ({source}._forward_hooks or {source}._forward_pre_hooks)")
    return found


def _modes(replaced: list[fx.Node]) -> list[str]:
    found = []
    for node in replaced:
        path = module_path(node)  # without one, the person's forward read `training` itself
        if path is not None and is_op(node, *MODAL) and not _is_idle(node):
            live = argument(
                node, "training", argument(node, "train", argument(node, "use_input_stats"))
            )
            source = f"{read_conditions.self_path(path)}.training"
            found.append(source if live else f"not {source}")
    return found


def _is_idle(node: fx.Node) -> bool:
    """A dropout that does nothing in either mode: its probability is checked."""
    return is_op(node, *DROPOUTS) and argument(node, "train") is not False and not drops(node)


def _hyperparameters(graph: Graph, replaced: list[fx.Node]) -> list[str]:
    """Numbers of torch.nn layers that a rewrite has baked in (people do anneal dropout and
    momentum)."""
    found = []
    for node in {module_path(node): node for node in replaced}.values():
        path = module_path(node)
        layer = (
            graph.origin.module.get_submodule(path)
            if path and graph.origin.module is not None
            else None
        )
        found += [
            f"{read_conditions.self_path(path or '')}.{name} == {read_conditions.literal(value)}"
            for name in HYPERPARAMETERS
            if (getattr(layer, "training", True) or name not in TRAINING_ONLY)
            and isinstance(value := getattr(layer, name, None), (int, float))
        ]
    return found


def _weights(graph: Graph, replaced: list[fx.Node]) -> list[str]:
    """Shapes of the weights next to what was replaced: somebody may swap in a layer of another
    size."""
    pristine = graph.origin.pristine
    assert pristine is not None
    found, todo, seen = set[str](), list(replaced), set[fx.Node]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        own = [item for item in node.all_input_nodes if item in pristine.state]
        for item in own:
            value, source = pristine.val(item), read_conditions.self_path(pristine.state[item])
            if value.dim() > 1:
                found.add(f"{source}.shape == {_size(tuple(value.shape))}")
            if value.dim() > 1 or module_path(node) is None:
                found.add(f"{source}.dtype == {value.dtype}")
        if not own:
            todo += [item for item in node.all_input_nodes if item.op == "call_function"]
    return sorted(found)


def _kernels(graph: Graph) -> list[str]:
    tensors = [item for item in graph.inputs if item.node is not None]
    found = [f"{item.source}.is_contiguous()" for item in tensors if item.value.is_contiguous()]
    found.append(NO_TRANSFORMS)
    if graph.device == "cuda":
        # Triton launches there; tensors on another device are right, and not read by its kernels
        if tensors:
            found.append(f"{tensors[0].source}.get_device() == torch.cuda.current_device()")
        found += [
            f"{read_conditions.self_path(path)}.is_cuda"
            for path in sorted(_unregistered_tensors(graph))
        ]
    if not all(kernel.supports_autograd for kernel in graph.generated):
        found += [condition for condition in [no_gradients(graph)] if condition]
    return found


def _unregistered_tensors(graph: Graph) -> set[str]:
    """Tensors that are neither parameters nor buffers: ``module.cuda()`` leaves them on the CPU."""
    module = graph.origin.module
    if module is None:
        return set()
    known = {name for name, _ in [*module.named_parameters(remove_duplicate=False),
                                  *module.named_buffers(remove_duplicate=False)]}  # fmt: skip
    return set(graph.state.values()) - known


def no_gradients(graph: Graph) -> str | None:
    """A condition that holds while nothing that flows in records a gradient; None when nothing ever
    could."""
    tensors = [item for item in graph.inputs if item.node is not None]
    parts = [f"{item.source}.requires_grad" for item in tensors if _differentiable(item.value)]
    floats = [node for node in graph.state if _differentiable(graph.val(node))]
    if floats:
        # Named first: replicas of DataParallel have no parameters() of their own.
        parts.append(f"{read_conditions.self_path(graph.state[floats[0]])}.requires_grad")
    if len(floats) > 1:
        parts.append("any(p.requires_grad for p in self.parameters())")
    return f"not (torch.is_grad_enabled() and ({' or '.join(parts)}))" if parts else None


def flags(graph: Graph, node: fx.Node) -> list[str]:
    """``x.requires_grad`` of everything without a gradient in the workload that flows into the
    node."""
    seen, todo, found = {node}, [node], list[str]()
    sources = {item.node: item.source for item in graph.inputs}
    while todo:
        at = todo.pop()
        value = at.meta.get("val")
        if at.op == "placeholder" and isinstance(value, torch.Tensor) and _differentiable(value):
            source = (
                read_conditions.self_path(graph.state[at]) if at in graph.state else sources.get(at)
            )
            found += [f"{source}.requires_grad"] if source and not graph.trained(at) else []
        todo += [arg for arg in at.all_input_nodes if arg not in seen]
        seen.update(at.all_input_nodes)
    return sorted(found)


def _differentiable(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


def mentions(source: str, name: str) -> bool:
    """Whether the source has that name as a whole word."""
    return re.search(rf"\b{re.escape(name)}\b", source) is not None
