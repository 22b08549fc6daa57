"""Learning from logged sessions on Triton kernels: 500 sessions of families that a policy has never seen.

    PYTHONPATH=. python3 benchmarks/offline_kernels.py --launches launches.json.xz --deals 3 \\
        --out offline-kernels-DATE.json

What offline.py does with graphs, with the policy that weighs launches (trainer/launch_policy.py). Families of
measured kernels are dealt out: a policy learns on old ones (it is the policy *before*); on some kernels of
new families people work, the others are held out. A session judges what the rule suggests first and what the
policy draws, by the recorded times; the fastest is offered, a simulated user answers (simulated.py), all of
it is written by the product's journal and read back by the trainer. The policy then goes on learning from
what was judged, as `trainer.launch_sessions` does it: by the measured times alone, with what people did, and,
which must not help, with both dealt out anew among each kernel's plans.
Not covered: what real people keep; suggestions beyond the measured plans.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.before_after import BEFORE, CONTROL, RULE, dealt, lines, pooled, say
from benchmarks.simulated import WORKLOAD, Sessions, User, fingerprint
from kernel_lsp import wire
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.journal import Journal
from kernel_lsp.records import Interval, Json, Step
from trainer import exact, launch_policy, launch_report, launches, rollouts
from trainer.exact import Schedule
from trainer.launch_sessions import SCHEDULE, TINY
from trainer.launches import Launches, Plan
from trainer.records import Outcome, Status, Trajectory
from trainer.spaces import RACE_SCATTER
from trainer.tasks import fingerprint_id

JUDGED = 4
"""Plans of the policy that a job judges, beside the rule's first."""
MEASURED, LIKED = "measured times", "measured times and what people did"
ARMS = (MEASURED, LIKED, CONTROL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A plan as a session is told of it."""

    steps: tuple[Step, ...]
    outcome: Outcome


def recorded(plan: Plan) -> Recorded:
    if plan.speedup is None:
        return Recorded(steps=plan.steps, outcome=Outcome(status=Status.WRONG_RESULT, correct=False))
    near = Interval(low=plan.speedup / RACE_SCATTER, mid=plan.speedup, high=plan.speedup * RACE_SCATTER)
    outcome = Outcome(
        status=Status.PASSED,
        correct=True,
        speedups={"eager": near},
        candidate_ms=1.0 / plan.speedup,
        baseline_ms={"eager": 1.0},
    )
    return Recorded(steps=plan.steps, outcome=outcome)


# --- sessions -------------------------------------------------------------------------------------


def logged(
    tasks: Sequence[Launches], scores: Mapping[str, Mapping[int, float]], count: int, seed: int
) -> tuple[Counter[str], list[Launches]]:
    """What happened, and the kernels with the plans that were judged. All of it goes through a journal."""
    with tempfile.TemporaryDirectory(prefix="offline-") as folder:
        path = Path(folder) / "journal.db"
        with Journal.open(path) as journal:
            made = Sessions(journal, User(), seed)
            for number in range(count):
                task = tasks[number % len(tasks)]
                draw = random.Random(f"{seed}/{number}/plans")
                plans = [recorded(task.plans[place]) for place in tried(task, scores[task.name], draw)]
                made.work(number, task.name, plans, 1.7e9 + 3600.0 * number)
        corpus = rollouts.read(journals=[path])
    for one in corpus.skipped:
        print(f"left out: {one.count} x {one.reason}")
    return made.happened, list(judged(corpus.trajectories, tasks))


def tried(task: Launches, scores: Mapping[int, float], draw: random.Random) -> list[int]:
    """The rule's first suggestion, and plans drawn from the policy without replacement (Gumbel's trick)."""
    sharp = SCHEDULE.sharpness
    noisy = {place: score / sharp - math.log(-math.log(draw.random())) for place, score in scores.items()}
    order = sorted(noisy, key=lambda place: -noisy[place])
    return list(dict.fromkeys([launch_report.rule(task).order[0], *order[:JUDGED]]))


def judged(trajectories: Sequence[Trajectory], tasks: Sequence[Launches]) -> Iterator[Launches]:
    """Each kernel with what its sessions say; one that no session tells of twice teaches nothing."""
    names = {fingerprint_id(fingerprint(task.name), WORKLOAD): task for task in tasks}
    humans: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for one in trajectories:
        for turn in one.turns:
            humans[one.task][wire.dumps(list(turn.steps))].append(turn.human)
    for name, said in humans.items():
        plans = ((plan, wire.dumps(list(plan.steps))) for plan in names[name].plans)
        known = tuple(replace(plan, liking=launches.liking(said[key])) for plan, key in plans if key in said)
        if len(known) > 1:
            yield replace(names[name], plans=known, first=None)


def dealt_anew(task: Launches, seed: int) -> Launches:
    """The times of its plans, with what people did, in another order."""
    told = [(plan.speedup, plan.liking) for plan in task.plans]
    random.Random(f"{seed}/{task.name}").shuffle(told)
    plans = (
        replace(plan, speedup=speed, liking=liked)
        for plan, (speed, liked) in zip(task.plans, told, strict=True)
    )
    return replace(task, plans=tuple(plans))


def lesson_of(arm: str, tasks: Sequence[Launches], seed: int) -> list[Launches]:
    if arm == CONTROL:
        return [dealt_anew(task, seed) for task in tasks]
    if arm == LIKED:
        return list(tasks)
    return [replace(task, plans=tuple(replace(plan, liking=0.0) for plan in task.plans)) for task in tasks]


# --- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """How policies learn here."""

    device: str
    tiny: bool
    before: Schedule
    after: Schedule
    sides: int

    def taught(self, model: Any, tasks: Sequence[Launches], told: Schedule, seed: int) -> Any:
        known = launch_policy.lesson(tasks, self.device, self.sides)
        exact.learn(model, known, told, range(len(tasks)), seed)
        return model

    def scores(self, model: Any, tasks: Sequence[Launches]) -> dict[str, dict[int, float]]:
        known = launch_policy.lesson(tasks, self.device, 0)
        found = exact.scores(model, known, range(len(tasks)))
        return {task.name: found[place] for place, task in enumerate(tasks)}


def suggested(tasks: Sequence[Launches], scores: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """ln(speedup of the first suggestion / best of the kernel)."""
    return {task.name: launch_report.policy(task, scores[task.name]).first for task in tasks}


def deal(every: Sequence[Launches], learning: Learning, options: argparse.Namespace, seed: int) -> Json:
    begun = time.monotonic()
    hand = dealt(every, options.new, seed)
    print(f"deal {seed}: {hand.sizes}", flush=True)
    fresh = launch_policy.fresh(seed, learning.device, learning.tiny)
    before = learning.taught(fresh, hand.old, learning.before, seed)
    scores = learning.scores(before, [*hand.sessions, *hand.held_out])
    happened, known = logged(hand.sessions, scores, options.sessions, seed)
    rows = sum(len(task.plans) for task in known)
    say(begun, f"{options.sessions} sessions: {dict(happened)}; {rows} plans of {len(known)} kernels judged")
    suggestions = {
        RULE: {task.name: launch_report.rule(task).first for task in hand.held_out},
        BEFORE: suggested(hand.held_out, scores),
    }
    for arm in ARMS:
        after = learning.taught(copy.deepcopy(before), lesson_of(arm, known, seed), learning.after, seed)
        suggestions[arm] = suggested(hand.held_out, learning.scores(after, hand.held_out))
        say(begun, f"{arm}: {math.exp(fmean(suggestions[arm].values())):.3f} of the best")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "tables": [path.name for path in options.launches],
        "seed": seed,
        "tasks": hand.sizes,
        "families": {name: hand.families(name) for name in hand.sizes},
        "sessions": options.sessions,
        "happened": dict(happened),
        "judged plans": rows,
        "held out": {task.name: task.family for task in hand.held_out},
        "suggestions": suggestions,
        "seconds": round(time.monotonic() - begun),
    }


def run(options: argparse.Namespace) -> Json:
    every = [task for path in options.launches for task in launches.load(path)]
    every = [every[place] for place in launch_report.comparable(every)]
    learning = Learning(
        device="cuda" if torch.cuda.is_available() else "cpu",
        tiny=options.tiny,
        before=launch_policy.TINY if options.tiny else launch_policy.SCHEDULES["plain"],
        after=TINY if options.tiny else SCHEDULE,
        sides=1 if options.tiny else launch_policy.SIDES,
    )
    result: Json = {}
    runs: list[Json] = []
    for seed in range(options.seed, options.seed + options.deals):
        runs.append(deal(every, learning, options, seed))
        result = {"device": learning.device, "torch": torch.__version__, **pooled(runs)}
        if options.out:  # what was measured survives a machine that is taken away
            replace_file(options.out, (json.dumps(result, indent=1) + "\n").encode())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--launches", type=Path, action="append", required=True, help="of trainer.launches")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--new", type=float, default=0.5, help="share of kernels in new families")
    parser.add_argument("--seed", type=int, default=0, help="of the first deal")
    parser.add_argument("--deals", type=int, default=1, help="of families, one after the other")
    parser.add_argument("--tiny", action="store_true", help="a few steps of a tiny model: a rehearsal")
    try:
        result = run(parser.parse_args())
    except KernelLspError as error:
        sys.exit(f"offline_kernels: {error}")
    print("\n".join(lines(result)))


if __name__ == "__main__":
    main()
