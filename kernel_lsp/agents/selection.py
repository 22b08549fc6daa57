"""The selection agent: which of the recalled skills a rollout is given as references.

Asked once per rollout, with another seed each time. One rollout in four is given none
(daVinci-kernel's null scheme, arXiv 2606.16497): what the others gain over it is what the skills
are worth."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.agents import prompts, replies, sizing
from kernel_lsp.records import ArmStats, Backbone, Cost, Exchange, Progress, SearchTask

NULL_EVERY = 4


def without_skills(rollout: int) -> bool:
    """Rollouts count from 0."""
    return rollout % NULL_EVERY == NULL_EVERY - 1


async def select(
    backbone: Backbone, task: SearchTask, seed: int, arms: Sequence[ArmStats] = ()
) -> tuple[tuple[str, ...], Exchange, Cost]:
    """Names of at most three of ``task.skills`` (at least one must be there), each once.

    None were chosen, too, when the reply cannot be used: the exchange says why. Raises
    BackboneError."""
    room = sizing.room(await backbone.open(_ignore_progress))
    prompt = prompts.selection(task, room, arms=arms, seed=seed)
    reply = await backbone.reply(prompt)
    parsed = replies.parse(reply, prompt.tools)
    chosen = (one["name"] for call in parsed.calls for one in call.arguments["selected_skills"])
    exchange = Exchange(agent="selection", prompt=prompt, reply=reply, parsed=parsed)
    return tuple(dict.fromkeys(chosen)), exchange, sizing.cost(prompt, reply)


def _ignore_progress(progress: Progress) -> None:
    """It is open already: there is nothing to report."""
