"""Rollouts of the product itself as tasks of the trainer: real prompts, tools, feedback and gate.

Per task: the selection agent chooses for every scheme, the null scheme is given nothing, and all
rollouts go on in step, so that their questions are sampled in one batch; each is the product's own
(environment.py). A turn may take several replies (a skill is read, a reply without a call is asked
for again): they share the turn's advantage. Two tasks are not open at once, since an engine takes
half a gigabyte. Not covered: the summary agent's reward, which takes a verification on other tasks
(recipes say rl.summaries = 0); several nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_lsp.agents import prompts, tools, wording
from kernel_lsp.errors import CaptureError, ConfigError, EvaluationError, RewriteError
from kernel_lsp.pipeline.episodes import chosen_before
from kernel_lsp.records import Finish, Message, ModelInfo, Reply, Role, ToolCall
from trainer.algorithms.batches import Example
from trainer.config import Recipe, Rl
from trainer.records import Tally
from trainer.rollouts import held_out, parents, rows
from trainer.rollouts.environment import (
    Environment,
    Observation,
    OpenTask,
    RewardedEpisode,
    of_model,
)
from trainer.rollouts.episodes import NULL, Episodes, Rollout, Selection, seed_of, speedup
from trainer.rollouts.generation import Ask, Generator, Sampled
from trainer.rollouts.parents import StoredParent
from trainer.rollouts.worlds import WorldState
from trainer.tasks import spaces, task_suites

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.runs import TrainingRun

CLOSED = "its program cannot be read or judged here"
MAX_MEASURED = 8
"""Held-out tasks that are judged for the curves: each takes as long as a task to learn from."""


@dataclass(kw_only=True)
class LiveRollout:
    """One that is going on."""

    rollout: Rollout
    episode: RewardedEpisode
    seen: Observation | None = None
    unspent: list[Sampled] = field(default_factory=list)
    """Replies since the last attempt: the next one's."""

    @property
    def asks(self) -> bool:
        """The summary agent's question is not answered: nothing could pay for the answer."""
        return self.seen is not None and not self.seen.done and self.seen.agent != "summary"

    def note(self, seen: Observation) -> None:
        """What the last reply has led to."""
        self.seen = seen
        for turn in seen.turns:
            self.rollout.turns.append(turn)
            if self.unspent:
                *before, last = self.unspent
                self.rollout.sampled[turn.number] = last
                self.rollout.earlier[turn.number] = tuple(before)
            self.unspent = []
            reached = speedup(turn)
            if reached is not None and reached > (self.rollout.state.speedup or 0.0):
                self.rollout.state = _state(self.rollout.state.task, reached)


async def roll(
    task: OpenTask, sampler: Generator, info: ModelInfo, rl: Rl, seed: int, *, greedy: bool = False
) -> Episodes:
    """All rollouts of one task. Raises what judging raises."""
    selections = await _select(task, sampler, info, rl, seed, greedy)
    live = [*_begin(task, info, rl, seed, selections)]
    await _play_out(live, task.name, sampler, info, seed, greedy=greedy)
    return Episodes(
        rollouts=[one.rollout for one in live],
        selections=[selection for selection, _ in selections],
        summaries=[],
    )


async def roll_parent(
    task: OpenTask, parent: StoredParent, sampler: Generator, info: ModelInfo, rl: Rl, seed: int
) -> Episodes:
    """Fresh samples of one turn from a stored parent (Kernel-Smith, arXiv 2603.28342), whose own
    speedup is measured again here. Raises RewriteError and what judging raises."""
    judged = await task.rollouts.judge_parent(parent.steps, parent.code)
    group = f"{task.name}/{parent.id}"
    live = []
    for number in range(rl.rollouts):
        rollout = Rollout(
            id=f"{group}/{number}",
            scheme=NULL,
            state=_state(task.name, None),
            skills=frozenset({NULL}),
            group=group,
        )
        episode = task.begin(
            seed=seed_of(seed, rollout.id),
            turns=1,
            reward=rl.reward,
            info=info,
            skills=False,
            parent=judged,
        )
        live.append(LiveRollout(rollout=rollout, episode=episode))
    await _play_out(live, group, sampler, info, seed, greedy=False)
    return Episodes(rollouts=[one.rollout for one in live], selections=[], summaries=[])


