"""Learning from logged sessions: 500 sessions of families that a policy has never seen, before against after.

    python -m trainer.shown --tasks tasks/ --table plans.json --out shown.json.xz   (no GPU, 0.5 s a task)
    PYTHONPATH=. python3 benchmarks/offline.py --shown shown.json.xz --out offline-DATE.json [--gpu]

Families of the measured tasks are dealt out: a small policy learns on old ones (it is the policy *before*).
Tasks of new families are dealt out again: on some of them people work, the others are held out. A session is
one job: what the policy and the rule would try is judged (by the recorded times), the fastest right one is
offered, and a simulated user answers; all of it is written by the product's journal and tracker, and read
back by the trainer like anybody's journal. Training is offline, by the three ways of trainer/sft.py, and by
one that must not help: the same rows with their rewards dealt out anew within each task.
The user is stated in simulated.py (`User`). What is suggested is the likeliest of a task's measured plans; a
wrong or slow one counts as the program itself. Not covered: what real people keep; exploration beyond what
was judged.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.before_after import BEFORE, CONTROL, RULE, dealt, lines, pooled, say
from benchmarks.simulated import WORKLOAD, Sessions, User, fingerprint
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.journal import Journal
from kernel_lsp.records import Json
from trainer import config, models, rewards, rollouts, sft, shown, sources
from trainer.batches import Example
from trainer.config import Recipe, Sft
from trainer.records import Agent, Human, Trajectory, Turn
from trainer.shown import Plan, Shown
from trainer.tasks import fingerprint_id
from trainer.training import Run

JUDGED = 4
"""Plans of the policy that a job judges, beside the rule's first."""
ARMS: dict[str, dict[str, Any]] = {
    "advantage-weighted": {"loss": "advantage_weighted", "temperature": 0.3},
    "best-step": {"loss": "best_step"},
    "best-step and preference": {"loss": "best_step", "preference": 0.5, "beta": 0.1},
    CONTROL: {"loss": "advantage_weighted", "temperature": 0.3},
}


