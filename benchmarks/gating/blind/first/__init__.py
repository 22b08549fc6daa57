"""The first ones, by somebody who had read the judges."""

from benchmarks.gating.blind.first.honest import HONEST
from benchmarks.gating.blind.first.programs import PROGRAMS
from benchmarks.gating.blind.first.wrong import WRONG

__all__ = ["HONEST", "PROGRAMS", "WRONG"]
