"""Plans from learned recipes: their steps, at the sites of this program, where their
requirements hold.

A recipe names kinds of sites; here they become sites, each step looking at what the one before has
left. All steps must find one, or the recipe does not apply. Where its steps are ``planned`` the
rule plans, and they set its parameters. One that was shown instead of certain skills applies where
the rule plans these. The engine proves and writes every step, as for any plan. Not covered:
whether a recipe helps (library/, pipeline/skill_validation)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.agents.plan import (
    MAX_CHAIN,
    FindSites,
    Planner,
    Prefer,
    RankedPlan,
    rank_sites,
)
from kernel_lsp.agents.summary_rule import anchors
from kernel_lsp.errors import RewriteError
from kernel_lsp.library.usage import PROPOSER
from kernel_lsp.pipeline.opened import JobBench, Opened
from kernel_lsp.records import ArgSpec, Json, RecipeStep, Requirements, Site, Skill, Step
from kernel_lsp.skillbook import conditions
from kernel_lsp.skillbook.conditions import Surroundings

MAX_LEARNED_PLANS = 2
"""Learned plans in one job, those that fit best by their words first: each takes a place of the
budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedRecipe:
    """A recipe at the sites of one program."""

    sites: tuple[Site, ...]
    steps: tuple[Step, ...]


def surroundings(bench: JobBench, inputs: Sequence[ArgSpec]) -> Surroundings:
    """What a recipe's conditions are compared with: device, versions, and the inputs of this
    call."""
    return Surroundings(
        device=bench.device,
        inputs=tuple(inputs),
        capability=bench.probe.capability,
        torch=bench.probe.torch,
        triton=bench.probe.triton,
    )


def fitting(one: Opened) -> list[Skill]:
    """Verified recipes whose requirements this job meets, those recalled first by their words
    first."""
    around = surroundings(one.bench, one.capture.inputs)
    fit = [
        skill
        for skill in one.bench.skills.skills
        if skill.source in ("learned", "team")
        and skill.recipe
        and not any(conditions.unmet(skill.requires, around))
    ]
    rank = {match.skill: place for place, match in enumerate(one.matches)}
    return sorted(fit, key=lambda skill: (rank.get(skill.name, len(rank)), skill.name))


async def ranked_plans(
    one: Opened, planned: AsyncIterator[RankedPlan]
) -> AsyncIterator[RankedPlan]:
    """The learned ones first, which were shown to be better than the rule's first; then the
    planner's.

    Where a trained policy plans, its first plan stays the first: against that they were not
    shown."""
    seen: set[str] = set()
    if one.bench.policy is not None and (first := await anext(planned, None)) is not None:
        seen.add(first.candidate.id)
        yield first
    for skill in fitting(one)[:MAX_LEARNED_PLANS]:
        ranked_plan = await ranked_plan_of(skill, one, one.known.best)
        if ranked_plan is not None and ranked_plan.candidate.id not in seen:
            seen.add(ranked_plan.candidate.id)
            yield ranked_plan
    async for ranked_plan in planned:
        if ranked_plan.candidate.id not in seen:
            yield ranked_plan


async def ranked_plan_of(
    skill: Skill, one: Opened, prefer: Prefer = lambda site: None
) -> RankedPlan | None:
    """The plan that the skill's recipe makes of this program; None: it does not apply, or what it
    makes cannot be written down.

    ``prefer``: parameters for steps of which the skill says nothing."""
    triton = one.bench.device == "cuda" and one.bench.probe.triton is not None
    if not await _instead(skill.requires, one, triton=triton):
        return None
    if all(step.planned for step in skill.recipe):
        return await _tuned_plan(skill, one, prefer, triton=triton)
    placed = await place(skill.recipe, one.sites, one.engine.look, triton=triton)
    if placed is None:
        return None
    try:
        made = await one.engine.make(placed.steps)
    except RewriteError:
        return None
    candidate = replace(made, proposer=f"{PROPOSER}{skill.name}")
    return RankedPlan(candidate=candidate, sites=placed.sites, steps=placed.steps)


async def _instead(asked: Requirements | None, one: Opened, *, triton: bool) -> bool:
    """Whether the rule's first suggestion has what the skill was shown instead of."""
    if asked is None or not (asked.planned or asked.unplanned):
        return True
    planner = Planner(one.engine.make, one.engine.look, weigh=one.engine.weigh)
    first = await anext(planner.ranked_plans(one.sites, triton=triton), None)
    taken = {step.skill for step in first.steps} if first is not None else set()
    return set(asked.planned) <= taken and not taken & set(asked.unplanned)


async def _tuned_plan(
    skill: Skill, one: Opened, prefer: Prefer, *, triton: bool
) -> RankedPlan | None:
    """What the rule would suggest first, with the skill's parameters; None: it takes no such
    step."""

    def choose(site: Site) -> Json | None:
        asked = next((step for step in skill.recipe if _is_meant(step, site)), None)
        return prefer(site) if asked is None else choose_parameters(asked, site)

    planner = Planner(one.engine.make, one.engine.look, choose, one.engine.weigh)
    ranked_plan = await anext(planner.ranked_plans(one.sites, triton=triton), None)
    if ranked_plan is None or not any(
        _is_meant(step, site) for step in skill.recipe for site in ranked_plan.sites
    ):
        return None
    made = replace(ranked_plan.candidate, proposer=f"{PROPOSER}{skill.name}")
    return replace(ranked_plan, candidate=made)


def _is_meant(asked: RecipeStep, site: Site) -> bool:
    return asked.skill == site.skill and set(asked.covers) <= set(anchors(site.site))


async def place(
    recipe: Sequence[RecipeStep], sites: Sequence[Site], look: FindSites, *, triton: bool
) -> PlacedRecipe | None:
    """The recipe's steps at sites; None when one of them finds none."""
    chain, open_ = PlacedRecipe(sites=(), steps=()), tuple(sites)
    for asked in recipe:
        found = 0
        while site := _wanted_site(asked, open_, chain, triton=triton):
            longer = _longer(chain, site, asked)
            try:
                open_ = await look(longer.steps)
            except RewriteError:  # of several the next one may do
                open_ = tuple(other for other in open_ if other.key != site.key)
                continue
            chain, found = longer, found + 1
            if not asked.every or len(chain.steps) == MAX_CHAIN:
                break
        if not found:
            return None
    return chain


def _wanted_site(
    asked: RecipeStep, sites: Sequence[Site], chain: PlacedRecipe, *, triton: bool
) -> Site | None:
    """The site that saves most of those that are meant; none where a step was made already."""
    done = {site.key for site in chain.sites}
    if len(chain.steps) == MAX_CHAIN:
        return None
    meant = (s for s in rank_sites(sites) if _is_meant(asked, s) and s.key not in done)
    return next((s for s in meant if s.plain or triton), None)


def _longer(chain: PlacedRecipe, site: Site, asked: RecipeStep) -> PlacedRecipe:
    step = Step(skill=site.skill, site=site.site, parameters=choose_parameters(asked, site))
    return PlacedRecipe(sites=(*chain.sites, site), steps=(*chain.steps, step))


def choose_parameters(asked: RecipeStep, site: Site) -> Json:
    """The recipe's parameters where the site offers them, its defaults elsewhere."""
    parameters = asked.parameters
    return {
        name: parameters[name]
        if parameters.get(name) in choices and name in parameters
        else choices[0]
        for name, choices in site.parameters.items()
    }
