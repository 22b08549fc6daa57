"""Triton source of a product of a few rows with a weight of whole numbers.

A program computes some columns of the result for some rows: it walks along the weight once, scales
what it reads in registers and adds in float32. The weight is read as it is stored, a byte or half a
byte for each number, and nothing is written in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.generated import GeneratedSource

SUMMARY = "A product with a weight of whole numbers, which is scaled as it is read."


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedJob:
    name: str
    dtypes: Mapping[str, str]
    """Of ``x``, ``weight``, and where there are any ``scale``, ``zero`` and ``bias``, in the
    launcher's order."""
    is_packed: bool
    shift: float
    groups: int
    rows: int
    """Rows that a program computes."""
    is_scaled_last: bool
    """One scale a row of the weight: it is multiplied with the sum."""
    choice: Mapping[str, Any]


def emit(job: QuantizedJob) -> GeneratedSource:
    """Source of the kernel of a job with its launcher."""
    return source.module(job.name, [_kernel(job), _launcher(job)], SUMMARY, (job.shift,))


def _kernel(job: QuantizedJob) -> str:
    has, each = set(job.dtypes), range(job.rows)
    header = [
        *(f"{name}_ptr" for name in (*job.dtypes, "out")), "n_rows", "n_out",
        "n_in: tl.constexpr", *(["n_groups: tl.constexpr"] if job.groups > 1 else []),
        "BLOCK_OUT: tl.constexpr", "BLOCK_IN: tl.constexpr",
    ]  # fmt: skip
    width = "BLOCK_IN // 2" if job.is_packed else "BLOCK_IN"
    lines = [
        "outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[:, None]",
        f"first_row = tl.program_id(1) * {job.rows}",
        *(f"row_{row} = tl.full([1, 1], first_row + {row}, tl.int64)" for row in each),
        *(f"products_{row} = tl.zeros([BLOCK_OUT, {width}], tl.float32)" for row in each),
        "for start in range(0, n_in, BLOCK_IN):",
        *(f"    {line}" for line in _step(job)),
    ]
    for row in each:
        total = f"tl.sum(products_{row}, axis=1)[:, None]"
        if job.is_scaled_last and "scale" in has:
            total += " * tl.load(scale_ptr + outs, mask=outs < n_out).to(tl.float32)"
        lines.append(f"total = {total}")
        if "bias" in has:
            lines.append("total += tl.load(bias_ptr + outs, mask=outs < n_out).to(tl.float32)")
        lines.append(f"mask = (outs < n_out) & (row_{row} < n_rows)  # the last columns and rows")
        lines.append(f"tl.store(out_ptr + row_{row} * n_out + outs, total, mask=mask)")
    doc = f"Each program computes BLOCK_OUT columns of {job.rows} rows."
    return source.kernel_text(f"_{job.name}_kernel", header, doc, [f"    {line}" for line in lines])


def _step(job: QuantizedJob) -> list[str]:
    """A block of the weight, scaled, times the same block of each row."""
    end = "n_in // 2" if job.is_packed else "n_in"
    halves = (
        {"low": "stored & 15", "high": "stored >> 4"} if job.is_packed else {"number": "stored"}
    )
    # Vectors of 8 for both: the 16 bytes of a thread's weights met 8 numbers of x in shared memory,
    # behind eight barriers in each turn of the loop (ahead of time for sm_90).
    lines = ["cols = tl.max_contiguous(start + tl.arange(0, BLOCK_IN), 8)[None, :]"]
    if job.is_packed:
        lines = ["cols = start // 2 + tl.arange(0, BLOCK_IN // 2)[None, :]  # bytes of two numbers"]
    lines += [
        f"mask = (outs < n_out) & (cols < {end})  # the last columns, and the last block",
        f"stored = tl.load(weight_ptr + outs.to(tl.int64) * ({end}) + cols, mask=mask, other=0)",
    ]
    lines += _number_lines(job, halves)
    for row in range(job.rows):
        lines += _row_lines(job, row, list(halves), end)
    return lines


def _number_lines(job: QuantizedJob, halves: Mapping[str, str]) -> list[str]:
    """The numbers of a block, less their zero points, and the scale of its rows."""
    at = "outs * n_groups + start // (n_in // n_groups)" if job.groups > 1 else "outs"
    beside = [name for name in ("zero", "scale") if name in job.dtypes]
    if job.is_scaled_last and "scale" in beside:
        beside.remove("scale")
    lines = [
        f"{name} = tl.load({name}_ptr + {at}, mask=outs < n_out).to(tl.float32)" for name in beside
    ]
    less = (f" - {job.shift}" if job.shift else "") + (" - zero" if "zero" in beside else "")
    # What is masked meets zeros of x.
    return [*lines, *(f"{name} = ({text}).to(tl.float32){less}" for name, text in halves.items())]


def _row_lines(job: QuantizedJob, row: int, names: list[str], end: str) -> list[str]:
    """A block of one row, and its products with the numbers."""
    lines = [f"inside = (cols < {end}) & (row_{row} < n_rows)  # rows that exist"]
    for index, name in enumerate(names):
        place = f"2 * cols + {index}" if job.is_packed else "cols"
        lines.append(
            f"x_{name} = tl.load(x_ptr + row_{row} * n_in + {place}, mask=inside, other=0.0)"
            ".to(tl.float32)"
        )
    text = " + ".join(f"{name} * x_{name}" for name in names)
    scaled = "scale" in job.dtypes and not job.is_scaled_last
    return [*lines, f"products_{row} += " + (f"({text}) * scale" if scaled else text)]


def _launcher(job: QuantizedJob) -> str:
    groups = ["n_groups"] if job.groups > 1 else []
    shape = {
        "x": "(n_rows, n_in)", "weight": "(n_out, n_in // 2)" if job.is_packed else "(n_out, n_in)",
        "scale": "(n_out, n_groups)" if groups else "(n_out,)",
        "zero": "(n_out, n_groups)" if groups else "(n_out,)", "bias": "(n_out,)",
    }  # fmt: skip
    shapes = [(name, dtype, shape[name]) for name, dtype in job.dtypes.items()]
    names = list(job.dtypes)
    arguments = [
        *names, "out", "n_rows", "n_out", "n_in", *groups,
        f"BLOCK_OUT={job.choice['BLOCK_OUT']}", f"BLOCK_IN={job.choice['BLOCK_IN']}",
        f"num_warps={job.choice['num_warps']}",
    ]  # fmt: skip
    grid = (
        f"({source.blocks('n_out', job.choice['BLOCK_OUT'])}, {source.blocks('n_rows', job.rows)})"
    )
    lines = [
        f"def {job.name}({', '.join(names)}):",
        *source.docstring(SUMMARY, [*shapes, ("out", job.dtypes["x"], "(n_rows, n_out)")]),
        *(f"    {name} = {name}.contiguous()" for name in names),
        "    n_out, n_in = weight.shape[0], x.shape[-1]",
        "    n_rows = x.numel() // n_in",
        *([f"    n_groups = {job.groups}"] if groups else []),
        "    out = torch.empty((*x.shape[:-1], n_out), dtype=x.dtype, device=x.device)",
        "    if n_rows > 0:  # a grid of zero programs cannot be launched",
        f"        grid = {grid}",
        source.wrap_items(f"_{job.name}_kernel[grid](", arguments, ")", indent="        "),
        "    return out",
        "",
    ]
    return "\n".join(lines)
