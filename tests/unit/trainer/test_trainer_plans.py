"""Measured plans in the compact form: which are proposed, what is told, rollouts, rewards,
ranking."""

import asyncio
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp import skillbook, wire
from kernel_lsp.agents.plan import NAME, RankedPlan
from kernel_lsp.agents.prompt_encoding import TOKENS, WORDS, Dialog, DialogPhase
from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Site, Step
from kernel_lsp.rewrite.engine import EngineSession
from trainer.config import Rl
from trainer.data import tables
from trainer.data.reading import Grant
from trainer.policies import imitation, lines, plan_data, plan_values, ranking
from trainer.policies.plan_data import TaskPlans
from trainer.records import Tally, TurnStatus
from trainer.rollouts import rounds
from trainer.tasks import candidates, task_suites
from trainer.tasks.candidates import Plans
from trainer.tasks.task_suites import digest

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 128)

    def forward(self, x):
        return torch.softmax(torch.tanh(self.layer(x)) * 2.0, dim=-1).sum(dim=-1)


def get_inputs():
    return [torch.randn(512, 256)]


def get_init_inputs():
    return []
"""
FAILED = "it was not compiled"
Proposed = tuple[Path, list[RankedPlan], list[RankedPlan]]


class InProcess:
    """A session as `Plans` asks its engine."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    async def look(self, steps: list[Step]) -> tuple[Site, ...]:
        return self._session.look(list(steps))

    async def weigh(self, steps: list[Step]) -> float:
        return self._session.weigh(list(steps))

    async def variants(self, steps: list[Step], at: int, limit: int) -> list[object]:
        return list(self._session.variants(list(steps), at, limit))


