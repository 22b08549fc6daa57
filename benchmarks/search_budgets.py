"""Which search finds how much with equally many evaluations, on recorded spaces.

    PYTHONPATH=. python3 benchmarks/search_budgets.py [results/spaces-h200-DATE.json]
        [--budgets 4 8 16] [--seeds 20] [--out FILE]

Replays benchmarks/record_spaces.py's recordings, as benchmarks/search.py does. Contestants:

- ``evolution``: the product's MAP-Elites with islands;
- ``climb``: the same loop and mutations, always from the fastest so far (a rollout of turns without
  a model);
- ``samples``: the same, always from the defaults (best of n);
- ``random``: programs drawn uniformly, without repetition;
- ``nsga2``, ``tpe``, ``cmaes``: optuna's genetic algorithm, estimator of densities and CMA-ES, on
  the same axes, begun at the defaults, where that package is installed (``pip install optuna
  cmaes``; it is no dependency).

All but ``random`` begin with the skills' defaults, whose judgement is one of their evaluations; a
program that was judged already costs nothing. A score is the speedup of the best that was found
over the best of all; intervals are of the mean over tasks, and of differences paired by task
(bootstrap of tasks, 95 %). Not covered: noise, chains of other skills, code by a model."""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting import write_record
from benchmarks.search import Space, drawn, newest, replayed, spaces
from kernel_lsp.records import Archive, Attempt, Context, Json, Move
from kernel_lsp.search.evolution import Evolution
from kernel_lsp.search.fitness import speed
from kernel_lsp.search.space import Point
from trainer.data.intervals import interval

BUDGETS, SEEDS = (4, 8, 16), 20
MAX_ASKED = 40
"""Proposals of an optimizer for one evaluation: what it asks again costs nothing, but must end."""
BudgetStrategy = Callable[[Space, int, int], float]
"""Space, seed and evaluations -> share of the best speedup."""


class Mutations:
    """A `Strategy`: mutations of one attempt at a time, chosen by a rule."""

    def __init__(self, seed: int, choose: Callable[[Sequence[Attempt]], Attempt]) -> None:
        self._seed, self._choose = seed, choose

    def choose(self, archive: Archive, number: int, *, slow: bool) -> Context | None:
        fit = [one for one in archive.attempts if one.fitness is not None]
        if slow or not fit:
            return None
        seed = random.Random(f"{self._seed}:{number}").getrandbits(32)
        return Context(number=number, seed=seed, move=Move.MUTATE, parent=self._choose(fit))


def _evolution(space: Space, seed: int, budget: int) -> float:
    return replayed(space, Evolution(seed), budget)


def _climb(space: Space, seed: int, budget: int) -> float:
    return replayed(space, Mutations(seed, lambda fit: max(fit, key=speed)), budget)


def _samples(space: Space, seed: int, budget: int) -> float:
    return replayed(space, Mutations(seed, lambda fit: fit[0]), budget)


def _optuna(make: Callable[[Any, int], Any]) -> BudgetStrategy:
    def search(space: Space, seed: int, budget: int) -> float:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="maximize", sampler=make(optuna, seed))
        names = [f"axis {number}" for number in range(len(space.axes))]
        study.enqueue_trial(
            dict(zip(names, space.point(space.steps), strict=True)), skip_if_exists=True
        )
        judged: dict[str, float] = {}
        for _ in range(MAX_ASKED * budget):
            trial = study.ask()
            point: Point = tuple(
                trial.suggest_int(name, 0, len(axis["choices"]) - 1)
                for name, axis in zip(names, space.axes, strict=True)
            )
            program = space.programs.get(point)
            if program is not None:
                judged[program] = space.speedup(program)
            study.tell(trial, judged[program] if program is not None else 0.0)
            if len(judged) >= min(budget, len(space.times)):
                break
        return max(judged.values(), default=0.0) / space.best

    return search


def contestants() -> dict[str, BudgetStrategy]:
    found: dict[str, BudgetStrategy] = {
        "evolution": _evolution,
        "climb": _climb,
        "samples": _samples,
        "random": drawn,
    }
    if importlib.util.find_spec("optuna"):
        found["nsga2"] = _optuna(
            lambda optuna, seed: optuna.samplers.NSGAIISampler(population_size=8, seed=seed)
        )
        found["tpe"] = _optuna(
            lambda optuna, seed: optuna.samplers.TPESampler(n_startup_trials=5, seed=seed)
        )
        if importlib.util.find_spec("cmaes"):
            found["cmaes"] = _optuna(lambda optuna, seed: optuna.samplers.CmaEsSampler(seed=seed))
    return found


def compare(
    found: Sequence[Space], budgets: Sequence[int], seeds: int, names: Sequence[str] = ()
) -> list[Json]:
    """A row per budget and contestant (``names``; default: all); prints each."""
    rows = []
    for budget in budgets:
        for name, search in contestants().items():
            if names and name not in names:
                continue
            shares = [
                statistics.fmean(search(space, seed, budget) for seed in range(seeds))
                for space in found
            ]
            low, high = interval(shares)
            rows.append(
                {
                    "evaluations": budget,
                    "search": name,
                    "share": statistics.fmean(shares),
                    "low": low,
                    "high": high,
                    "worst_task": min(shares),
                    "by_task": dict(zip((space.name for space in found), shares, strict=True)),
                }
            )
            print(_describe(rows[-1]), flush=True)
    return rows


def differences(rows: Sequence[Json], baseline: str = "evolution") -> list[Json]:
    """Each contestant's share less the baseline's, paired by task."""
    by_task = {(row["evaluations"], row["search"]): row["by_task"] for row in rows}
    found = []
    for (budget, name), shares in by_task.items():
        if name != baseline:
            other = by_task[budget, baseline]
            paired = [shares[task] - other[task] for task in shares]
            low, high = interval(paired)
            found.append(
                {
                    "evaluations": budget,
                    "search": f"{name} - {baseline}",
                    "share": statistics.fmean(paired),
                    "low": low,
                    "high": high,
                }
            )
    return found


def _describe(row: Json) -> str:
    text = f"{row['evaluations']:>4} {row['search']:<22} {row['share']:8.2%}"
    text += f" [{row['low']:.2%}, {row['high']:.2%}]"
    return text + (f"  worst task {row['worst_task']:.2%}" if "worst_task" in row else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recording", type=Path, nargs="?", default=newest())
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--searches", nargs="+", default=(), help="Default: all.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.recording is None:
        parser.error("there is no recording in benchmarks/results")
    print(f"{options.recording.name}, {options.seeds} seeds")
    rows = compare(spaces(options.recording), options.budgets, options.seeds, options.searches)
    paired = differences(rows) if any(row["search"] == "evolution" for row in rows) else []
    for row in paired:
        print(_describe(row))
    if options.out:
        about = {"recording": options.recording.name, "seeds": options.seeds}
        write_record(options.out, {**about, "rows": rows, "differences": paired})


if __name__ == "__main__":
    main()
