"""Triton's interpreter on the CPU: correctness only, about 200 times slower than torch.

Never a claim of speed. The worker starts with TRITON_INTERPRET=1 in its environment. Where a
kernel is autotuned there is nothing to time: the first configuration stands for all, and the
others are not judged."""

from __future__ import annotations

import functools
import re
from typing import Any

from kernel_lsp.evaluator.devices.cpu import Cpu
from kernel_lsp.evaluator.devices.interpreted_bfloat16 import compute_bfloat16

REMEDY = "judge it where there is a GPU"
MESSAGE = 2000
"""Characters of an error that are looked through: a candidate may raise a hundred million."""


class InterpreterDevice(Cpu):
    name = "interpreter"
    can_time, can_run_triton = False, True


def first_configurations() -> dict[str, str]:
    """Makes tuners of this process time nothing from now on: each takes the first configuration
    that its pruning leaves, since Triton chooses the least time, of equal ones the first. Kernels
    are launched as a device launches them, and compute bfloat16 as it does. Raises ImportError
    without Triton.

    Returns what is filled while kernels run: kernel -> which of its configurations that was."""
    from triton.runtime.autotuner import Autotuner

    taken: dict[str, str] = {}

    def untimed(tuner: Any, *args: Any, config: Any, **meta: Any) -> float:
        name = tuner.base_fn.__qualname__
        taken.setdefault(
            name, f"{name} ran with the first of {len(tuner.configs)} configurations ({config})"
        )
        return 0.0

    Autotuner._bench = untimed
    _launched_as_on_a_device()
    compute_bfloat16()
    return taken


@functools.cache
def _launched_as_on_a_device() -> None:
    """A compiled kernel's grid may be a list, and its annotations may be texts, as they all are
    behind ``from __future__ import annotations``. Triton's interpreter knows neither. Told to it
    once."""
    from triton.runtime.interpreter import GridExecutor

    made = GridExecutor.__init__

    def prepared(self: Any, fn: Any, names: list[str], grid: Any, *rest: Any, **named: Any) -> None:
        whole = (lambda args: tuple(grid(args))) if callable(grid) else tuple(grid)
        made(self, fn, names, whole, *rest, **named)
        notes = getattr(fn, "__annotations__", {})
        self.constexprs = [name for name in names if "constexpr" in str(notes.get(name, ""))]

    GridExecutor.__init__ = prepared


def find_unsupported(error: BaseException) -> str | None:
    """What the interpreter cannot run (in Triton 3: inline_asm, extern_elementwise); None: it
    can."""
    found = re.search(r"\b(\w{1,80}) not supported in interpreter mode", str(error)[:MESSAGE])
    return f"could not judge: Triton's interpreter cannot run {found[1]}" if found else None
