"""Cumulative sums and products: which nodes one kernel takes, and when that pays.

Covered: cumsum and cumprod along any dimension, also between two flips (from the end), of a tensor
shifted by leading zeros (exclusive sums written with cat or pad), with pointwise neighbors on both
sides; float32, bfloat16 and float16 accumulate in float32, whole numbers and truth values in
int64. Sums through which gradients flow come alone, with a backward (trained.py). Not covered:
cummax, cummin, logcumsumexp, a ``dtype`` argument that changes the dtype, a flip on one side only,
products in training. The source is `source.py`'s."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.devices import REFERENCE
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.regions import chain, cost
from kernel_lsp.rewrite.codegen.scan import source as scan_source
from kernel_lsp.rewrite.codegen.scan import trained
from kernel_lsp.rewrite.codegen.scan.site import WHOLE, Scan, locator
from kernel_lsp.rewrite.cost import operations as base_cost
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph, argument

SCANS = {"cumsum": "sum", "cumprod": "prod"}
FEW_LINES = REFERENCE.processors
"""Fewer lines than a GPU has multiprocessors: one program for each would leave some idle."""
EAGER_SHARE = 0.3
"""Share of copy speed that torch's scan reaches (H200, 2026-11-21: 0.28 along the last dimension
and along a middle one); with few lines it is less, in proportion; one line goes to CUB, which is
at copy speed."""
MIN_SAVING = 0.1


def matches(graph: Graph) -> list[Match]:
    """Scans with their neighbors, each with what a kernel is estimated to save."""
    found = [find(graph, node) for node in graph.nodes if op_name(node) in SCANS]
    return [_match(graph, scan) for scan in found if scan is not None]


def find(graph: Graph, seed: fx.Node) -> Scan | None:
    """None when the scan is of a kind that is not generated."""
    if not _has_own_dtype(seed):
        return None
    value, out = seed.args[0].meta["val"], seed.meta["val"]
    if not out.is_contiguous():  # the kernel's result is: strides would change
        return None
    dim = int(argument(seed, "dim")) % value.dim()
    if value.shape[dim] == 1 or math.prod(value.shape[1:]) >= 2**31:
        return None
    result, root, inner = _find_flips(graph, seed, dim)
    alone = _alone(seed, result, root, 0, dim, inner)
    if _is_trained(graph, seed):
        return alone if _is_trainable(graph, alone) else None
    found = _with_shift(graph, seed, result, root, dim, inner)
    if found is None or _is_differentiable(graph, found):
        return found
    return alone if _is_readable(alone) and _is_differentiable(graph, alone) else found


def _has_own_dtype(seed: fx.Node) -> bool:
    """A tensor with elements and dimensions goes in, and torch's natural dtype for it comes out."""
    value, out = seed.args[0].meta.get("val"), seed.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(out, torch.Tensor):
        return False
    if value.dim() == 0 or value.numel() == 0 or value.dtype not in (*FLOATS, *WHOLE):
        return False
    natural = torch.int64 if value.dtype in WHOLE else value.dtype
    return out.dtype == natural and argument(seed, "dtype") in (None, natural)


def _with_shift(
    graph: Graph, seed: fx.Node, result: fx.Node, root: fx.Node, dim: int, inner: list[fx.Node]
) -> Scan | None:
    """With its neighbors; zeros in front of it are indices where that can be."""
    shift, rest = (0, root) if inner else _find_shift(graph, seed, root, dim)
    if (
        shift
        and (found := _with_neighbors(graph, seed, result, rest, shift, dim, [root])) is not None
    ):
        return found
    return _with_neighbors(graph, seed, result, root, 0, dim, inner)


def _is_trained(graph: Graph, node: fx.Node) -> bool:
    """A gradient flows through it. None does through whole numbers and truth values."""
    floating = isinstance(v := node.meta["val"], torch.Tensor) and v.is_floating_point()
    return graph.gradients and floating and graph.carries(node)


def _is_trainable(graph: Graph, scan: Scan) -> bool:
    sums = op_name(scan.seed) == "cumsum"
    return sums and _is_readable(scan) and not graph.origin.hides_gradients


def _is_readable(scan: Scan) -> bool:
    return locator(scan, shifted=False)(scan.root) is not None


def _find_flips(graph: Graph, seed: fx.Node, dim: int) -> tuple[fx.Node, fx.Node, list[fx.Node]]:
    """flip, scan, flip along one dimension is a scan from the end."""
    first, last = seed.args[0], graph.only_user(seed)
    if (
        last is None
        or not (_flips(first, dim) and _flips(last, dim))
        or graph.only_user(first) is not seed
    ):
        return seed, first, []
    return last, first.args[0], [first]


def _flips(node: Any, dim: int) -> bool:
    if op_name(node) != "flip":
        return False
    rank = node.meta["val"].dim()
    return [int(d) % rank for d in argument(node, "dims")] == [dim]


