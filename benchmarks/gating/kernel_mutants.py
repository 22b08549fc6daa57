"""Right Triton kernels for the programs of mutants.py, and what each can have wrong. Texts only.

Every kernel is the forward of an autograd Function whose backward differentiates the plain
computation, so gradients of a right one are right. Judged on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from benchmarks.gating.mutants import PROGRAMS, MutatedProgram

TOP = """
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, w_ptr, b_ptr, out_ptr, m, n, stride, BLOCK: tl.constexpr, ROWS: tl.constexpr):
{code}

def plain(self, x):
    {reference}


def launch(x, weight, bias):
    x, (m, n) = x.contiguous(), x.shape
    out = torch.empty({shape}, dtype=x.dtype, device=x.device)
    if out.numel():
        kernel[{grid}](x, weight, bias, out, m, n, x.stride(0), {block})
    return out


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return launch(x, weight, bias)

    @staticmethod
    def backward(ctx, g):
        again, (x, weight, bias) = torch.is_grad_enabled(), ctx.saved_tensors
        asked = [t for t, need in zip((x, weight, bias), ctx.needs_input_grad) if need]
        with torch.enable_grad():
            y = plain(SimpleNamespace(weight=weight, bias=bias), x)
        found = iter(torch.autograd.grad(y, asked, g, create_graph=again, allow_unused=True))
        return tuple(next(found) if need else None for need in ctx.needs_input_grad)

"""
ROWS = "(m,)", "BLOCK=triton.next_power_of_2(n), ROWS=1"
SOFTMAX = """\
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + row * stride + at, mask=inside, other=-float("inf")).to(tl.float32) * 0.5
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    total = tl.sum(e, axis=0)
    tl.store(out_ptr + row * n + at, e / total * w + b, mask=inside)
"""
RMS_NORM = """\
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(x * x, axis=0) / n
    tl.store(out_ptr + row * n + at, x * tl.rsqrt(total + 1e-6) * w + b, mask=inside)
"""
SQUARES = """\
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)
    inside = at < n
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, m, ROWS):
        row = first + rows
        both = (row < m)[:, None] & inside[None, :]
        place = x_ptr + row[:, None] * stride + at[None, :]
        x = tl.load(place, mask=both, other=0.0).to(tl.float32)
        d = (x * w[None, :]).to(x_ptr.dtype.element_ty).to(tl.float32) - b[None, :]
        d = tl.where(both, d.to(x_ptr.dtype.element_ty).to(tl.float32), 0.0)
        total += tl.sum(d * d, axis=0)
    tl.store(out_ptr + at, total / m, mask=inside)
