"""Triton source of attention: one program for a tile of queries, walking over tiles of keys.

The online softmax is that of Milakov and Gimelshein (2018) in the tiling of FlashAttention (Dao et
al., 2022): running maximum and sum for each query, earlier results rescaled when the maximum
grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.attention.axes import TURNS, order_of
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames, number
from kernel_lsp.rewrite.codegen.core.ir import Operand
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name, op_name
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.regions import chain
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph

if TYPE_CHECKING:
    from kernel_lsp.rewrite.codegen.attention.match import Attention

TAKEN = (
    "q", "k", "v", "tile", "head", "batch", "heads", "queries", "keys", "start", "products",
    "weights",
    "row_max", "row_sum", "acc", "new_max", "pivot", "decay", "key_head", "n_queries", "n_keys",
    "inner",
    "columns", "here", "end", "tiles", "query", "near", "first", "q_here", "k_here", "v_here",
    "k_base",
    "v_base", "kept", "out", "present", "cols", "members", "member", "total", "shown", "outer",
)  # fmt: skip
"""Names that the templates below use themselves."""
LEADS = ("batch", "head", "member")
"""Of dimensions in front: one is a batch, a third one the members of a group of heads."""
SIZES = {"batch": "batch", "head": "heads", "member": "members"}


def emit(
    graph: Graph, item: Attention, choice: Mapping[str, Any], name: str
) -> tuple[GeneratedSource, list[fx.Node]]:
    """The kernel with its launcher, and the nodes that the launcher takes."""
    writer = _AttentionWriter(graph, item, dict(choice), name)
    texts = [writer.kernel(), writer.launcher()]
    made = source.module(name, texts, writer.doc(), chain.numbers([writer.root]))
    return made, [item.q, item.k, item.v, *writer.chain.operands]


def result_order(graph: Graph, item: Attention) -> list[int]:
    """Dimensions in the order of memory: heads inside queries when all that follows is their
    merging."""
    rank = item.out.meta["val"].dim()
    if item.as_library and rank == 4:
        return [0, 2, 1, 3]
    orders = [_merged_order(graph, reader) for reader in graph.users(item.out)]
    known = (
        bool(orders)
        and not graph.is_output(item.out)
        and all(order == orders[0] for order in orders)
    )
    return orders[0] if known and orders[0] is not None else list(range(rank))


def _merged_order(graph: Graph, reader: fx.Node) -> list[int] | None:
    """The order that a reader brings dimensions into, when nothing but merging them follows."""
    if op_name(reader) not in TURNS or graph.is_output(reader):
        return None
    follows = graph.users(reader)
    plain = bool(follows) and all(
        op_name(n) in ("reshape", "contiguous", "flatten") for n in follows
    )
    order = order_of(reader)
    return order if plain and order[-1] == len(order) - 1 else None


class _AttentionWriter:
    def __init__(self, graph: Graph, item: Attention, choice: dict[str, Any], name: str) -> None:
        from kernel_lsp.rewrite.codegen.attention.match import (
            locate_in,  # the planner's module imports this one
        )

        self.graph, self.item, self.choice, self.name = graph, item, choice, name
        self.rank = len(item.sizes)
        self.leads = LEADS[: self.rank - 2]
        self.names = UniqueNames(TAKEN)  # of operands
        self.chain = chain.PointwiseChain(
            graph=graph, inside=set(item.chain), names=self.names, locate=locate_in(item.sizes)
        )
        self.seed = self.chain.seed(item.scores, "products")
        self.triangles = {
            node: self.chain.seed(node, "hidden" if found.upper else "seen", self._truth(node))
            for node, found in item.triangles.items()
        }
        self.root = self.chain.value(item.root)
        self.operands = list(self.chain.operands.values())
        self.body: Body
        """Where the operands of the chain are loaded."""
        self.low = item.dtype != torch.float32
        self.head, self.value = item.head_sizes

    def _truth(self, node: fx.Node) -> str:
        return "bool" if node.meta["val"].dtype == torch.bool else "float32"

    def doc(self) -> str:
        """The first line of the docstring of the launcher."""
        words = chain.words(self.item.chain)
        words += ["softmax"] if self.item.softmax is not None else []
        return f"Attention ({', '.join(words)}) tile by tile: the scores never reach memory."

    # --- kernel --------------------------------------------------------------------------

    def kernel(self) -> str:
        """Source of the kernel."""
        body = Body(UniqueNames(TAKEN), self._load)
        self._start(body)
        end = "n_keys"
        if self.item.end is not None:
            reach = self.item.end - 1
            last = "(tile + 1) * BLOCK_QUERIES" + (f" + {reach}" if reach else "").replace(
                "+ -", "- "
            )
            body.add(f"end = tl.minimum(n_keys, {last})  # no query of this tile sees a later key")
            end = "end"
        self._declare(body)
        body.add(f"for start in range(0, {end}, BLOCK_KEYS):")
        inner = body.inner()
        self._tile(inner)
        body.lines += inner.lines
        if self.item.softmax is not None:
            self._divide(body)
        body.add(f"out_here = out_ptr + {self._base('out')} + query * stride_out_query")
        stored = f"present[:, None]{self._columns()}"
        body.add(f"tl.store(out_here + columns[None, :] * stride_out_inner, acc, mask={stored})")
        doc = "Each program handles BLOCK_QUERIES queries of one head."
        return source.kernel_text(f"_{self.name}_kernel", self._header(), doc, body.lines)

    def _divide(self, body: Body) -> None:
        if self.item.blind is None:
            body.add(
                "acc = acc / row_sum[:, None]  # a query that sees no key is 0 / 0, as in torch"
            )
        elif self.item.blind == "zero":
            body.add(
                "total = tl.where(row_sum == 0.0, 1.0, row_sum)  # a query that sees no key is 0"
            )
            body.add("acc = acc / total[:, None]")
        else:
            body.add("shown = row_sum > 0.0  # else no key was seen, or NaN: weights of 0 then")
            body.add("acc = tl.where(shown[:, None], acc / row_sum[:, None], 0.0)")

    def _columns(self) -> str:
        return "" if self._exact(self.value) else f" & (columns < {self.value})[None, :]"

    def _exact(self, size: int) -> bool:
        return size == max(16, next_power_of_two(size))

    def _start(self, body: Body) -> None:
        body.add("tiles = tl.cdiv(n_queries, BLOCK_QUERIES)")
        order = (
            "tiles - 1 - tl.program_id(0) % tiles"
            if self.item.end is not None
            else "tl.program_id(0) % tiles"
        )
        body.add(f"tile = {order}" + ("  # longest first" if self.item.end is not None else ""))
        steps, why = ["tiles"], "  # int64: offsets can pass 2**31"
        for word in reversed(self.leads):
            over = steps[0] if len(steps) == 1 else f"({' * '.join(steps)})"
            place = f"tl.program_id(0) // {over}"
            place = place if word == "batch" else f"({place}) % {SIZES[word]}"
            body.add(f"{word} = ({place}).to(tl.int64){why}")
            steps, why = [*steps, SIZES[word]], ""
        if self.item.group > 1:
            body.add(
                f"key_head = head // {self.item.group}  # so many heads of queries share one "
                f"of keys"
            )
        body.add("queries = tile * BLOCK_QUERIES + tl.arange(0, BLOCK_QUERIES)")
        body.add("present = queries < n_queries  # the last tile is not full")
        body.add("query = queries.to(tl.int64)[:, None]")
        body.add("inner = tl.arange(0, BLOCK_INNER)")
        body.add("columns = tl.arange(0, BLOCK_COLUMNS)")
        short = "" if self._exact(self.head) else f" & (inner < {self.head})[None, :]"
        body.add(
            f"q_here = q_ptr + {self._base('q')} + query * stride_q_query + inner[None, :] * "
            f"stride_q_inner"
        )
        body.add(f"q = tl.load(q_here, mask=present[:, None]{short}, other=0.0)")
        body.add(f"k_base = k_ptr + {self._base('k')} + inner[None, :] * stride_k_inner")
        body.add(f"v_base = v_ptr + {self._base('v')} + columns[None, :] * stride_v_inner")

    def _base(self, name: str) -> str:
        words = {word: word for word in self.leads}
        if name in "kv" and self.item.group > 1:
            words["head"] = "key_head"
        return " + ".join(f"{here} * stride_{name}_{word}" for word, here in words.items())

    def _declare(self, body: Body) -> None:
        if self.item.softmax is not None:
            body.add('row_max = tl.full([BLOCK_QUERIES], float("-inf"), tl.float32)')
            body.add("row_sum = tl.full([BLOCK_QUERIES], 0.0, tl.float32)")
        body.add("acc = tl.zeros([BLOCK_QUERIES, BLOCK_COLUMNS], tl.float32)")

    def _tile(self, body: Body) -> None:
        self.body = body
        body.add("keys = start + tl.arange(0, BLOCK_KEYS)")
        body.add("first = tl.cast(start, tl.int64)  # int64: offsets can pass 2**31")
        body.add("near = tl.arange(0, BLOCK_KEYS)[:, None]")
        short = "" if self._exact(self.head) else f" & (inner < {self.head})[None, :]"
        body.add("k_here = k_base + first * stride_k_key + near * stride_k_key")
        body.add(f"k = tl.load(k_here, mask=(keys < n_keys)[:, None]{short}, other=0.0)")
        precision = "" if self.low else f', input_precision="{self.choice["precision"]}"'
        body.add(f"products = tl.dot(q, tl.trans(k){precision})")
        body.known[self.seed] = "products"
        for node, value in self.triangles.items():
            found = self.item.triangles[node]
            distance, upper = found.distance, found.upper
            shift = f" + {distance}" if distance > 0 else f" - {-distance}" if distance else ""
            inside = f"keys[None, :] {'>=' if upper else '<'} queries[:, None]{shift}"
            truth = (
                inside
                if value.dtype == "bool"
                else f"tl.where({inside}, {number(found.value)}, 0.0)"
            )
            body.known[value] = body.define(value.hint or "hidden", truth)
        text = str(body.text(self.root))
        if self.item.softmax is not None:
            self._online(body, text)
        else:
            body.add(
                f"weights = tl.where((keys < n_keys)[None, :], {text}, 0.0)  # the last tile is "
                f"not full"
            )
        body.add("v_here = v_base + first * stride_v_key + near * stride_v_key")
        body.add(f"v = tl.load(v_here, mask=(keys < n_keys)[:, None]{self._columns()}, other=0.0)")
        body.add(f"acc += tl.dot(weights{'.to(v.dtype)' if self.low else ''}, v{precision})")

    def _online(self, body: Body, text: str) -> None:
        body.add(
            f'kept = tl.where((keys < n_keys)[None, :], {text}, float("-inf"))  # the last tile '
            f"is not full"
        )
        body.add("new_max = tl.maximum(row_max, tl.max(kept, axis=1))")
        body.add(
            "# Queries that saw only -inf: -inf - -inf would be NaN where it must weigh nothing."
        )
        body.add('pivot = tl.where(new_max == float("-inf"), 0.0, new_max)')
        body.add("weights = tl.exp(kept - pivot[:, None])")
        body.add("decay = tl.exp(row_max - pivot)  # of what was summed so far")
        body.add("row_sum = row_sum * decay + tl.sum(weights, axis=1)")
        body.add("acc = acc * decay[:, None]")
        body.add("row_max = new_max")

    def _load(self, operand: Operand) -> str:
        if not operand.axes:
            return f"tl.load({operand.name}_ptr)"
        lead, far, masks = [], [], []
        for axis in operand.axes:
            word = self._axis(axis)
            stride = f"stride_{operand.name}_{word}"
            if word == "key":
                far.append(f"keys.to(tl.int64)[None, :] * {stride}")
            else:
                lead.append(f"{word} * {stride}")
            masks += {"query": ["present[:, None]"], "key": ["(keys < n_keys)[None, :]"]}.get(
                word, []
            )
        mask = " & ".join(masks)
        if len(masks) > 1:
            mask = self.body.define("here", mask)
            self.body.lines[-1] += "  # neither tile needs to be full"
        mask = f", mask={mask}, other=0" if masks else ""
        if not lead or not far:
            return f"tl.load({operand.name}_ptr + {' + '.join([*lead, *far])}{mask})"
        here = self.body.define(f"{operand.name}_here", f"{operand.name}_ptr + {' + '.join(lead)}")
        return f"tl.load({here} + {' + '.join(far)}{mask})"

    def _axis(self, axis: int) -> str:
        return (*self.leads, "query", "key")[axis]

    # --- launching -----------------------------------------------------------------------

    def _strides(self) -> list[tuple[str, str]]:
        """Name of the kernel's parameter and the launcher's expression."""
        lead = [*self.leads]
        found = []
        for name, row in (("q", "query"), ("k", "key"), ("v", "key"), ("out", "query")):
            words = [*lead, row, "inner"]
            if name == "k" and self.item.k_transposed:
                words = [*lead, "inner", "key"]
            found += [
                (f"stride_{name}_{word}", f"{name}.stride({i})") for i, word in enumerate(words)
            ]
        for node, operand in self.chain.operands.items():
            lead_dims = self.rank - node.meta["val"].dim()
            for axis in operand.axes:
                found.append(
                    (
                        f"stride_{operand.name}_{self._axis(axis)}",
                        f"{operand.name}.stride({axis - lead_dims})",
                    )
                )
        return found

    def _header(self) -> list[str]:
        heads = [SIZES[word] for word in self.leads[1:]]
        fixed = ("BLOCK_QUERIES", "BLOCK_KEYS", "BLOCK_INNER", "BLOCK_COLUMNS")
        return [
            "q_ptr", "k_ptr", "v_ptr", *(f"{operand.name}_ptr" for operand in self.operands),
            "out_ptr",
            *(name for name, _ in self._strides()), *heads, "n_queries", "n_keys",
            *(f"{name}: tl.constexpr" for name in fixed),
        ]  # fmt: skip

    def _shapes(self) -> list[tuple[str, str, str]]:
        dtype, lead = (
            dtype_name(self.item.dtype),
            "".join(f"{SIZES[word]}, " for word in self.leads),
        )
        shared = lead if self.item.group == 1 else f"batch, heads // {self.item.group}, "
        turned = "head_size, n_keys" if self.item.k_transposed else "n_keys, head_size"
        found = [
            ("q", dtype, f"({lead}n_queries, head_size)"),
            ("k", dtype, f"({shared}{turned})"),
            ("v", dtype, f"({shared}n_keys, value_size)"),
        ]
        for operand in self.operands:
            words = ["1"] * self.rank
            for axis in operand.axes:
                words[axis] = ([*lead.split(", ")[:-1], "n_queries", "n_keys"])[axis]
            found.append(
                (operand.name, operand.dtype, f"({', '.join(words)})" if operand.axes else "")
            )
        return [*found, ("out", dtype, f"({lead}n_queries, value_size)")]

    def launcher(self) -> str:
        """Source of the launcher."""
        item, order = self.item, result_order(self.graph, self.item)
        names = ["q", "k", "v", *(operand.name for operand in self.operands)]
        leads = [SIZES[word] for word in self.leads]
        sizes = [*leads, "n_queries"]
        shape = [*sizes, "v.shape[-1]"]
        allocate = (
            f"torch.empty(({', '.join(shape[i] for i in order)}), dtype=q.dtype, device=q.device)"
        )
        swapped = order != list(range(self.rank))
        back = [order.index(i) for i in range(self.rank)]
        turned = (
            "transpose(1, 2)" if back == [0, 2, 1, 3] else f"permute({', '.join(map(str, back))})"
        )
        why = (
            "as the library lays it out"
            if item.as_library
            else "heads are merged next: then without a copy"
        )
        blocks = {
            "BLOCK_QUERIES": self.choice["BLOCK_QUERIES"], "BLOCK_KEYS": self.choice["BLOCK_KEYS"],
            "BLOCK_INNER": max(16, next_power_of_two(self.head)),
            "BLOCK_COLUMNS": max(16, next_power_of_two(self.value)),
            "num_warps": self.choice["num_warps"],
        }  # fmt: skip
        arguments = [
            *names, "out", *(text for _, text in self._strides()), *leads[1:],
            "n_queries", "n_keys", *(f"{name}={value}" for name, value in blocks.items()),
        ]  # fmt: skip
        grid = " * ".join([source.blocks("n_queries", self.choice["BLOCK_QUERIES"]), *leads])
        lines = [
            f"def {self.name}({', '.join(names)}):",
            *source.docstring(self.doc(), self._shapes()),
            f"    {', '.join(sizes)}, _ = q.shape",
            f"    n_keys = k.shape[{-1 if item.k_transposed else -2}]",
            f"    out = {allocate}",
            *([f"    out = out.{turned}  # {why}"] if swapped else []),
            f"    grid = ({grid},)",
            "    if out.numel() > 0:  # a grid of zero programs cannot be launched",
            source.wrap_items(f"_{self.name}_kernel[grid](", arguments, ")", indent="        "),
            "    return out",
            "",
        ]
        return "\n".join(lines)
