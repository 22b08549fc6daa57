"""The deterministic policy: a ranker that needs no language model.

It chains executable skills in several courses, each a separate candidate, so that the gate decides
between them: what is proved to vanish first (plain PyTorch), then the rest fused (Triton), then
other parameters of the most valuable fusion, then single rewrites. It never judges or measures.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Candidate, Site, Step

NAME = "plan/1"
MAX_CHAIN = 12
"""Longest chain of rewrites in one candidate; a program that needs more is better split by its author."""

Apply = Callable[[Sequence[Step]], Awaitable[tuple[Candidate, tuple[Site, ...]]]]
"""Apply these steps to the captured program: the candidate, and the sites that are left in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Rewrites applied so far, in order, and what they lead to."""

    sites: tuple[Site, ...]
    steps: tuple[Step, ...]
    left: tuple[Site, ...]
    candidate: Candidate | None = None


async def propose(sites: Sequence[Site], apply: Apply, *, triton: bool) -> AsyncIterator[Candidate]:
    """Candidates for one target, best guess first, without duplicates.

    ``triton`` says whether generated kernels can be of use on the device that will judge them.
    """
    seen: set[str] = set()
    async for candidate in _courses(sites, apply, triton):
        if candidate.id not in seen:
            seen.add(candidate.id)
            yield replace(candidate, proposer=NAME)


async def _courses(sites: Sequence[Site], apply: Apply, triton: bool) -> AsyncIterator[Candidate]:
    start = Chain(sites=(), steps=(), left=tuple(sites))
    collapsed = await _extend(start, apply, plain=True)
    fused = await _extend(collapsed, apply, plain=False) if triton else start
    for chain in (fused, collapsed):
        if chain.candidate:
            yield chain.candidate
    async for variant in _variants(fused, apply):
        yield variant
    for site in _ranked(sites):  # a single rewrite may win where the whole chain loses
        attempt = await _attempt([_step(site)], apply) if site.plain or triton else None
        if attempt:
            yield attempt[0]


async def _extend(chain: Chain, apply: Apply, *, plain: bool) -> Chain:
    """Apply the most promising site again and again; one whose rewrite fails is passed over."""
    failed: set[tuple[str, str]] = set()
    while len(chain.sites) < MAX_CHAIN:
        open_sites = (s for s in _ranked(chain.left) if s.plain == plain and (s.skill, s.site) not in failed)
        site = next(open_sites, None)
        if site is None:
            break
        steps = (*chain.steps, _step(site))
        attempt = await _attempt(steps, apply)
        if attempt is None:
            failed.add((site.skill, site.site))
            continue
        candidate, left = attempt
        chain = Chain(sites=(*chain.sites, site), steps=steps, left=left, candidate=candidate)
    return chain


async def _variants(chain: Chain, apply: Apply) -> AsyncIterator[Candidate]:
    """The same chain with other parameters for its most valuable fusion."""
    fusions = [i for i, site in enumerate(chain.sites) if not site.plain]
    if not fusions:
        return
    at = max(fusions, key=lambda i: chain.sites[i].benefit or 0.0)
    for parameters in _choices(chain.sites[at]):
        steps = [*chain.steps]
        steps[at] = replace(steps[at], parameters=parameters)
        attempt = await _attempt(steps, apply)
        if attempt:
            yield attempt[0]


def _choices(site: Site) -> list[dict[str, Any]]:
    """Every combination of the site's parameters but the default one."""
    names = list(site.parameters)
    combinations = itertools.product(*(site.parameters[name] for name in names))
    return [dict(zip(names, values, strict=True)) for values in combinations][1:]


def _ranked(sites: Iterable[Site]) -> list[Site]:
    """Sites whose proofs all hold, largest estimated saving first, ties by name so that runs repeat."""
    sound = [site for site in sites if all(proof.holds for proof in site.proofs)]
    return sorted(sound, key=lambda site: (-(site.benefit or 0.0), site.skill, site.site))


def _step(site: Site) -> Step:
    return Step(skill=site.skill, site=site.site, parameters={k: v[0] for k, v in site.parameters.items()})


async def _attempt(steps: Sequence[Step], apply: Apply) -> tuple[Candidate, tuple[Site, ...]] | None:
    """One candidate, or None when a skill gave up: the next course may still work."""
    try:
        return await apply(steps)
    except RewriteError:
        return None
