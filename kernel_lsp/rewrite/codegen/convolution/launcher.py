"""The launcher of a generated convolution: sizes, allocation, what runs before the kernel and
after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.convolution import transposed as conv_transposed
from kernel_lsp.rewrite.codegen.convolution.facts import Conv
from kernel_lsp.rewrite.codegen.convolution.tail import Tail, reduced_dims
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name, op_name

SIZES = {1: ("width",), 2: ("height", "width"), 3: ("depth", "height", "width")}
BLOCKS = ("BLOCK_PIXELS", "BLOCK_CHANNELS", "BLOCK_K")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvolutionJob:
    """One kernel to write."""

    name: str
    conv: Conv
    tail: Tail
    names: Mapping[fx.Node, str]
    """Tensor -> its name in the launcher: input, weight, bias and the tail's operands."""
    words: Mapping[fx.Node, str]
    """Node of the tail -> what the person called its value."""
    summary: str

    @property
    def result(self) -> fx.Node:
        """The node whose value the kernel stores."""
        return self.tail.nodes[-1] if self.tail.nodes else self.conv.node


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvolutionParts:
    """What the launcher must know of its kernel."""

    x: str
    weight: str
    packed: bool
    """The filters are repacked before."""
    library: bool
    depthwise: bool
    tile_pixels: int
    """Pixels of the result that one tile yields."""
    tensors: tuple[str, ...]
    constants: tuple[str, ...]
    blocks: tuple[str, ...]


def launcher(job: ConvolutionJob, choice: Mapping[str, Any], kernel: ConvolutionParts) -> str:
    """The text of the function that allocates the result and launches the kernel."""
    conv = job.conv
    signature = list(dict.fromkeys(job.names.values()))
    lines = [
        f"def {job.name}({', '.join(signature)}):",
        *_docstring(job),
        *_contiguous_lines(job),
        *_size_lines(job, kernel),
        *_allocate(job, kernel.x, [text.strip("()") for text in _pooled(job)]),
    ]
    if kernel.packed:
        lines += _pack_lines(job, kernel.weight)
    if kernel.library:
        lines += _library_lines(conv, kernel.x, kernel.weight)
    lines += [
        "    if out.numel() > 0:  # a grid of zero programs cannot be launched",
        f"        grid = ({_grid(conv, choice, kernel)},)",
        source.wrap_items(
            f"_{job.name}_kernel[grid](", _arguments(choice, kernel), ")", indent="        "
        ),
        *_result(job, kernel.tile_pixels),
        "",
    ]
    return "\n".join(lines)


def _contiguous_lines(job: ConvolutionJob) -> list[str]:
    operands = job.tail.operands
    wide = [name for node, name in job.names.items() if operands.get(node) != "scalar"]
    wide = list(dict.fromkeys(wide))
    if len(", ".join(wide)) > 40:
        return [f"    {name} = {name}.contiguous()" for name in wide]
    return [f"    {', '.join(wide)} = {', '.join(f'{n}.contiguous()' for n in wide)}"]


def _pooled(job: ConvolutionJob) -> list[str]:
    """The result's sizes."""
    sizes, pool = SIZES[job.conv.rank], job.tail.pool
    if pool is None:
        return [f"out_{s}" for s in sizes]
    return [f"(out_{s} // {w})" for s, w in zip(sizes, pool.window, strict=True)]


def _size_lines(job: ConvolutionJob, kernel: ConvolutionParts) -> list[str]:
    conv, sizes = job.conv, SIZES[job.conv.rank]
    kernel_sizes = ", ".join(f"kernel_{s}" for s in sizes)
    plane = [f"phase_{size}" for size in sizes] if conv.transposed else _pooled(job)
    return [
        f"    batch, _, {', '.join(sizes)} = {kernel.x}.shape",
        f"    {_weight_order(conv)}, {kernel_sizes} = {kernel.weight}.shape",
        *(f"    out_{size} = {_out_size(conv, i, size)}" for i, size in enumerate(sizes)),
        *(conv_transposed.launcher_lines(conv, sizes) if conv.transposed else []),
        f"    n_pixels = {' * '.join(plane)}",
        f"    tiles = batch * ({source.blocks('n_pixels', kernel.tile_pixels)})",
    ]


