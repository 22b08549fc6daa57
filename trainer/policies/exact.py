"""Learning from all measured plans at once: expected rewards are summed up, not sampled.

Of these tasks every plan's reward is known, so the gradient of what a policy can expect of them
needs no rollouts: the sum over a task's plans of probability x reward, where the probabilities are
those of the policy's scores among the plans (what TRLOO estimates from a few samples; Williams
1992 has the gradient). A score is the log-probability of a dialog, or of a question the expected
ln(gain) over a temperature: what the product follows in either case. Supervised steps go before:
weights by advantage (losses.py), or words of gains, softly. Rows come packed (packed.py), so that
a step's host time is a few array operations. Not covered: which schedule is best
(launch_policy.py); the whole grammar, which supervised words keep alive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernel_lsp.agents.prompt_encoding import TOKENS
from kernel_lsp.agents.prompt_encoding.question import GAINS
from trainer.algorithms import losses
from trainer.algorithms.batches import Batch
from trainer.policies import models, plan_values
from trainer.policies.packed import DIALOGS, QUESTIONS, SKIPPED, PackedRows, PackedTask

WORST = 1.0
"""ln(best / plan) from which on everything is equally bad: to be near the best is what is
learned."""
GAIN = math.log(2) / 8
"""ln of a word's step."""
REPORTED = 10
"""Steps between two lines of progress: on two cores a step takes 4 to 10 s."""
TEMPERATURE = 0.2
"""Of advantage-weighted imitation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How one policy learns."""

    form: str
    """"weigh" or "dialog": which rows."""
    rate: float = 6e-4
    steps: int = 345
    batch: int = 128
    """Rows of a supervised step."""
    rl_rate: float = 3e-4
    rl_steps: int = 200
    tasks: int = 24
    """Of a step of reinforcement."""
    sharpness: float = 0.1
    """Of weighings: ln(gain) by which one plan is e times likelier than another."""
    imitation: float = 0.1
    """Weight of the supervised loss beside the expected reward."""
    drop: float = 0.0
    """Share of the encoded words that are made unknown."""
    decay: float = 0.1
    warmup: int = 30
    ranked_plans: bool = False
    """Only plans that the rule proposed, with the parameters that it gives: what the product asks
    about."""


def batch(rows: PackedRows, chosen: Any, pad: int) -> Batch:
    """These rows, padded."""
    starts, sizes = rows.starts[chosen], rows.starts[chosen + 1] - rows.starts[chosen]
    first, counts = rows.choices[chosen], rows.choices[chosen + 1] - rows.choices[chosen]
    steps = np.arange(int(sizes.max()))
    found = rows.tokens[np.minimum(starts[:, None] + steps, len(rows.tokens) - 1)]
    ids = np.where(steps < sizes[:, None], found, pad).astype(np.int64)
    row = np.repeat(np.arange(len(chosen)), counts)
    slots = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    word = np.repeat(first, counts) + slots
    places = rows.places[word].astype(np.int64)
    lists = rows.lists[rows.among[word]].astype(np.int64)
    width = int((lists >= 0).sum(axis=1).max(initial=1))
    shape = (len(chosen), max(1, int(counts.max())))
    return Batch(
        input_ids=torch.from_numpy(ids),
        rows=torch.from_numpy(row),
        places=torch.from_numpy(places - 1),
        targets=torch.from_numpy(ids[row, places]),
        allowed=torch.from_numpy(np.ascontiguousarray(lists[:, :width])),
        slots=torch.from_numpy(slots),
        mask=torch.from_numpy(np.arange(shape[1]) < counts[:, None]),
        sampled=torch.zeros(shape),
        advantages=torch.zeros(shape),
        examples=(),
    )


