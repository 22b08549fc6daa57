"""Packed rows, and exact expected rewards on them."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_lsp.errors import ConfigError
from tests.unit.trainer.test_trainer_plans import proposed, task  # noqa: F401
from trainer.algorithms import batches
from trainer.policies import exact, imitation, models, packed, plan_values
from trainer.policies.packed import DIALOGS, QUESTIONS, SKIPPED
from trainer.policies.plan_data import TaskPlans

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def tasks(task: TaskPlans) -> list[TaskPlans]:  # noqa: F811
    """Six tasks of three families; they differ in how fast their plans are."""
    made = []
    for number in range(6):
        draw = random.Random(number)
        plans = tuple(
            dataclasses.replace(
                plan,
                outcome=dataclasses.replace(
                    plan.outcome,
                    speedups={
                        name: dataclasses.replace(one, mid=one.mid * draw.uniform(0.5, 2.0))
                        for name, one in plan.outcome.speedups.items()
                    },
                ),
            )
            for plan in task.plans
        )
        made.append(
            dataclasses.replace(task, name=f"t{number}", family=f"f{number % 3}", plans=plans)
        )
    return made


def test_rows_say_what_the_talks_and_questions_say(tasks: list[TaskPlans], tmp_path: Path) -> None:
    rows = packed.rows_of(packed.encode_plans(tasks[:2], 1))
    about = packed.tasks_of(tasks[:2], *found_by(tasks[:2]))
    packed.save(about, rows, tmp_path / "rows.npz")
    again, same = packed.load(tmp_path / "rows.npz")
    assert again == about
    for name in packed.PackedRows.__slots__:
        assert np.array_equal(getattr(same, name), getattr(rows, name))
    one = tasks[1]
    for kind, example in (
        (SKIPPED, imitation.example(one, one.plans[1], skip=True)),
        (DIALOGS, imitation.example(one, one.plans[1])),
    ):
        (row,) = np.flatnonzero(
            (rows.tasks == 1) & (rows.plans == 1) & (rows.kinds == kind) & (rows.orders == 0)
        )
        mine, pad = exact.batch(rows, np.array([row]), 0), batches.collate([example], 0)
        for name in ("input_ids", "rows", "places", "targets", "allowed", "slots", "mask"):
            assert getattr(mine, name).tolist() == getattr(pad, name).tolist(), name
    (row,) = np.flatnonzero((rows.tasks == 0) & (rows.plans == 1) & (rows.kinds == QUESTIONS))
    asked = plan_values.questions(tasks[0])[1]
    assert exact.batch(rows, np.array([row]), 0).input_ids[0].tolist()[:-1] == asked


def found_by(tasks: list[TaskPlans]) -> tuple[Any, Any]:
    """(table, earlier results): the first family was held out."""
    table = {
        one.name: {
            "family": one.family,
            "rows": [{"steps": [{"skill": s.skill, "site": s.site} for s in one.plans[-1].steps]}],
        }
        for one in tasks
    }
    held_out = {one.name: 0 for one in tasks if one.family == tasks[0].family}
    return {"tasks": table}, {"arms": {"rl": {"each": held_out}}}


def test_rows_of_several_lengths_are_padded_as_batches_are(tasks: list[TaskPlans]) -> None:
    examples = [imitation.example(tasks[0], plan) for plan in tasks[0].plans]
    rows = packed.rows_of((one, 0, place, DIALOGS, 0) for place, one in enumerate(examples))
    chosen = np.arange(len(examples))[::-1].copy()
    mine, theirs = exact.batch(rows, chosen, 3), batches.collate(examples[::-1], 3)
    for name in ("input_ids", "rows", "places", "targets", "slots", "mask"):
        assert getattr(mine, name).tolist() == getattr(theirs, name).tolist(), name
    cut = list(exact.parts(rows, chosen, 2 * max(map(len, examples))))
    assert sorted(np.concatenate(cut).tolist()) == list(range(len(examples))) and len(cut) > 1


def test_the_expected_reward_is_that_of_the_softmax_and_its_gradient_is_reinforces() -> None:
    import torch

    scores = torch.tensor([0.3, -1.0, 2.0, 0.0, 0.5], requires_grad=True)
    tasks, gains = torch.tensor([4, 4, 4, 9, 9]), torch.tensor([0.0, -0.5, -0.1, -1.0, 0.0])
    found = exact.expected_reward(scores, tasks, gains)
    one, two = torch.softmax(scores[:3], 0), torch.softmax(scores[3:], 0)
    assert found.item() == pytest.approx(
        ((one * gains[:3]).sum() + (two * gains[3:]).sum()).item() / 2
    )
    found.backward()
    # sum over plans of p (r - mean r) d log p: for a softmax p (r - mean r)
    hand = torch.cat(
        [one * (gains[:3] - (one * gains[:3]).sum()), two * (gains[3:] - (two * gains[3:]).sum())]
    )
    assert scores.grad is not None and torch.allclose(scores.grad, hand.detach() / 2, atol=1e-6)


def test_steps_of_reinforcement_hold_all_plans_of_a_task_told_in_one_way(
    tasks: list[TaskPlans],
) -> None:
    known = lesson(tasks, "dialog", 2)
    told = exact.Schedule(form="dialog", rl_steps=5, tasks=3)
    for chosen in exact.reinforced_batches(known, told, range(6), 0):
        rows = known.rows
        for number in np.unique(rows.tasks[chosen]):
            own = chosen[rows.tasks[chosen] == number]
            assert sorted(rows.plans[own].tolist()) == list(range(len(tasks[number].plans)))
            assert (
                len({*zip(rows.kinds[own].tolist(), rows.orders[own].tolist(), strict=True)}) == 1
            )


def lesson(tasks: list[TaskPlans], form: str, orders: int = 0) -> exact.FormLesson:
    about = packed.tasks_of(tasks, *found_by(tasks))
    pad = int(models.compact_tokenizer().pad_token_id)
    return exact.lesson(form, about, packed.rows_of(packed.encode_plans(tasks, orders)), pad, "cpu")


@pytest.mark.parametrize("form", ["weigh", "dialog"])
def test_what_pays_becomes_likelier(tasks: list[TaskPlans], form: str) -> None:
    known = lesson(tasks[:1], form)
    told = exact.Schedule(form=form, steps=1, rl_steps=40, rl_rate=1e-2, warmup=1, imitation=0.0)
    learner = exact.Learner(model(), known, told, 0)
    rewards = [
        learner.reinforce(rows, step)
        for step, rows in enumerate(exact.reinforced_batches(known, told, [0], 0))
    ]
    assert rewards[-1] > rewards[0] and rewards[-1] == pytest.approx(attainable(known), abs=0.03)


def attainable(known: exact.FormLesson) -> float:
    """Plans that are told alike (a question has no parameters) cannot be told apart."""
    alike = dict[bytes, list[float]]()
    for row in np.flatnonzero(known.kept & (known.rows.orders == 0)):
        words = known.rows.tokens[known.rows.starts[row] : known.rows.starts[row + 1]]
        alike.setdefault(words.tobytes(), []).append(float(known.gains[row]))
    return max(sum(own) / len(own) for own in alike.values())


def test_a_schedule_of_courses_learns_of_the_rules_plans_alone(tasks: list[TaskPlans]) -> None:
    known = lesson(tasks, "weigh")
    told = exact.Schedule(form="weigh", steps=3, rl_steps=3, tasks=2, ranked_plans=True)
    for steps in (exact.supervised_batches, exact.reinforced_batches):
        for chosen in steps(known, told, range(6), 0):
            pairs = zip(known.rows.tasks[chosen], known.rows.plans[chosen], strict=True)
            assert len(chosen) and all(plan == 0 or tasks[n].plans[plan].rule for n, plan in pairs)


def model() -> Any:
    import torch

    from trainer.config import ModelConfig

    torch.manual_seed(3)
    shape = ModelConfig(
        words="compact", hidden=32, layers=1, heads=1, key_heads=1, head=32, inner=64
    )
    size = models.compact_shape.NetworkShape().vocabulary
    return models.transformers.Qwen3ForCausalLM(
        models.make_config(shape, size, models.compact_tokenizer())
    )


def test_a_weighing_scores_as_the_product_reads_it(tasks: list[TaskPlans]) -> None:
    known, mine = lesson(tasks[:2], "weigh"), model()
    found = exact.scores(mine, known, [0, 1])
    rows = plan_values.rows(tasks[:2], 1)
    theirs = plan_values.answers(mine, known.pad, rows)
    flat = [found[number][plan] for number in (0, 1) for plan in sorted(found[number])]
    assert flat == pytest.approx(theirs, abs=1e-5)


def test_what_fails_is_half_as_fast_as_the_slowest_and_no_more_than_e_times_worse_counts(
    tasks: list[TaskPlans],
) -> None:
    known = lesson(tasks, "weigh")
    wanted = [value for one in tasks for value in plan_values.gains(one)]
    assert known.targets[known.kept].tolist() == pytest.approx(wanted, abs=1e-5)
    assert known.gains.max() == 0.0 and known.gains.min() >= -exact.WORST


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"no file of ours")
    with pytest.raises(ConfigError, match="holds no packed rows"):
        packed.load(tmp_path / "x.npz")
