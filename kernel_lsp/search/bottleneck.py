"""What limits a target as it is: memory, computing or launching. Decides under which name the
bandit learns.

From what the eager target took and from the bytes that a call must move at least. A rough
classification, for statistics: it proves nothing and no rewrite rests on it."""

from __future__ import annotations

from kernel_lsp.evaluator import roofline
from kernel_lsp.records import Bottleneck, Evaluation, SearchTask

LAUNCH_SHARE = 0.5
"""Of a call's time that is gone when its kernels are replayed without launches."""
NEAR_MEMORY = 0.4
"""Least time that memory allows, over the time taken: from here on even products count as memory
bound."""
PRODUCTS = frozenset(
    (
        *(
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "matmul",
            "linear",
            "einsum",
            "attention",
            "lstm",
            "gru",
        ),
        *("conv", "conv1d", "conv2d", "conv3d", "convolution"),
    )
)
SMALL_BYTES = 2**20
"""What moves less than this on a GPU takes less than launching one kernel (5 us at 3 TB/s are 15
MB)."""
EAGER = "eager"


def of(task: SearchTask, evaluation: Evaluation | None) -> Bottleneck:
    """What limits the task's program: memory, arithmetic or launches. ``evaluation``: of any right
    candidate, for the times of eager; None: nothing was timed."""
    if task.read_bytes is None:
        return Bottleneck.UNKNOWN
    moved = task.read_bytes + (task.written_bytes or 0)
    call, device = _eager_ms(evaluation)
    if call and device and device < (1 - LAUNCH_SHARE) * call:
        return Bottleneck.LAUNCH
    if task.device == "cuda" and moved < SMALL_BYTES:
        return Bottleneck.LAUNCH
    if not PRODUCTS.intersection(task.words):
        return Bottleneck.MEMORY
    peak = roofline.peak_gb_per_s(task.device_name)
    took = device or call
    least = roofline.least_ms(task.read_bytes, task.written_bytes or 0, 0, peak) if peak else 0.0
    return Bottleneck.MEMORY if took and least >= NEAR_MEMORY * took else Bottleneck.COMPUTE


def _eager_ms(evaluation: Evaluation | None) -> tuple[float | None, float | None]:
    """(of a call, of its kernels alone)."""
    if evaluation is None:
        return None, None
    pairs = (evaluation.timings, evaluation.device_timings)
    call, device = ({timing.provider: timing.median_ms for timing in found} for found in pairs)
    return call.get(EAGER), device.get(EAGER)
