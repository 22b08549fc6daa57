"""How much faster a plan is than the rule's first (agents/prompt_encoding/value_model.py): rows
that teach it, and plans in the order of the answers.

Every measured plan of a task is a row: an exact use of the whole table, where reinforcement
samples. The answer is one word, an eighth of an octave wide; a row is written several times with its
gain jittered by about a word, so that neighboring words are learned together. Not covered: plans
that were not measured."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernel_lsp.agents.prompt_encoding import TOKENS, question, value_model
from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Site
from trainer.algorithms import batches
from trainer.algorithms.batches import Example, dialog_example
from trainer.policies.plan_data import MeasuredPlan, TaskPlans
from trainer.policies.ranking import TOKENS as MAX_TOKENS
from trainer.policies.ranking import Ranked

JITTER = math.log(2) / 8
"""Standard deviation of ln(gain): one word."""
OFFERED = tuple(TOKENS[one] for one in question.GAINS)


def rows(tasks: Sequence[TaskPlans], draws: int) -> list[Example]:
    """Examples of plans with their values. ``draws``: times that each plan is written; a task
    without a plan that runs teaches nothing. Raises ConfigError for plans without estimates."""
    known = [task for task in tasks if task.best]
    return [one for number in range(draws) for task in known for one in _of(task, number)]


def _of(task: TaskPlans, number: int) -> Iterator[Example]:
    draw = random.Random(f"{task.name} {number}")
    for tokens, gain in zip(questions(task), gains(task), strict=True):
        answer = TOKENS[value_model.word(gain + draw.gauss(0.0, JITTER))]
        said = [False] * len(tokens) + [True]
        yield dialog_example(
            [*tokens, answer], said, [()] * len(tokens) + [OFFERED], [0.0], trajectory=task.name
        )


def questions(task: TaskPlans) -> list[list[int]]:
    """One for each plan, the rule's own included."""
    rule = encode_plan(task, task.plans[0])
    return [
        value_model.PlanQuestion(
            situation=task.situation,
            before=_known_cost(task, task.before),
            rule=rule,
            ranked_plan=encode_plan(task, plan),
        ).tokens
        for plan in task.plans
    ]


def gains(task: TaskPlans) -> list[float]:
    """ln(time of the rule's first / time); what fails counts as half of the slowest, a rule that
    fails as the program itself."""
    known = [math.log(plan.speedup) for plan in task.plans if plan.speedup]
    worst, bar = min(known) - math.log(2), math.log(task.plans[0].speedup or 1.0)
    return [(math.log(plan.speedup) if plan.speedup else worst) - bar for plan in task.plans]


def encode_plan(task: TaskPlans, plan: MeasuredPlan) -> value_model.WeighedPlan:
    """The plan as the product encodes it: by the sites of the steps that the engine took."""
    offered, cost, sites = task.situation.sites, task.before, list[Site]()
    for count, step in enumerate(plan.steps, 1):
        viewed = task.views[plan.keys[:count]]
        if viewed is not None:
            sites += [one for one in offered if (one.skill, one.site) == (step.skill, step.site)][
                :1
            ]
            offered, cost = viewed.sites, viewed.cost
    return value_model.plan(sites, _known_cost(task, cost))


def _known_cost(task: TaskPlans, cost: Any) -> Any:
    if cost is None:
        raise ConfigError(
            f"{task.name} has no estimates",
            "make the file again with python -m trainer.policies.plan_data",
        )
    return cost


def rank_plans(tasks: Sequence[TaskPlans], model: Any, pad: int) -> list[Ranked]:
    """Every task's plans, the one with the largest expected gain first; of equals the rule's
    order."""
    examples = [
        dialog_example([*q, OFFERED[0]], [False] * len(q) + [True], [()] * len(q) + [OFFERED])
        for task in tasks
        for q in questions(task)
    ]
    found = iter(answers(model, pad, examples))
    ordered = []
    for task in tasks:
        pairs = [(-next(found), place, plan) for place, plan in enumerate(task.plans)]
        ordered.append(
            Ranked(
                task=task, plans=tuple(plan for _, _, plan in sorted(pairs, key=lambda p: p[:2]))
            )
        )
    return ordered


def answers(model: Any, pad: int, examples: Sequence[Example]) -> list[float]:
    """Expected ln(gain) of each question."""
    found = [0.0] * len(examples)
    training, device = model.training, next(model.parameters()).device
    model.eval()
    with torch.inference_mode():
        for part in batches.parts(examples, MAX_TOKENS):
            batch = batches.collate([examples[place] for place in part], pad).to(device)
            states = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
            logits = model.lm_head(states[batch.rows, batch.places]).float()[:, list(OFFERED)]
            for place, row in zip(part, torch.log_softmax(logits, dim=1).tolist(), strict=True):
                found[place] = value_model.expected_gain(question.GAINS, row)
    model.train(training)
    return found
