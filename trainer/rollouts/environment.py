"""The product's rollouts as an environment: `reset` and `step` over chat messages, with rewards.

    async with Environment(tasks.load(folder), device="cpu") as environment:
        async with environment.open(name) as task:
            episode = task.begin(turns=3, seed=0)
            seen = await episode.reset()
            while not seen.done:
                seen = await episode.step(model(seen.messages, seen.tools))   # text, or a message

For our own loop (live.py) and for others': what they need is a list of messages, a text or an
assistant's message back, and a number. A reward is None after replies that nothing was judged for
(a choice of skills, a skill that was read) and where the judgement itself failed: unknown is no 0.
What is asked and how a reply is read is the product's own code (kernel_lsp/pipeline/episodes.py).
Not covered: a policy's tokens (live.py)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernel_lsp import config
from kernel_lsp.agents import tools
from kernel_lsp.agents.backbones import chat
from kernel_lsp.agents.policy import Select
from kernel_lsp.config import Settings
from kernel_lsp.errors import ConfigError
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.pipeline.episodes import Episode, Moment, TargetRollouts, open_rollouts, plan_of
from kernel_lsp.records import (
    Attempt,
    Finish,
    Job,
    Json,
    ModelInfo,
    Reply,
    SearchJudge,
    SearchPlan,
    Structured,
    ToolCall,
)
from trainer.algorithms import rewards
from trainer.config import RolloutsConfig
from trainer.data.archives import attempt_outcome
from trainer.data.asked import INFO
from trainer.records import Agent, ModelTurn
from trainer.tasks.task_suites import TaskSuite, TrainingTask


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What a policy sees, and what its last reply has earned."""

    messages: tuple[Json, ...] = ()
    """``{"role", "content"}`` as chat templates take them; empty when the episode is over."""
    tools: tuple[Json, ...] = ()
    """In the form of OpenAI's API; the first message tells them in words, too, unless the model's
    ``structured`` says that it takes tools."""
    schema: Json | None = None
    """Of a whole reply that is one call, for constrained decoding."""
    agent: str = ""
    """Who asks: selection, policy or summary."""
    reward: float | None = None
    """Of the attempt that the last reply ended; None: it ended none, or nobody could judge it."""
    terms: dict[str, float] = field(default_factory=dict)
    done: bool = False
    turns: tuple[ModelTurn, ...] = ()
    """The attempts that the last reply ended, with their verdicts."""
    moment: Moment = field(repr=False)
    """The same in the product's records."""


class Environment:
    """Tasks of a suite on one device. An asynchronous context."""

    def __init__(
        self, suite: TaskSuite, *, device: str = "auto", settings: Settings | None = None
    ) -> None:
        """``settings``: where skills, caches and what is learned lie; None: the user's."""
        self.tasks: dict[str, TrainingTask] = suite.by_name
        self._device = device
        self.pipeline = Pipeline(settings or config.load(None)[0])

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pipeline.close()

    @contextlib.asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[OpenTask]:
        """One task, read and ready for episodes: seconds. Raises ConfigError for a name that is
        none, and KernelLspError where its program cannot be captured."""
        if name not in self.tasks:
            raise ConfigError(f"there is no task {name}", "name one of environment.tasks")
        async with open_rollouts(self.pipeline, self.job(name)) as rollouts:
            yield OpenTask(name=name, rollouts=rollouts)

    def job(self, name: str) -> Job:
        """The task as the product's job."""
        task = self.tasks[name]
        return Job(
            text=task.source,
            path=str(task.path),
            qualname=task.program.entry if task.program.kernel is None else task.program.kernel,
            device=self._device,
        )


@dataclass(frozen=True, kw_only=True)
class OpenTask:
    """Begins episodes, as many at a time as one likes."""

    name: str
    rollouts: TargetRollouts

    def begin(
        self,
        *,
        seed: int,
        turns: int = 3,
        reward: str = "bound",
        info: ModelInfo = INFO,
        plan: SearchPlan | None = None,
        skills: bool = True,
        select: Select | None = None,
        judge: SearchJudge | None = None,
        parent: Attempt | None = None,
    ) -> RewardedEpisode:
        """``plan``: a job's instead of ``turns``; the others as `TargetRollouts.begin` has them."""
        episode = self.rollouts.begin(
            info,
            plan or plan_of(turns),
            seed=seed,
            skills=skills,
            select=select,
            judge=judge,
            parent=parent,
        )
        made = RewardedEpisode(episode=episode, info=info, reward=rewards.REWARDS[reward])
        made.note_parent(parent)
        return made

    def begin_selection(self, *, seed: int, info: ModelInfo = INFO) -> RewardedEpisode:
        """The choice of skills alone, for several rollouts (`episodes.chosen_before`)."""
        episode = self.rollouts.begin_selection(info, seed=seed)
        return RewardedEpisode(episode=episode, info=info, reward=rewards.bound)


