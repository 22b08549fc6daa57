"""Pairs for a learned skill that is text: what a language model proposes first, with the text and
without it.

Each half is one turn of the policy agent on the program as it is, with the same seed. How a half
came about and what was judged of it lie in the sample's archive, so a run that goes on asks no
model again. Not covered: what the pairs show (pairs.py, library/uplift.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp.agents import backbones
from kernel_lsp.agents.policy import PolicyAgent
from kernel_lsp.agents.selection import NULL_EVERY
from kernel_lsp.config import Settings
from kernel_lsp.pipeline.deep import task_of
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.records import (
    Attempt,
    Backbone,
    Candidate,
    Context,
    Cost,
    Exchange,
    ModelInfo,
    Move,
    Parsed,
    Prompt,
    Reply,
    Report,
    SearchTask,
    Skill,
    SkillMatch,
)
from kernel_lsp.search import attempts
from kernel_lsp.search.archive import SqliteArchive
from kernel_lsp.search.bandit import BanditArms

WITH, WITHOUT = 0, NULL_EVERY - 1
"""Rollouts: the agent gives every fourth one no skills."""
Conclude = Callable[[Opened, SqliteArchive, Attempt, Candidate], Awaitable[Attempt | None]]
"""Judges what was begun and keeps it; None: it could not be judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptedPair:
    """None: a half that could not be judged."""

    mine: Attempt | None
    without: Attempt | None


@dataclass(frozen=True, kw_only=True)
class PromptedWriter:
    """One language model and the skill that it reads, or not."""

    backbone: Backbone
    info: ModelInfo
    skill: Skill
    settings: Settings

    @staticmethod
    async def open(
        skill: Skill, settings: Settings, python: str, allowed_origin: str | None, report: Report
    ) -> PromptedWriter:
        """A writer whose candidates a language model makes with the skill in its prompt. Raises
        BackboneError, also when no model is set."""
        backbone = backbones.make(
            settings, python=python, allowed_origin=allowed_origin, data_dir=settings.data_dir
        )
        return PromptedWriter(
            backbone=backbone, info=await backbone.open(report), skill=skill, settings=settings
        )

    async def pair(
        self, one: Opened, archive: SqliteArchive, number: int, conclude: Conclude
    ) -> PromptedPair:
        """Asks for both halves of a sample, with the skill and without; which comes first changes
        with its number."""
        order = (WITH, WITHOUT) if number % 2 == 0 else (WITHOUT, WITH)
        found = {
            rollout: await self._half(one, archive, number, rollout, conclude) for rollout in order
        }
        return PromptedPair(mine=found[WITH], without=found[WITHOUT])

    async def _half(
        self, one: Opened, archive: SqliteArchive, number: int, rollout: int, conclude: Conclude
    ) -> Attempt | None:
        known = next((a for a in archive.attempts if a.rollout == rollout), None)
        if known is not None:
            return known
        begun = next((pair for pair in archive.unfinished if pair[0].rollout == rollout), None)
        if begun is not None:
            return await conclude(one, archive, *begun)
        context = Context(
            number=archive.reserve(), seed=number, move=Move.RESTART, rollout=rollout, turn=1
        )
        agent = PolicyAgent(
            self.backbone, EngineWorkshop(one.engine, one.prepared), self._select, info=self.info
        )
        draft = await agent.propose(self._task(one, rollout), context)
        assert draft is not None, "only a backbone that reads nothing has nothing to say"
        attempt = attempts.begin_attempt(self.info.name, context, draft)
        if draft.candidate is None:
            archive.add(attempt, draft.exchanges)
            return attempt
        stamped = attempts.stamp_candidate(draft.candidate, attempt, context, archive.id)
        if (earlier := archive.begin(attempt, stamped, draft.exchanges)) is not None:
            same = replace(
                attempt, complaint=f"same as attempt {earlier.number}", proposal=earlier.proposal
            )
            archive.add(same, draft.exchanges)
            return same
        return await conclude(one, archive, attempt, stamped)

    def _task(self, one: Opened, rollout: int) -> SearchTask:
        """Without the skill there is nothing to read either."""
        task = task_of(one, (), BanditArms(Path(self.settings.data_dir)))
        if rollout == WITHOUT:
            return replace(task, matches=(), skills=())
        match = SkillMatch(skill=self.skill.name, score=0.0, words=())
        return replace(task, matches=(match,), skills=(self.skill,))

    async def _select(self, task: SearchTask, seed: int) -> tuple[tuple[str, ...], Exchange, Cost]:
        """Nobody is asked: it is this one."""
        reply = Reply(text="", latency_s=0.0, model="none")
        nothing = Exchange(
            agent="selection", prompt=Prompt(messages=()), reply=reply, parsed=Parsed()
        )
        return (self.skill.name,), nothing, Cost()
