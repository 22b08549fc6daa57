"""One batch of rollouts in the compact form, on measured plans: selections, turns, rewards,
advantages, rows.

The order of episodes.py with one dialog instead of many prompts: the skills are chosen once per
scheme, every scheme is rolled out some times over some turns (each a whole plan, given what the
ones before came to), and the null scheme selects nothing. A dialog is one row; each of its words
has the advantage of the agent and the turn that said it. A scheme's selection stands in all of its
rollouts' rows, so there it counts by its share. Rewards are looked up: every plan that can be said
was measured. Not covered: the summary agent, which has no words in the compact form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kernel_lsp.agents.prompt_encoding import Dialog
from trainer.algorithms import advantages, rewards
from trainer.algorithms.advantages import AdvantageRow
from trainer.algorithms.batches import Example, dialog_example
from trainer.algorithms.rollout_credit import Learned, geometric, reward, weigh_rows
from trainer.config import Rl
from trainer.policies.lines import Line, LineWriter
from trainer.policies.plan_data import MeasuredPlan, TaskPlans
from trainer.records import Agent, ModelTurn, Tally, TurnStatus
from trainer.rollouts.episodes import NULL, seed_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Rolled:
    """One rollout."""

    id: str
    scheme: str
    line: Line

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.line.task.name

    @property
    def skills(self) -> frozenset[str]:
        """The skills that were selected; of the scheme without any, its mark."""
        return frozenset({NULL}) if self.scheme == NULL else frozenset(self.line.dialog.selected)


def roll(tasks: Sequence[TaskPlans], writer: LineWriter, rl: Rl, seed: int) -> list[Rolled]:
    """Has the writer write plans for the tasks and returns them as rollouts. ``seed``: of the run
    and the step together."""
    schemes = [(task, str(number)) for task in tasks for number in range(rl.schemes)]
    chosen = [Line(task, Dialog(task.situation), 0) for task, _ in schemes]
    writer.write(chosen, seed_of(seed, "selection"))
    begun = [
        (task, scheme, line.dialog) for (task, scheme), line in zip(schemes, chosen, strict=True)
    ]
    begun += [(task, NULL, Dialog(task.situation, skip=True)) for task in tasks if rl.null]
    found = [
        Rolled(
            id=f"{task.name}/{scheme}/{number}",
            scheme=scheme,
            line=Line(task, dialog.copy(), rl.turns),
        )
        for task, scheme, dialog in begun
        for number in range(rl.rollouts)
    ]
    writer.write([one.line for one in found], seed_of(seed, "policy"))
    return found


def make_examples(rolled: Sequence[Rolled], rl: Rl, tally: Tally) -> Learned:
    """Rewards, advantages and examples of both agents."""
    terms: Counter[str] = Counter()
    credit = {one.id: _rewards(one, rl, tally, terms) for one in rolled}
    policy = {
        (one.id, turn): AdvantageRow(
            agent=Agent.POLICY,
            task=one.task,
            rollout=one.id,
            step=turn,
            reward=reward,
            final=max(credit[one.id].values()),
        )
        for one in rolled
        for turn, reward in credit[one.id].items()
    }
    worth = rewards.schemes(
        rewards.RewardedRollout(
            id=one.id,
            scheme=_key(one),
            skills=one.skills | {one.task},
            rewards=tuple(credit[one.id].values()),
        )
        for one in rolled
    )
    tasks = {_key(one): one for one in rolled}
    selection = {
        key: AdvantageRow(
            agent=Agent.SELECTION, task=tasks[key].task, rollout=tasks[key].scheme, reward=reward
        )
        for key, reward in worth.items()
    }
    rows = [*policy.values(), *selection.values()]
    known: dict[object, float] = dict(zip([*policy, *selection], weigh_rows(rows, rl), strict=True))
    examples = tuple(_example(one, known, rl.rollouts) for one in rolled)
    return Learned(examples=examples, metrics=_metrics(rolled, credit, rows, terms))


def _key(one: Rolled) -> str:
    return f"{one.task}\0{one.scheme}"


def _rewards(one: Rolled, rl: Rl, tally: Tally, terms: Counter[str]) -> dict[int, float]:
    """Turn -> reward, where it is known."""
    found = {}
    for turn, plan in enumerate(one.line.tried):
        if (known := reward(_turn(turn, plan), None, rl, tally, terms, one.id)) is not None:
            found[turn], _ = known
    return found


def _turn(number: int, plan: MeasuredPlan) -> ModelTurn:
    return ModelTurn(
        number=number, agent=Agent.POLICY, steps=plan.steps, outcome=plan.outcome, step=number
    )


def _example(one: Rolled, known: dict[object, float], rollouts: int) -> Example:
    """The whole dialog as one row."""
    line, sample = one.line, one.line.dialog.sample()
    cuts = line.cuts[1:]
    spread = []
    for place, said in enumerate(sample.said):
        if said and place < line.cuts[0]:
            spread.append(known.get(_key(one), 0.0) / rollouts)
        elif said:
            turn = next(number for number, end in enumerate(cuts) if place < end)
            spread.append(known.get((one.id, turn), 0.0))
    right = any(plan.outcome.status is TurnStatus.PASSED for plan in line.tried)
    return dialog_example(
        sample.tokens, sample.said, sample.offered, spread, trajectory=one.id, correct=right
    )


def _speedups(lines: Sequence[Line]) -> dict[str, float]:
    firsts = [line.tried[0].speedup for line in lines]
    best = [max((plan.speedup or 0.0 for plan in line.tried), default=0.0) for line in lines]
    possible = [line.task.best for line in lines]
    return {
        "speedup/first_turn": geometric(firsts),
        "speedup/best_turn": geometric(best),
        "first_over_best": geometric(
            (first or 1.0) / most for first, most in zip(firsts, possible, strict=True)
        ),
    }


def _metrics(
    rolled: Sequence[Rolled],
    credit: dict[str, dict[int, float]],
    rows: Sequence[AdvantageRow],
    terms: Counter[str],
) -> dict[str, float]:
    every = [reward for of in credit.values() for reward in of.values()]
    turns = [plan for one in rolled for plan in one.line.tried]
    tasks = {one.task for one in rolled}
    selections = [row.reward for row in rows if row.agent is Agent.SELECTION]
    return {
        "reward/policy": fmean(every),
        "reward/first_turn": fmean(of[0] for of in credit.values() if 0 in of),
        "reward/best_turn": fmean(max(of.values()) for of in credit.values() if of),
        "reward/selection": fmean(selections),
        "turns/correct": fmean(float(plan.outcome.status is TurnStatus.PASSED) for plan in turns),
        **_speedups([one.line for one in rolled]),
        "groups/informative": len(advantages.informative(rows)) / len(tasks),
        **{f"terms/{name}": value / max(1, len(every)) for name, value in terms.items()},
    }
