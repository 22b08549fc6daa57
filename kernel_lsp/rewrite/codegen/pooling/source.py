"""Triton source of a pool: neighbors in memory are neighbors in a program, and windows are
unrolled loops.

Each program computes consecutive outputs; what overlapping windows share comes from the
first-level cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name
from kernel_lsp.rewrite.codegen.pooling.site import PoolRegion, locator
from kernel_lsp.rewrite.codegen.regions import chain
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph

WORDS = {1: ("column",), 2: ("row", "column"), 3: ("slice", "row", "column")}
LENGTHS = {1: ("width",), 2: ("height", "width"), 3: ("depth", "height", "width")}
TAKEN = (
    "place", "plane", "spot", "base", "best", "total", "inside", "tap", "slice", "row", "column",
    "depth",
    "height", "width", "slice_ok", "row_ok", "column_ok", "slices", "rows", "columns", "channel",
    "n_channels", "n_elements", "out_depth", "out_height", "out_width", "n_places", "count", "i",
    "j", "k",
    "reach",
)  # fmt: skip
"""Names that the templates below use themselves."""


def emit(
    graph: Graph, pool: PoolRegion, choice: Mapping[str, Any], name: str
) -> tuple[GeneratedSource, list[fx.Node]]:
    """The kernel with its launcher, and the nodes that the launcher takes."""
    writer = _PoolingWriter(graph, pool, dict(choice), name)
    numbers = chain.numbers([writer.root, writer.result])
    made = source.module(name, [writer.kernel(), writer.launcher()], writer.doc(), numbers)
    return made, writer.inputs


def _between(index: str, length: str, low: bool) -> str:
    return f"({index} >= 0) & ({index} < {length})" if low else f"{index} < {length}"


class _PoolingWriter:
    def __init__(self, graph: Graph, pool: PoolRegion, choice: dict[str, Any], name: str) -> None:
        self.graph, self.pool, self.choice, self.name = graph, pool, choice, name
        self.rank = len(pool.windows)
        names = UniqueNames(TAKEN)
        sizes_in = tuple(pool.root.meta["val"].shape)
        sizes_out = tuple(pool.result.meta["val"].shape)
        self.head = chain.PointwiseChain(
            graph=graph, inside=set(pool.prologue), names=names, locate=locator(sizes_in, self.rank)
        )
        self.tail = chain.PointwiseChain(
            graph=graph,
            inside=set(pool.epilogue),
            names=names,
            locate=locator(sizes_out, self.rank),
        )
        self.root = self.head.value(pool.root)
        self.seed = self.tail.seed(pool.result, "pooled")
        self.result = self.tail.value(pool.last)
        self.operands = [*self.head.operands.values(), *self.tail.operands.values()]
        self.inputs = [*self.head.operands, *self.tail.operands]

    def doc(self) -> str:
        """The first line of the docstring of the launcher."""
        words = chain.words(self.pool.prologue)
        after = chain.words(self.pool.epilogue)
        kind = "Maximum" if self.pool.kind == "max" else "Average"
        size = " x ".join(str(window.kernel) for window in self.pool.windows)
        text = f"{kind} over windows of {size}"
        text += f" of {', '.join(words)}" if words else ""
        return text + (f", then {', '.join(after)}." if after else ".")

    # --- kernel --------------------------------------------------------------------------

    def kernel(self) -> str:
        """Source of the kernel."""
        body = Body(UniqueNames(TAKEN), lambda operand: self._load(operand, tap=False))
        self._start(body)
        body.add(f"{self._total()} = tl.full([BLOCK_SIZE], {self._identity()}, tl.float32)")
        inner = self._loops(body)
        self._tap(inner)
        body.lines += inner.lines
        pooled = self._total()
        if self.pool.kind == "avg":
            pooled = body.define("average", f"{pooled} / {self._divisor(body)}")
        body.known[self.seed] = pooled
        body.add(
            f"tl.store(out_ptr + start + tl.arange(0, BLOCK_SIZE), {body.text(self.result)}, "
            f"mask=mask)"
        )
        if any("channel" in line for line in body.lines):
            at = next(i for i, line in enumerate(body.lines) if line.strip().startswith("base ="))
            body.lines.insert(at, "    channel = plane % n_channels")
        doc = "Each program computes BLOCK_SIZE consecutive outputs."
        return source.kernel_text(f"_{self.name}_kernel", self._header(body), doc, body.lines)

    def _total(self) -> str:
        return "best" if self.pool.kind == "max" else "total"

    def _identity(self) -> str:
        return 'float("-inf")' if self.pool.kind == "max" else "0.0"

    def _start(self, body: Body) -> None:
        outs = [f"out_{name}" for name in LENGTHS[self.rank]]
        body.add(
            "start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31"
        )
        body.add(
            "mask = start + tl.arange(0, BLOCK_SIZE) < n_elements  # the last block is not full"
        )
        body.add(f"n_places = {' * '.join(outs)}")
        body.add("# Places are resolved in 32 bits: 64-bit division is many times slower.")
        body.add("place = (start % n_places).to(tl.int32) + tl.arange(0, BLOCK_SIZE)")
        body.add("plane = start // n_places + place // n_places")
        body.add("spot = place % n_places")
        words = WORDS[self.rank]
        for index, word in enumerate(words):
            below = " * ".join(outs[index + 1 :])
            text = (
                f"spot // ({below})" if " * " in below else f"spot // {below}" if below else "spot"
            )
            text = text if index == 0 else f"{text} % {outs[index]}"
            window = self.pool.windows[index]
            scaled = f"({text}) * {window.stride}" if " " in text else f"{text} * {window.stride}"
            scaled = scaled if window.stride != 1 else text
            body.add(f"{word} = {scaled}" + (f" - {window.padding}" if window.padding else ""))
        body.add(
            f"base = plane * ({' * '.join(LENGTHS[self.rank])})"
            if self.rank > 1
            else "base = plane * width"
        )

    def _loops(self, body: Body) -> Body:
        """One unrolled loop for each dimension of the window."""
        inner = body
        for index, letter in enumerate("ijk"[: self.rank]):
            inner.add(f"for {letter} in tl.static_range({self.pool.windows[index].kernel}):")
            deeper = inner.inner()
            deeper.lines = inner.lines
            inner = deeper
        inner.load = lambda operand: self._load(operand, tap=True)
        inner.lines = []
        return inner

    def _tap(self, body: Body) -> None:
        names, checks = [], ["mask"]
        for index, (word, letter) in enumerate(zip(WORDS[self.rank], "ijk", strict=False)):
            window = self.pool.windows[index]
            text = f"{word} + {letter}" + (f" * {window.dilation}" if window.dilation > 1 else "")
            if window.inside:
                names.append(f"({text})")
                continue
            body.add(f"{word}_in = {text}")
            names.append(f"{word}_in")
            length = LENGTHS[self.rank][index]
            body.add(f"{word}_ok = {_between(f'{word}_in', length, window.padding > 0)}")
            checks.append(f"{word}_ok")
        where = " & ".join(checks[1:])
        body.add(
            f"inside = mask & {where}  # not the padding"
            if where
            else "inside = mask  # all of a window"
        )
        body.add(f"tap = {self._flat(names)}")
        text = str(body.text(self.root))
        bare = self.root.operand is not None
        if self.pool.kind == "max":
            kept = (
                text
                if bare
                else body.define("kept", f"tl.where(inside, {text}, {self._identity()})")
            )
            body.add(
                f"best = tl.maximum(best, {kept}, propagate_nan=tl.PropagateNan.ALL)  # as "
                f"torch does"
            )
        else:
            kept = text if bare else body.define("kept", f"tl.where(inside, {text}, 0.0)")
            body.add(f"total += {kept}")

    def _flat(self, names: list[str]) -> str:
        lengths = LENGTHS[self.rank]
        text = names[0]
        for name, length in zip(names[1:], lengths[1:], strict=True):
            text = f"({text} * {length} + {name})"
        return (
            text[1:-1]
            if text.startswith("(") and self.rank > 1
            else text.strip("()")
            if self.rank == 1
            else text
        )

    def _divisor(self, body: Body) -> str:
        pool = self.pool
        if pool.divisor is not None:
            return f"{float(pool.divisor)}"
        if all(window.inside for window in pool.windows):
            return f"{float(pool.taps)}"
        counts = []
        for index, window in enumerate(pool.windows):
            word, length = WORDS[self.rank][index], LENGTHS[self.rank][index]
            if window.inside:
                counts.append(str(window.kernel))
            elif pool.count_include_pad:
                limit = f"{length} + {window.padding}" if window.padding else length
                counts.append(f"(tl.minimum({word} + {window.kernel}, {limit}) - {word})")
            else:
                low = f"tl.maximum({word}, 0)" if window.padding else word
                counts.append(f"(tl.minimum({word} + {window.kernel}, {length}) - {low})")
        what = "padding counts" if pool.count_include_pad else "only what is inside counts"
        count = body.define("count", f"({' * '.join(counts)}).to(tl.float32)")
        body.lines[-1] += f"  # {what}"
        return count

    def _load(self, operand: Operand, *, tap: bool) -> str:
        place, size = (
            ("tap", f"({' * '.join(LENGTHS[self.rank])})") if tap else ("spot", "n_places")
        )
        full = "base + tap" if tap else "start + tl.arange(0, BLOCK_SIZE)"
        offset = {
            (): "", (0, 1, 2): full, (1,): "channel", (2,): place,
            (1, 2): f"channel * {size} + {place}",
        }[operand.axes]  # fmt: skip
        if not offset:
            return f"tl.load({operand.name}_ptr)"
        other = f", other={self._identity()}" if tap and operand is self.root.operand else ""
        return f"tl.load({operand.name}_ptr + {offset}, mask={'inside' if tap else 'mask'}{other})"

    # --- launching -----------------------------------------------------------------------

    def _shapes(self) -> list[tuple[str, str, str]]:
        lengths = LENGTHS[self.rank]
        found = []
        for part, names in (
            (self.head, lengths),
            (self.tail, tuple(f"out_{name}" for name in lengths)),
        ):
            shapes = {
                (0, 1, 2): ("n_planes", *names), (1,): ("n_channels",),
                (2,): names, (1, 2): ("n_channels", *names),
            }  # fmt: skip
            for operand in part.operands.values():
                words = shapes.get(operand.axes, ())
                tail = "," if len(words) == 1 else ""
                found.append(
                    (operand.name, operand.dtype, f"({', '.join(words)}{tail})" if words else "")
                )
        out = f"(n_planes, {', '.join(f'out_{name}' for name in lengths)})"
        return [*found, ("out", dtype_name(self.pool.last.meta["val"].dtype), out)]

    def _header(self, body: Body) -> list[str]:
        channels = ["n_channels"] if any("n_channels" in line for line in body.lines) else []
        self.channels = channels
        lengths = LENGTHS[self.rank]
        sizes = [*lengths, *(f"out_{name}" for name in lengths)]
        return [
            *(f"{operand.name}_ptr" for operand in self.operands), "out_ptr", "n_elements",
            *channels,
            *(f"{name}: tl.constexpr" for name in sizes), "BLOCK_SIZE: tl.constexpr",
        ]  # fmt: skip

    def launcher(self) -> str:
        """Source of the launcher."""
        rank, pool = self.rank, self.pool
        lengths = LENGTHS[rank]
        shape_in = tuple(pool.root.meta["val"].shape)
        x = next(
            o.name for n, o in self.head.operands.items() if tuple(n.meta["val"].shape) == shape_in
        )
        outs = [f"out_{name}" for name in lengths]
        arguments = [
            *(operand.name for operand in self.operands), "out", "out.numel()",
            *self.channels, *lengths, *outs,
            f"BLOCK_SIZE={self.choice['BLOCK_SIZE']}", f"num_warps={self.choice['num_warps']}",
        ]  # fmt: skip
        sizes = ", ".join(lengths) + ("," if rank == 1 else "")
        fixed = ", ".join(str(window.out) for window in pool.windows)
        dtype = dtype_name(pool.last.meta["val"].dtype)
        lines = [
            f"def {self.name}({', '.join(operand.name for operand in self.operands)}):",
            *source.docstring(self.doc(), self._shapes()),
            *source.make_contiguous(self.operands),
            f"    {sizes} = {x}.shape[-{rank}:]",
            f"    {', '.join(outs)} = {fixed}",
            f"    shape = (*{x}.shape[:-{rank}], {', '.join(outs)})",
            f"    out = torch.empty(shape, dtype=torch.{dtype}, device={x}.device)",
            *([f"    n_channels = {x}.shape[-{rank + 1}]"] if self.channels else []),
            "    if out.numel() > 0:  # a grid of zero programs cannot be launched",
            f"        grid = ({source.blocks('out.numel()', self.choice['BLOCK_SIZE'])},)",
            source.wrap_items(f"_{self.name}_kernel[grid](", arguments, ")", indent="        "),
            "    return out",
            "",
        ]
        return "\n".join(lines)
