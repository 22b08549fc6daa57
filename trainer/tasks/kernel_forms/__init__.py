"""Forms of Triton kernels that `trainer.tasks.generated_kernels` draws from: each with what it is in
PyTorch.

A form writes one kernel and the function that launches it, as people write them: blocks, warps,
the number of passes over a row are drawn, so some are good and some are not. Every length is read
from the arguments, so the same text runs on a tiny workload. Not covered: atomics, kernels of
several launches, autotune.

pieces.py          the record of one kernel, its random choices, text put together
*_pieces.py        what forms on rows, tiles and products share
pointwise.py       each number of the result alone
normalized.py      rows and columns brought to their own scale
norms.py           norms as layers have them, and gradients
reductions.py      one number of a row or a column
scores.py          softmax of scores: losses, masks, attention
moves.py           transposes, rows of tables, rotations
windows.py         windows of a sequence, stencils, pools
scans.py           something brought along a sequence
products.py        products of matrices
fused_products.py  products that become something else before anything is written
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.tasks.kernel_forms import (
    fused_products,
    moves,
    normalized,
    norms,
    pointwise,
    products,
    reductions,
    scans,
    scores,
    windows,
)
from trainer.tasks.kernel_forms.pieces import Draw, KernelForm

__all__ = ["FORMS", "Draw", "KernelForm"]

FORMS: dict[Callable[[Draw], KernelForm], int] = {
    pointwise.pointwise: 3,
    normalized.rows_in_passes: 5,
    normalized.rows_at_once: 3,
    reductions.columns: 3,
    reductions.matvec: 2,
    reductions.row_dot: 1,
    pointwise.broadcast: 2,
    products.product: 4,
    windows.window: 2,
    scans.running: 1,
    moves.gather: 1,
    norms.norm_weighted: 4,
    pointwise.gated: 2,
    scores.cross_entropy: 3,
    scores.scores_softmax: 3,
    norms.gradient: 2,
    reductions.distance: 2,
    reductions.peak: 2,
    norms.absmax: 2,
    normalized.short_rows: 2,
    norms.group_norm: 1,
    moves.transposed: 2,
    normalized.down_columns: 2,
    windows.stencil: 2,
    pointwise.pairs: 1,
    windows.pool_rows: 2,
    windows.pool_image: 2,
    moves.rotary: 2,
    moves.bag: 2,
    windows.channels_window: 1,
    scans.recurrence: 1,
    products.product_laid_out: 3,
    products.product_finished: 2,
    products.product_gated: 1,
    products.product_batched: 2,
    reductions.matvec_batched: 1,
    fused_products.squared_distances: 1,
    fused_products.product_reduced: 1,
    fused_products.convolution: 1,
    scores.attention: 2,
}
"""With how often each is drawn. The order stays: another gives other kernels for a seed."""
