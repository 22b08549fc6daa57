"""How many random examples a test draws: the number it names, times KERNEL_LSP_EXAMPLES where that
is set."""

import os


def examples(number: int) -> int:
    """``number`` in an ordinary run; ``KERNEL_LSP_EXAMPLES=10`` searches ten times as long."""
    return max(1, round(number * float(os.environ.get("KERNEL_LSP_EXAMPLES", "1"))))
