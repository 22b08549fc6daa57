"""First candidates for one task: with the skill, without it (the rest of the learned library), and
with none of the learned library at all.

Not covered: skills that are text, for which a language model writes (prompted.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.agents.kernel_planner import KernelPlanner
from kernel_lsp.agents.learned import LearnedPlanner
from kernel_lsp.agents.plan import Planner
from kernel_lsp.pipeline import recipes
from kernel_lsp.pipeline.known import KnownWinners
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.order import Pipeline
from kernel_lsp.records import Candidate, Json, Report, Site, Skill
from kernel_lsp.skillbook import conditions

MAX_RIVALS = 3
"""Other learned skills that take part in one task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationArms:
    """First candidates for one task."""

    mine: Candidate
    without: Candidate | None
    """Of the library without the skill; None: it leaves the program as it is."""
    null: Candidate | None
    rivals: Mapping[str, Candidate]
    """Other learned skill -> its candidate."""

    @property
    def differs(self) -> bool:
        """Whether the skill changes the candidate at all."""
        return self.without is None or self.mine.id != self.without.id

    def every(self) -> list[Candidate]:
        """Candidates of all arms, each once."""
        known = (self.without, self.mine, self.null, *self.rivals.values())
        return list({one.id: one for one in known if one is not None}.values())


async def arms(
    skill: Skill, library: Sequence[Skill], one: Opened, pipeline: Pipeline, report: Report
) -> ValidationArms | None:
    """First candidates with and without the skill; None: the skill's sites do not occur."""
    mine = await recipes.ranked_plan_of(skill, one)
    if mine is None:
        return None
    planner = _planner(one, pipeline, report)
    triton = one.bench.device == "cuda" and one.bench.probe.triton is not None
    first = await anext(planner.ranked_plans(one.sites, triton=triton), None)
    null = first.candidate if first else None
    rivals = {}
    for other in _others(skill, library, one)[:MAX_RIVALS]:
        if (ranked_plan := await recipes.ranked_plan_of(other, one)) is not None:
            rivals[other.name] = ranked_plan.candidate
    return ValidationArms(
        mine=mine.candidate, without=next(iter(rivals.values()), null), null=null, rivals=rivals
    )


def _planner(
    one: Opened, pipeline: Pipeline, report: Report
) -> Planner | LearnedPlanner | KernelPlanner:
    """What would plan here, without the parameters that this user's own searches have found."""
    if one.bench.policy is None:
        return Planner(one.engine.make, one.engine.look, weigh=one.engine.weigh)
    return pipeline.policies.planner(replace(one, known=_Forgetful()), report)


def _others(skill: Skill, library: Sequence[Skill], one: Opened) -> list[Skill]:
    around = recipes.surroundings(one.bench, one.capture.inputs)
    others = (other for other in library if other.recipe and other.name != skill.name)
    return [other for other in others if not any(conditions.unmet(other.requires, around))]


class _Forgetful(KnownWinners):
    """Remembers nothing: what one user knows must not decide what helps."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def best(self, site: Site) -> Json | None:
        """None: nothing is remembered of any place."""
        return None
