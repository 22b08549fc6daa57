"""The trainer's environment is the product's rollout: a job is replayed in it, byte by byte."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Say, ScriptedModel

from kernel_lsp import wire
from kernel_lsp.config import Settings
from kernel_lsp.errors import ConfigError
from kernel_lsp.evaluator import EvaluationBudget, evidence
from kernel_lsp.journal.outcomes import save_proposals, save_question
from kernel_lsp.journal.store import Journal
from kernel_lsp.pipeline import tournament
from kernel_lsp.pipeline.episodes import EpisodeOver
from kernel_lsp.records import (
    Attempt,
    Candidate,
    ModelInfo,
    Outcome,
    Reply,
    SearchBudget,
    SearchJudgement,
    SearchMode,
    SearchPlan,
    Structured,
)
from tests.unit.pipeline.test_pipeline_workshop import RIGHT, TEXT
from trainer import config
from trainer.algorithms import rewards
from trainer.algorithms.rollout_credit import UNKNOWN
from trainer.config import Rl
from trainer.data import archives, corpora
from trainer.records import Agent, Permission, Tally, TurnStatus
from trainer.rl import train
from trainer.rollouts import live, rows
from trainer.rollouts.environment import Environment, RewardedEpisode, of_model, reply_of
from trainer.rollouts.generation import Ask, Sampled
from trainer.rollouts.parents import StoredParent
from trainer.tasks import task_suites

pytestmark = pytest.mark.torch
WRONG = RIGHT.replace(".sum(dim=1)", ".sum(dim=1) + 1")
MENDED = (
    "<<<<<<< SEARCH\n        return self.fc(self.d[:, None] * x).sum(dim=1) + 1\n=======\n"
    "        return self.fc(self.d[:, None] * x).sum(dim=1)\n>>>>>>> REPLACE"
)
INFO = ModelInfo(
    backbone="openai", model="scripted", context_tokens=32_768, structured=Structured.SCHEMA
)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged in full, in little time."""
    monkeypatch.setattr("keyring.get_password", lambda service, user: None)
    short = EvaluationBudget(compile_s=0.0, timing_s=0.3)
    monkeypatch.setattr(tournament, "FULL", short)
    monkeypatch.setattr(tournament, "QUICK", short)


@dataclass
class Recorded:
    """What a product's job left behind."""

    archive: Path
    search: archives.ArchivedSearch
    seed: int

    @property
    def said(self) -> list[tuple[str, str, Reply]]:
        """(agent, prompt as JSON, reply), in their order."""
        exchanges = (one for number in self.search.exchanges for one in self._of(number))
        return [(one.agent, wire.dumps(one.prompt), one.reply) for one in exchanges]

    def _of(self, number: int) -> Any:
        return self.search.exchanges[number]

    async def judge(self, candidate: Candidate, *, full: bool) -> SearchJudgement:
        """The recorded verdict, with the evidence that it rests on."""
        made = self.search.attempts.values()
        (attempt,) = [one for one in made if one.candidate and one.candidate.id == candidate.id]
        assert attempt.proposal is not None and attempt.proposal.evidence is not None
        kept = evidence.read(Path(attempt.proposal.evidence))
        return SearchJudgement(proposal=attempt.proposal, evidence=kept)


@pytest.fixture
def suite(tmp_path: Path) -> task_suites.TaskSuite:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "diagonal.py").write_text(TEXT)
    return task_suites.load(folder)


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings(data_dir=str(folder), python=sys.executable, **more)


def recorded(path: Path) -> Recorded:
    search = archives.read(path, Tally())
    assert search is not None
    with sqlite3.connect(path) as database:
        ((seed,),) = database.execute("SELECT value FROM meta WHERE name = 'seed'").fetchall()
    database.close()
    return Recorded(archive=path, search=search, seed=int(seed))