@pytest.fixture(scope="module")
def proposed(tmp_path_factory: pytest.TempPathFactory) -> Proposed:
    """(folder of the task, first plans, plans near them)."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "one.py").write_text(PROGRAM)
    task = task_suites.load(folder).tasks[0]
    executable = [
        skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable
    ]
    session = EngineSession(task.program, task.workload, "cuda", executable)
    engine: Any = InProcess(session)
    plans = Plans(engine, session.capture().sites, random.Random(1), triton=True)

    async def found() -> tuple[list[RankedPlan], list[RankedPlan]]:
        first = await plans.first(10)
        return first, await plans.near(first, 3)

    return folder, *asyncio.run(found())


def test_the_rules_first_course_comes_first_and_no_program_twice(
    proposed: Proposed,
) -> None:
    _, first, near = proposed
    assert first[0].candidate.proposer == NAME and 2 <= len(first) <= 10
    ids = [plan.candidate.id for plan in [*first, *near]]
    assert len(set(ids)) == len(ids)
    assert not any(step.skill in candidates.NEVER for plan in first for step in plan.steps)


def test_what_is_near_differs_in_one_parameter(proposed: Proposed) -> None:
    _, first, near = proposed
    assert near
    for plan in near:
        assert 1 in [apart(plan, other) for other in first]


def apart(one: RankedPlan, other: RankedPlan) -> int | None:
    """Parameters that differ; None: not the same steps."""
    if [(s.skill, s.site) for s in one.steps] != [(s.skill, s.site) for s in other.steps]:
        return None
    pairs = zip(one.steps, other.steps, strict=True)
    return sum(
        one.parameters[name] != its.parameters[name]
        for one, its in pairs
        for name in one.parameters
    )


@pytest.fixture(scope="module")
def task(proposed: Proposed, tmp_path_factory: pytest.TempPathFactory) -> TaskPlans:
    """Through a table, a session and a file; the second plan is the fastest, the last one
    failed."""
    folder, first, _ = proposed
    times = [1.0, 0.25, *(0.5 + 0.1 * place for place in range(len(first) - 3))]
    rows = [
        {
            "steps": wire.to_json(list(plan.steps)),
            "candidate": plan.candidate.id,
            "proposer": plan.candidate.proposer,
            **(
                {"status": "passed", "ms": {"candidate": times[place]}}
                if place < len(times)
                else {"status": "runtime_error", "detail": FAILED}
            ),
        }
        for place, plan in enumerate(first)
    ]
    entry = {"reference": digest(PROGRAM), "baseline_ms": {"eager": 1.0}, "rows": rows}
    path = tmp_path_factory.mktemp("table") / "plans.json"
    path.write_text(
        json.dumps({"device": "cuda", "device_name": "NVIDIA X", "tasks": {"one": entry}})
    )
    suite = task_suites.load(folder)
    (trajectory,) = tables.read(path, [suite], Grant(own=True), Tally())
    made, tally = plan_data.make(trajectory, str(trajectory.program), "sm_90")
    assert made is not None and tally.kept >= 3
    kept = path.parent / "shown.json.xz"
    plan_data.save([made], kept, {})
    return plan_data.load(kept)[0]


def test_a_measured_plan_is_told_as_it_was_measured(task: TaskPlans) -> None:
    assert task.plans[0].speedup == 1.0 and task.best == 4.0 and task.plans[0].rule
    assert (
        task.plans[-1].speedup is None and task.plans[-1].outcome.status is TurnStatus.RUNTIME_ERROR
    )
    for plan in task.plans:
        for skip in (False, True):
            talk = plan_data.encode_plan(task, plan, skip=skip)
            assert talk.steps == plan.steps and talk.phase is DialogPhase.RESULT
            assert ("select_skills" in talk.words) != skip
    hidden = plan_data.nameless(task)
    words = plan_data.encode_plan(hidden, hidden.plans[0]).words
    assert "fused" in plan_data.encode_plan(task, task.plans[0]).words and "fused" not in words


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.xz").write_bytes(b"no file of ours")
    with pytest.raises(ConfigError, match="holds no measured plans"):
        plan_data.load(tmp_path / "x.xz")


def walked(line: lines.Line, draw: random.Random) -> lines.Line:
    while not line.done:
        line.choose(draw.choice(line.node.words))
    return line


def test_a_line_says_measured_plans_each_once(task: TaskPlans) -> None:
    for seed in range(10):
        line = walked(
            lines.Line(task, Dialog(task.situation), len(task.plans) + 1), random.Random(seed)
        )
        assert sorted(plan.keys for plan in line.tried) == sorted(plan.keys for plan in task.plans)
        assert len(line.cuts) == 1 + len(line.tried)
        # of the rule's turn, and of all but the last
        assert line.dialog.words.count("got") == len(line.tried)
    selection = walked(lines.Line(task, Dialog(task.situation), 0), random.Random(0))
    assert (
        selection.tried == []
        and selection.dialog.phase is DialogPhase.STEP
        and "got" not in selection.dialog.words
    )


def test_the_rules_suggestion_is_read_and_not_learned(task: TaskPlans) -> None:
    talk = Dialog(task.situation, skip=True)
    opening = len(talk.words)
    plan_data.advise(talk, task)
    assert talk.words[-3:] == ["got", "right", "g-"] and not any(talk.sample().said)
    first = " ".join(talk.words[opening:])
    for step in task.plans[0].steps:
        assert (
            f"apply_skill @{[site.key for site in task.situation.sites].index(key(step))}" in first
        )


def key(step: Step) -> str:
    return f"{step.skill}\0{step.site}"


def test_what_would_repeat_the_rule_is_known_word_by_word(task: TaskPlans) -> None:
    line = lines.Line(task, Dialog(task.situation, skip=True), 1)
    while not line.done:
        assert line.favored in line.node.words
        line.choose(str(line.favored))
    assert line.tried == [task.plans[0]]
    for seed in range(8):
        line = walked(lines.Line(task, Dialog(task.situation, skip=True), 1), random.Random(seed))
        if line.tried[0].keys[:1] != task.plans[0].keys[:1]:
            assert line.favored is None  # it has left the rule's plan


def rolled(task: TaskPlans) -> list[rounds.Rolled]:
    """One scheme and the null scheme, two rollouts of two turns each; said at random."""
    draw = random.Random(5)
    begun = walked(lines.Line(task, Dialog(task.situation), 0), draw).dialog
    alone = Dialog(task.situation, skip=True)
    return [
        rounds.Rolled(
            id=f"one/{scheme}/{n}",
            scheme=scheme,
            line=walked(lines.Line(task, talk.copy(), 2), draw),
        )
        for scheme, talk in (("0", begun), (rounds.NULL, alone))
        for n in range(2)
    ]


def test_words_have_the_advantage_of_who_said_them(task: TaskPlans) -> None:
    """TRLOO with gamma 0: a turn's reward against the other three rollouts' of the same turn; a
    selection
    0.3 times its scheme's worth against the null scheme's, in equal parts in its two rollouts."""
    every = rolled(task)
    found = rounds.make_examples(
        every, Rl(schemes=1, rollouts=2, turns=2, summaries=0, gamma=0.0), Tally()
    )

    def reward(plan: plan_data.MeasuredPlan) -> float:
        if plan.speedup is None:
            return 0.0
        return 0.5 + min(max(math.log(plan.speedup / 1.03), -0.5), math.log(6))

    rewards = [[reward(plan) for plan in one.line.tried] for one in every]
    worth = [sum(max(own) for own in rewards[:2]) / 2, sum(max(own) for own in rewards[2:]) / 2]
    for place, (one, example) in enumerate(zip(every, found.examples, strict=True)):
        assert example.advantages is not None and len(example.advantages) == len(example.counted)
        for at, value in zip(example.counted, example.advantages, strict=True):
            word = at + len(example.prompt)
            if word < one.line.cuts[0]:
                expected = 0.3 * (worth[0] - worth[1]) / 2
            else:
                turn = 0 if word < one.line.cuts[1] else 1
                others = [own[turn] for other, own in enumerate(rewards) if other != place]
                expected = rewards[place][turn] - sum(others) / 3
            assert value == pytest.approx(expected)


def test_imitation_weighs_plans_by_their_speed(task: TaskPlans) -> None:
    found = imitation.examples([task])
    assert len(found) == 2 * len(task.plans)
    more = imitation.examples([task], orders=2)
    assert more[: len(found)] == found and len(more) == 2 * len(found)
    # The same words in another order.
    assert sorted(map(len, more[len(found) :])) == sorted(map(len, found))
    known = [math.log(plan.speedup) for plan in task.plans if plan.speedup]
    mean = sum(known) / len(known)
    best, failed = found[1], found[-1]
    assert best.best and best.advantages == pytest.approx(
        [math.log(4.0) - mean] * len(best.counted)
    )
    assert not failed.best and failed.advantages is not None
    assert failed.advantages[0] == pytest.approx(min(known) - math.log(2) - mean)


def test_every_plan_is_weighed_against_the_rules_first(task: TaskPlans) -> None:
    """The rule's first is 1.0x, the next 4x, the last failed: half of the slowest."""
    gains = plan_values.gains(task)
    slowest = min(plan.speedup for plan in task.plans if plan.speedup)
    assert gains[:2] == pytest.approx([0.0, math.log(4)]) and gains[-1] == pytest.approx(
        math.log(slowest / 2)
    )
    found = plan_values.rows([task], 40)
    assert len(found) == 40 * len(task.plans) and found == plan_values.rows([task], 40)
    own = [WORDS[row.reply[-1]] for row in found[1 :: len(task.plans)]]
    assert all(len(row.counted) == 1 and row.advantages == (0.0,) for row in found)
    # 4x is the last word.
    assert 15 < sum(int(word[1:]) for word in own) / 40 <= 16 and len(set(own)) > 1
    told = [plan_values.encode_plan(task, plan) for plan in task.plans]
    assert [one.skills for one in told] == [
        tuple(s.skill for s in plan.steps) for plan in task.plans
    ]
    assert task.before is not None and min(one.cost.launches for one in told) < task.before.launches
    assert plan_values.rows([replace(task, plans=task.plans[-1:])], 1) == []  # nothing of it runs
    with pytest.raises(ConfigError, match="no estimates"):
        plan_values.rows([replace(task, before=None)], 1)


