"""Rollouts on a table, with scripted replies: who is asked what, what counts, and the published
faults."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.errors import ConfigError
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.records import (
    EvalStatus,
    Evaluation,
    Interval,
    Program,
    Step,
    TargetKind,
    Timing,
    Workload,
    WorkloadOrigin,
)
from trainer import config
from trainer.algorithms import rewards, rollout_credit
from trainer.config import Rl
from trainer.data.reading import outcome_of
from trainer.records import Agent, Tally, TurnOutcome, TurnStatus
from trainer.rollouts import episodes, held_out, judging, parents, rows
from trainer.rollouts.generation import Ask, Sampled
from trainer.rollouts.judge import Case
from trainer.rollouts.parents import StoredParent
from trainer.rollouts.worlds import TableWorld
from trainer.tasks import spaces
from trainer.tasks.spaces import RecordedAxis, RecordedSpace

pytestmark = pytest.mark.torch


def space(name: str = "t/linear_relu", dropped: bool = False) -> RecordedSpace:
    steps = (Step(skill="tile", site="a"), Step(skill="fuse", site="b"))
    axes = (
        RecordedAxis(step=0, name="M", choices=(32, 64)),
        RecordedAxis(step=1, name="W", choices=(1, 4)),
    )
    times = {(0, 0): 1.0, (1, 0): 0.8, (0, 1): 0.5, (1, 1): 0.25}
    lost = {(1, 1): "out of resource: shared memory"} if dropped else {}
    return RecordedSpace(
        name=name,
        family=name.partition("_")[0],
        device="NVIDIA X",
        steps=steps,
        axes=axes,
        original_ms=1.0,
        times={point: ms for point, ms in times.items() if point not in lost},
        dropped=lost,
    )


class Scripted:
    """Answers with the first choice that its rule takes."""

    def __init__(self, rule: Callable[[Ask, int], str]) -> None:
        self.rule, self.asked = rule, list[Ask]()

    def generate(self, asks: Sequence[Ask], seed: int, *, greedy: bool = False) -> list[Sampled]:
        self.asked += asks
        return [self._one(self.rule(ask, place)) for place, ask in enumerate(asks)]

    apart = False

    def refresh(self, weights: Any, version: int) -> None: ...

    def close(self) -> None: ...

    @staticmethod
    def _one(text: str) -> Sampled:
        allowed = ((1, 2), (3,))
        return Sampled(
            text=text,
            prompt_ids=(7,),
            reply_ids=(1, 3),
            logprobs=(-0.7, 0.0),
            allowed=allowed,
            version=0,
        )


def role(ask: Ask) -> str:
    return ask.messages[0].text


def picks(*wanted: str) -> Callable[[Ask, int], str]:
    """Per kind of question the first choice with all of these parts."""

    def rule(ask: Ask, place: int) -> str:
        assert ask.choices
        parts = [part for part in wanted if any(part in choice for choice in ask.choices)]
        return next(c for c in ask.choices if all(part in c for part in parts))

    return rule


def rolled(
    sampler: Scripted, rl: Rl, *some: RecordedSpace
) -> tuple[episodes.Episodes, rollout_credit.Learned, Tally]:
    world = TableWorld(some or (space(),))
    tally = Tally()
    pool = judging.Table(world.spaces)
    found = asyncio.run(episodes.roll(world, world.names, sampler, pool, rl, seed=1))
    return found, rows.make_examples(found, rl, tally), tally


RL = Rl(schemes=2, null=True, rollouts=2, turns=2, summaries=0)


def test_every_rollout_has_its_own_id_and_every_turn_is_judged() -> None:
    found, learned, tally = rolled(Scripted(picks('"tile"', '"name":"fuse"', '"M":64')), RL)
    assert len({one.id for one in found.rollouts}) == len(found.rollouts) == 3 * 2
    assert tally.read == tally.kept == 6 * 2
    # Selections, and policy turns; nobody selected the null scheme.
    assert len(learned.examples) == 2 + 6 * 2


def test_a_turn_goes_on_from_the_best_and_is_told_what_was_tried() -> None:
    sampler = Scripted(lambda ask, place: (ask.choices or ("",))[-1])
    found, _, _ = rolled(sampler, Rl(schemes=0, null=True, rollouts=2, turns=2, summaries=0))
    first, second = (ask for ask in sampler.asked[::2])
    assert "tried" not in first.messages[1].text
    assert (
        "tried M 32 W 4: 2.00x" in second.messages[1].text
        and "now M 32 W 4" in second.messages[1].text
    )
    turns = found.rollouts[0].turns
    assert [turn.step for turn in turns] == [0, 1] and turns[1].parent == 0


def test_skills_that_do_not_apply_leave_nothing_to_say_and_cost_the_selection() -> None:
    def rule(ask: Ask, place: int) -> str:
        assert ask.choices
        if role(ask) == "select" and place == 0:
            return next(c for c in ask.choices if '"selected_skills":[]' in c)
        return ask.choices[-1]

    found, learned, _ = rolled(Scripted(rule), RL)
    refused = [one for one in found.rollouts if one.turns[0].outcome.status is TurnStatus.REFUSED]
    assert [one.scheme for one in refused] == ["0", "0"]
    by_trajectory = {
        one.trajectory: one.advantage for one in learned.examples if one.agent is Agent.SELECTION
    }
    useless, useful = (by_trajectory[f"selection/t/linear_relu/{scheme}"] for scheme in ("0", "1"))
    # Rewards: nothing 0, chosen 0.5 + ln(2 / 1.03) in the better turn, null the same (0.3 of the
    # difference).
    gain = 0.5 + math.log(max(one.state.speedup or 0 for one in found.rollouts) / 1.03)
    assert useless == pytest.approx(0.3 * -gain, abs=1e-6) and useful == pytest.approx(
        0.3 * gain / 2, abs=1e-6
    )


def test_the_null_scheme_is_what_skills_are_compared_with() -> None:
    """Fault 2. One scheme alone has a baseline only because the null scheme is in it."""
    rl = Rl(schemes=1, null=True, rollouts=1, turns=1, summaries=0)
    _, learned, _ = rolled(Scripted(picks('"name":"fuse"', '"name":"tile"', '"M":64')), rl)
    (selection,) = [one for one in learned.examples if one.agent is Agent.SELECTION]
    assert selection.advantage == pytest.approx(0.0)  # as good as none, not better
    alone = Rl(schemes=1, null=False, rollouts=2, turns=1, summaries=0)
    _, learned, _ = rolled(Scripted(picks('"name":"fuse"', '"M":64')), alone)
    assert [one.advantage for one in learned.examples if one.agent is Agent.SELECTION] == [0.0]


def test_what_does_not_run_fails_and_what_was_never_recorded_is_no_row() -> None:
    lost = space(dropped=True)
    lost.dropped[0, 1] = "out of memory"
    del lost.times[0, 1]
    _, learned, _ = rolled(Scripted(lambda ask, place: (ask.choices or ("",))[-1]), RL, lost)
    assert learned.metrics["turns/correct"] < 1.0
    unknown = RecordedSpace(
        **{name: getattr(space(), name) for name in RecordedSpace.__slots__}
        | {"times": {(0, 0): 1.0}}
    )
    _, learned, tally = rolled(Scripted(lambda ask, place: (ask.choices or ("",))[-1]), RL, unknown)
    assert tally.count(rollout_credit.UNKNOWN) > 0 and math.isnan(learned.metrics["reward/policy"])


def test_a_summary_is_measured_on_other_tasks_than_its_source() -> None:
    """Fault 5. The source alone gives nothing; a second task gives ln 2 for W = 4."""
    rl = Rl(schemes=0, null=True, rollouts=2, turns=2, summaries=2)

    def rule(ask: Ask, place: int) -> str:
        assert ask.choices
        if role(ask) == "learn":
            return next(c for c in ask.choices if ("fuse-w-4" in c) == (place % 2 == 0))
        return [c for c in ask.choices if '"fuse"' in c][len(sampler.asked) > len(ask.choices)]

    sampler = Scripted(rule)
    found, _, _ = rolled(sampler, rl)
    assert {one.reward for one in found.summaries} <= {0.0}
    sampler = Scripted(rule)
    found, learned, _ = rolled(sampler, rl, space(), space("u/linear_gelu"))
    assert sorted({round(one.reward, 4) for one in found.summaries}) == [0.0, round(math.log(2), 4)]
    advantages = [one.advantage for one in learned.examples if one.agent is Agent.SUMMARY]
    assert max(advantages) == pytest.approx(0.5 * math.log(2))


@pytest.mark.parametrize("scheme", ["trloo", "grpo", "kevin", "shared"])
@pytest.mark.parametrize("reward", sorted(rewards.REWARDS))
def test_every_reward_goes_with_every_advantage(scheme: str, reward: str) -> None:
    rl = Rl(
        schemes=1, rollouts=2, turns=2, summaries=1, reward=reward, advantage=scheme, scaled=True
    )
    _, learned, tally = rolled(Scripted(lambda ask, place: (ask.choices or ("",))[place % 2]), rl)
    assert all(math.isfinite(one.advantage) for one in learned.examples)
    # Coverage and torch.compile are in no table, so a recipe that asks for them is refused.
    recipe = {"rl": {"reward": reward}, "world": {"synthetic": 8}}
    refused = "no recorded table has" in _complaints(recipe)
    assert bool(tally.count(rollout_credit.UNKNOWN)) == refused


def _complaints(recipe: dict[str, Any]) -> str:
    try:
        config.read(recipe, Path("r.toml"))
    except ConfigError as error:
        return error.cause
    return ""


@pytest.mark.parametrize("reward", ["davinci", "dr_kernel"])
def test_a_judge_that_profiles_pays_every_right_turn(reward: str) -> None:
    """Where the verdict has a coverage no right turn is unknown, and lazy ones earn less."""

    class Profiling(judging.Table):
        async def judge(self, cases: Any) -> list[TurnOutcome]:
            found = await super().judge(cases)
            return [replace(one, coverage=0.8 if one.correct else None) for one in found]

    world, tally = TableWorld((space(),)), Tally()
    sampler = Scripted(lambda ask, place: (ask.choices or ("",))[place % 2])
    rl = Rl(schemes=0, null=True, rollouts=2, turns=2, summaries=0, reward=reward)
    pool = Profiling(world.spaces)
    found = asyncio.run(episodes.roll(world, world.names, sampler, pool, rl, seed=1))
    learned = rows.make_examples(found, rl, tally)
    assert tally.count(rollout_credit.UNKNOWN) == 0 and tally.kept == 4
    assert learned.metrics["terms/coverage"] == pytest.approx(
        0.8 * (0.5 if reward == "davinci" else 1.0)
    )
    assert {one.coverage for one in learned.examples} == {0.8}


def test_grpo_samples_anew_from_a_stored_parent() -> None:
    """Kernel-Smith: 2x parent, samples of 1x, 2x and 4x: rewards 0.5, 1 and 2, mean 1.1667,
    deviation sqrt((0.6667^2 + 0.1667^2 + 0.8333^2) / 2) = 0.7638."""
    world, tally = TableWorld((space(),)), Tally()
    steps = world.spaces["t/linear_relu"].at((0, 1))
    start = world.spaces["t/linear_relu"].speedup((0, 1))
    assert start is not None
    parent = StoredParent(task="t/linear_relu", steps=steps, speedup=start)
    lost = replace(parent, task="elsewhere")
    sampler = Scripted(lambda ask, place: (ask.choices or ("",))[place % len(ask.choices or "x")])
    rl = Rl(schemes=0, rollouts=3, turns=1, summaries=0, reward="parent_relative", advantage="grpo")
    pool = judging.Table(world.spaces)
    told = episodes.roll_parents(world, [parent, lost], sampler, pool, rl, 1)
    found = asyncio.run(told)
    assert len(found.rollouts) == 3 and "now M 32 W 4" in sampler.asked[0].messages[1].text
    learned = rows.make_examples(found, rl, tally)
    reached = [episodes.speedup(one.turns[0]) for one in found.rollouts]
    expected = [(one or 0.0) / start for one in reached]
    assert sorted(expected) == pytest.approx([0.5, 1.0, 2.0])
    by_hand = {0.5: -0.8729, 1.0: -0.2182, 2.0: 1.0911}
    assert [one.advantage for one in learned.examples] == pytest.approx(
        [by_hand[round(one, 4)] for one in expected], abs=1e-3
    )


def test_stored_parents_are_where_best_steps_began(tmp_path: Path) -> None:
    world = TableWorld((space(),))
    sampler = Scripted(lambda ask, place: (ask.choices or ("",))[-1])
    rl = Rl(schemes=0, null=True, rollouts=2, turns=2, summaries=0)
    pool = judging.Table(world.spaces)
    found = asyncio.run(episodes.roll(world, world.names, sampler, pool, rl, seed=1))
    tally = Tally()
    made = [*parents.of_trajectories(episodes.trajectories(found, world, "m"), tally)]
    path = tmp_path / "parents.jsonl"
    parents.write(made, path)
    path.write_text(path.read_text() + "{}\n")
    again = parents.read(["parents.jsonl"], tmp_path, tally)
    assert again == made and tally.count(parents.BROKEN) == 1
    assert all(one.speedup >= 1.0 and one.steps for one in made)
    with pytest.raises(ConfigError, match="finds no file"):
        parents.read(["none.jsonl"], tmp_path, tally)


def test_rollouts_become_records_with_permission() -> None:
    world = TableWorld((space(),))
    found, _, _ = rolled(Scripted(picks('"name":"fuse"', '"M":64')), RL)
    (first, *_) = episodes.trajectories(found, world, "policy@3")
    assert first.permission.training and first.turns[0].agent is Agent.SELECTION
    assert [turn.number for turn in first.turns] == [0, 1, 2] and first.turns[2].parent == 1
    assert first.best is not None and first.turns[1].calls[0].name == "apply_skill"


# --- tables ---------------------------------------------------------------------------------------


def test_a_recording_is_read_and_what_is_broken_in_it_is_counted(tmp_path: Path) -> None:
    good = {
        "summary": "x",
        "steps": [{"skill": "tile", "site": "a", "parameters": {"M": 32}}],
        "axes": [{"step": 0, "name": "M", "choices": [32, 64]}],
        "original_ms": 2.0,
        "combinations": [[[0], "i", 1.0, ""], [[1], "j", None, "wrong values: they differ"]],
    }
    tasks = {"c/one": good, "c/two": {**good, "steps": []}, "c/three": {"summary": "x"}}
    (tmp_path / "spaces-1.json").write_text(json.dumps({"device": "NVIDIA X", "tasks": tasks}))
    tally = Tally()
    assert spaces.load(["spaces-*.json"], tmp_path, tally) == []  # one time is nothing to choose
    tasks["c/one"] = {**good, "combinations": [[[0], "i", 1.0, ""], [[1], "j", 0.5, ""]]}
    (tmp_path / "spaces-1.json").write_text(json.dumps({"device": "NVIDIA X", "tasks": tasks}))
    (found,) = spaces.load(["spaces-*.json"], tmp_path, tally := Tally())
    assert found.name == "c/one" and found.best == 4.0 and tally.read == 3 and tally.kept == 1
    (tmp_path / "spaces-2.json").write_text("{")
    with pytest.raises(ConfigError, match=r"spaces-2\.json is no recording"):
        spaces.load(["spaces-*.json"], tmp_path, Tally())
    with pytest.raises(ConfigError, match="finds no file"):
        spaces.load(["none.json"], tmp_path, Tally())


def test_families_are_on_one_side_of_the_split() -> None:
    every = spaces.synthetic(40, 3)
    training, held_out = spaces.split(every, 0.25, 1)
    assert not {one.family for one in training} & {one.family for one in held_out}
    assert training and held_out and len(training) + len(held_out) == 40
    assert spaces.split(every, 0.25, 1) == (training, held_out)


def test_the_rule_tries_defaults_then_one_change_at_a_time() -> None:
    found = held_out.rule_speedups(space())
    # 4x needs two changes.
    assert found == [1.0, 1.25, 2.0] and held_out.needed_evaluations(space(), found) is None
    assert held_out.needed_evaluations(space(), [1.0, None, 3.9]) == 3
    assert held_out.share(space(), None) == pytest.approx(math.log(1 / 4))


# --- judges ---------------------------------------------------------------------------------------

PROGRAM = Program(
    kind=TargetKind.MODULE,
    entry="Model",
    source="""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.randn(64, 64)]
