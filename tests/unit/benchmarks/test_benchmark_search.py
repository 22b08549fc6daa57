"""The replay of recorded spaces: counts, scores, and the bar where a recording is there."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks import search, search_budgets
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Step

SYNTHETIC = "synthetic: made by a formula, of no device"
FACTORS = {
    "plan": [1.0, 1.2, 0.9, 1.5, 1.1, 0.8, 1.3, 1.6, 1.4, 2.0],
    "BLOCK": [1.0, 0.9, 1.2],
    "num_warps": [1.0, 0.95],
}
"""Two steps: a matrix product with ten plans, and a tail with six combinations that takes half as
long."""


def recording(folder: Path, **changed: Any) -> Path:
    """60 combinations, the best of which is (5, 1, 1)."""
    axes = [
        {
            "step": min(place, 1),
            "skill": "fg"[min(place, 1)],
            "site": "n",
            "name": name,
            "choices": [*range(n)],
        }
        for place, (name, n) in enumerate((name, len(factors)) for name, factors in FACTORS.items())
    ]
    combinations = []
    for point in itertools.product(*(range(len(factors)) for factors in FACTORS.values())):
        plan, block, warps = (
            factors[p] for factors, p in zip(FACTORS.values(), point, strict=True)
        )
        combinations.append([list(point), str(point), plan + 0.5 * block * warps, ""])
    task = {
        "summary": "fuse",
        "steps": [
            {"skill": "f", "site": "n", "parameters": {"plan": 0}},
            {"skill": "g", "site": "n", "parameters": {"BLOCK": 0, "num_warps": 0}},
        ],
        "axes": axes,
        "original_ms": 3.0,
        "combinations": combinations,
    }
    path = folder / "spaces-synthetic.json"
    path.write_text(json.dumps({"device": SYNTHETIC, "tasks": {"one": {**task, **changed}}}))
    return path


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    (space,) = search.spaces(recording(tmp_path))
    assert len(space.programs) == 60 and space.budget == 15
    assert space.best == pytest.approx(3.0 / (0.8 + 0.5 * 0.9 * 0.95))
    assert [site.skill for site in asyncio.run(space.sites(()))] == ["f"]
    steps = (Step(skill="f", site="n", parameters={"plan": 5}), Step(skill="g", site="n"))
    assert asyncio.run(space.apply(steps)).id == "(5, 0, 0)"


def test_what_the_engine_never_made_is_refused(tmp_path: Path) -> None:
    (space,) = search.spaces(recording(tmp_path, combinations=[[[0, 0, 0], "a", 1.5, ""]]))
    with pytest.raises(RewriteError, match="no such combination"):
        asyncio.run(
            space.apply((Step(skill="f", site="n", parameters={"plan": 1}), space.steps[1]))
        )


def test_combinations_that_are_one_program_count_once(tmp_path: Path) -> None:
    pairs = [
        [[p, b, w], str(p), 1.0 + p, ""] for p in range(10) for b in range(3) for w in range(2)
    ]
    (space,) = search.spaces(recording(tmp_path, combinations=pairs))
    assert len(space.times) == 10 and space.budget == 3


def test_what_does_not_run_is_never_the_best(tmp_path: Path) -> None:
    broken = [
        [[p, b, w], f"{p}{b}{w}", None if p else 1.5, "x"]
        for p in range(10)
        for b in range(3)
        for w in range(2)
    ]
    (space,) = search.spaces(recording(tmp_path, combinations=broken))
    assert (
        space.best == 2.0 and search.evolved(space, 0) == 1.0 and 0 <= search.drawn(space, 1) <= 1.0
    )


def test_defaults_that_do_not_run_cost_evaluations(tmp_path: Path) -> None:
    """The first two of sixty fail: thirteen of fifteen evaluations are left."""
    path = recording(tmp_path)
    data = json.loads(path.read_text())
    for combination in data["tasks"]["one"]["combinations"][:2]:
        combination[2:] = [None, "out of shared memory"]
    path.write_text(json.dumps(data))
    (space,) = search.spaces(path)
    assert search.evolved(space, 0) > 0.9


def test_the_search_comes_near_the_best_with_a_quarter_of_the_evaluations(tmp_path: Path) -> None:
    (space,) = search.spaces(recording(tmp_path))
    ours = [search.evolved(space, seed) for seed in range(6)]
    drawn = [search.drawn(space, seed) for seed in range(200)]
    assert statistics.fmean(ours) >= search.BAR > statistics.fmean(drawn)
    assert ours == [search.evolved(space, seed) for seed in range(6)]  # and again the same


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tasks": {"a": {}}}'])
def test_another_file_is_no_recording(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        search.spaces(path)


@pytest.mark.skipif(
    not list(search.RESULTS.glob("spaces-*.json")), reason="no space was recorded yet"
)
def test_the_bar_on_what_was_recorded() -> None:
    """98 % of the best speedup; benchmarks/search.py prints the table, with 50 seeds."""
    newest = max(search.RESULTS.glob("spaces-*.json"), key=lambda path: path.name)
    found = search.spaces(newest)
    shares = [search.evolved(space, seed) for space in found for seed in range(3)]
    drawn = [search.drawn(space, seed) for space in found for seed in range(50)]
    assert len(found) >= 20 and all(math.isfinite(share) for share in shares)
    assert statistics.fmean(shares) >= search.BAR and statistics.fmean(shares) > statistics.fmean(
        drawn
    )


def test_contestants_are_compared_task_by_task() -> None:
    """0.95 - 0.9 = 0.05 and 0.9 - 0.8 = 0.1: mean 0.075, and of two tasks the interval is both."""
    rows = [
        {"evaluations": 4, "search": name, "by_task": dict(zip("ab", shares, strict=True))}
        for name, shares in (("evolution", (0.9, 0.8)), ("random", (0.95, 0.9)))
    ]
    (found,) = search_budgets.differences(rows)
    assert found["search"] == "random - evolution"
    assert found["share"] == pytest.approx(0.075)
    assert (found["low"], found["high"]) == pytest.approx((0.05, 0.1))