def test_plans_are_ordered_by_the_answers(task: TaskPlans) -> None:
    model, pad = tiny()
    (ranked,) = plan_values.rank_plans([task], model, pad)
    assert sorted(plan.keys for plan in ranked.plans) == sorted(plan.keys for plan in task.plans)
    rows = plan_values.rows([task], 1)
    values = dict(
        zip([plan.keys for plan in task.plans], plan_values.answers(model, pad, rows), strict=True)
    )
    order = [values[plan.keys] for plan in ranked.plans]
    assert order == sorted(order, reverse=True)


def test_numbers_begin_beside_their_neighbors() -> None:
    import torch

    from trainer.policies import numerals

    torch.manual_seed(0)
    weights = torch.randn(len(TOKENS), 32) * 0.02
    other = weights[TOKENS["relu"]].clone()
    numerals.place(weights, 0)
    unit = torch.nn.functional.normalize(weights, dim=1)

    def alike(one: str, two: str) -> float:
        return float(unit[TOKENS[one]] @ unit[TOKENS[two]])

    assert alike("g3", "g4") > alike("g3", "g9") and alike("d6.0", "p6") > 0.9 > alike("p6", "p12")
    assert float(weights.std()) == pytest.approx(0.02, rel=0.3)
    assert torch.equal(weights[TOKENS["relu"]], other)


