"""Triton source of a scan: programs walk lines in blocks and carry the running result along.

A line is the run of elements that one scan goes through: neighbors in memory when the scan is
along the last dimension, ``n_inner`` apart otherwise (then a program takes neighboring lines, so
that loads stay wide). Few long lines take two launches: totals of chunks, then each chunk from the
total of those before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, topological
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name, op_name
from kernel_lsp.rewrite.codegen.regions import chain
from kernel_lsp.rewrite.codegen.scan.site import Scan, locator
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph

TAKEN = (
    "lines", "steps", "present", "first", "offs", "source", "carry", "edge", "kept", "outer",
    "inner",
    "n_lines", "n_scan", "n_inner", "n_source", "chunk", "chunks", "chunk_size", "n_chunks",
    "partial",
    "earlier", "block", "total", "first_line", "filled", "behind", "blocks",
)  # fmt: skip
"""Names that the templates below use themselves."""
MAX_CHUNKS = 512


def emit(
    graph: Graph,
    scan: Scan,
    choice: Mapping[str, Any],
    name: str,
    split: bool,
    *,
    argument: str = "",
) -> tuple[GeneratedSource, list[fx.Node]]:
    """The kernels with their launcher, and the nodes that the launcher takes. ``argument``: another
    name of the tensor that is scanned."""
    writer = _ScanWriter(graph, scan, dict(choice), name, argument)
    kernels, launch = writer.split() if split else writer.whole()
    numbers = chain.numbers([writer.root, writer.result])
    made = source.module(name, [*kernels, writer.launcher(launch)], writer.doc(), numbers)
    return made, writer.inputs


def _tuple(words: Iterable[str]) -> str:
    parts = list(words)
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})" if parts else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _LineLayout:
    """How the lines of a scan lie in a tile."""

    line: str
    step: str
    axis: int

    @staticmethod
    def of(scan: Scan) -> _LineLayout:
        """Lines one below the other, scanned along axis 1, where a line lies together in memory;
        else side by side, scanned along axis 0."""
        if scan.n_inner == 1:
            return _LineLayout(line="[:, None]", step="[None, :]", axis=1)
        return _LineLayout(line="[None, :]", step="[:, None]", axis=0)


class _ScanWriter:
    def __init__(
        self, graph: Graph, scan: Scan, choice: dict[str, Any], name: str, argument: str
    ) -> None:
        self.graph, self.scan, self.choice, self.name = graph, scan, choice, name
        self.place = _LineLayout.of(scan)
        self.product = op_name(scan.seed) == "cumprod"
        self.whole_numbers = not scan.seed.meta["val"].dtype.is_floating_point
        names = UniqueNames(TAKEN)
        inside = set(scan.nodes)
        head = chain.PointwiseChain(
            graph=graph, inside=inside, names=names, locate=locator(scan, shifted=bool(scan.shift))
        )
        tail = (
            chain.PointwiseChain(
                graph=graph, inside=inside, names=names, locate=locator(scan, shifted=False)
            )
            if scan.shift
            else head
        )
        if argument:
            read = head.operand(scan.root)
            head.operands[scan.root] = replace(read, name=argument)
        self.root = head.value(scan.root)
        dtype = "int64" if self.whole_numbers else "float32"
        self.seed = tail.seed(scan.result, op_name(scan.seed), dtype)
        self.result = tail.value(scan.last)
        self.head, self.tail = head, tail
        chains = [head] if tail is head else [head, tail]
        self.operands = [operand for part in chains for operand in part.operands.values()]
        self.inputs = [node for part in chains for node in part.operands]

    # --- kernels -------------------------------------------------------------------------

    def whole(self) -> tuple[list[str], list[str]]:
        """One launch; a program owns its lines from end to end."""
        once = self.scan.dim > 0 and self.scan.sizes[self.scan.dim] <= self.choice["BLOCK_SIZE"]
        body = Body(UniqueNames(TAKEN), self._load)
        body.add(
            "first_line = tl.program_id(0).to(tl.int64) * BLOCK_LINES  # int64: offsets can "
            "pass 2**31"
        )
        body.add("lines = first_line + tl.arange(0, BLOCK_LINES)")
        body.add("present = lines < n_lines  # the last program reaches past the end")
        self._before_loop(body)
        if once:
            body.add("steps = tl.arange(0, BLOCK_SIZE)")
            self._block(body, carried=False)
        else:
            self._carry(body, f"tl.full([BLOCK_LINES], {self._identity()}, {self._type()})")
            inner = self._loop(body, "0", "n_scan")
            self._block(inner, carried=True)
            body.lines += inner.lines
        header = self._header(body, [*self._pointers(), "out_ptr", "n_lines"])
        doc = "Each program scans whole lines" + ("." if once else ", block by block.")
        text = source.kernel_text(f"_{self.name}_kernel", header, doc, body.lines)
        grid = f"({source.blocks('n_lines', self.choice['BLOCK_LINES'])},)"
        launch = [
            "    if out.numel() > 0:  # a grid of zero programs cannot be launched",
            source.wrap_items(
                f"_{self.name}_kernel[{grid}](", self._arguments(header), ")", indent="        "
            ),
        ]
        return [text], launch

    def split(self) -> tuple[list[str], list[str]]:
        """Two launches: totals of chunks, then every chunk by itself."""
        first, second = self._chunk_totals(), self._chunk_scans()
        kernels = [
            source.kernel_text(f"_{self.name}_totals_kernel", first[0], first[1], first[2]),
            source.kernel_text(f"_{self.name}_kernel", second[0], second[1], second[2]),
        ]
        block = self.choice["BLOCK_SIZE"]
        dtype = "int64" if self.whole_numbers else "float32"
        launch = [
            f"    blocks = {source.blocks('n_scan', block)}",
            f"    chunk_size = {source.blocks('blocks', MAX_CHUNKS)} * {block}  # at most "
            f"{MAX_CHUNKS}",
            "    n_chunks = (n_scan + chunk_size - 1) // chunk_size",
            f"    partial = torch.empty(n_lines * n_chunks, dtype=torch.{dtype}, "
            f"device=out.device)",
            "    grid = (n_chunks, n_lines)",
            "    if out.numel() > 0:  # a grid of zero programs cannot be launched",
            source.wrap_items(
                f"_{self.name}_totals_kernel[grid](",
                self._arguments(first[0]),
                ")",
                indent="        ",
            ),
            source.wrap_items(
                f"_{self.name}_kernel[grid](", self._arguments(second[0]), ")", indent="        "
            ),
        ]
        return kernels, launch

    def _chunk_totals(self) -> tuple[list[str], str, list[str]]:
        body = self._chunk_start()
        self._carry(body, f"tl.full([BLOCK_LINES, BLOCK_SIZE], {self._identity()}, {self._type()})")
        inner = self._loop(
            body, "chunk * chunk_size", "tl.minimum(n_scan, (chunk + 1) * chunk_size)"
        )
        kept = self._kept(inner)
        inner.add(f"carry = carry {'*' if self.product else '+'} {kept}")
        body.lines += inner.lines
        total = (
            "tl.reduce(carry, 1, _product)[:, None]"
            if self.product
            else "tl.sum(carry, axis=1)[:, None]"
        )
        body.add(f"tl.store(partial_ptr + lines[:, None] * n_chunks + chunk, {total})")
        header = self._header(
            body, [*self._pointers(self.root), "partial_ptr"], extra=["n_chunks", "chunk_size"]
        )
        return (
            header,
            f"Each program computes the {self._word()} of one chunk of a line.",
            body.lines,
        )

    def _chunk_scans(self) -> tuple[list[str], str, list[str]]:
        body = self._chunk_start()
        body.add("chunks = tl.arange(0, MAX_CHUNKS)")
        order = ">" if self.scan.reverse else "<"
        body.add(
            f"earlier = (chunks {order} chunk) & (chunks < n_chunks)  # what the scan saw before"
        )
        where = "partial_ptr + lines[:, None] * n_chunks + chunks[None, :]"
        body.add(f"partial = tl.load({where}, mask=earlier[None, :], other={self._identity()})")
        self._carry(
            body, "tl.reduce(partial, 1, _product)" if self.product else "tl.sum(partial, axis=1)"
        )
        inner = self._loop(
            body, "chunk * chunk_size", "tl.minimum(n_scan, (chunk + 1) * chunk_size)"
        )
        self._block(inner, carried=True)
        body.lines += inner.lines
        header = self._header(
            body, [*self._pointers(), "partial_ptr", "out_ptr"], extra=["n_chunks", "chunk_size"]
        )
        header.append("MAX_CHUNKS: tl.constexpr")
        return (
            header,
            f"Each program scans one chunk, from the {self._word()} of those before it.",
            body.lines,
        )

    def _chunk_start(self) -> Body:
        body = Body(UniqueNames(TAKEN), self._load)
        body.add("# int64: offsets can pass 2**31")
        body.add("lines = tl.program_id(1).to(tl.int64) + tl.arange(0, BLOCK_LINES)")
        body.add("present = lines >= 0  # one line a program: always there")
        body.add("chunk = tl.program_id(0).to(tl.int64)")
        self._before_loop(body)
        return body

    # --- parts of a kernel ---------------------------------------------------------------

    def _before_loop(self, body: Body) -> None:
        if self.scan.n_inner > 1:
            body.add("outer, inner = lines // n_inner, lines % n_inner")
            body.add("first = outer * (n_scan * n_inner) + inner")

    def _carry(self, body: Body, start: str) -> None:
        body.add(f"carry = {start}")
        edge = "0" if self.scan.reverse else "BLOCK_SIZE - 1"
        if "[BLOCK_LINES, BLOCK_SIZE]" not in start:
            body.add(f"edge = (tl.arange(0, BLOCK_SIZE) == {edge}){self.place.step}")

    def _loop(self, body: Body, start: str, end: str) -> Body:
        if self.scan.reverse:
            body.add(f"for block in range({start}, {end}, BLOCK_SIZE):")
            inner = body.inner()
            if start == "0":
                last = "(n_scan - 1) // BLOCK_SIZE * BLOCK_SIZE - block"
                inner.add(
                    f"start = {last}  # from the end: the last block, which is not full, "
                    f"comes first"
                )
            else:
                inner.add("# From the end: the last block, which is not full, comes first.")
                inner.add(f"blocks = ({end} - {start} - 1) // BLOCK_SIZE")
                inner.add(f"behind = block - {start}")
                inner.add(f"start = {start} + blocks * BLOCK_SIZE - behind")
        else:
            body.add(f"for start in range({start}, {end}, BLOCK_SIZE):")
            inner = body.inner()
        inner.add("steps = start + tl.arange(0, BLOCK_SIZE)")
        return inner

    def _kept(self, body: Body) -> str:
        """Offsets, mask, prologue; what lies past the end is the identity."""
        line, step = self.place.line, self.place.step
        scan = self.scan
        body.add(f"mask = present{line} & (steps < n_scan){step}  # the last block is not full")
        if scan.n_inner == 1:
            body.add(f"offs = lines{line} * n_scan + steps{step}")
        else:
            body.add(f"offs = first{line} + steps{step}.to(tl.int64) * n_inner")
        if scan.shift:
            body.add(f"filled = mask & (steps >= {scan.shift}){step}  # zeros come first")
            if scan.n_inner == 1:
                body.add(
                    f"source = lines{line} * (n_scan - {scan.shift}) + (steps - {scan.shift}){step}"
                )
            else:
                body.add(f"source = offs - (outer{line} + 1) * ({scan.shift} * n_inner)")
        text = str(body.text(self.root))
        if self.whole_numbers:
            text = body.define("whole", f"{text}.to(tl.int64)")
        return body.define(
            "kept", f"tl.where({'filled' if scan.shift else 'mask'}, {text}, {self._identity()})"
        )

    def _block(self, body: Body, *, carried: bool) -> None:
        kept = self._kept(body)
        reverse = ", reverse=True" if self.scan.reverse else ""
        scanned = f"tl.{op_name(self.scan.seed)}({kept}, axis={self.place.axis}{reverse})"
        if carried:
            scanned += f" {'*' if self.product else '+'} carry{self.place.line}"
        running = body.define(op_name(self.scan.seed), scanned)
        if carried:
            zero = "0" if self.whole_numbers else "0.0"
            body.add(f"carry = tl.sum(tl.where(edge, {running}, {zero}), axis={self.place.axis})")
        body.known[self.seed] = running
        body.add(f"tl.store(out_ptr + offs, {body.text(self.result)}, mask=mask)")

    def _load(self, operand: Operand) -> str:
        if not operand.axes:
            return f"tl.load({operand.name}_ptr)"
        shifted = bool(self.scan.shift) and operand in self.head.operands.values()
        mask = "filled" if shifted else "mask"
        return f"tl.load({operand.name}_ptr + {self._offset(operand, shifted)}, mask={mask})"

    def _offset(self, operand: Operand, shifted: bool) -> str:
        groups = self.scan.groups
        there = tuple(
            i for i, group in enumerate(groups) if any(self.scan.sizes[axis] != 1 for axis in group)
        )
        line, step = self.place.line, self.place.step
        if operand.axes == there:
            return "source" if shifted else "offs"
        outer = "outer" if self.scan.n_inner > 1 else "lines"
        steps = f"(steps - {self.scan.shift}){step}" if shifted else f"steps{step}"
        length = f"(n_scan - {self.scan.shift})" if shifted else "n_scan"
        return {
            (0,): f"{outer}{line}",
            (1,): steps,
            (2,): f"inner{line}",
            (0, 2): f"lines{line}",
            (0, 1): f"{outer}{line} * {length} + {steps}",
            (1, 2): f"{steps} * n_inner + inner{line}",
        }[operand.axes]

    def _identity(self) -> str:
        number = "1" if self.product else "0"
        return number if self.whole_numbers else f"{number}.0"

    def _type(self) -> str:
        return "tl.int64" if self.whole_numbers else "tl.float32"

    def _word(self) -> str:
        return "product" if self.product else "sum"

    # --- launching -----------------------------------------------------------------------

    def _pointers(self, root: Value | None = None) -> list[str]:
        roots = [root] if root is not None else [self.root, self.result]
        loads = {value.operand for value in topological(roots) if value.operand is not None}
        return [f"{operand.name}_ptr" for operand in self.operands if operand in loads]

    def _header(self, body: Body, first: list[str], extra: list[str] | None = None) -> list[str]:
        text = "\n".join(body.lines)
        sizes = ["n_scan", *(["n_inner"] if "n_inner" in text else []), *(extra or [])]
        return [*first, *sizes, "BLOCK_SIZE: tl.constexpr", "BLOCK_LINES: tl.constexpr"]

    def _arguments(self, header: list[str]) -> list[str]:
        fixed = {
            "BLOCK_SIZE": self.choice["BLOCK_SIZE"],
            "BLOCK_LINES": self.choice["BLOCK_LINES"],
            "MAX_CHUNKS": MAX_CHUNKS,
        }
        names = [item.split(":")[0].removesuffix("_ptr") for item in header]
        return [f"{n}={fixed[n]}" if n in fixed else n for n in names] + [
            f"num_warps={self.choice['num_warps']}"
        ]

    def doc(self) -> str:
        """The first line of the docstring of the launcher."""
        kind = "Cumulative product" if self.product else "Cumulative sum"
        way = " from the end" if self.scan.reverse else ""
        return f"{kind} along dimension {self.scan.dim}{way}{self.scan.beside}."

    def launcher(self, launch: list[str]) -> str:
        """Sizes come from the operand that is scanned."""
        scan, dim = self.scan, self.scan.dim
        rank = len(scan.sizes)
        part = self._full()
        shift = f" + {scan.shift}" if scan.shift else ""
        sizes = [f"    n_scan = {part}.shape[{dim}]{shift}"]
        if scan.n_inner > 1:
            sizes.append(
                f"    n_inner = {' * '.join(f'{part}.shape[{i}]' for i in range(dim + 1, rank))}"
            )
        shape = f"{part}.shape"
        if scan.shift:
            parts = [f"{part}.shape[{i}]" if i != dim else "n_scan" for i in range(rank)]
            shape = f"({', '.join(parts)}{',' if rank == 1 else ''})"
        dtype = dtype_name(scan.last.meta["val"].dtype)
        lines = [
            f"def {self.name}({', '.join(operand.name for operand in self.operands)}):",
            *source.docstring(self.doc(), self._shapes()),
            *source.make_contiguous(self.operands),
            *sizes,
            f"    out = torch.empty({shape}, dtype=torch.{dtype}, device={part}.device)",
            "    n_lines = out.numel() // n_scan",
            *launch,
            "    return out",
            "",
        ]
        return "\n".join(lines)

    def _shapes(self) -> list[tuple[str, str, str]]:
        """Dimensions before and after the scan are written as one."""
        present = [i for i, group in enumerate(self.scan.groups) if group]
        found = []
        for operand in self.operands:
            shorter = bool(self.scan.shift) and operand in self.head.operands.values()
            words = {
                0: "n_outer",
                1: f"n_scan - {self.scan.shift}" if shorter else "n_scan",
                2: "n_inner",
            }
            found.append(
                (operand.name, operand.dtype, _tuple(words[axis] for axis in operand.axes))
            )
        words = {0: "n_outer", 1: "n_scan", 2: "n_inner"}
        dtype = dtype_name(self.scan.last.meta["val"].dtype)
        return [*found, ("out", dtype, _tuple(words[axis] for axis in present))]

    def _full(self) -> str:
        """An operand that varies along every dimension, at the scan's places."""
        sizes = list(self.scan.sizes)
        sizes[self.scan.dim] -= self.scan.shift
        for node, operand in self.head.operands.items():
            if tuple(node.meta["val"].shape) == tuple(sizes):
                return operand.name
        raise AssertionError("find() made sure of it")