def parts(rows: PackedRows, chosen: Any, tokens: int) -> Iterator[Any]:
    """Places among ``chosen``, cut by padded tokens, longest first."""
    sizes = rows.starts[chosen + 1] - rows.starts[chosen]
    order = np.argsort(-sizes, kind="stable")
    begun = 0
    while begun < len(order):
        count = max(1, tokens // int(sizes[order[begun]]))
        yield order[begun : begun + count]
        begun += count


# --- what a model thinks --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class FormLesson:
    """Rows of one form, with what is known of them."""

    form: str
    rows: PackedRows
    gains: Any
    """(R,): ln of each row's plan over its task's best, not below -WORST."""
    targets: Any
    """(R,): of questions ln(gain over the rule's), of dialogs the advantage."""
    kept: Any
    """(R,), bool: rows of this form."""
    ruled: Any
    """(R,), bool: their plan is the rule's."""
    pad: int
    device: str
    tokens: int = 131072
    """Padded ones of one forward pass."""

    def of(self, tasks: Sequence[int], order: int | None = None, kind: int | None = None) -> Any:
        """Numbers of the rows of these tasks."""
        found = self.kept & np.isin(self.rows.tasks, tasks)
        if order is not None:
            found &= self.rows.orders == order
        if kind is not None:
            found &= self.rows.kinds == kind
        return np.flatnonzero(found)

    @property
    def ways(self) -> dict[int, list[Any]]:
        """Task -> rows of all of its plans, once for each way in which they are encoded."""
        found: dict[int, dict[tuple[int, int], list[int]]] = {}
        for row in np.flatnonzero(self.kept):
            task, way = (
                int(self.rows.tasks[row]),
                (int(self.rows.kinds[row]), int(self.rows.orders[row])),
            )
            found.setdefault(task, {}).setdefault(way, []).append(int(row))
        return {task: [np.array(one) for one in own.values()] for task, own in found.items()}


def lesson(
    form: str, tasks: Sequence[PackedTask], rows: PackedRows, pad: int, device: str
) -> FormLesson:
    """The rows of one form of question as what a model learns from, on a device."""
    kinds = (QUESTIONS,) if form == "weigh" else (DIALOGS, SKIPPED)
    speeds = [_logs(task) for task in tasks]
    values = np.array(
        [speeds[task][plan] for task, plan in zip(rows.tasks, rows.plans, strict=True)]
    )
    best = np.array([max(own) for own in speeds])[rows.tasks]
    bar = np.array([math.log(task.speedups[0] or 1.0) for task in tasks])[rows.tasks]
    mean = np.array([np.mean([math.log(s) for s in t.speedups if s] or [0.0]) for t in tasks])[
        rows.tasks
    ]
    return FormLesson(
        form=form,
        rows=rows,
        gains=np.maximum(values - best, -WORST).astype(np.float32),
        targets=(values - (bar if form == "weigh" else mean)).astype(np.float32),
        kept=np.isin(rows.kinds, kinds),
        ruled=np.array(
            [
                plan == 0 or tasks[task].rules[plan]
                for task, plan in zip(rows.tasks, rows.plans, strict=True)
            ]
        ),
        pad=pad,
        device=device,
    )


def _logs(task: PackedTask) -> list[float]:
    """ln(speedup); what fails counts as half of the slowest."""
    known = [math.log(one) for one in task.speedups if one]
    worst = min(known, default=0.0) - math.log(2)
    return [math.log(one) if one else worst for one in task.speedups]


def score_plans(
    model: Any, known: FormLesson, chosen: Any, drop: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(scores (R,), supervised losses (R,)), in the order of ``chosen``."""
    scores, taught, order = [], [], []
    rounded = known.device == "cuda" and model.training  # what is looked up is looked up exactly
    for places in parts(known.rows, chosen, known.tokens):
        found = batch(known.rows, chosen[places], known.pad).to(known.device)
        if drop:
            _forget(found, drop)
        with torch.autocast(known.device, torch.bfloat16, enabled=rounded):
            score, loss = (_encode_gains if known.form == "weigh" else _encode_advantages)(
                model, found, torch.from_numpy(known.targets[chosen[places]]).to(known.device)
            )
        scores.append(score)
        taught.append(loss)
        order.append(places)
    back = torch.from_numpy(np.argsort(np.concatenate(order))).to(known.device)
    return torch.cat(scores)[back], torch.cat(taught)[back]


def _forget(found: Batch, share: float) -> None:
    """Some encoded words, the first and what is said excepted, become unknown."""
    ids = found.input_ids
    gone = torch.rand(ids.shape, device=ids.device) < share
    gone[:, 0] = False
    gone[found.rows, found.places + 1] = False
    ids[gone] = TOKENS["unknown"]


def _encode_advantages(model: Any, found: Batch, advantages: Tensor) -> tuple[Tensor, Tensor]:
    words = models.logprobs(model, found).float()
    loss = losses.advantage_weighted(words, advantages, TEMPERATURE)
    return words.sum(dim=1), loss.sum(dim=1) / found.mask.sum(dim=1).clamp(min=1)


def _encode_gains(model: Any, found: Batch, gains: Tensor) -> tuple[Tensor, Tensor]:
    states = model.model(input_ids=found.input_ids, use_cache=False).last_hidden_state
    logits = model.lm_head(states[found.rows, found.places]).float()[:, list(plan_values.OFFERED)]
    known = torch.log_softmax(logits, dim=1)
    steps = torch.tensor([float(one[1:]) for one in GAINS], device=known.device)
    wanted = (gains / GAIN).clamp(float(steps[0]), float(steps[-1]))
    near = torch.softmax(-0.5 * (steps - wanted[:, None]) ** 2, dim=1)  # one word wide
    return (known.exp() * steps).sum(dim=1) * GAIN, -(near * known).sum(dim=1)


def expected_reward(scores: Tensor, tasks: Tensor, gains: Tensor) -> Tensor:
    """Mean over the tasks of the reward that the policy expects. All (R,); ``tasks`` tells rows
    apart.

    J = (1 / T) sum over tasks of sum over their rows i of softmax(scores)_i gain_i: the mean of
    REINFORCE's samples (Williams 1992), summed up instead of drawn."""
    _, group = torch.unique(tasks, return_inverse=True)
    count = int(group.max()) + 1
    top = torch.full((count,), -torch.inf, device=scores.device)
    top = top.scatter_reduce(0, group, scores.detach(), "amax")
    weight = torch.exp(scores - top[group])
    total = torch.zeros(count, device=scores.device).index_add(0, group, weight)
    return (weight / total[group] * gains).sum() / count


# --- learning -------------------------------------------------------------------------------------


def supervised_batches(
    known: FormLesson, schedule: Schedule, tasks: Sequence[int], seed: int
) -> Iterator[Any]:
    """Rows of each step; every epoch has an order of its own."""
    rows, draw = known.of(tasks), np.random.default_rng(seed)
    rows = rows[known.ruled[rows]] if schedule.ranked_plans else rows
    order = np.zeros(0, dtype=np.int64)
    for _ in range(schedule.steps):
        if len(order) < min(schedule.batch, len(rows)):
            order = draw.permutation(rows)
        taken, order = order[: schedule.batch], order[schedule.batch :]
        yield taken


def reinforced_batches(
    known: FormLesson, schedule: Schedule, tasks: Sequence[int], seed: int
) -> Iterator[Any]:
    """Rows of each step: all plans of some tasks, in one way of telling each."""
    draw, every, own = np.random.default_rng(seed + 1), np.array(tasks), known.ways
    for _ in range(schedule.rl_steps):
        chosen = draw.choice(every, min(schedule.tasks, len(every)), replace=False)
        ways = [own[task] for task in chosen if task in own]
        taken = np.concatenate([one[draw.integers(len(one))] for one in ways])
        yield taken[known.ruled[taken]] if schedule.ranked_plans else taken


class Learner:
    """A model with its optimizer; one phase after the other."""

    def __init__(self, model: Any, known: FormLesson, schedule: Schedule, seed: int) -> None:
        torch.manual_seed(seed)
        self.model, self._known, self._schedule = model, known, schedule
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=schedule.rate,
            weight_decay=schedule.decay,
            fused=known.device == "cuda",
        )

    def supervise(self, chosen: Any, step: int) -> float:
        """Makes one step towards the recorded words of the chosen rows; returns its loss."""
        _, taught = score_plans(self.model, self._known, chosen, self._schedule.drop)
        return self._stepped(taught.mean(), self._schedule.rate, step, self._schedule.steps)

    def reinforce(self, chosen: Any, step: int) -> float:
        """Makes one step towards plans that pay among those of the chosen rows; returns its
        loss."""
        known, schedule = self._known, self._schedule
        scores, taught = score_plans(self.model, known, chosen, schedule.drop)
        scores = scores / schedule.sharpness if known.form == "weigh" else scores
        numbers, gains = (
            torch.from_numpy(values[chosen]).to(known.device)
            for values in (known.rows.tasks, known.gains)
        )
        reward = expected_reward(scores, numbers, gains)
        self._stepped(
            schedule.imitation * taught.mean() - reward, schedule.rl_rate, step, schedule.rl_steps
        )
        return float(reward.detach())

    def _stepped(self, loss: Tensor, rate: float, step: int, steps: int) -> float:
        """Rates rise, then fall along half a cosine. Raises FloatingPointError."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        warm = min(self._schedule.warmup, max(1, steps // 5))
        share = min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate * share
        value = float(loss.detach())
        if not math.isfinite(value) or not math.isfinite(float(norm)):
            raise FloatingPointError(f"loss {value}, gradient {float(norm)}")
        self.optimizer.step()
        return value


def learn(
    model: Any,
    known: FormLesson,
    schedule: Schedule,
    tasks: Sequence[int],
    seed: int,
    imitated: Callable[[], None] = lambda: None,
    report: Callable[[str], None] = lambda line: None,
) -> list[float]:
    """Imitation, then reinforcement; ``imitated`` is called between them. Returns rewards by
    step."""
    learner, rewards = Learner(model, known, schedule, seed), list[float]()
    model.train()
    for step, rows in enumerate(supervised_batches(known, schedule, tasks, seed)):
        loss = learner.supervise(rows, step)
        if step % REPORTED == 0:
            report(f"step {step} of {schedule.steps}: loss {loss:.3f}")
    imitated()
    for step, rows in enumerate(reinforced_batches(known, schedule, tasks, seed)):
        rewards.append(learner.reinforce(rows, step))
        if step % REPORTED == 0:
            report(f"step {step} of {schedule.rl_steps}: expected reward {rewards[-1]:.3f}")
    return rewards


def scores(model: Any, known: FormLesson, tasks: Sequence[int]) -> dict[int, dict[int, float]]:
    """Task -> plan -> what the model thinks of it, in the ranked order; of dialogs the mean of both
    ways."""
    chosen = known.of(tasks, order=0)
    model.eval()
    with torch.inference_mode():
        values = score_plans(model, known, chosen)[0].float().tolist()
    model.train()
    found: dict[int, dict[int, float]] = {task: {} for task in tasks}
    for row, value in zip(chosen, values, strict=True):
        own, plan = found[int(known.rows.tasks[row])], int(known.rows.plans[row])
        own[plan] = own.get(plan, 0.0) + value
    return found