@dataclass(kw_only=True)
class RewardedEpisode:
    """One rollout. `close` it, also when it is over."""

    episode: Episode
    info: ModelInfo
    reward: rewards.Reward
    _turns: dict[int, ModelTurn] = field(default_factory=dict, init=False)
    """By the attempt's number."""

    def note_parent(self, parent: Attempt | None) -> None:
        """What its turns start from, so that rewards can be relative to it."""
        if parent is not None:
            self._turn(parent)

    async def reset(self) -> Observation:
        """Begins the episode; what the model sees first."""
        return self._observed(await self.episode.reset())

    async def step(self, action: str | Mapping[str, Any] | Reply) -> Observation:
        """A text, an assistant's message as OpenAI's API has it, or a whole `Reply`. A text of any
        length is read; what is of no use is said in the next question and earns 0."""
        return self._observed(await self.episode.step(reply_of(action, self.info.model)))

    async def close(self) -> None:
        """Ends the episode and what it holds open."""
        await self.episode.close()

    def _observed(self, moment: Moment) -> Observation:
        turns = tuple(self._turn(attempt) for attempt in moment.attempts)
        terms = self._terms(turns[-1]) if turns else None
        prompt = moment.prompt
        form = self.info.structured
        return Observation(
            messages=tuple(chat.messages(prompt, form)) if prompt else (),
            tools=tuple(chat.asked_for(prompt.tools, Structured.TOOLS)["tools"]) if prompt else (),
            schema=tools.envelope(prompt.tools) if prompt and prompt.tools else None,
            agent=moment.agent,
            reward=None if terms is None else rewards.total(terms),
            terms=terms or {},
            done=prompt is None,
            turns=turns,
            moment=moment,
        )

    def _terms(self, turn: ModelTurn) -> rewards.RewardTerms | None:
        found = rewards.judge_turn(turn)
        return None if found is None else self.reward(found)

    def _turn(self, attempt: Attempt) -> ModelTurn:
        """Numbered in the order of the attempts, as `rows.py` groups them."""
        above = self._turns.get(attempt.parent) if attempt.parent is not None else None
        candidate, number = attempt.candidate, len(self._turns)
        made = ModelTurn(
            number=number,
            agent=Agent.POLICY,
            steps=candidate.steps if candidate else (),
            outcome=attempt_outcome(attempt),
            step=number,
            parent=above.number if above else None,
            parent_outcome=above.outcome if above else None,
            candidate=candidate.id if candidate else None,
            skills=candidate.advice if candidate else (),
            model=attempt.proposer,
        )
        self._turns[attempt.number] = made
        return made


def reply_of(action: str | Mapping[str, Any] | Reply, model: str) -> Reply:
    """A policy's action as the product reads replies. Raises ValueError for what is none."""
    if isinstance(action, Reply):
        return action
    if isinstance(action, str):
        return Reply(text=action, latency_s=0.0, model=model)
    if not isinstance(action, Mapping):
        raise ValueError(f"an action is a text or an assistant's message, not {type(action)}")
    text = str(action.get("content") or "")
    calls, loose = [], []
    for one in action.get("tool_calls") or ():
        function = one.get("function", {})
        call = _call(function, str(one.get("id") or ""))
        calls += [call] if call else []
        loose += [] if call else [str(function.get("arguments") or "")]
    finish = Finish.LENGTH if action.get("finish_reason") == "length" else Finish.STOP
    content = "\n".join(part for part in (text, *loose) if part)
    return Reply(text=content, calls=tuple(calls), finish=finish, latency_s=0.0, model=model)


def _call(function: Mapping[str, Any], name: str) -> ToolCall | None:
    """None: its arguments are no JSON object, and are read as text."""
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, dict) or not isinstance(function.get("name"), str):
        return None
    return ToolCall(name=function["name"], arguments=arguments, id=name)


def of_model(
    name: str, context_tokens: int | None, sampling: RolloutsConfig | None = None
) -> ModelInfo:
    """How prompts are cut and sampled for a model of the trainer's."""
    info = replace(INFO, model=name, context_tokens=context_tokens)
    if sampling is None:
        return info
    return replace(
        info,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        reply_tokens=sampling.max_tokens,
    )