# --- the policy -----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Policy:
    """A model and what it thinks of measured plans."""

    recipe: Recipe
    model: Any
    tokenizer: Any

    @staticmethod
    def new(recipe: Recipe) -> Policy:
        model, tokenizer = models.load(recipe, ())
        return Policy(recipe=recipe, model=model, tokenizer=tokenizer)

    def copy(self) -> Policy:
        return replace(self, model=copy.deepcopy(self.model))

    def learn(
        self, examples: Sequence[Example], pairs: Sequence[sft.Pair], settings: dict[str, Any], epochs: int
    ) -> list[float]:
        """Losses, step by step."""
        assert self.recipe.sft is not None
        told = replace(self.recipe.sft, epochs=epochs, **settings)
        rows = [one for one in examples if told.loss != "best_step" or one.best]
        steps = epochs * -(-len(rows) // told.batch)
        run = Run(recipe=self.recipe, kind="sft", model=self.model, tokenizer=self.tokenizer, steps=steps)
        pairs = pairs if told.preference else []
        start = _thought(run, told, pairs)
        losses = []
        for step in range(steps):
            batch = sft.batch_of(rows, told.batch, step, self.recipe.seed)
            count = min(len(pairs), max(1, len(batch) // 4))
            chosen = [(step * count + place) % len(pairs) for place in range(count)]
            found = sft.learn(run, told, batch, [pairs[i] for i in chosen], [start[i] for i in chosen])
            losses.append(found["loss"])
        return losses

    def scores(self, every: Sequence[Shown]) -> dict[str, list[float]]:
        """Of each task the log-probability of each of its plans."""
        assert self.recipe.sft is not None
        examples = [example(task, plan) for task in every for plan in task.plans]
        run = Run(recipe=self.recipe, kind="sft", model=self.model, tokenizer=self.tokenizer, steps=1)
        found = iter(run.logprobs(examples, self.recipe.sft.tokens, 1.0))
        return {task.name: [sum(next(found)) for _ in task.plans] for task in every}


def _thought(run: Run, told: Sft, pairs: Sequence[sft.Pair]) -> list[tuple[float, float]]:
    """What the first weights think of each pair's replies."""
    if not pairs:
        return []
    found = run.logprobs([one for pair in pairs for one in pair], told.tokens, 1.0)
    sums = [sum(row) for row in found]
    return list(zip(sums[::2], sums[1::2], strict=True))


def example(task: Shown, plan: Plan, **more: Any) -> Example:
    """A plan as the talk in which the policy would say it."""
    sample = shown.told(task, plan).sample()
    return sources.talk(sample.tokens, sample.said, sample.offered, **more)


def taught(task: Shown, plans: Sequence[tuple[Plan, Human | None]], trajectory: str) -> list[Example]:
    """A task's plans with advantages: the reward of each against their mean, what a person did included."""
    found = [(plan, human, _reward(plan, human)) for plan, human in plans]
    mean = fmean(reward for _, _, reward in found)
    best = max(reward for _, _, reward in found)
    return [
        example(
            task,
            plan,
            advantage=reward - mean,
            best=reward == best and reward > 0 and human not in (Human.REVERTED, Human.DISMISSED),
            trajectory=trajectory,
        )
        for plan, human, reward in found
    ]


def _reward(plan: Plan, human: Human | None) -> float:
    judged = rewards.judged(Turn(number=0, agent=Agent.POLICY, human=human, outcome=plan.outcome))
    terms = None if judged is None else rewards.bound(judged)
    return rewards.total(terms) if terms is not None else 0.0


# --- from the journal to rows ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """What a journal teaches."""

    rows: list[Example]
    control: list[Example]
    """The same plans with the rewards of other plans of their session."""
    pairs: list[sft.Pair]


def logged(trajectories: Sequence[Trajectory], tasks: Sequence[Shown], seed: int) -> Logged:
    names = {fingerprint_id(fingerprint(task.name), WORKLOAD): task for task in tasks}
    rows, control, draw = list[Example](), list[Example](), random.Random(seed)
    liked: dict[str, dict[bool, list[Example]]] = defaultdict(lambda: {True: [], False: []})
    for one in trajectories:
        task = names[one.task]
        known = {plan.keys: plan for plan in task.plans}
        plans = [(known[tuple(map(shown.key_of, turn.steps))], turn.human) for turn in one.turns]
        mine = taught(task, plans, one.id)
        rows += mine
        told = [(row.advantage, row.best) for row in mine]
        draw.shuffle(told)
        control += [replace(r, advantage=a, best=b) for r, (a, b) in zip(mine, told, strict=True)]
        for row, (_, human) in zip(mine, plans, strict=True):
            if human in sources.GOOD + sources.BAD:
                liked[one.task][human in sources.GOOD].append(row)
    return Logged(rows=rows, control=control, pairs=list(_pairs(liked.values())))


def _pairs(liked: Any) -> Iterator[sft.Pair]:
    """Kept against refused, of the same target."""
    for of_task in liked:
        good, bad = of_task[True], of_task[False]
        for place in range(max(len(good), len(bad)) if good and bad else 0):
            yield good[place % len(good)], bad[place % len(bad)]


# --- numbers --------------------------------------------------------------------------------------


def worth(plan: Plan) -> float:
    """ln of the speedup that a user has of a first suggestion: what is wrong or slow is not offered."""
    return math.log(max(1.0, plan.speedup or 1.0))


def suggested(tasks: Sequence[Shown], scores: dict[str, list[float]]) -> dict[str, float]:
    """ln(speedup of the likeliest plan / best of the task)."""
    return {
        task.name: worth(max(zip(scores[task.name], task.plans, strict=True), key=lambda pair: pair[0])[1])
        - max(worth(plan) for plan in task.plans)
        for task in tasks
    }


def ruled(tasks: Sequence[Shown]) -> dict[str, float]:
    """The same of the rule, whose first suggestion is the first plan."""
    return {task.name: worth(task.plans[0]) - max(worth(plan) for plan in task.plans) for task in tasks}


# --- the run --------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> Json:
    begun = time.monotonic()
    every = [task for path in options.shown for task in shown.load(path)]
    deal = dealt(every, options.new, options.seed)
    print(f"tasks: {deal.sizes}", flush=True)
    before = Policy.new(recipe_of(options))
    rows = [row for task in deal.old for row in taught(task, _some(task, options.plans), task.name)]
    losses = before.learn(rows, [], {"loss": "advantage_weighted", "temperature": 0.3}, options.epochs)
    say(
        begun,
        f"before: {len(rows)} plans of {len(deal.old)} old tasks, loss {losses[0]:.3f} to {losses[-1]:.3f}",
    )
    happened, found = _sessions(deal.sessions, before, options)
    say(
        begun,
        f"{options.sessions} sessions: {dict(happened)}; {len(found.rows)} judged, {len(found.pairs)} pairs",
    )
    suggestions = {
        RULE: ruled(deal.held_out),
        BEFORE: suggested(deal.held_out, before.scores(deal.held_out)),
    }
    result: Json = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "tables": [path.name for path in options.shown],
        "tasks": deal.sizes,
        "families": {name: deal.families(name) for name in deal.sizes},
        "sessions": options.sessions,
        "happened": dict(happened),
        "rows": len(found.rows),
        "pairs": len(found.pairs),
        "held out": {task.name: task.family for task in deal.held_out},
        "suggestions": suggestions,
    }
    for name, settings in ARMS.items():
        after = before.copy()
        after.learn(found.control if name == CONTROL else found.rows, found.pairs, settings, options.again)
        suggestions[name] = suggested(deal.held_out, after.scores(deal.held_out))
        say(begun, name)
    result["seconds"] = round(time.monotonic() - begun)
    return result


def _some(task: Shown, most: int) -> list[tuple[Plan, Human | None]]:
    """The rule's first and others, as a recording of one's own has them: nobody has said anything of them."""
    others = random.Random(task.name).sample(task.plans[1:], min(most - 1, len(task.plans) - 1))
    return [(plan, None) for plan in (task.plans[0], *others)]


def _sessions(
    tasks: Sequence[Shown], policy: Policy, options: argparse.Namespace
) -> tuple[Counter[str], Logged]:
    """Written to a journal on disk, closed, and read back."""
    scores = policy.scores(tasks)
    with tempfile.TemporaryDirectory(prefix="offline-") as folder:
        path = Path(folder) / "journal.db"
        with Journal.open(path) as journal:
            made = Sessions(journal, User(), options.seed)
            for number in range(options.sessions):
                task = tasks[number % len(tasks)]
                draw = random.Random(f"{options.seed}/{number}/plans")
                made.work(number, task.name, _tried(task, scores[task.name], draw), 1.7e9 + 3600.0 * number)
        corpus = rollouts.read(journals=[path])
    for one in corpus.skipped:
        print(f"left out: {one.count} x {one.reason}")
    return made.happened, logged(corpus.trajectories, tasks, options.seed)


def _tried(task: Shown, scores: Sequence[float], draw: random.Random) -> list[Plan]:
    """The rule's first suggestion, and plans drawn from the policy without replacement (Gumbel's trick)."""
    noisy = [score - math.log(-math.log(draw.random())) for score in scores]
    order = sorted(range(len(noisy)), key=lambda place: -noisy[place])
    return [task.plans[place] for place in dict.fromkeys([0, *order[:JUDGED]])]


def recipe_of(options: argparse.Namespace) -> Recipe:
    big = options.gpu
    data = {
        "seed": options.seed,
        "model": {
            "words": "compact",
            "hidden": 384 if big else 96,
            "layers": 8 if big else 2,
            "heads": 6 if big else 3,
            "key_heads": 2 if big else 1,
            "head": 64 if big else 32,
            "inner": 1024 if big else 256,
            "context": 4096,
        },
        "optimizer": {"rate": options.rate, "schedule": "cosine", "warmup": 10},
        "sft": {"batch": 64, "tokens": 65536 if big else 16384},
        "hardware": {"gpus": 1} if big else {"threads": options.threads},
    }
    return config.read(data, Path("offline.toml"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shown", type=Path, action="append", default=[], help="of trainer.shown")
    parser.add_argument("--merge", type=Path, action="append", default=[], help="results of other seeds")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--new", type=float, default=0.5, help="share of tasks in new families")
    parser.add_argument(
        "--plans", type=int, default=8, help="of each old task, that the policy before learns"
    )
    parser.add_argument("--epochs", type=int, default=6, help="on old tasks")
    parser.add_argument("--again", type=int, default=4, help="epochs on the sessions")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--gpu", action="store_true", help="the shipped policy's size on a GPU")
    options = parser.parse_args()
    if not (options.shown or options.merge):
        parser.error("name measured plans with --shown, or results with --merge")
    try:
        known = [run_ for path in options.merge for run_ in json.loads(path.read_text())["runs"]]
        result = pooled([*known, *([run(options)] if options.shown else [])])
    except KernelLspError as error:
        sys.exit(f"offline: {error}")
    print("\n".join(lines(result)))
    if options.out:
        replace_file(options.out, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
