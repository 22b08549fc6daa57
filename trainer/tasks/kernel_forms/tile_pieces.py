"""What forms that give each program a tile of a matrix share: where it lies, and how it is
launched."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, function

TILE = ("BLOCK_R: tl.constexpr", "BLOCK_C: tl.constexpr")
PLACES = (
    "row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)",
    "column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)",
    "mask = (row[:, None] < rows) & (column[None, :] < columns)",
)
AT_TILE = "row[:, None] * columns + column[None, :]"
IMAGES = ((4096, 4096), (8192, 2048), (2000, 5000))


def launch_tiles(
    d: Draw, names: str, passed: str, *, made: str = "torch.empty_like(x)", planes: str = ""
) -> str:
    """Launches a tile a program over ``rows`` and ``columns`` of the first argument."""
    r, c = d.one(1, 8, 16, 32, 64), d.one(16, 32, 64, 128)
    return function(
        f"launch({names})",
        f"{planes and planes + ', '}rows, columns = {names.partition(',')[0]}.shape",
        f"out = {made}",
        f"grid = (triton.cdiv(rows, {r}), triton.cdiv(columns, {c}){planes and ', ' + planes})",
        f"kernel[grid]({names}, out, {passed}, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
        "return out",
    )
