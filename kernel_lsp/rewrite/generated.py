"""What a code generator hands to the graph, and what a skill's matcher hands to the planner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernel_lsp.records import Proof

GUARDED = "the dispatch guard takes the original path while gradients are recorded"
"""Why no gradient is lost by source that has no backward (`GeneratedSource.supports_autograd`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedSource:
    """A piece of generated source: Triton kernels and the Python function that launches them."""

    name: str
    """The launcher: called with the arguments given to `Graph.call_generated`, returns its
    result."""
    imports: tuple[str, ...] = ()
    """Import lines the definitions need, e.g. ``import triton.language as tl``."""
    definitions: str = ""
    """Source of the kernels and the launcher, column 0; goes right before the target."""
    summary: str = ""
    """One line for a person, e.g. ``bias, GELU and residual in one pass``."""
    is_triton: bool = True
    """False: the definitions are plain PyTorch, which needs no contiguity and obeys autocast."""
    launches: int = 1
    """How many kernels one call runs, to know whether launching them is what takes long."""
    numbers: tuple[float, ...] = ()
    """Numbers of the program that the source contains: one of them may be a size of this
    workload."""
    sizes: str = ""
    """What the source holds of the sizes that it was captured with: it is right for another batch
    where this stays the same."""
    supports_autograd: bool = False
    """False: the fast path is guarded so that it is never taken while gradients are recorded."""
    has_effect: bool = False
    """The launcher changes more than its result (running statistics): kept when nobody reads
    that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapper:
    """A way to call the whole target: ``forward`` hands its steps over instead of running them."""

    name: str
    """Called as ``name(self, self._forward_steps, x, …)``; returns what the steps would."""
    imports: tuple[str, ...] = ()
    definitions: str = ""
    """Plain PyTorch, column 0; goes right before the target."""
    note: str = ""
    """Comment in front of the call: what happens there, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A place in one graph where a skill applies."""

    nodes: tuple[Any, ...]
    """The fx nodes it covers, in graph order."""
    label: str
    """Stable name of the place inside the graph; see `Graph.label`."""
    summary: str
    benefit: float | None = None
    """Estimated share of the target's time that is saved (0..1)."""
    plain: bool = True
    """True when the result is plain PyTorch, False when it is a Triton kernel."""
    differentiable: bool = False
    """A kernel that brings its backward; one without is not for a workload that records
    gradients."""
    wraps: bool = False
    """It goes around the whole target (`Graph.wrap`): no other rewrite can follow."""
    data: dict[str, Any] = field(default_factory=dict)
    """Whatever `apply` needs again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """A place where a skill nearly applies: what it looks for is there, and one condition does not
    hold.

    A skill's optional ``misses(graph) -> Iterable[Miss]`` yields them. It is asked when nothing
    can be offered, so `match` stays what it is."""

    nodes: tuple[Any, ...]
    """The fx nodes that a rewrite would have covered; the one that a person would name comes
    first."""
    missing: str
    """As the end of a sentence: ``a dropout draws random numbers between softmax and the
    product``."""
    remedy: str = ""
    """What the person could write or choose instead, where there is something."""


def proof(claim: str, holds: bool, because: str) -> Proof:
    """One precondition: what is claimed, whether it holds, and by which facts."""
    return Proof(claim=claim, holds=bool(holds), because=because)