def _find_shift(graph: Graph, seed: fx.Node, root: fx.Node, dim: int) -> tuple[int, fx.Node]:
    """Zeros in front of a tensor along the dimension, by cat or pad, and the tensor; only in
    sums."""
    if op_name(seed) != "cumsum" or graph.only_user(root) is not seed:
        return 0, root
    if op_name(root) in ("pad", "constant_pad_nd"):
        return _leading_zeros(root, dim), root.args[0]
    if op_name(root) != "cat" or int(argument(root, "dim", 0)) % root.meta["val"].dim() != dim:
        return 0, root
    zeros, *others = root.args[0]
    rest = others[0] if len(others) == 1 else root
    if (
        rest is root
        or graph.fact(zeros).const != 0.0
        or rest.meta["val"].dtype != root.meta["val"].dtype
    ):
        return 0, root
    return int(zeros.meta["val"].shape[dim]), rest


def _leading_zeros(root: fx.Node, dim: int) -> int:
    """How many zeros a pad puts in front of the dimension; 0 when it does anything else."""
    amounts, rank = [int(n) for n in argument(root, "pad")], root.meta["val"].dim()
    at = 2 * (rank - 1 - dim)  # pairs of (front, back) from the last dimension on
    plain = argument(root, "mode", "constant") in (None, "constant") and not argument(
        root, "value", 0
    )
    alone = plain and at < len(amounts) and all(not n for i, n in enumerate(amounts) if i != at)
    return max(0, amounts[at]) if alone else 0


def _with_neighbors(
    graph: Graph,
    seed: fx.Node,
    result: fx.Node,
    root: fx.Node,
    shift: int,
    dim: int,
    inner: list[fx.Node],
) -> Scan | None:
    bare = _alone(seed, result, root, shift, dim, inner)
    tail = chain.after(graph, result, locator(bare, shifted=False))
    inside = {seed, *inner, *(() if shift else tail)}
    head = chain.before(graph, root, inside, locator(bare, shifted=True))
    if root not in head and locator(bare, shifted=True)(root) is None:
        return None
    return replace(bare, prologue=tuple(head), epilogue=tuple(tail))


def _alone(
    seed: fx.Node, result: fx.Node, root: fx.Node, shift: int, dim: int, inner: list[fx.Node]
) -> Scan:
    """Without neighbors."""
    return Scan(
        seed=seed, result=result, root=root, shift=shift, sizes=tuple(seed.meta["val"].shape),
        dim=dim, reverse=result is not seed, inner=tuple(inner),
    )  # fmt: skip


# --- what it is worth --------------------------------------------------------------------


def _match(graph: Graph, scan: Scan) -> Match:
    return Match(
        nodes=scan.nodes,
        label=graph.label(*scan.nodes),
        summary=_summary(scan),
        benefit=_benefit(graph, scan),
        plain=False,
        differentiable=_is_differentiable(graph, scan),
        data={"seed": scan.seed.name, "parameters": parameters(scan)},
    )


def _summary(scan: Scan) -> str:
    way = " from the end" if scan.reverse else ""
    return f"compute the {op_name(scan.seed)}{way}{scan.beside} in one pass"


def _is_differentiable(graph: Graph, scan: Scan) -> bool:
    """It brings its backward, or no gradient flows through anything of it."""
    trained_nodes = [node for node in scan.nodes if _is_trained(graph, node)]
    return not trained_nodes or scan.seed in trained_nodes


def _benefit(graph: Graph, scan: Scan) -> float:
    rates = base_cost.rates(graph)
    eager_s = sum(cost.eager_seconds(graph, node) for node in scan.nodes)
    moved = cost.eager_seconds(graph, scan.seed) - rates.overhead_s
    eager_s += moved * (1.0 / _eager_share(scan) - 1.0)
    operands = _operands(graph, scan)
    passes = 2.0 if split(scan) else 1.0
    fused = sum(_bytes(node) for node in operands) * passes + _bytes(scan.last)
    fused_s = (
        fused / (0.85 * rates.bytes_per_s) + (2 if split(scan) else 1) * cost.TRITON_OVERHEAD_S
    )
    seconds = cost.eager_seconds
    if _is_trained(graph, scan.seed):
        seconds, fused_s = cost.trained_seconds, 2 * fused_s
        eager_s *= 2.0  # the backward scans once more, and flips twice
        eager_s += 0.0 if scan.reverse else 2 * moved
    if fused_s > eager_s * (1.0 - MIN_SAVING):
        return 0.0
    total = max(base_cost.total(graph), sum(seconds(graph, node) for node in graph.nodes), eager_s)
    return round((eager_s - fused_s) / total, 4)


def _eager_share(scan: Scan) -> float:
    if scan.lines == 1:
        return 1.0
    return EAGER_SHARE * min(1.0, scan.lines / FEW_LINES)