""",
)


def request(body: str) -> EvaluationRequest:
    source = PROGRAM.source.replace("torch.relu(x) + 1", body)
    return EvaluationRequest(
        reference=PROGRAM,
        candidate_source=source,
        candidate_entry="Model",
        workload=Workload(name="get_inputs()", origin=WorkloadOrigin.GET_INPUTS),
        require_speed=False,
    )


def test_the_local_pool_asks_the_products_gate_and_keeps_the_order() -> None:
    async def judged() -> list[TurnStatus]:
        pool = judging.LocalJudge()
        cases = [
            Case(task="t", request=request("x.clamp_min(0) + 1")),
            Case(task="t", request=request("torch.relu(x) + 2")),
            Case(task="t"),
            Case(task="t", request=request("x.clamp_min(0) + 1")),
        ]
        try:
            return [one.status for one in await pool.judge(cases)]
        finally:
            await pool.close()

    found = asyncio.run(judged())
    assert found == [
        TurnStatus.PASSED,
        TurnStatus.WRONG_RESULT,
        TurnStatus.REFUSED,
        TurnStatus.PASSED,
    ]


def test_a_verdict_becomes_an_outcome_without_guessing() -> None:
    timing = Timing(
        provider="candidate", median_ms=0.5, p20_ms=0.4, p80_ms=0.6, num_reps=9, cold_cache=True
    )
    speedups = {"eager": Interval(low=1.1, mid=1.2, high=1.3)}
    passed = Evaluation(
        status=EvalStatus.PASSED, device="cpu", timings=(timing,), speedups=speedups
    )
    found = outcome_of(passed, complete=True)
    assert (
        found.lower_bound == 1.1
        and found.candidate_ms == 0.5
        and found.complete
        and found.coverage is None
    )
    lost = outcome_of(
        Evaluation(status=EvalStatus.NOT_RUN, device="cpu", detail="busy"), complete=True
    )
    assert lost.correct is None and lost.status is TurnStatus.NOT_RUN and lost.complaint == "busy"
    cheated = Evaluation(status=EvalStatus.CHEATED, device="cpu", speedups=speedups)
    assert outcome_of(cheated, complete=True).speedups == {}
