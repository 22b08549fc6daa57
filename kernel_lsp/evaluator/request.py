"""What the gate is asked: one candidate, one reference, one workload, one device.

Standard library only: the parent imports this, and the parent never imports torch.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum

from kernel_lsp import parsing
from kernel_lsp.records import Program, Workload

MAX_SOURCE_BYTES = 1024**2
"""Of one program. Python needs about 100 bytes of memory for each byte that it parses."""


class Precision(StrEnum):
    """How much less accurate than eager a candidate may be (see numerics.py for the arithmetic)."""

    FAITHFUL = "faithful"
    TF32 = "tf32"
    LOW = "low-precision"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationBudget:
    """Wall time and memory of one evaluation."""

    load_s: float = 60.0
    """Building the reference or the candidate, in a process that is ready."""
    call_s: float = 60.0
    """One correctness trial."""
    compile_s: float = 45.0
    """torch.compile of the reference; the baseline is skipped when it takes longer. 0: a quick
    judgement against eager alone. `Evaluation.environment["baselines"]` names the baselines that
    took part."""
    timing_s: float = 3.0
    """All timed rounds together, in up to three series of at least 10; the later ones are left out
    when the interval is narrow. Nothing looks at the ratio before: that would choose lucky
    rounds."""
    memory_bytes: int | None = None
    """Address space of judge and worker each on a CPU; None: 80 % of this machine's memory."""


TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRequest:
    reference: Program
    candidate_source: str
    candidate_entry: str
    workload: Workload
    device: str = "cpu"
    """cuda, cpu or interpreter."""
    python: str = sys.executable
    """The project's interpreter: it has torch, ours need not."""
    require_speed: bool = True
    """False: correctness only, nothing is timed."""
    uses_triton: bool = False
    timeout_s: float = TIMEOUT_S
    """Wall time of the whole evaluation, from when judge and worker are ready; the budget
    limits its parts."""
    budget: EvaluationBudget = EvaluationBudget()
    seed: int | None = None
    """None: a secret one. A number only repeats an evaluation for its evidence."""
    precision: Precision = Precision.FAITHFUL
    native: bool = False
    """The candidate may bring C++ and CUDA (native.py): a person's may, a language model's not."""

    @property
    def reference_has_triton(self) -> bool:
        """Whether whoever runs the reference must be able to run Triton kernels."""
        return self.reference.kernel is not None or _imports_triton(self.reference.source)

    @property
    def without_gpu(self) -> str:
        """The device that judges it where there is no GPU: Triton's interpreter once either
        program needs it, because two programs that are compared must have run in the same way."""
        return "interpreter" if self.uses_triton or self.reference_has_triton else "cpu"


def _imports_triton(source: str) -> bool:
    """False also for what does not parse: loading it says why."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return "triton" in parsing.imports(parsing.parse(source))
    return False
