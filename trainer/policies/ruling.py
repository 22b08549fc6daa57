"""What the rule suggests first now, for one of our own tasks: on fake tensors, in this very
process.

A table of measured plans says what was suggested when it was recorded; since then the rule may
have become another one. Not covered: programs of others, which run in an engine's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_lsp.agents.plan import Planner
from kernel_lsp.records import Candidate, Site, Step, Viewed

PlanPlaces = tuple[tuple[str, str], ...]
"""(skill, site) of each step."""


class InProcess:
    """A session (rewrite/engine.py) as a planner asks its engine."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        """The sites that are there after these steps."""
        return tuple(self._session.look(list(steps)))

    async def view(self, steps: Sequence[Step]) -> Viewed:
        """What the engine shows of the program after these steps."""
        found: Viewed = self._session.view(list(steps))
        return found

    async def weigh(self, steps: Sequence[Step]) -> float:
        """The estimated cost of the program after these steps."""
        return float(self._session.weigh(list(steps)))

    async def make(self, steps: Sequence[Step]) -> Candidate:
        """The candidate that these steps make."""
        made: Candidate = self._session.make(list(steps))
        return made


def places(steps: Sequence[Step]) -> PlanPlaces:
    """Skill and site of each step."""
    return tuple((step.skill, step.site) for step in steps)


async def first(session: Any, sites: Sequence[Site]) -> PlanPlaces:
    """The places of a GPU's first plan; empty where nothing applies. ``sites``: the captured
    program's."""
    engine = InProcess(session)
    planner = Planner(engine.make, engine.look, weigh=engine.weigh)
    ranked_plan = await anext(planner.ranked_plans(sites, triton=True), None)
    return places(ranked_plan.steps) if ranked_plan is not None else ()
