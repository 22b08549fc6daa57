"""When the fast path may be taken: the conditions a rewritten forward checks before anything else.

Checked: device, dtype and sizes of every tensor input; plain arguments; attributes the person's forward
reads; train or eval mode where the rewrite depends on it; shapes of the weights it reasoned about;
gradients and autocast where a kernel has no backward or no autocast; contiguity before a kernel.
Not checked: stride, padding, groups of torch.nn layers, which are fixed when a layer is built.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.capture import module_path
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten

MODAL = (aten.batch_norm, aten.instance_norm, aten.dropout, aten.feature_dropout, aten.alpha_dropout,
         aten.rrelu, aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu)  # fmt: skip
TRAINING_ONLY = ("momentum", "p", "dropout")
HYPERPARAMETERS = ("eps", "momentum", "p", "negative_slope", "alpha", "beta", "threshold", "lambd", "dropout")


def conditions(graph: Graph, generic_batch: bool, replaced: list[fx.Node]) -> list[str]:
    """Python expressions, each true when the fast path is right; ``replaced`` are captured nodes that
    the new forward does not print as the person wrote them."""
    found = [*_inputs(graph, generic_batch), *_attributes(graph)]
    found += [*_modes(replaced), *_hyperparameters(graph, replaced), *_weights(graph, replaced)]
    found += list(graph.requirements)
    if any(kernel.is_triton for kernel in graph.generated):
        found += _kernels(graph)
    return list(dict.fromkeys(found))


def self_path(path: str) -> str:
    """``layers.0.weight`` as source: ``self.layers[0].weight``."""
    parts = ["self"]
    for part in path.split(".") if path else ():
        if part.isidentifier():
            parts.append(f".{part}")
        else:
            parts.append(f"[{part}]" if part.isdigit() else f"[{part!r}]")
    return "".join(parts)


def _inputs(graph: Graph, generic_batch: bool) -> list[str]:
    found, lead = [], None
    for item in graph.inputs:
        if item.node is None:
            found.append(_equals(item.source, item.value))
            continue
        shape = tuple(item.value.shape)
        device = f"{item.source}.is_cuda" if graph.device == "cuda" else f'{item.source}.device.type == "cpu"'
        found += [device, f"{item.source}.dtype == {item.value.dtype}"]
        if not generic_batch or not shape:
            found.append(f"{item.source}.shape == {_size(shape)}")
        elif lead is None:
            lead = item.source, shape[0]
            found.append(
                f"{item.source}.shape[1:] == {_size(shape[1:])}" if shape[1:] else f"{lead[0]}.ndim == 1"
            )
        elif shape[0] == lead[1]:
            sizes = ", ".join([f"{lead[0]}.shape[0]", *map(str, shape[1:])])
            found.append(f"{item.source}.shape == ({sizes}{',' if len(shape) == 1 else ''})")
        else:
            found.append(f"{item.source}.shape == {_size(shape)}")
    return found


def _size(shape: tuple[int, ...]) -> str:
    return repr(tuple(shape))


def _equals(source: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"{source} is {value}"
    return f"{source} == {value!r}"


def _attributes(graph: Graph) -> list[str]:
    found = []
    for path, value in graph.origin.reads:
        source = self_path(path)
        if path.split(".")[-1] == "training":
            found.append(source if value else f"not {source}")
        else:
            found.append(_equals(source, value))
    return found


def _modes(replaced: list[fx.Node]) -> list[str]:
    found = []
    for node in replaced:
        path = module_path(node)  # without one, the person's forward read `training` itself
        if path is not None and is_op(node, *MODAL):
            live = argument(node, "training", argument(node, "train", argument(node, "use_input_stats")))
            source = f"{self_path(path)}.training"
            found.append(source if live else f"not {source}")
    return found


def _hyperparameters(graph: Graph, replaced: list[fx.Node]) -> list[str]:
    """Floats of torch.nn layers that a rewrite has baked in (people do anneal dropout and momentum)."""
    found = []
    for node in {module_path(node): node for node in replaced}.values():
        path = module_path(node)
        layer = graph.origin.module.get_submodule(path) if path and graph.origin.module is not None else None
        found += [
            f"{self_path(path or '')}.{name} == {value!r}"
            for name in HYPERPARAMETERS
            if (getattr(layer, "training", True) or name not in TRAINING_ONLY)
            and isinstance(value := getattr(layer, name, None), float)
        ]
    return found


def _weights(graph: Graph, replaced: list[fx.Node]) -> list[str]:
    """Shapes of the weights next to what was replaced: somebody may swap in a layer of another size."""
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
            if len(shape := tuple(pristine.val(item).shape)) > 1:
                found.add(f"{self_path(pristine.state[item])}.shape == {_size(shape)}")
        if not own:
            todo += [item for item in node.all_input_nodes if item.op == "call_function"]
    return sorted(found)


def _kernels(graph: Graph) -> list[str]:
    found = []
    tensors = [item for item in graph.inputs if item.node is not None]
    if graph.device == "cuda":
        found.append('not torch.is_autocast_enabled("cuda")')
    found += [f"{item.source}.is_contiguous()" for item in tensors if item.value.is_contiguous()]
    if not all(kernel.supports_autograd for kernel in graph.generated):
        parts = [f"{item.source}.requires_grad" for item in tensors if item.value.dtype.is_floating_point]
        if graph.state:
            parts.append("any(p.requires_grad for p in self.parameters())")
        found.append(f"not (torch.is_grad_enabled() and ({' or '.join(parts)}))" if parts else "")
    return [condition for condition in found if condition]


def mentions(source: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", source) is not None