async def _play_out(
    live: Sequence[LiveRollout],
    name: str,
    sampler: Generator,
    info: ModelInfo,
    seed: int,
    *,
    greedy: bool,
) -> None:
    """All of them to their end, question by question."""
    try:
        for one in live:
            one.note(await one.episode.reset())
        round_ = 0
        while waiting := [one for one in live if one.asks]:
            replies = await _sample(
                [one.seen for one in waiting if one.seen is not None],
                sampler,
                seed_of(seed, name, "policy", round_),
                greedy=greedy,
            )
            for one, sampled in zip(waiting, replies, strict=True):
                one.unspent.append(sampled)
            steps = (
                one.episode.step(reply_of(sampled, info))
                for one, sampled in zip(waiting, replies, strict=True)
            )
            for one, seen in zip(waiting, await asyncio.gather(*steps), strict=True):
                one.note(seen)
            round_ += 1
    finally:
        await asyncio.gather(*(one.episode.close() for one in live))


async def _select(
    task: OpenTask, sampler: Generator, info: ModelInfo, rl: Rl, seed: int, greedy: bool
) -> list[tuple[Selection, RewardedEpisode]]:
    """One choice of skills per scheme; none where the library holds nothing to choose from."""
    episodes = [
        task.begin_selection(seed=seed_of(seed, task.name, "selection", number), info=info)
        for number in range(rl.schemes)
    ]
    seen = [await episode.reset() for episode in episodes]
    replies = await _sample(seen, sampler, seed_of(seed, task.name, "selection"), greedy=greedy)
    found = []
    for number, (episode, asked, sampled) in enumerate(zip(episodes, seen, replies, strict=True)):
        await episode.step(reply_of(sampled, info))
        (exchange,) = episode.episode.archive.exchanges[0]
        calls = exchange.parsed.calls
        names = [one["name"] for c in calls for one in c.arguments["selected_skills"]]
        selection = Selection(
            task=task.name,
            scheme=str(number),
            skills=tuple(dict.fromkeys(names)),
            call=calls[0] if calls else ToolCall(name=tools.SELECT, arguments={}),
            ask=ask_of(asked),
            sampled=sampled,
        )
        found.append((selection, episode))
    return found


def _begin(
    task: OpenTask,
    info: ModelInfo,
    rl: Rl,
    seed: int,
    selections: Sequence[tuple[Selection, RewardedEpisode]],
) -> list[LiveRollout]:
    schemes = [
        (one.scheme, frozenset(one.skills), chosen_before(e.episode.archive.exchanges[0][0]))
        for one, e in selections
    ]
    begun = []
    for scheme, skills, select in [*schemes, *([(NULL, frozenset({NULL}), None)] * rl.null)]:
        for number in range(rl.rollouts):
            rollout = Rollout(
                id=f"{task.name}/{scheme}/{number}",
                scheme=scheme,
                state=_state(task.name, None),
                skills=skills,
                group=task.name,
            )
            episode = task.begin(
                seed=seed_of(seed, rollout.id),
                turns=rl.turns,
                reward=rl.reward,
                info=info,
                skills=scheme != NULL,
                select=select,
            )
            begun.append(LiveRollout(rollout=rollout, episode=episode))
    return begun


async def _sample(
    seen: Sequence[Observation], sampler: Generator, seed: int, *, greedy: bool
) -> list[Sampled]:
    """In a thread: judges and engines are talked to meanwhile."""
    asks = [ask_of(one) for one in seen]
    if not asks:
        return []
    return await asyncio.to_thread(sampler.generate, asks, seed, greedy=greedy)


def ask_of(seen: Observation) -> Ask:
    """The question as the sampler takes it."""
    messages = (Message(role=Role(one["role"]), text=str(one["content"])) for one in seen.messages)
    return Ask(messages=tuple(messages))


def reply_of(sampled: Sampled, info: ModelInfo) -> Reply:
    """What was sampled as the product reads it; a reply without its end was cut."""
    return Reply(
        text=sampled.text,
        finish=Finish.STOP if sampled.ended else Finish.LENGTH,
        token_ids=sampled.reply_ids,
        logprobs=sampled.logprobs,
        latency_s=0.0,
        model=info.model,
        version=str(sampled.version),
    )


def _state(task: str, reached: float | None) -> WorldState:
    return WorldState(task=task, skills=None, point=(), speedup=reached)


