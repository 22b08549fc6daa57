"""Classes of precision that steps have chosen: which chain is the coarser, and the next safer
one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernel_lsp.records import Site, Step

PRECISION = "precision"
"""The parameter whose choices are classes of accuracy."""
CLASSES = ("ieee", "native", "tf32x3", "bf16x6", "bf16x3", "tf32", "fp16", "bf16")
"""The safest first. A skill's own name for a class counts by its place among the choices."""

Ranks = dict[str, int]
"""Site -> how coarse its step is, of the steps with a choice of precision."""


def ranks(sites: Sequence[Site], steps: Sequence[Step]) -> Ranks:
    """Site's key -> place of the chosen precision in the site's order, 0 for the most accurate;
    sites without a choice are left out."""
    pairs = zip(sites, steps, strict=True)
    return {
        site.key: _order(site).index(_chosen_value(site, step))
        for site, step in pairs
        if _may_choose(site)
    }


def riskier(mine: Ranks, theirs: Ranks) -> bool:
    """Whether it has a coarser class than the other somewhere."""
    return any(mine[name] > theirs[name] for name in mine.keys() & theirs.keys())


def coarser(mine: Ranks, refused: Ranks) -> bool:
    """Whether each of its steps that has a precision stood in the refused one, in no coarser class
    there."""
    return bool(mine) and all(name in refused and mine[name] >= refused[name] for name in mine)


def safer(sites: Sequence[Site], steps: Sequence[Step]) -> tuple[Step, ...] | None:
    """Every step in its next safer class, where it has one; None where none has."""
    found = tuple(_safer(site, step) for site, step in zip(sites, steps, strict=True))
    return found if found != tuple(steps) else None


def _safer(site: Site, step: Step) -> Step:
    if not _may_choose(site):
        return step
    order, offered = _order(site), site.parameters[PRECISION]
    below = [name for name in order[: order.index(_chosen_value(site, step))] if name in offered]
    return replace(step, parameters={**step.parameters, PRECISION: below[-1]}) if below else step


def _may_choose(site: Site) -> bool:
    return PRECISION in site.parameters


def _order(site: Site) -> Sequence[Any]:
    choices = site.parameters[PRECISION]
    return CLASSES if set(choices) <= set(CLASSES) else choices


def _chosen_value(site: Site, step: Step) -> Any:
    return step.parameters.get(PRECISION, site.parameters[PRECISION][0])
