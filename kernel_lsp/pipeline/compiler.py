"""torch.compile of a whole target in its default mode: an alternative beside what planners choose.

Every full judgement times it as a baseline, so nobody has to guess what it gains: it is offered
where it is the best that was found (search.py), and takes no part in planning. Not covered: its
other modes, which are candidates like any other."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.config import Settings
from kernel_lsp.records import Site, Step
from kernel_lsp.records.rewrites import COMPILER_SKILL

DEFAULT_MODE = "default mode"
"""How the skill's summary of this site ends."""


def step(sites: Sequence[Site]) -> Step | None:
    """The step that compiles the target; None where it does not apply."""
    return next(
        (Step(skill=site.skill, site=site.site) for site in sites if _is_default(site)), None
    )


def others(sites: Sequence[Site], settings: Settings) -> tuple[Site, ...]:
    """What is planned with: torch.compile in its other modes too, where it can be used."""
    may_compile = settings.torch_compile
    return tuple(
        site
        for site in sites
        if not _is_default(site) and (may_compile or site.skill != COMPILER_SKILL)
    )


def _is_default(site: Site) -> bool:
    return site.skill == COMPILER_SKILL and site.summary.endswith(DEFAULT_MODE)