@dataclass
class Replayed:
    """A job of the product, and the same replies in the trainer's environment."""

    outcome: Outcome
    told: Recorded
    earned: list[float | None]
    """After each reply."""


async def replayed(
    suite: task_suites.TaskSuite, folder: Path, answers: Sequence[Say], agents: Sequence[str]
) -> Replayed:
    """Prompts and attempts, with their feedback, are equal to the byte; ``agents``: who asked
    first, one after the other."""
    said = iter(answers)
    plan = SearchPlan(
        mode=SearchMode.TURNS,
        budget=SearchBudget(candidates=2, seconds=None),
        archive=str(folder / "job.db"),
    )
    async with ScriptedModel(lambda body: next(said)) as server:
        where = settings_of(folder / "data", policy="openai", endpoint=server.endpoint)
        environment = Environment(suite, device="cpu", settings=where)
        job = replace(environment.job("diagonal"), search=plan)
        outcome = await environment.pipeline.optimize(job)
    told = recorded(folder / "job.db")
    assert [agent for agent, _, _ in told.said[: len(agents)]] == list(agents)

    async with environment, environment.open("diagonal") as task:
        episode = task.begin(info=INFO, plan=plan, seed=told.seed, judge=told.judge, reward="kevin")
        seen = await episode.reset()
        asked, earned = [], []
        for agent, _, reply in told.said:
            assert seen.moment.prompt is not None and seen.agent == agent
            asked.append(wire.dumps(seen.moment.prompt))
            seen = await episode.step(reply)
            earned.append(seen.reward)
        assert seen.done
        again = episode.episode.archive
        await episode.close()
    assert asked == [prompt for _, prompt, _ in told.said]
    for number, attempt in told.search.attempts.items():
        (same,) = [one for one in again.attempts if one.number == number]
        assert _bytes(same) == _bytes(attempt)
    return Replayed(outcome, told, earned)


async def test_a_job_of_the_product_is_replayed_byte_by_byte(
    suite: task_suites.TaskSuite, tmp_path: Path
) -> None:
    """Selection, a wrong rewrite, a reply without a call and its repair, the mend; then the same
    replies in the environment: prompts, attempts, feedback and rewards are the same."""
    answers = [
        Say(tool="select_skills", arguments={"think": "", "selected_skills": []}),
        Say(f"Here:\n```python\n{WRONG}```\n"),
        Say("I am not sure."),
        Say(MENDED),
    ]
    found = await replayed(suite, tmp_path, answers, ["selection", "policy", "policy", "policy"])
    told = found.told
    own = Permission(training=True, source=True, redacted=True, because="a test")
    (trajectory,) = archives.trajectories(told.search, own, {})
    by_number = {turn.number: turn for turn in trajectory.turns}
    judged = [turn for turn in trajectory.policy_turns if turn.candidate is not None]
    expected = []
    for turn in judged:
        parent = by_number.get(turn.parent) if turn.parent is not None else None
        verdict = rewards.judge_turn(turn, parent)
        terms = rewards.kevin(verdict) if verdict else None
        expected.append(None if terms is None else rewards.total(terms))
    assert [one for one in found.earned if one is not None] == expected
    assert expected[0] == 0.0 and (expected[-1] or 0.0) > 0.0
    _asks_again(found.outcome, tmp_path, told)


