"""Triton source of rotary embeddings: tiles of rows, both halves of each row at once.

Every tensor is walked by its strides, with three dimensions before the last one; fewer are filled
up in front. Nothing but the operands is kept for the backward."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.codegen.backward.kernels import AGAIN
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.generated import GeneratedSource

AXES = ("n_batch", "n_heads", "n_rows", "n_cols")
RANK = len(AXES)
SUMMARY = "Rotate the halves of the last dimension in one pass."
OPERANDS = ("x", "cos", "sin")
ROTATED = {
    "out": ("x_left * cos_left - x_right * sin_left", "x_right * cos_right + x_left * sin_right")
}
"""What is written into the first and into the second half."""
GRADIENTS = {
    "x": (
        "grad_left * cos_left + grad_right * sin_right",
        "grad_right * cos_right - grad_left * sin_left",
    ),
    "cos": ("grad_left * x_left", "grad_right * x_right"),
    "sin": ("-grad_left * x_right", "grad_right * x_left"),
}
NEEDS = {"x": ("cos", "sin"), "cos": ("x",), "sin": ("x",)}
"""The operands that each gradient is computed from, beside the incoming one."""
START = """\
    n_blocks = tl.cdiv(n_rows, BLOCK_ROWS)
    outer, block = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    batch, head = (outer // n_heads).to(tl.int64), (outer % n_heads).to(tl.int64)
    rows = block.to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    cols = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (rows < n_rows) & (cols < n_half)  # the last rows, and a power of two of columns"""
FUNCTION = '''\
def {name}_eager(x, cos, sin):
    """The same in PyTorch, for gradients of gradients."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


{again}

class _{title}(torch.autograd.Function):
    """{summary} Its gradient is rotated back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(x, cos, sin)
        return {name}_forward(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, {name}_eager, grad)
        x, cos, sin = ctx.saved_tensors
        {made} = {name}_backward(grad, x, cos, sin)
        return {results}


def {name}(x, cos, sin):
    return _{title}.apply(x, cos, sin)
'''


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryJob:
    """What is written, for x of so many dimensions."""

    name: str
    dtype: str
    shapes: Mapping[str, tuple[str, ...]]
    """Of each operand, in the launcher's words; x has all of its dimensions."""
    half: int
    choice: Mapping[str, Any]
    narrow: Collection[str]
    """Operands that are broadcast."""
    gets: Sequence[str]
    """Operands that get a gradient; none: the forward pass alone."""

    @property
    def rank(self) -> int:
        """Dimensions of x."""
        return len(self.shapes["x"])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """One kernel and its launcher."""

    name: str
    doc: str
    given: Sequence[str]
    reads: Sequence[str]
    """Of what is given; the first is of x's shape."""
    writes: Mapping[str, tuple[str, str]]
    like: Mapping[str, str]

    @property
    def tensors(self) -> list[str]:
        """Names of all tensors of the pass, those that are read first."""
        return [*self.reads, *self.writes]


def emit(job: RotaryJob) -> GeneratedSource:
    """Source of the kernels of a job with their launcher."""
    name, gets = job.name, job.gets
    forward = _Pass(
        name=f"{name}_forward" if gets else name,
        doc=SUMMARY,
        given=OPERANDS,
        reads=OPERANDS,
        writes=ROTATED,
        like={"out": "x"},
    )
    parts = _texts(job, forward)
    if gets:
        backward = _Pass(
            name=f"{name}_backward",
            doc=f"Gradients of {name}.",
            given=("grad", *OPERANDS),
            reads=("grad", *(n for n in OPERANDS if any(n in NEEDS[get] for get in gets))),
            writes={f"grad_{get}": GRADIENTS[get] for get in gets},
            like={f"grad_{get}": get for get in gets},
        )
        parts += [*_texts(job, backward), _function(name, gets)]
    return source.module(name, parts, SUMMARY, ())


def _function(name: str, gets: Sequence[str]) -> str:
    results = ", ".join(f"grad_{item}" if item in gets else "None" for item in OPERANDS)
    return FUNCTION.format(
        name=name,
        title=source.title(name),
        summary=SUMMARY,
        again=AGAIN,
        made=", ".join(f"grad_{get}" for get in gets),
        results=results,
    )


def _texts(job: RotaryJob, one: _Pass) -> list[str]:
    return [_kernel(one), _launcher(job, one)]


def _shapes(job: RotaryJob, one: _Pass) -> list[tuple[str, str, str]]:
    """For the docstring; a gradient is as large as its operand."""
    words = {
        item: job.shapes.get(one.like.get(item, item), job.shapes["x"]) for item in one.tensors
    }
    return [(item, job.dtype, f"({', '.join(axes)})") for item, axes in words.items()]


def _kernel(one: _Pass) -> str:
    steps = [f"{item}_{axis}" for item in one.tensors for axis in ("batch", "head", "row", "col")]
    header = [
        *(f"{item}_ptr" for item in one.tensors), *steps, "n_heads", "n_rows",
        "n_half: tl.constexpr", "BLOCK_ROWS: tl.constexpr", "BLOCK_HALF: tl.constexpr",
    ]  # fmt: skip
    lines = [START, *map(_address, one.tensors)]
    for item in one.reads:
        for side, place in _sides(item):
            lines.append(f"    {item}_{side} = tl.load({place}, mask=mask).to(tl.float32)")
    for item, halves in one.writes.items():
        for text, (_, place) in zip(halves, _sides(item), strict=True):
            lines.append(f"    tl.store({place}, {text}, mask=mask)")
    doc = "Each program takes BLOCK_ROWS rows, both halves of each at once."
    return source.kernel_text(f"_{one.name}_kernel", header, doc, lines)


def _address(item: str) -> str:
    steps = f"batch * {item}_batch + head * {item}_head + rows * {item}_row + cols * {item}_col"
    return f"    {item}_at = {item}_ptr + {steps}"


def _sides(item: str) -> list[tuple[str, str]]:
    return [("left", f"{item}_at"), ("right", f"{item}_at + n_half * {item}_col")]


def _launcher(job: RotaryJob, one: _Pass) -> str:
    first, rows = one.reads[0], job.choice["BLOCK_ROWS"]
    ones, zeros = ("1, " * (RANK - job.rank), "0, " * (RANK - job.rank))
    sizes = f"({ones}*{first}.shape[:-1])" if ones else f"{first}.shape[:-1]"
    arguments = [
        *one.tensors, *(f"{zeros}*{item}.stride()" for item in one.tensors), "n_heads", "n_rows",
        f"{first}.shape[-1] // 2", f"BLOCK_ROWS={rows}",
        f"BLOCK_HALF={source.next_power_of_two(job.half)}", f"num_warps={job.choice['num_warps']}",
    ]  # fmt: skip
    lines = [
        f"def {one.name}({', '.join(one.given)}):",
        *source.docstring(one.doc, _shapes(job, one)),
        *(f"    {item} = torch.empty_like({one.like[item]})" for item in one.writes),
        *(f"    {item} = {item}.expand({first}.shape)" for item in one.reads if item in job.narrow),
        f"    n_batch, n_heads, n_rows = {sizes}",
        f"    if {first}.numel() > 0:  # a grid of zero programs cannot be launched",
        f"        grid = (n_batch * n_heads * ({source.blocks('n_rows', rows)}),)",
        source.wrap_items(f"_{one.name}_kernel[grid](", arguments, ")", indent="        "),
        f"    return {', '.join(one.writes)}",
        "",
    ]
    return "\n".join(lines)
