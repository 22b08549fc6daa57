"""What a verdict rests on, complete enough to repeat it.

An `Evaluation` is the verdict, small enough for an editor. An `Evidence` holds it together with
what was asked, the secret seed, every trial and every raw sample; on disk it is one JSON document.
Reading, writing and comparing it: evaluator/evidence.py and evaluator/repeat.py."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.records.code import Program, Workload
from kernel_lsp.records.common import Json
from kernel_lsp.records.rewrites import Provenance
from kernel_lsp.records.verdicts import Evaluation

EVIDENCE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One comparison of the candidate with the reference and the float64 oracle."""

    number: int
    family: str
    """How the values were drawn, e.g. ``heavy_tailed``."""
    variation: str = ""
    """Other shapes, layouts or modes than the workload's; empty: as the workload says."""
    candidate_error: float | None = None
    """Against the oracle, relative to the oracle's RMS; None: no values were compared."""
    reference_error: float | None = None
    tolerance: float | None = None
    """What candidate_error had to stay below."""
    passed: bool | None = None
    """None: skipped, because the reference itself refuses such values."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Every timed round of one provider, in the order they ran. Call i of all providers belongs
    together."""

    provider: str
    call_ms: tuple[float, ...] = ()
    """What a caller waits for."""
    device_ms: tuple[float, ...] | None = None
    """Replays of CUDA graphs, a series of its own; None where there are none."""
    dropped_rounds: tuple[int, ...] = ()
    """Rounds that the outlier rule left out of the statistics (they stand in call_ms all the
    same)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One verdict with everything that is needed to reach it again."""

    schema_version: int = EVIDENCE_VERSION
    created: str
    """ISO 8601, UTC."""
    reference: Program
    candidate_source: str
    candidate_entry: str
    workload: Workload
    device: str
    """cuda, cpu or interpreter."""
    precision: str
    """faithful, tf32 or low-precision."""
    require_speed: bool
    uses_triton: bool
    timeout_s: float
    budget: Json
    """Limits of the parts, in seconds and bytes (`evaluator.request.Budget`)."""
    seed: int | None
    """What all inputs and parameters were drawn from; None: nothing was drawn."""
    threshold: float | None = None
    """The speedup that was asked for, when one was."""
    trials: tuple[Trial, ...] = ()
    samples: tuple[Samples, ...] = ()
    evaluation: Evaluation
    """The verdict; ``environment`` holds versions, device, driver, clocks, temperature and sandbox
    layers, ``checks`` what every guard said."""
    python: str | None = None
    """The interpreter that judged."""
    provenance: Provenance | None = None
    """Who proposed it; None: a text that a person gave."""
    native: bool = False
    """It may bring C++ and CUDA."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentFact:
    """One thing that was so when a verdict was reached, and how it is now."""

    name: str
    before: str
    now: str
    same: bool | None = None
    """None: written down, but the verdict does not depend on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """A verdict that was reached again."""

    facts: tuple[EnvironmentFact, ...]
    holds: bool | None
    """None: could not be judged (another device, or the second try was not judged)."""
