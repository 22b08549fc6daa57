"""Simulated sessions: what is written is what the trainer reads back; the numbers of the experiment."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launch_helpers import measured

from benchmarks import before_after, offline, offline_kernels, simulated
from kernel_lsp import wire
from kernel_lsp.journal import Journal
from kernel_lsp.records import Interval, Step
from trainer import launches, rollouts, shown
from trainer.records import Human, Outcome, Status
from trainer.shown import Plan, Shown
from trainer.tasks import fingerprint_id

pytestmark = pytest.mark.torch


def plan(warps: int, speedup: float | None) -> Plan:
    step = Step(skill="fused-norm", site="layer_norm", parameters={"warps": warps})
    outcome = Outcome(status=Status.WRONG_RESULT, correct=False)
    if speedup is not None:
        outcome = Outcome(
            status=Status.PASSED,
            correct=True,
            speedups={"eager": Interval(low=speedup, mid=speedup, high=speedup)},
            candidate_ms=1 / speedup,
            baseline_ms={"eager": 1.0},
        )
    return Plan(steps=(step,), keys=(shown.key_of(step),), outcome=outcome, rule=False)


def task(name: str, family: str, speedups: Sequence[float | None] = (1.0, 2.0)) -> Shown:
    situation: Any = SimpleNamespace(device="cuda")
    plans = tuple(plan(warps, speed) for warps, speed in enumerate(speedups))
    return Shown(name=name, family=family, situation=situation, plans=plans, views={})


class Fixed(simulated.User):
    """Takes what is 1.2 times as fast and keeps what is 1.5 times as fast, always."""

    def accepts(self, speedup: float, draw: Any) -> bool:
        return speedup >= 1.2

    def stays(self, speedup: float, draw: Any) -> bool:
        return speedup >= 1.5


@pytest.mark.parametrize(
    ("speedups", "happened", "humans"),
    [
        ((1.0, 2.0, None), "kept", [None, Human.KEPT, None]),
        ((1.0, 1.3, None), "reverted", [None, Human.REVERTED, None]),
        ((1.0, 1.1, None), "dismissed", [None, Human.DISMISSED, None]),
        ((1.0, 0.9, None), "nothing to offer", [None, None, None]),
    ],
)
def test_what_a_person_did_is_read_back_beside_what_was_judged(
    tmp_path: Path, speedups: Sequence[float | None], happened: str, humans: list[Human | None]
) -> None:
    worked = task("t", "f", speedups)
    path = tmp_path / "journal.db"
    with Journal.open(path) as journal:
        sessions = simulated.Sessions(journal, Fixed(), 0)
        sessions.work(1, worked.name, worked.plans, 1.7e9)
    assert dict(sessions.happened) == {happened: 1}
    (found,) = rollouts.read(journals=[path]).trajectories
    names = [
        worked.plans.index(next(p for p in worked.plans if p.steps == turn.steps)) for turn in found.turns
    ]
    assert [human for _, human in sorted(zip(names, [t.human for t in found.turns], strict=True))] == humans
    assert {turn.outcome.correct for turn in found.turns} == {True, False}
    assert found.permission.training and not found.permission.source
    named = fingerprint_id(simulated.fingerprint(worked.name), simulated.WORKLOAD)
    assert found.task == named


def test_families_are_old_or_new_and_new_ones_have_tasks_on_both_sides() -> None:
    every = [task(f"{family}{n}", family) for family in "abcdefgh" for n in range(1 + ord(family) % 4)]
    deal = before_after.dealt(every, 0.5, seed=1)
    assert sorted(t.name for t in [*deal.old, *deal.sessions, *deal.held_out]) == sorted(
        t.name for t in every
    )
    new = {t.family for t in deal.sessions}
    assert new == {t.family for t in deal.held_out} and not new & {t.family for t in deal.old}
    assert 0 < len(deal.held_out) <= len(deal.sessions)


def test_a_suggestion_is_worth_what_a_user_has_of_it() -> None:
    one = task("t", "f", (0.5, None, 2.0, 4.0))
    best = math.log(4.0)
    for place, worth in ((0, 0.0), (1, 0.0), (2, math.log(2.0)), (3, best)):
        scores = [1.0 if n == place else 0.0 for n in range(4)]
        assert offline.suggested([one], {"t": scores}) == {"t": pytest.approx(worth - best)}
    assert offline.ruled([one]) == {"t": pytest.approx(-best)}


def test_an_interval_is_of_families_and_not_of_tasks() -> None:
    """Of one family with many tasks nothing is known about others; of many that agree it is narrow."""
    families = {f"t{n}": f"f{n % 2}" for n in range(20)}
    low, mid, high = before_after.spread({f"t{n}": 0.1 * (n % 2) for n in range(20)}, families)
    assert mid == pytest.approx(math.exp(0.05)) and (low, high) == pytest.approx((1.0, math.exp(0.1)))
    same = before_after.spread(dict.fromkeys(families, 0.1), families)
    assert same == pytest.approx((math.exp(0.1),) * 3)


def test_deals_are_pooled_task_by_task() -> None:
    def deal(families: dict[str, str], after: float) -> dict[str, Any]:
        told = dict.fromkeys(families, -0.2)
        arms = {name: dict.fromkeys(families, after) for name in offline.ARMS}
        return {"held out": families, "suggestions": {"rule": told, before_after.BEFORE: told, **arms}}

    found = before_after.pooled([deal({"a": "f", "b": "g"}, -0.1), deal({"b": "g"}, 0.0)])
    assert (found["deals"], found["held out"]) == (2, 2)
    _, mid, _ = found["after / before"][before_after.CONTROL]
    assert mid == pytest.approx(math.exp((0.1 + 0.15) / 2))
    assert found["first / best"]["rule"] == pytest.approx((math.exp(-0.2),) * 3)
    assert "2 held-out tasks, 2 deals" in next(before_after.lines(found))


# --- kernels --------------------------------------------------------------------------------------


def test_what_sessions_on_kernels_judged_is_read_back_from_their_journal() -> None:
    one = measured("k", (1.0, 2.0, None, 1.5, 1.2, 1.1, 1.0))
    certain = {place: 0.0 if place < 5 else -100.0 for place in range(7)}
    happened, (told,) = offline_kernels.logged([one], {"k": certain}, 12, seed=0)
    assert sum(happened.values()) == 12 and happened["kept"] > 6
    assert [plan.speedup for plan in told.plans] == pytest.approx([1.0, 2.0, None, 1.5, 1.2])
    assert [plan.view for plan in told.plans] == [plan.view for plan in one.plans[:5]]
    likings = [plan.liking for plan in told.plans]
    assert likings[1] > 0.1 and likings[0] == likings[2] == 0.0
    bare = offline_kernels.lesson_of(offline_kernels.MEASURED, [told], 0)
    assert all(plan.liking == 0.0 for plan in bare[0].plans)


def test_the_control_has_the_same_numbers_at_other_plans() -> None:
    every = [measured(f"k{n}", [1.0 + place for place in range(8)]) for n in range(4)]
    dealt = offline_kernels.lesson_of(before_after.CONTROL, every, seed=1)
    for one, other in zip(every, dealt, strict=True):
        told = [[plan.speedup for plan in task.plans] for task in (one, other)]
        assert told[0] != told[1] and sorted(told[0]) == sorted(told[1])  # type: ignore[type-var]
        assert [plan.steps for plan in one.plans] == [plan.steps for plan in other.plans]


def test_a_rehearsal_of_the_experiment_on_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [measured(f"k{n}", (1.0, 2.0, None, 0.5, 1.5), f"f{n % 6}") for n in range(24)]
    launches.save([wire.to_json(one) for one in made], tmp_path / "launches.json.xz")
    command = ["offline_kernels", "--launches", str(tmp_path / "launches.json.xz"), "--tiny", "--deals", "2"]
    monkeypatch.setattr("sys.argv", [*command, "--sessions", "12", "--out", str(tmp_path / "out.json")])
    offline_kernels.main()
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["deals"] == 2 and len(told["runs"]) == 2
    assert set(told["after / before"]) == set(offline_kernels.ARMS)
    first = told["runs"][0]
    assert first["tasks"]["sessions"] > 0 and first["judged plans"] > 0
    assert set(first["suggestions"]["rule"]) == set(first["held out"])