async def test_what_the_summary_agent_is_asked_is_replayed_byte_by_byte(tmp_path: Path) -> None:
    """A right rewrite that is as slow, then one that is many times as fast, which is a lesson."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    large = (("torch.ones(16)", "torch.ones(1500)"), ("randn(16, 8)", "randn(1500, 8)"))
    fast, text = RIGHT, TEXT
    for small, big in large:
        fast, text = fast.replace(small, big), text.replace(small, big)
    (folder / "diagonal.py").write_text(text)
    slow = fast.replace("self.d[:, None] * x", "torch.diag(self.d).matmul(x)")
    assert slow != fast
    skill = {
        "name": "diagonal-rows",
        "description": "Scale rows instead of multiplying by a diagonal matrix.",
        "scope": "graph",
        "tags": ["matmul"],
        "content": "## Motivation\n\nA diagonal matrix is mostly zeros.\n\n## Key Idea\n\nScale.\n",
    }
    answers = [
        Say(tool="select_skills", arguments={"think": "", "selected_skills": []}),
        Say(f"Here:\n```python\n{slow}```\n"),
        Say(f"Here:\n```python\n{fast}```\n"),
        Say(tool="update_skill_library", arguments={"think": "", "new_skills": [skill]}),
    ]
    agents = ["selection", "policy", "policy", "summary"]
    found = await replayed(task_suites.load(folder), tmp_path, answers, agents)
    assert [agent for agent, _, _ in found.told.said] == agents
    (_, prompt, reply) = found.told.said[-1]
    assert "update_skill_library" in prompt and "diagonal-rows" in wire.dumps(reply)
    assert found.earned[-1] is None  # what a lesson is worth, other tasks have to show


def _asks_again(outcome: Outcome, folder: Path, told: Recorded) -> None:
    """The journal of the same job, which holds no prompt, gives the very one that was asked."""
    with Journal.open(folder / "journal.db") as journal:
        where = {"folder": folder, "path": folder / "net.py", "client": None}
        save_proposals(
            journal,
            outcome.proposals,
            keep_source=True,
            training=True,
            reference=told.search.program.source,
            **where,
        )
        save_question(journal, outcome, **where)
    (logged,) = corpora.read(journals=[folder / "journal.db"]).trajectories
    policy = [json.loads(prompt) for agent, prompt, _ in told.said if agent == "policy"]
    first = logged.turns[0]
    assert first.messages is not None
    assert wire.to_json(first.messages) == policy[0]["messages"]
    assert wire.to_json(first.tools) == policy[0]["tools"]
    assert {call.name for turn in logged.turns for call in turn.calls} == {"write_rewrite"}


def _bytes(attempt: Attempt) -> str:
    """What does not tell when it was, or how long a model and a gate took."""
    told = wire.to_json(attempt)
    for clock in ("created", "cost"):
        told.pop(clock)
    if told["proposal"]:
        told["proposal"]["candidate"].pop("search", None)
    return json.dumps(told, sort_keys=True)


async def test_an_episode_ends_after_its_turns_whatever_the_model_says(
    suite: task_suites.TaskSuite, tmp_path: Path
) -> None:
    """Nonsense, 100,000 tokens of it, and a call that fits: a message as OpenAI's API has it."""
    where = settings_of(tmp_path / "data")
    environment = Environment(suite, device="cpu", settings=where)
    async with environment, environment.open("diagonal") as task:
        episode = task.begin(turns=3, seed=5, skills=False, reward="kevin")
        seen = await episode.reset()
        assert seen.agent == "policy" and seen.reward is None and not seen.done
        assert {one["role"] for one in seen.messages} == {"system", "user"}
        names = [one["function"]["name"] for one in seen.tools]
        assert "write_rewrite" in names and "write_rewrite" in seen.messages[0]["content"]
        seen = await episode.step("well, " * 100_000)
        assert seen.reward is None and "cannot be used" in seen.messages[-1]["content"]
        seen = await episode.step("still nothing")  # the repair is used up: the turn is over
        assert seen.reward == 0.0 and seen.turns[0].outcome.status is TurnStatus.REFUSED
        code = {"name": "write_rewrite", "arguments": json.dumps({"code": RIGHT})}
        seen = await episode.step({"content": None, "tool_calls": [{"function": code}]})
        assert seen.turns[0].outcome.status is TurnStatus.PASSED and (seen.reward or 0) > 0
        assert seen.turns[0].outcome.coverage == 0.0 and "correct" in seen.terms
        assert "right, speed" in seen.messages[-1]["content"]
        seen = await _useless(episode)
        assert seen.done and seen.messages == () and seen.tools == ()
        with pytest.raises(EpisodeOver, match="nothing was asked"):
            await episode.step("one more")
        with pytest.raises(EpisodeOver, match="begins once"):
            await episode.reset()
        await episode.close()


