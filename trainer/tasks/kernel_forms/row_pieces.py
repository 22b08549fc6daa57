"""What forms that work along the rows of a matrix share: a program a row, the row at once or in
passes."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, function, loop

SIZES = ((4096, 4096), (8192, 2048), (2048, 16384), (512, 65536), (32768, 512), (3000, 5000))
NARROW = tuple(size for size in SIZES if size[1] <= 16384)
TWIN = (6, 300)
BLOCKS = (128, 256, 1024, 1024, 2048)
ROW = "row = tl.program_id(0).to(tl.int64)"
AT = "row * columns + column"
WHOLE = ("column = tl.arange(0, BLOCK)", "mask = column < columns")
LIKE = "torch.empty_like({first})"
SCALAR = "torch.empty(rows, device={first}.device, dtype=torch.float32)"


def loads(*names: str, at: str = AT, other: str = "0.0") -> str:
    """Lines that read these tensors in float32 at one place, ``other`` where the mask is false."""
    return "".join(
        f"{n} = tl.load({n}_ptr + {at}, mask=mask, other={other}).to(tl.float32)\n" for n in names
    )


def passing(*parts: str) -> str:
    """A loop over the columns of a row, block by block, around these lines."""
    return loop(
        "start in range(0, columns, BLOCK)",
        "column = start + tl.arange(0, BLOCK)",
        "mask = column < columns",
        *parts,
    )


def launch_rows(
    d: Draw, names: str, made: str, whole: bool, *, before: str = "", passed: str = ""
) -> str:
    """One program a row of the first argument."""
    block = "triton.next_power_of_2(columns)" if whole else str(d.one(*BLOCKS))
    first = names.partition(",")[0]
    return function(
        f"launch({names})",
        f"rows, columns = {first}.shape",
        f"out = {made.format(first=first)}",
        before,
        f"kernel[(rows,)]({names}, out{passed}, columns, BLOCK={block}{d.options()})",
        "return out",
    )