"""
PRODUCT = """\
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * ROWS
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, ROWS], tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        left = (rows < m)[:, None] & (at < n)[None, :]
        right = (at < n)[:, None] & (columns < m)[None, :]
        at_left = x_ptr + rows[:, None] * stride + at[None, :]
        at_right = x_ptr + columns[None, :] * stride + at[:, None]
        a = tl.load(at_left, mask=left, other=0.0).to(tl.float32)
        b = tl.load(at_right, mask=right, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        c = tl.load(b_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        a = tl.where(left, (a * w[None, :]).to(x_ptr.dtype.element_ty).to(tl.float32), 0.0)
        b = tl.where(right, (b + c[:, None]).to(x_ptr.dtype.element_ty).to(tl.float32), 0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    inside = (rows < m)[:, None] & (columns < m)[None, :]
    tl.store(out_ptr + rows[:, None] * m + columns[None, :], total, mask=inside)
"""
LOADS = (
    ("mask dropped", "mask=inside, other=0.0", ""),
    ("off by one", "inside = at < n", "inside = at < n - 1"),
    ("off by one", "inside = at < n", "inside = at <= n"),
    ("wrong stride", "row * stride", "row * BLOCK"),
    ("wrong stride", "row * n + at", "row * BLOCK + at"),
    ("wrong stride", "x.contiguous()", "x"),
    ("operand swapped", "* w + b", "* b + w"),
    ("operand swapped", "w_ptr + at", "b_ptr + at"),
    ("missing tail", "(m,)", "(max(1, m - 1),)"),
    ("missing tail", "triton.next_power_of_2(n)", "triton.next_power_of_2(n // 2 + 1)"),
    ("another shape", "m, n, x.stride(0)", "{m}, n, x.stride(0)"),
)  # fmt: skip


def _of(name: str) -> MutatedProgram:
    return next(program for program in PROGRAMS if program.name == name)


def _top(code: str, reference: str, grid: str, block: str, shape: str) -> str:
    made = TOP.replace("{code}", code).replace("{reference}", reference)
    made = made.replace("{grid}", grid).replace("{block}", block).replace("{shape}", shape)
    return "from types import SimpleNamespace\n" + made


def _kernel(
    name: str,
    code: str,
    mutations: tuple[tuple[str, str, str], ...],
    grid: str = ROWS[0],
    block: str = ROWS[1],
    shape: str = "(m, n)",
) -> MutatedProgram:
    about = _of(name)
    return MutatedProgram(
        name=f"triton {name}",
        reference=about.reference,
        rewrites=("return Kernel.apply(x, weight, bias)",),
        mutations=(*LOADS, *mutations),
        top=_top(code, about.reference, grid, block, shape),
    )


KERNELS = (
    _kernel(
        "softmax",
        SOFTMAX,
        (
            ("maximum dropped", "x - tl.max(x, axis=0)", "x"),
            ("other for the tail", 'other=-float("inf")', "other=0.0"),
            ("mask dropped", ', mask=inside, other=-float("inf")', ""),
            ("lower accumulator", "total = tl.sum(e, axis=0)",
             "total = tl.sum(e.to(tl.bfloat16), axis=0).to(tl.float32)"),
            ("lower accumulator", "tl.exp(x - tl.max(x, axis=0))",
             "tl.exp(x - tl.max(x, axis=0)).to(tl.float8e5).to(tl.float32)"),
            ("other scale", "* 0.5", "* 0.5005"),
            ("other divisor", "e / total", "e / (total + 1e-3)"),
            ("bias dropped", "* w + b", "* w"),
        ),
    ),
    _kernel(
        "rms norm",
        RMS_NORM,
        (
            ("other divisor", "/ n", "/ BLOCK"),
            ("other divisor", "/ n", "/ (n - 1)"),
            ("epsilon dropped", "total + 1e-6", "total"),
            ("other epsilon", "1e-6", "1e-3"),
            ("lower accumulator", "tl.sum(x * x, axis=0)",
             "tl.sum((x * x).to(tl.bfloat16), axis=0).to(tl.float32)"),
            ("weights in eight bits", "* w + b", "* w.to(tl.float8e5).to(tl.float32) + b"),
            ("bias dropped", "* w + b", "* w"),
            ("first row only", "row * stride", "0 * stride"),
        ),
    ),
    _kernel(
        "mean of squares",
        SQUARES,
        (
            ("mask dropped", "tl.where(both, d.to(x_ptr.dtype.element_ty).to(tl.float32), 0.0)", "d"),
            ("missing tail", "range(0, m, ROWS)", "range(0, m - ROWS + 1, ROWS)"),
            ("off by one", "row < m", "row < m - 1"),
            ("off by one", "range(0, m, ROWS)", "range(ROWS, m, ROWS)"),
            ("other divisor", "total / m", "total / (m - 1)"),
            ("accumulator started anew", "total += ", "total = "),
            ("absolute value", "d * d", "tl.abs(d)"),
            ("lower accumulator", "total += tl.sum(d * d, axis=0)",
             "total = (total + tl.sum(d * d, axis=0)).to(tl.bfloat16).to(tl.float32)"),
            ("missing tail", "(triton.cdiv(n, 16),)", "(max(1, n // 16),)"),
        ),
        grid="(triton.cdiv(n, 16),)",
        block="BLOCK=16, ROWS=8",
        shape="(n,)",
    ),
    _kernel(
        "product with its transpose",
        PRODUCT,
        (
            ("mask dropped", "b = tl.where(right, ", "b = tl.where(right | ~right, "),
            ("missing tail", "range(0, n, BLOCK)", "range(0, n - BLOCK + 1, BLOCK)"),
            ("off by one", "range(0, n, BLOCK)", "range(BLOCK, n, BLOCK)"),
            ("accumulator started anew", "tl.dot(a, b, total, ", "tl.dot(a, b, "),
            ("lower precision", ', input_precision="ieee"', ', input_precision="tf32"'),
            ("lower precision", "tl.dot(a, b, total",
             "tl.dot(a.to(tl.float8e5).to(tl.float32), b, total"),
            ("transposition dropped", "rows[:, None] * m + columns[None, :]",
             "columns[None, :] * m + rows[:, None]"),
            ("operand swapped", "a * w[None, :]", "a * c[None, :]"),
            ("wrong stride", "columns[None, :] * stride", "columns[None, :] * n + 1"),
            ("missing tail", "triton.cdiv(m, 16))", "max(1, m // 16))"),
            ("off by one", "columns < m)[None, :]\n    tl", "columns < m - 1)[None, :]\n    tl"),
        ),
        grid="(triton.cdiv(m, 16), triton.cdiv(m, 16))",
        block="BLOCK=16, ROWS=16",
        shape="(m, m)",
    ),
)  # fmt: skip