async def _useless(episode: RewardedEpisode) -> Any:
    await episode.step("")
    seen = await episode.step("")
    return await episode.step("") if seen.agent == "summary" else seen


class Scripted:
    """A sampler whose replies are given, by what is asked: a double for a model that can write."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []

    def generate(self, asks: Sequence[Ask], seed: int, *, greedy: bool = False) -> list[Sampled]:
        self.asked += asks
        return [self._reply(ask, place) for place, ask in enumerate(asks)]

    def _reply(self, ask: Ask, place: int) -> Sampled:
        asked = ask.messages[-1].text
        text, ended = "no idea", True
        if "Which help?" in asked:
            call = {"think": "", "selected_skills": []}
            text = json.dumps({"name": "select_skills", "arguments": call})
        elif place == 0:
            text, ended = "def endless(): ...", False
        elif place == 1 and "cannot be used" not in asked:
            text = json.dumps({"name": "write_rewrite", "arguments": {"code": RIGHT}})
        return Sampled(
            text=text,
            prompt_ids=(1, 2),
            reply_ids=(place + 3,),
            logprobs=(-0.5,),
            allowed=None,
            version=0,
            ended=ended,
        )


async def test_the_trainers_rows_are_of_the_products_rollouts(
    suite: task_suites.TaskSuite, tmp_path: Path
) -> None:
    """One scheme with a choice of skills and the null scheme, two rollouts each: only the second
    one writes what is right, so it alone is better than its group; all replies of its turns are
    rows, the ones that were asked for again too."""
    sampler, info = Scripted(), of_model("tiny", 16_384)
    rl = Rl(schemes=1, null=True, rollouts=2, turns=1, summaries=0, reward="kevin")
    where = settings_of(tmp_path / "data")
    async with (
        Environment(suite, device="cpu", settings=where) as environment,
        environment.open("diagonal") as task,
    ):
        played = await live.roll(task, sampler, info, rl, seed=3)  # type: ignore[arg-type]
    assert [one.scheme for one in played.rollouts] == ["0", "0", "null", "null"]
    statuses = [[turn.outcome.status for turn in one.turns] for one in played.rollouts]
    refused, passed = [TurnStatus.REFUSED], [TurnStatus.PASSED]
    assert statuses == [refused, passed, refused, refused]
    tally = Tally()
    learned = rows.make_examples(played, rl, tally)
    advantages = {
        one.trajectory: one.advantage for one in learned.examples if one.agent is Agent.POLICY
    }
    better = advantages["policy/diagonal/diagonal/0/1"]
    reached = played.rollouts[1].state.speedup
    assert reached is not None
    # TRLOO: 4 / 3 (G - mean of four) = G where the other three earn nothing.
    assert better == pytest.approx(0.3 + reached) and tally.count(UNKNOWN) == 0
    assert [v for v in advantages.values() if v != better] == pytest.approx([-better / 3] * 3)
    again = [one for one in learned.examples if one.trajectory.endswith("/null/1")]
    assert len(again) == 2 and again[0].advantage == again[1].advantage  # the repair, too
    (selection,) = [one for one in learned.examples if one.agent is Agent.SELECTION]
    assert selection.advantage == pytest.approx(0.3 * (0.3 + reached) / 2)


async def test_samples_start_from_a_stored_parent_and_earn_what_they_add(
    suite: task_suites.TaskSuite, tmp_path: Path
) -> None:
    """Kernel-Smith: r = s / s_parent, the parent's measured again here; one turn, eight samples
    there and two here. What only mends a comment is the parent's own speed: about 1."""
    sampler, info = Scripted(), of_model("tiny", 16_384)
    rl = Rl(schemes=0, rollouts=2, turns=1, summaries=0, reward="parent_relative", advantage="grpo")
    slower = RIGHT.replace("self.d[:, None] * x", "(self.d[:, None] + 0.0) * x")
    parent = StoredParent(task="diagonal", code=slower, speedup=1.3)
    where = settings_of(tmp_path / "data")
    async with (
        Environment(suite, device="cpu", settings=where) as environment,
        environment.open("diagonal") as task,
    ):
        played = await live.roll_parent(task, parent, sampler, info, rl, seed=3)  # type: ignore[arg-type]
    cut, better = (one.turns[0] for one in played.rollouts)
    assert [len(one.turns) for one in played.rollouts] == [1, 1]
    assert (cut.outcome.status, better.outcome.status) == (TurnStatus.REFUSED, TurnStatus.PASSED)
    start = better.parent_outcome
    assert start is not None and "eager" in start.speedups and start.speedups["eager"].mid != 1.3
    learned = rows.make_examples(played, rl, Tally())
    assert "Go on from attempt 0" in sampler.asked[0].messages[1].text
    assert slower.splitlines()[-1] in sampler.asked[0].messages[1].text
    speeds = better.outcome.speedups["eager"].mid, start.speedups["eager"].mid
    assert learned.metrics["terms/speed"] == pytest.approx(speeds[0] / speeds[1] / 2)
    # GRPO over two: rewards 0 and r are -1/sqrt(2) and 1/sqrt(2) deviations from their mean.
    found = {round(one.advantage, 3) for one in learned.examples}
    assert found == {-0.707, 0.707}
    groups = {one.trajectory.rpartition("/")[0] for one in learned.examples}
    assert groups == {f"policy/diagonal/{parent.id}/diagonal/{parent.id}"}