class LiveTasks:
    """Tasks of a folder, as the product asks about them and its gate judges them."""

    def __init__(self, recipe: Recipe, tally: Tally) -> None:
        folder = Path(recipe.folder, recipe.world.live or "")
        suite = task_suites.load(folder)
        for one in suite.skipped:
            tally.skip(one.reason, count=one.count)
        learned, held = spaces.split(suite.tasks, recipe.world.held_out, recipe.seed)
        if not learned:
            raise ConfigError(f"world.live: {folder} holds no task", "name a folder of tasks")
        self._recipe, self._suite, self._tally = recipe, suite, tally
        self._learned, self._held = [t.name for t in learned], [t.name for t in held]
        self.training, self.held_out = len(learned), len(held)
        patterns = recipe.rl.parents if recipe.rl is not None else ()
        by_task = {key: task.name for task in learned for key in (task.id, task.name)}
        stored = parents.read(patterns, Path(recipe.folder), tally)
        self._parents = [(by_task[one.task], one) for one in stored if one.task in by_task]
        if patterns and not self._parents:
            raise ConfigError(
                f"rl.parents: none of {len(stored)} parents is of a task to train on",
                "make them of searches of these tasks",
            )

    def texts(self) -> list[str]:
        """What a vocabulary of its own is trained on: the programs, and the words around them."""
        entries = [wording.POLICY, wording.SELECTION, wording.SUMMARY, wording.AFTER_REFERENCES]
        return [*entries, *(prompts.without_inputs(task.source) for task in self._suite.tasks)]

    def begin(self, run: TrainingRun) -> None:
        """Makes the sampler of the run's model, and what an episode knows of it (its context)."""
        self._sampler = held_out.sampler_of(self._recipe, run)
        context = run.model.config.max_position_embeddings
        self._info = of_model(self._recipe.name, context, self._recipe.rollouts)

    @property
    def apart(self) -> bool:
        """Whether the sampler has weights of its own, which `refresh` replaces."""
        return self._sampler.apart

    def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Gives the sampler these weights of the policy, by number."""
        self._sampler.refresh(weights, version)

    def rolled(self, rl: Rl, seed: int, tally: Tally) -> tuple[list[Example], dict[str, float]]:
        """(examples, metrics) of one step: tasks or stored parents drawn by ``seed``, each in episodes of
        the product's pipeline."""
        if self._parents:
            drawn = random.Random(seed).sample(self._parents, min(rl.tasks, len(self._parents)))
            learned = rows.make_examples(
                asyncio.run(self._play_parents(drawn, rl, seed)), rl, tally
            )
            return list(learned.examples), learned.metrics
        names = random.Random(seed).sample(self._learned, min(rl.tasks, len(self._learned)))
        played = asyncio.run(self._play(names, rl, seed))
        found = rows.make_examples(played, rl, tally)
        return list(found.examples), found.metrics

    def measured(self, rl: Rl) -> dict[str, float]:
        """One greedy rollout without skills of each held-out task."""
        if not self._held:
            return {}
        alone = _alone(rl)
        names = self._held[:MAX_MEASURED]
        played = asyncio.run(self._play(names, alone, self._recipe.seed, greedy=True))
        found = rows.make_examples(played, alone, Tally()).metrics
        kept = ("turns/correct", "speedup/first_turn", "speedup/best_turn", "reward/best_turn")
        return {f"held_out/{name}": found[name] for name in kept if name in found}

    def close(self) -> None:
        """Ends what samples."""
        self._sampler.close()

    async def _play_parents(
        self, parents: Sequence[tuple[str, StoredParent]], rl: Rl, seed: int
    ) -> Episodes:
        """Parents of one task one after the other, while it is open."""
        every = Episodes(rollouts=[], selections=[], summaries=[])
        device = self._recipe.judging.device
        async with Environment(self._suite, device=device) as environment:
            for name in dict.fromkeys(name for name, _ in parents):
                mine = [parent for own, parent in parents if own == name]
                try:
                    async with environment.open(name) as task:
                        for parent in mine:
                            every.rollouts += (
                                await roll_parent(task, parent, self._sampler, self._info, rl, seed)
                            ).rollouts
                except (CaptureError, EvaluationError, RewriteError) as error:
                    self._tally.skip(CLOSED, f"{name}: {error}")
        return every

    async def _play(
        self, names: Sequence[str], rl: Rl, seed: int, *, greedy: bool = False
    ) -> Episodes:
        every = Episodes(rollouts=[], selections=[], summaries=[])
        device = self._recipe.judging.device
        async with Environment(self._suite, device=device) as environment:
            for name in names:
                try:
                    async with environment.open(name) as task:
                        found = await roll(task, self._sampler, self._info, rl, seed, greedy=greedy)
                except (CaptureError, EvaluationError) as error:
                    self._tally.skip(CLOSED, f"{name}: {error}")
                    continue
                every.rollouts += found.rollouts
                every.selections += found.selections
        return every


def _alone(rl: Rl) -> Rl:
    return replace(rl, schemes=0, null=True, rollouts=1)
