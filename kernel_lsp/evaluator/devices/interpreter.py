"""Triton's interpreter on the CPU: correctness only, about 200 times slower than torch.

Never a claim of speed. The worker starts with TRITON_INTERPRET=1 in its environment.
"""

from __future__ import annotations

from kernel_lsp.evaluator.devices.cpu import Cpu


class Interpreter(Cpu):
    name = "interpreter"
    can_time, can_run_triton = False, True