def _grid(conv: Conv, choice: Mapping[str, Any], kernel: ConvolutionParts) -> str:
    """How many programs: tiles, times blocks of channels, times groups and phases."""
    groups = 1 if kernel.depthwise or kernel.library else conv.groups
    per_group = f"(out_channels // {groups})" if groups > 1 else "out_channels"
    copies = f" * {groups}" if groups > 1 else ""
    copies += f" * {conv_transposed.count(conv)}" if conv.transposed else ""
    return f"tiles * ({source.blocks(per_group, choice['BLOCK_CHANNELS'])}){copies}"


def _arguments(choice: Mapping[str, Any], kernel: ConvolutionParts) -> list[str]:
    found = [
        *kernel.tensors,
        "out",
        *(name for name in kernel.constants if name not in BLOCKS),
        *(f"{name}={choice[name]}" for name in kernel.blocks),
        f"num_warps={choice['num_warps']}",
    ]
    if not (kernel.depthwise or kernel.library):
        found.append(f"num_stages={choice['num_stages']}")
    return found


def _weight_order(conv: Conv) -> str:
    return "in_channels, out_channels" if conv.transposed else "out_channels, in_channels"


def _docstring(job: ConvolutionJob) -> list[str]:
    """What it does, and the shape of each tensor in the launcher's words."""
    sizes = SIZES[job.conv.rank]
    shapes = {
        job.conv.x: ("batch", "channels", *sizes),
        job.conv.weight: (
            _weight_order(job.conv).replace("in_channels", "channels of a group"),
            *(f"kernel_{s}" for s in sizes),
        ),
    }
    lines = [f'    """{job.summary}', ""]
    for node, name in job.names.items():
        value = node.meta["val"]
        words = shapes.get(node, tuple(str(n) for n in value.shape))
        text = f"({', '.join(words)}{',' if len(words) == 1 else ''})"
        lines.append(f"    {name}: {dtype_name(value.dtype)} {text}")
    out = job.result.meta["val"]
    shape = ", ".join(["batch", *map(str, out.shape[1:])])
    return [
        *lines,
        f"    out: {dtype_name(out.dtype)} ({shape}{',' if out.dim() == 1 else ''})",
        '    """',
    ]


def _library_lines(conv: Conv, x: str, weight: str) -> list[str]:
    """cuDNN's fastest kernels want the channels of a pixel side by side; a signal is an image of
    one row."""
    signal = conv.rank == 1
    form = "torch.channels_last_3d" if conv.rank == 3 else "torch.channels_last"
    row = ".unsqueeze(2)" if signal else ""
    options = [(1, *sizes) if signal else sizes for sizes in (conv.stride, conv.dilation)]
    padding = (0, *conv.before) if signal else conv.before
    name = f"torch.conv{max(2, conv.rank)}d"
    return [
        f"    channels_last = {form}  # cuDNN's fastest kernels want the channels of a pixel side "
        f"by side",
        f"    convolved = {name}(",
        f"        {x}{row}.contiguous(memory_format=channels_last),",
        f"        {weight}{row}.contiguous(memory_format=channels_last),",
        f"        None, {options[0]}, {padding}, {options[1]}, {conv.groups},",
        "    ).contiguous(memory_format=channels_last)",
    ]


def _out_size(conv: Conv, position: int, size: str) -> str:
    """The output's size from the input's: one pixel more than the strides that fit behind the
    filter."""
    n, stride = conv.size[position], conv.stride[position]
    if conv.transposed:
        step = conv.phases[position]
        more = conv.out[position] - n * step
        text = f"{size} * {step}" if step > 1 else size
        return f"{text} {'+' if more > 0 else '-'} {abs(more)}" if more else text
    span = conv.dilation[position] * (conv.kernel[position] - 1)
    behind = max(0, (conv.out[position] - 1) * stride + span + 1 - n - conv.before[position])
    padding = 2 * conv.before[position] if stride > 1 else conv.before[position] + behind
    shift = padding - span
    if stride == 1:
        shift = conv.out[position] - n
        return size if shift == 0 else f"{size} {'+' if shift > 0 else '-'} {abs(shift)}"
    inner = shift - 1
    text = size if inner == 0 else f"({size} {'+' if inner > 0 else '-'} {abs(inner)})"
    return f"{text} // {stride} + 1"


