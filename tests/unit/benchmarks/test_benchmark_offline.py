"""Sessions on modules, replayed: what must help helps, and times dealt anew do not."""

import math

import pytest

from benchmarks import offline_modules
from benchmarks.offline_modules import Policy, Task


def made_up(skills: str, quick: str) -> list[Task]:
    """Forty families of four tasks; one skill is twice as fast, another looked as good before."""
    return [
        Task(
            name=f"{skills} {family}/{number}",
            family=f"{skills} {family}",
            features=tuple(frozenset({skill}) for skill in skills),
            values=tuple(math.log(2.0) if skill == quick else 0.0 for skill in skills),
        )
        for family in range(40)
        for number in range(4)
    ]


def test_a_ridge_by_hand() -> None:
    """One word, values 1 and 1, ridge 3: w = 2 / (2 + 3) = 0.4; an unknown word is worth 0."""
    policy = Policy([(frozenset("a"), 1.0), (frozenset("a"), 1.0)])
    task = Task(name="t", family="f", features=(frozenset("b"), frozenset("a")), values=(0.1, 0.7))
    assert policy.scores(task) == [0.0, pytest.approx(0.4)]
    assert policy.first(task) == 0.7


def test_what_is_fast_everywhere_teaches_no_choice() -> None:
    (task,) = made_up("ab", "b")[:1]
    rows = offline_modules.rows_of([task], {task.name: {0: 5.0, 1: 6.0}})
    assert [value for _, value in rows] == [-0.5, 0.5]


def test_what_fails_is_half_as_fast_as_the_slowest_and_equal_plans_are_no_choice() -> None:
    row = {"status": "passed", "ms": {"candidate": 0.5}}
    assert offline_modules._speedup(1.0, row) == pytest.approx(math.log(2))
    assert offline_modules._speedup(1.0, {"status": "wrong_result", "ms": {}}) is None
    tasks = offline_modules.load(max(offline_modules.RESULTS.glob("plans-*.json.xz")))
    assert len(tasks) > 300 and all(len(set(task.features)) > 1 for task in tasks)
    assert not any(math.isnan(value) for task in tasks for value in task.values)


def test_sessions_help_where_there_is_something_to_learn_and_dealt_anew_they_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Old families know that a is slow, and nothing of d and e: before, d is suggested, half as
    fast as e. Sessions show e; with their times dealt anew a third of the tasks is right by
    luck."""
    old, new = made_up("abc", "c"), made_up("ade", "e")
    monkeypatch.setattr(offline_modules, "deal", lambda tasks, seed: (old, new[::2], new[1::2]))
    found = offline_modules.run([*old, *new], count=200, deals=3)["ratios"]
    assert found["before / best"]["mean"] == pytest.approx(0.5)
    assert found["after / best"]["mean"] == pytest.approx(1.0)
    assert found["after / before"]["low"] > 1.0
    assert found["control / before"]["mean"] < found["after / before"]["mean"]


def test_a_family_is_old_or_new_and_a_task_worked_on_or_asked_about() -> None:
    tasks = made_up("abc", "c")
    old, worked, asked = offline_modules.deal(tasks, 1)
    assert sorted(one.name for one in (*old, *worked, *asked)) == sorted(t.name for t in tasks)
    assert not {one.family for one in old} & {one.family for one in (*worked, *asked)}
    assert {one.family for one in worked} == {one.family for one in asked}
