"""Sums over all but the channels of a tensor: batch statistics, and the sums of a batch norm's
backward.

Two layouts: ``(outer, channel, inner)``, where a program walks a chunk of one channel, and
``(rows, channel)``, where it walks rows of a block of neighboring channels. Each program leaves a
partial result and a second launch adds them up in a fixed order: no atomics, so results repeat.
Statistics are Welford's, lane by lane, so that a large mean cancels nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.devices import REFERENCE
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import IndexSpace, offset
from kernel_lsp.rewrite.codegen.core.ir import (
    REDUCTIONS,
    Operand,
    Region,
    Value,
    load,
    reduce,
    topological,
)
from kernel_lsp.rewrite.codegen.reduction import accumulate

PROGRAMS = 8 * REFERENCE.processors
"""Eight for each multiprocessor."""
MAX_CHUNKS = 512
ROWS, COLUMNS = 16, 64
"""A block of ``(rows, channel)``. Two sums over [8192, 16384] in bfloat16 took 0.182 ms so and
0.222 ms in blocks of 64 x 32, over [12345, 2049] in float32 0.076 and 0.156 ms (H100, 2026-11-28);
operands by channel were then read in each turn of the loop, too."""


VERSIONS = "    torch.autograd.graph.increment_version((running_mean, running_var))"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelLayout:
    """Which dimension of the region is the channel's, and how programs are cut."""

    region: Region
    channel: int

    @property
    def is_inner(self) -> bool:
        """The channel's elements lie in runs of the last dimension."""
        return self.channel == 1 and len(self.region.dims) == 3

    @property
    def size(self) -> str:
        """The name of the number of channels."""
        return self.region.dims[self.channel].name

    @property
    def chunks(self) -> int:
        """How many programs share a channel, or a block of channels: a power of two."""
        channels = self.region.dims[self.channel].size
        blocks = channels if self.is_inner else -(-channels // COLUMNS)
        return min(MAX_CHUNKS, source.next_power_of_two(-(-PROGRAMS // blocks)))

    @property
    def axis(self) -> accumulate.ReductionAxis:
        """How one block of a channel is reduced."""
        if self.is_inner:
            return accumulate.VECTOR
        return accumulate.ReductionAxis(shape="[BLOCK_ROWS, BLOCK_SIZE]", index=0)

    def where(self, operand: Operand) -> str:
        """Where in its memory the operand's element lies; empty for a single element."""
        names = ("outer", "channel", "inner") if self.is_inner else ("rows", "channel")
        spaces = [IndexSpace(variable=name, axes=(axis,)) for axis, name in enumerate(names)]
        return offset(operand, self.region.dims, spaces)

    def load(self, operand: Operand) -> str:
        """The text that loads a block of the operand, masked where a block can reach over the
        end."""
        where = self.where(operand)
        if operand.axes == (self.channel,):
            mask = "" if self.is_inner else f", mask=channel < {self.size}"
        else:
            mask = ", mask=mask" if operand.axes else ""
        return f"tl.load({operand.name}_ptr{f' + {where}' if where else ''}{mask})"

    def header(self, operands: Sequence[Operand], results: Sequence[str]) -> list[str]:
        """The kernel's parameters: pointers, the batch size, fixed sizes, blocks."""
        dims = [dim.name for dim in self.region.dims]
        runtime = [dims[0]]  # the batch: another one must not compile anew
        fixed = [f"{name}: tl.constexpr" for name in dims[1:]]
        blocks = ["BLOCK_SIZE: tl.constexpr"] if self.is_inner else [
            "BLOCK_ROWS: tl.constexpr", "BLOCK_SIZE: tl.constexpr",
        ]  # fmt: skip
        pointers = [f"{operand.name}_ptr" for operand in operands] + [
            f"{name}_ptr" for name in results
        ]
        return [*pointers, *runtime, *fixed, *blocks]

    def prologue(self, body: Body, values: Sequence[Value] = ()) -> None:
        """Add the lines that say which chunk and which channels a program has, and those that
        compute what of ``values`` is the same in every turn of its loop."""
        body.add("chunk, n_chunks = tl.program_id(1), tl.num_programs(1)")
        if self.is_inner:
            body.add("channel = tl.program_id(0)")
        else:
            body.add("channel = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]")
        body.need(*self.by_channel(values))

    def by_channel(self, values: Sequence[Value]) -> list[Value]:
        """Those of them, and of what they are made of, that depend on operands by channel alone,
        and on one of them."""
        found: dict[Value, bool] = {}  # and whether it depends on one
        for value in topological(values):
            parts = [found.get(arg) for arg in value.values]
            if value.operand is not None:
                if value.operand.axes == (self.channel,):
                    found[value] = True
            elif None not in parts and value.op not in REDUCTIONS:
                found[value] = any(parts)
        return [value for value, depends in found.items() if depends]

    def loop(self, body: Body, *, whole: bool = False) -> Body:
        """The loop over a chunk, or over the ``whole`` of a channel, with indices and mask."""
        outer, inner = self.region.dims[0].name, self.region.dims[-1].name
        if self.is_inner:
            begin, step = ("0", "BLOCK_SIZE") if whole else (
                "chunk * BLOCK_SIZE", "n_chunks * BLOCK_SIZE",
            )  # fmt: skip
            body.add(f"for start in range({begin}, {outer} * {inner}, {step}):")
            block = body.inner()
            block.add("offs = start + tl.arange(0, BLOCK_SIZE)")
            block.add(f"mask = offs < {outer} * {inner}  # the last block is not full")
            block.add(f"outer = (offs // {inner}).to(tl.int64)  # int64: offsets can pass 2**31")
            block.add(f"inner = offs % {inner}")
            return block
        body.add(f"for start in range(chunk * BLOCK_ROWS, {outer}, n_chunks * BLOCK_ROWS):")
        block = body.inner()
        block.add(
            "rows = start + tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64)  # offsets can "
            "pass 2**31"
        )
        block.add(
            f"mask = (rows < {outer}) & (channel < {self.size})  # the last rows and channels"
        )
        return block

    def store(self, body: Body, name: str, index: int, text: str) -> None:
        """Partial results are [count, channels, chunks]."""
        where = (
            f"({index} * {self.size} + {'channel' if self.is_inner else 'own'}) * n_chunks + chunk"
        )
        mask = "" if self.is_inner else f", mask=own < {self.size}"
        body.add(f"tl.store({name}_ptr + {where}, {text}{mask})")

    def launch(self, kernel: str, arguments: Sequence[str], indent: str = "    ") -> list[str]:
        """The launcher's lines that launch the kernel on these arguments."""
        dims = [dim.name for dim in self.region.dims]
        if self.is_inner:
            grid, blocks = f"({self.size}, n_chunks)", ["BLOCK_SIZE=1024", "num_warps=4"]
        else:
            grid = f"({source.blocks(self.size, COLUMNS)}, n_chunks)"
            blocks = [f"BLOCK_ROWS={ROWS}", f"BLOCK_SIZE={COLUMNS}", "num_warps=4"]
        return [
            source.wrap_items(
                f"{kernel}[{grid}](", [*arguments, *dims, *blocks], ")", indent=indent
            )
        ]

    @property
    def count_chunks(self) -> str:
        """The launcher's line that decides how many programs share a channel."""
        dims = [dim.name for dim in self.region.dims]
        size, block = (f"{dims[0]} * {dims[-1]}", 1024) if self.is_inner else (dims[0], ROWS)
        whole = source.blocks(size, block)
        return f"n_chunks = max(1, min({self.chunks}, {whole}))"

    @property
    def length(self) -> str:
        """Elements of a channel."""
        dims = [dim.name for dim in self.region.dims]
        return f"{dims[0]} * {dims[-1]}" if self.is_inner else dims[0]


def _body(layout: ChannelLayout) -> Body:
    taken = ["chunk", "n_chunks", "channel", "outer", "inner", "own", "partial", "step"]
    return Body(UniqueNames([*(dim.name for dim in layout.region.dims), *taken]), layout.load)


def _own(layout: ChannelLayout, body: Body) -> None:
    if not layout.is_inner:
        body.add("own = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)")


def sums(
    layout: ChannelLayout, name: str, values: Sequence[Value], operands: Sequence[Operand]
) -> str:
    """Kernel and launcher: sums of full values by channel, as one tensor [number of values,
    channels]."""
    body = _body(layout)
    layout.prologue(body, values)
    reductions = [reduce("sum", value, hint=value.hint) for value in values]
    lanes = [accumulate.declare(body, value, layout.axis) for value in reductions]
    block = layout.loop(body)
    for value, lane in zip(reductions, lanes, strict=True):
        accumulate.update(block, value, lane)
    body.lines += block.lines
    _own(layout, body)
    for index, (value, lane) in enumerate(zip(reductions, lanes, strict=True)):
        (text,) = accumulate.finish(body, value, lane, layout.axis)
        layout.store(body, "partial", index, text)
    header = layout.header(operands, ["partial"])
    doc = (
        "Each program adds up a chunk of a channel."
        if layout.is_inner
        else "Each adds up some rows."
    )
    kernel = source.kernel_text(f"_{name}_kernel", header, doc, body.lines)
    first = operands[0].name
    launcher = [
        f"def {name}({', '.join(o.name for o in operands)}):",
        f'    """Sums over all but the channels, float32 ({len(values)}, {layout.size})."""',
        *source.make_contiguous(operands),
        *source.size_lines(layout.region, [dim.name for dim in layout.region.dims]),
        f"    {layout.count_chunks}",
        f"    partial = torch.empty(({len(values)}, {layout.size}, n_chunks), "
        f"dtype=torch.float32, device={first}.device)",
        *layout.launch(f"_{name}_kernel", [*(o.name for o in operands), "partial"]),
        "    return partial.sum(-1)",
        "",
    ]
    return "\n\n".join([kernel, "\n".join(launcher)])


def statistics(
    layout: ChannelLayout, name: str, x: Operand, eps: float, momentum: float | None
) -> str:
    """Kernels and launcher: mean and 1 / sqrt(var + eps) by channel, running statistics brought up
    to date.

    ``momentum`` is None where there are no running statistics.
    """
    body = _body(layout)
    layout.prologue(body)
    moments = reduce("moments", load(x))
    lanes = accumulate.declare(body, moments, layout.axis)
    body.add("step = 0.0")
    block = layout.loop(body)
    block.add("step += 1.0")
    accumulate.update(block, moments, lanes, step="step")
    body.lines += block.lines
    _own(layout, body)
    count, mean, m2 = lanes
    body.add(f"count = {layout.axis.call('sum', count)}")
    weight = "tl.maximum(count, 1.0)"  # a chunk of padding only
    body.add(f"mean = {layout.axis.call('sum', f'{mean} * {count}')} / {weight}")
    keep = "mean" if layout.is_inner else "mean[None, :]"
    body.add(
        f"m2 = {layout.axis.call('sum', f'{m2} + {count} * ({mean} - {keep}) * ({mean} - {keep})')}"
    )
    for index, text in enumerate(("count", "mean", "m2")):
        layout.store(body, "partial", index, text)
    doc = "Count, mean and squared deviations of a chunk (Welford, lane by lane)."
    first = source.kernel_text(
        f"_{name}_partial_kernel", layout.header([x], ["partial"]), doc, body.lines
    )
    return "\n\n".join(
        [first, _merge_kernel(name, eps, momentum), _statistics_launcher(layout, name, x, momentum)]
    )


def _merge_kernel(name: str, eps: float, momentum: float | None) -> str:
    running = ["running_mean_ptr", "running_var_ptr"] if momentum is not None else []
    header = ["partial_ptr", "mean_ptr", "rstd_ptr", *running, "n_channels", "n_chunks",
              "n_elements",
              "MAX_CHUNKS: tl.constexpr"]  # fmt: skip
    lines = [
        "    channel = tl.program_id(0)",
        "    chunks = tl.arange(0, MAX_CHUNKS)",
        "    mask = chunks < n_chunks  # MAX_CHUNKS is a power of two",
        "    where, stride = partial_ptr + channel * n_chunks + chunks, n_channels * n_chunks",
        "    count = tl.load(where, mask=mask, other=0.0)",
        "    means = tl.load(where + stride, mask=mask, other=0.0)",
        "    m2s = tl.load(where + 2 * stride, mask=mask, other=0.0)",
        "    mean = tl.sum(means * count, axis=0) / n_elements",
        "    m2 = tl.sum(m2s + count * (means - mean) * (means - mean), axis=0)",
        "    tl.store(mean_ptr + channel, mean)",
        f"    tl.store(rstd_ptr + channel, 1.0 / tl.sqrt(m2 / n_elements + {eps!r}))",
    ]
    if momentum is not None:
        lines += running_lines("mean", "n_elements", momentum)
    doc = "Each program merges the chunks of one channel."
    return source.kernel_text(f"_{name}_kernel", header, doc, lines)


def running_lines(mean: str, count: str, momentum: float) -> list[str]:
    """The kernel's lines that bring the running statistics of ``channel`` up to date, from ``mean``,
    ``m2`` and the ``count`` of elements."""
    return [
        "    running_mean = tl.load(running_mean_ptr + channel).to(tl.float32)",
        "    running_var = tl.load(running_var_ptr + channel).to(tl.float32)",
        f"    new_mean = {momentum!r} * {mean} + {1.0 - momentum!r} * running_mean",
        f"    unbiased = m2 / ({count} - 1)",
        f"    new_var = {momentum!r} * unbiased + {1.0 - momentum!r} * running_var",
        "    tl.store(running_mean_ptr + channel, new_mean)",
        "    tl.store(running_var_ptr + channel, new_var)",
    ]


def too_few_lines(layout: ChannelLayout, x: str) -> list[str]:
    """The launcher's lines that count the elements of a channel and refuse as eager does."""
    return [
        f"    n_elements = {layout.length}",
        "    if n_elements < 2:",
        "        raise ValueError(",
        '            f"Expected more than 1 value per channel when training, "',
        f'            f"got input size {{{x}.shape}}"',
        "        )",
    ]


def _statistics_launcher(
    layout: ChannelLayout, name: str, x: Operand, momentum: float | None
) -> str:
    running = ["running_mean", "running_var"] if momentum is not None else []
    bumped = [VERSIONS] if running else []
    arguments = ["partial", "mean", "rstd", *running, layout.size, "n_chunks", "n_elements"]
    return "\n".join(
        [
            f"def {name}({', '.join([x.name, *running])}):",
            f'    """Mean and 1 / sqrt(var + eps) by channel, float32 ({layout.size},)."""',
            f"    {x.name} = {x.name}.contiguous()",
            *source.size_lines(layout.region, [dim.name for dim in layout.region.dims]),
            *too_few_lines(layout, x.name),
            f"    {layout.count_chunks}",
            f"    mean = torch.empty({layout.size}, dtype=torch.float32, device={x.name}.device)",
            "    rstd, partial = torch.empty_like(mean), mean.new_empty((3, *mean.shape, "
            "n_chunks))",
            *layout.launch(f"_{name}_partial_kernel", [x.name, "partial"]),
            source.wrap_items(
                f"_{name}_kernel[({layout.size},)](",
                [*arguments, f"MAX_CHUNKS={layout.chunks}", "num_warps=1"],
                ")",
                indent="    ",
            ),
            *bumped,
            "    return mean, rstd",
            "",
        ]
    )
