"""Rollouts by hand: where the next turn starts, when a rollout ends, what the search learns of its
moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from search_helpers import CREATED, attempt, candidate

from kernel_lsp.records import Attempt, Move, SearchBudget, SearchPlan
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.turns import (
    TurnsStrategy,
    count_improvements,
    is_finished,
    start,
)

PLAN = SearchPlan()


def turn(number: int, speed: float | None, rollout: int = 0, **more: Any) -> Attempt:
    """Turn n of its rollout is its n-th attempt; the first one is a restart."""
    told = {"rollout": rollout, "turn": more.pop("turn", number + 1), "move": Move.REFINE} | more
    return attempt(number, speed, **told)


def complaint(number: int, rollout: int = 0) -> Attempt:
    return Attempt(
        number=number,
        move=Move.REFINE,
        proposer="m",
        complaint="no call",
        rollout=rollout,
        turn=number + 1,
        created=CREATED,
    )


def archive(*attempts: Attempt) -> MemoryArchive:
    made = MemoryArchive()
    for one in attempts:
        made.add(one)
    return made


def choices(
    known: MemoryArchive, count: int = 200, strategy: TurnsStrategy | None = None
) -> list[Any]:
    turns = strategy or TurnsStrategy(PLAN, 7)
    return [turns.choose(known, number, slow=True) for number in range(100, 100 + count)]


def test_the_first_one_is_a_fresh_start_and_quick_proposers_have_no_part() -> None:
    strategy = TurnsStrategy(PLAN, 7)
    context = strategy.choose(archive(), 5, slow=True)
    assert context is not None and context == strategy.choose(archive(), 5, slow=True)
    assert (context.move, context.rollout, context.turn, context.parent) == (
        Move.RESTART,
        5,
        1,
        None,
    )
    other = strategy.choose(archive(), 6, slow=True)
    assert other is not None and other.seed != context.seed
    assert TurnsStrategy(PLAN, 8).choose(archive(), 5, slow=True) != context
    assert strategy.choose(archive(), 5, slow=False) is None


def test_a_refinement_starts_from_the_best_turn_and_sees_all() -> None:
    turns = turn(0, 1.2, move=Move.RESTART), turn(1, 1.5), turn(2, None)
    seen = [context for context in choices(archive(*turns)) if context.move is Move.REFINE]
    assert seen
    for context in seen:
        assert context.parent == turns[1] and context.history == turns
        assert (context.rollout, context.turn, context.best) == (0, 4, ())


def test_where_nothing_is_right_the_last_candidate_is_mended() -> None:
    wrong = turn(0, None), turn(1, None)
    assert start(wrong) == wrong[1]
    assert start([*wrong, complaint(2)]) == wrong[1]
    assert start([complaint(0)]) is None
    assert start([turn(0, 0.8), turn(1, None)]) == turn(0, 0.8)
    untimed = turn(0, 1.0)
    assert untimed.proposal is not None
    judged = replace(untimed.proposal.evaluation, speedups={})
    right = replace(untimed, proposal=replace(untimed.proposal, evaluation=judged), fitness=None)
    assert start([right, turn(1, None)]) == right


@pytest.mark.parametrize(
    ("speeds", "over"),
    [
        ([1.2], False),
        ([1.2, 1.1], False),
        ([1.2, 1.1, 1.2], True),  # two turns without a new best of its own
        ([1.2, 1.1, 1.3], False),
        ([None, None], False),  # the first wrong one is what is mended
        ([None, None, None], True),
        ([None, 1.1, 1.0], False),
        ([1.0, 1.1, 1.2, 1.3], True),  # four turns
    ],
)
def test_when_a_rollout_is_finished(speeds: list[float | None], over: bool) -> None:
    made = [turn(n, speed) for n, speed in enumerate(speeds)]
    assert is_finished(made, SearchPlan().turns) is over


def test_a_finished_rollout_is_not_gone_on_with() -> None:
    done = [turn(n, speed) for n, speed in enumerate([1.5, 1.4, 1.3])]
    assert {context.move for context in choices(archive(*done))} == {Move.RESTART}
    other = turn(3, 1.1, rollout=3, turn=1)
    rollouts = {c.rollout for c in choices(archive(*done, other)) if c.move is Move.REFINE}
    assert rollouts == {3}


def test_the_best_unfinished_rollout_goes_on_most_often_and_others_too() -> None:
    known = archive(
        *(turn(n, 1.0 + n / 10, rollout=n, turn=1, move=Move.RESTART) for n in range(3))
    )
    chosen = Counter(c.rollout for c in choices(known, 1000) if c.move is Move.REFINE)
    assert chosen[2] > chosen[1] > chosen[0] > 0 and chosen[2] > 0.5 * chosen.total()


def test_the_next_turn_waits_for_the_verdict_of_the_one_before() -> None:
    known = archive(
        turn(0, 1.5, move=Move.RESTART), turn(1, 1.2, rollout=1, turn=1, move=Move.RESTART)
    )
    assert {c.rollout for c in choices(known) if c.move is Move.REFINE} == {0, 1}
    known.begin(turn(2, None), candidate(name="new"))
    assert {c.rollout for c in choices(known) if c.move is Move.REFINE} == {1}
    single = TurnsStrategy(SearchPlan(budget=SearchBudget(candidates=3)), 7)
    assert single.choose(known, 9, slow=True) is None
    known.add(turn(2, 1.6, made=candidate(name="new")))
    after = single.choose(known, 9, slow=True)
    assert after is not None and after.parent is not None and after.parent.number == 2


def test_what_counts_as_an_improvement() -> None:
    known = [
        attempt(0, 1.0, move=Move.SEED),
        turn(1, 1.02, turn=1, move=Move.RESTART),  # within noise of the target itself
        turn(2, 1.2),
        turn(3, 1.22),  # within noise of the best
        turn(4, None),
        turn(5, 1.5, turn=1, move=Move.RESTART, rollout=5),
        attempt(6, 3.0, move=Move.MUTATE),  # of nobody's turn, yet the bar for what follows
        turn(7, 2.0, rollout=5, turn=2),
    ]
    assert count_improvements(known) == {Move.RESTART: (2, 1), Move.REFINE: (4, 1)}


@pytest.mark.parametrize("pays", [Move.RESTART, Move.REFINE])
def test_the_posterior_moves_toward_what_pays(pays: Move) -> None:
    """Twenty turns of either kind; one kind has always given a new best, the other never."""
    known, best = [], 1.0
    for n in range(40):
        move = Move.RESTART if n % 2 else Move.REFINE
        best *= 1.1 if move is pays else 1.0
        known.append(turn(n, best if move is pays else 1.0, rollout=n, turn=1, move=move))
    moves = Counter(context.move for context in choices(archive(*known)))
    assert moves[pays] == 200
    nothing = [
        turn(n, 1.0, rollout=n, turn=1, move=m) for n, m in enumerate((Move.RESTART, Move.REFINE))
    ]
    even = Counter(context.move for context in choices(archive(*nothing), 400))
    assert 140 < even[Move.RESTART] < 260


def test_a_budget_of_a_few_candidates_is_one_rollout() -> None:
    plan = SearchPlan(budget=SearchBudget(candidates=3))
    strategy = TurnsStrategy(plan, 7)
    first = strategy.choose(archive(), 0, slow=True)
    assert first is not None and first.move is Move.RESTART
    after = turn(0, None, move=Move.RESTART), turn(1, None), turn(2, None)
    found = choices(archive(*after), 50, strategy)
    assert {(c.move, c.rollout) for c in found} == {(Move.REFINE, 0)}
    assert SearchBudget(candidates=3).candidates <= SearchPlan().turns
