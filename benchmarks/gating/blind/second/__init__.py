"""Other operators, written on 2026-11-28 by somebody who had read `evaluator/README.md` alone."""

from benchmarks.gating.blind.second.honest import HONEST
from benchmarks.gating.blind.second.programs import PROGRAMS
from benchmarks.gating.blind.second.wrong import WRONG

__all__ = ["HONEST", "PROGRAMS", "WRONG"]