def test_a_model_of_random_weights_is_trained_by_the_products_gate(
    suite: task_suites.TaskSuite, tmp_path: Path
) -> None:
    """Nothing that it says is of use: every reward is 0, nothing is unknown, and the run goes
    on."""
    shape = {"hidden": 32, "layers": 1, "heads": 2, "key_heads": 1, "head": 16, "inner": 32}
    recipe = config.read(
        {
            "name": "live",
            "output": str(tmp_path / "runs"),
            "model": {**shape, "vocabulary": 600, "context": 8192},
            "world": {"live": str(suite.folder), "held_out": 0.0},
            "rl": {"steps": 1, "tasks": 1, "schemes": 1, "rollouts": 1, "turns": 2}
            | {"summaries": 0},
            "rollouts": {"max_tokens": 256, "top_p": 0.9},
            "judging": {"pool": "local"},
        },
        tmp_path / "live.toml",
    )
    assert recipe.rl is not None
    assert train(recipe, recipe.rl) == 0
    curves = (tmp_path / "runs" / "live" / "rl" / "curve.jsonl").read_text().splitlines()
    told = json.loads(curves[-1])
    assert told["reward/policy"] == 0.0 and told["turns/correct"] == 0.0 and told["rows"] >= 4


async def test_a_task_that_is_none_is_said(suite: task_suites.TaskSuite, tmp_path: Path) -> None:
    async with Environment(suite, settings=settings_of(tmp_path)) as environment:
        with pytest.raises(ConfigError, match="there is no task nowhere"):
            async with environment.open("nowhere"):
                pass


def test_actions_are_texts_messages_or_replies() -> None:
    plain = reply_of("text", "m")
    assert plain.text == "text" and reply_of(plain, "m") is plain
    broken = {"tool_calls": [{"function": {"name": "x", "arguments": "{"}}], "content": "so"}
    assert reply_of(broken, "m").text == "so\n{" and reply_of(broken, "m").calls == ()
    with pytest.raises(ValueError, match="an action is a text"):
        reply_of(3, "m")  # type: ignore[arg-type]