def test_the_rule_begins_with_its_first_course_and_needs_more_where_that_is_slow(
    task: TaskPlans,
) -> None:
    (rule,) = ranking.rule([task])
    assert rule.plans[0] is task.plans[0] and rule.first == pytest.approx(math.log(1 / 4))
    assert rule.plans[rule.needed - 1].speedup == 4.0
    perfect = ranking.Ranked(
        task=task, plans=tuple(sorted(task.plans, key=lambda p: -(p.speedup or 0)))
    )
    told = ranking.report([perfect], [rule])
    assert told["first_over_best"]["mean"] == 1.0 and told["first_over_rules"][
        "low"
    ] == pytest.approx(4.0)
    assert told["evaluations_to_95"]["mean"] == 1 and told["at_once"] == 1.0


def tiny() -> tuple[Any, int]:
    """A model of random weights."""
    import torch

    from trainer.config import ModelConfig
    from trainer.policies import models

    torch.manual_seed(3)
    shape = ModelConfig(
        words="compact", hidden=16, layers=1, heads=2, key_heads=1, head=8, inner=32
    )
    tokenizer = models.compact_tokenizer()
    size = models.compact_shape.NetworkShape().vocabulary
    model = models.transformers.Qwen3ForCausalLM(models.make_config(shape, size, tokenizer))
    return model, int(tokenizer.pad_token_id)


def test_a_policy_says_its_likeliest_measured_plan_first(task: TaskPlans) -> None:
    model, pad = tiny()
    for skip in (False, True):
        (ranked,) = ranking.policy([task], model, pad, skip=skip)
        assert sorted(plan.keys for plan in ranked.plans) == sorted(
            plan.keys for plan in task.plans
        )
        (again,) = ranking.policy([task], model, pad, skip=skip)
        assert [plan.keys for plan in again.plans] == [plan.keys for plan in ranked.plans]
        rows = [imitation.example(task, plan, skip=True) for plan in ranked.plans[1:]]
        scores = ranking.score_examples(model, pad, rows)
        assert not skip or scores == sorted(scores, reverse=True)
    writer = lines.LineWriter(model, pad)
    rl = Rl(schemes=2, rollouts=2, turns=2, summaries=0)
    texts = [
        [one.line.dialog.text for one in rounds.roll([task], writer, rl, seed)]
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2] and len(texts[0]) == 6