def _operands(graph: Graph, scan: Scan) -> list[fx.Node]:
    inside = set(scan.nodes)
    reads = [arg for node in scan.nodes for arg in node.all_input_nodes if arg not in inside]
    return list(dict.fromkeys(reads))


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel() * value.element_size())


def split(scan: Scan) -> bool:
    """Few long lines: each is shared by several programs."""
    length = scan.sizes[scan.dim]
    return scan.n_inner == 1 and scan.lines < FEW_LINES and length >= 2**15 and not scan.shift


def parameters(scan: Scan) -> dict[str, list[Any]]:
    """Choices for the kernel, the default first: numbers and lines of a block, warps."""
    length, wide = scan.sizes[scan.dim], next_power_of_two(scan.sizes[scan.dim])
    if scan.n_inner > 1:
        block = min(wide, 32)
        return {
            "BLOCK_SIZE": list(dict.fromkeys([block, min(wide, 64)])),
            "BLOCK_LINES": [32, 64],
            "num_warps": [4, 8],
        }
    if split(scan):
        return {"BLOCK_SIZE": [4096, 2048], "BLOCK_LINES": [1], "num_warps": [8, 4]}
    if length <= 1024:
        tile = max(1, min(1024 // wide, next_power_of_two(max(1, scan.lines // FEW_LINES))))
        return {
            "BLOCK_SIZE": [wide],
            "BLOCK_LINES": list(dict.fromkeys([tile, max(1, tile // 2)])),
            "num_warps": [4, 2],
        }
    blocks = list(dict.fromkeys([min(wide, size) for size in (4096, 2048, 8192)]))
    return {"BLOCK_SIZE": blocks, "BLOCK_LINES": [1], "num_warps": [8, 4, 16]}


# --- applying it -------------------------------------------------------------------------


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    scan = find(graph, graph.named(match.data["seed"]))
    assert scan is not None
    value, out = scan.seed.args[0].meta["val"], scan.seed.meta["val"]
    found = [
        Proof(claim="the dtype is torch's own", holds=True, because=f"{value.dtype} in, {out.dtype} out"),
        Proof(claim="nobody else reads what is no longer "
                    "written", holds=True, because="the graph's edges"),
        Proof(claim="no gradient is lost", holds=True, because=_why_no_gradient_is_lost(graph, scan)),
    ]  # fmt: skip
    if scan.shift:
        found.append(
            Proof(claim="what is put in front is zero", holds=True, because="its values are known")
        )
    return found


def _why_no_gradient_is_lost(graph: Graph, scan: Scan) -> str:
    if _is_trained(graph, scan.seed):
        return "the sum of the incoming gradient from the other end, behind torch.autograd.Function"
    if graph.gradients and _is_differentiable(graph, scan):
        return "none flows through it"
    return GUARDED


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Put a kernel in the place of the scan. Raises RewriteError where it is no longer there."""
    scan = find(graph, graph.named(match.data["seed"]))
    if scan is None:
        raise RewriteError(
            f"{match.label} is no longer a scan that can be generated", "apply it first"
        )
    defaults = {name: choices[0] for name, choices in parameters(scan).items()}
    known = {name: value for name, value in choice.items() if name in defaults}
    name = launching.unique_name(graph, _name(scan))
    made = {**defaults, **known}
    if _is_trained(graph, scan.seed):
        kernel, inputs = _differentiable(graph, scan, made, name)
    else:
        kernel, inputs = scan_source.emit(graph, scan, made, name, split(scan))
        free = graph.gradients and _is_differentiable(graph, scan)
        kernel = replace(kernel, supports_autograd=free)
    launching.launch(graph, kernel, inputs, [scan.last], scan.last)
    if scan.seed.meta["val"].dtype in FLOATS:
        graph.caveat("running sums are added in another order, in float32")


def _differentiable(
    graph: Graph, scan: Scan, choice: dict[str, Any], name: str
) -> tuple[GeneratedSource, list[fx.Node]]:
    """A kernel for each way."""
    back = replace(scan, reverse=not scan.reverse)
    forward, inputs = scan_source.emit(graph, scan, choice, name, split(scan), argument="x")
    backward, _ = scan_source.emit(
        graph, back, choice, f"{name}_backward", split(scan), argument="grad_out"
    )
    kernel = trained.differentiable(forward, backward, "x", scan.dim, reverse=scan.reverse)
    return kernel, inputs


def _name(scan: Scan) -> str:
    words = chain.words(scan.prologue)
    words += ["reverse"] * scan.reverse + ["exclusive"] * bool(scan.shift) + [op_name(scan.seed)]
    words += chain.words(scan.epilogue)
    return "fused_" + "_".join(dict.fromkeys(words)) if len(words) > 1 else f"blocked_{words[0]}"