def _allocate(job: ConvolutionJob, x: str, pooled: list[str]) -> list[str]:
    tail = job.tail
    dtype = dtype_name(job.result.meta["val"].dtype)
    if tail.spatial is not None:
        return [
            f"    out = torch.empty((tiles, out_channels), dtype=torch.float32, device={x}.device)"
            "  # one row a tile"
        ]
    one = job.result.meta["val"].shape[1] == 1
    shape = ", ".join(["batch", "1" if one else "out_channels", *pooled])
    return [
        f"    shape = ({shape})",
        f"    out = torch.empty(shape, dtype=torch.{dtype}, device={x}.device)",
    ]


def _result(job: ConvolutionJob, tile_pixels: int) -> list[str]:
    """What the launcher returns; the tiles' partial results are combined here, in a fixed order."""
    spatial, rank = job.tail.spatial, job.conv.rank
    if spatial is None:
        return ["    return out"]
    value, kind = spatial.meta["val"], op_name(spatial)
    channels_too = len(reduced_dims(spatial, rank + 2)) == rank + 1
    dims, kept = ("(1, 2)", "1") if channels_too else ("1", "out_channels")
    how = kind if kind in ("amax", "amin") else "sum"
    lines = [
        f"    by_image = out.view(batch, {source.blocks('n_pixels', tile_pixels)}, out_channels)",
        f"    result = by_image.{how}({dims})",
    ]
    if kind not in ("sum", "amax", "amin"):
        lines[-1] += " / (n_pixels * out_channels)" if channels_too else " / n_pixels"
    cast = "" if dtype_name(value.dtype) == "float32" else f".to(torch.{dtype_name(value.dtype)})"
    view = f".view({', '.join(['batch', kept, *['1'] * rank])})" if value.dim() == rank + 2 else ""
    return [*lines, f"    return result{cast}{view}"]


def pack(job: ConvolutionJob, rounds: bool) -> str:
    """The kernel that puts the channels of one tap side by side."""
    taps, transposed = job.conv.taps, job.conv.transposed
    place = f"filter_id * (in_channels * {taps}) + channel * {taps} + tap"
    if transposed:
        place = f"channel * (out_channels * {taps}) + filter_id * {taps} + tap"
    load = f"tl.load(weight_ptr + {place}, mask=mask)"
    lines = [
        "    offs = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        "    mask = offs < n_weights  # the last block reaches past the end",
        f"    filter_id = offs // (in_channels * {taps})",
        f"    tap, channel = offs // in_channels % {taps}, offs % in_channels",
        f"    value = {f'_round_to_tf32({load})' if rounds else load}",
        "    tl.store(packed_ptr + offs, value, mask=mask)",
    ]
    header = [
        "weight_ptr",
        "packed_ptr",
        "n_weights",
        "in_channels: tl.constexpr",
        *(["out_channels: tl.constexpr"] if transposed else []),
        "BLOCK_SIZE: tl.constexpr",
    ]
    doc = "From (filter, input channel, tap) to (filter, tap, input channel)."
    if transposed:
        doc = "From (input channel, filter, tap) to (filter, tap, input channel)."
    return source.kernel_text(f"_{job.name}_pack_kernel", header, doc, lines)


def _pack_lines(job: ConvolutionJob, weight: str) -> list[str]:
    channels = "in_channels, out_channels" if job.conv.transposed else "in_channels"
    return [
        f"    packed = torch.empty_like({weight})  # weights may change between calls: packed "
        f"on each",
        f"    grid = ({source.blocks(f'{weight}.numel()', 1024)},)",
        f"    _{job.name}_pack_kernel[grid](",
        f"        {weight}, packed, {weight}.numel(), {channels}, BLOCK_SIZE=1024, num_warps=4",
        "    )",
    ]


def group(text: str) -> str:
    """The text in parentheses, unless it is one word or already stands in them."""
    whole = (
        text.startswith("(") and text.endswith(")") and "(" not in text[1:] and ")" not in text[:-1]
    )
    return f"({text})" if " " in text and not whole else text


def times(n: int) -> str:
    """A factor as text behind a product; "" for 1."""
    return f" * {n}" if n != 1 else ""
