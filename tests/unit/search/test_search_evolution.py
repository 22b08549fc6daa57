"""Islands, elites, parents and the moves without a model: hand-made attempts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import search_helpers as helpers
from hypothesis import given
from hypothesis import strategies as st
from search_helpers import ScriptedWorkshop, attempt, candidate, proposal, site, step, verdict

from kernel_lsp.records import ArchiveCell, Attempt, Context, Move, SourceEdit
from kernel_lsp.search import attempts, features, fitness, islands
from kernel_lsp.search.best import BestOf
from kernel_lsp.search.evolution import Evolution
from kernel_lsp.search.islands import ISLANDS, MIGRATE_EVERY
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.proposers import ChainProposer, Mutate
from kernel_lsp.search.space import FAILED, SearchAxis, SearchSpace, judged_speeds, promises


def ledger(*found: Attempt) -> MemoryArchive:
    archive = MemoryArchive()
    for one in found:
        archive.add(one)
    return archive


def chained(number: int, speed: float | None, *steps: Any, **more: Any) -> Attempt:
    return attempt(number, speed, candidate(steps), **more)


def context(parent: Attempt | None, seed: int = 0) -> Context:
    return Context(number=99, seed=seed, move=Move.MUTATE, parent=parent)


# --- cells and fitness --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "bin_"),
    [(0, 0), (199, 0), (200, 1), (599, 1), (600, 2), (1399, 2), (1400, 3), (10**6, 9)],
)
def test_complexity_is_counted_in_doublings(length: int, bin_: int) -> None:
    assert features.cell(candidate(text="x" * length or " ")).complexity == bin_


@pytest.mark.parametrize(
    ("definitions", "target", "strategy"),
    [
        ("", "x.sum()", "torch"),
        ("@triton.jit\ndef k(): ...", "k()", "triton"),
        ("@triton.jit\ndef k(): tl.dot(a, b)", "k()", "triton-dot"),
        ("@triton.jit\n@triton.jit\ntl.dot(", "k()", "triton-many"),
        ("@triton.jit\n", "torch.cuda.CUDAGraph()", "graph"),
        ("", "torch.compile(f)", "compile"),
    ],
)
def test_kinds_of_strategy(definitions: str, target: str, strategy: str) -> None:
    edit = SourceEdit(qualname="M", definitions=definitions, target=target)
    made = helpers.candidate(name="x")
    assert features.cell(replace(made, edit=edit)).strategy == strategy


def test_fitness_is_the_lowest_bound_and_speed_asks_eager_alone() -> None:
    full = attempt(0, 3.0)
    assert full.fitness == 3.0
    slower = proposal(candidate(name="x"), verdict(3.0, compiled=1.2))
    assert fitness.fitness(slower.evaluation) == 1.2
    one = attempt(0, 3.0, full=False)
    assert fitness.speed(one) == 3.0
    assert fitness.speed(attempt(0, None)) == 0.0


def test_looking_better_compares_a_quick_verdict_with_the_leader_over_eager() -> None:
    leader = attempt(0, 2.0)
    assert not fitness.looks_better(attempt(1, 2.05, full=False), leader)
    assert fitness.looks_better(attempt(1, 2.07, full=False), leader)
    assert not fitness.looks_better(attempt(1, 1.02, full=False), None)
    assert fitness.looks_better(attempt(1, 1.04, full=False), None)
    assert not fitness.looks_better(attempt(1, 9.0), leader)  # it was judged in full


# --- islands ------------------------------------------------------------------------------------


def test_a_seed_lives_on_all_islands_and_an_attempt_on_its_own() -> None:
    known = [attempt(0, 1.0, move=Move.SEED), attempt(1, 2.0, island=1), attempt(2, None, island=1)]
    found = [[a.number for a in islands.population(known, i)] for i in range(ISLANDS)]
    assert found == [[0], [0, 1], [0], [0]]


def test_the_best_tenth_moves_on_around_the_ring_and_no_further() -> None:
    """20 natives of island 0 before the first migration: its best two become members of island
    1."""
    natives = [attempt(n, 1.0 + n / 100, island=0) for n in range(20)]
    before = [*natives, attempt(MIGRATE_EVERY - 1, 1.0, island=3)]
    assert islands.population(before, 1) == []
    after = [*before, attempt(MIGRATE_EVERY, 1.0, island=2)]
    assert [a.number for a in islands.population(after, 1)] == [18, 19]
    late = [*after, attempt(2 * MIGRATE_EVERY, 1.0, island=3)]
    assert [a.number for a in islands.population(late, 1)] == [18, 19]  # nobody twice
    assert 19 not in [a.number for a in islands.population(late, 2)]  # a migrant stays


def test_an_elite_is_replaced_by_a_faster_one_only() -> None:
    cell = ArchiveCell(complexity=1, strategy="torch")
    other = ArchiveCell(complexity=5, strategy="triton")
    known = [
        attempt(0, 2.0, cell=cell),
        attempt(1, 1.5, cell=cell),
        attempt(2, 2.0, cell=cell),
        attempt(3, 1.0, cell=other),
    ]
    assert {c: a.number for c, a in islands.elites(known).items()} == {cell: 0, other: 3}


# --- parents ------------------------------------------------------------------------------------


def test_without_anything_right_a_model_begins_afresh_and_quick_moves_extend_the_target() -> None:
    archive, strategy = ledger(attempt(0, None)), Evolution(0)
    slow, quick = strategy.choose(archive, 5, slow=True), strategy.choose(archive, 5, slow=False)
    assert slow is not None and (slow.move, slow.parent, slow.turn) == (Move.RESTART, None, 1)
    assert quick is not None and (quick.move, quick.parent, quick.turn) == (Move.CHAIN, None, 0)


def test_the_same_archive_and_number_give_the_same_context() -> None:
    archive = ledger(*(chained(n, 1.0 + n, step("f", a=n), island=n % 4) for n in range(9)))
    for number in range(20):
        for slow in (False, True):
            first = Evolution(3).choose(archive, number, slow=slow)
            assert first == Evolution(3).choose(archive, number, slow=slow)
    seeds = {Evolution(seed).choose(archive, 1, slow=True).seed for seed in range(9)}  # type: ignore[union-attr]
    assert len(seeds) == 9


def test_most_parents_are_of_the_best_tenth() -> None:
    """30 members on one island: its best three get 0.7 and something of the rest."""
    archive = ledger(*(chained(n, 1.0 + n, step("f", a=n), move=Move.SEED) for n in range(30)))
    drawn = Counter[int]()
    for number in range(2000):
        chosen = Evolution(0).choose(archive, number, slow=False)
        assert chosen is not None and chosen.parent is not None
        drawn[chosen.parent.number] += 1
    share = sum(drawn[n] for n in (27, 28, 29)) / 2000
    assert 0.7 < share < 0.95  # every cell's elite is the best one here, so exploring adds to it
    assert len(drawn) > 15  # the rest is drawn in proportion to speed


def test_quick_moves_start_from_what_the_engine_made() -> None:
    written = attempt(0, 9.0, candidate(name="by a model"), move=Move.SEED)
    made = chained(1, 1.2, step("f", a=0), move=Move.SEED)
    for number in range(40):
        chosen = Evolution(0).choose(ledger(written, made), number, slow=False)
        assert chosen is not None and chosen.parent == made


def test_a_model_is_shown_the_best_others_and_a_pair_of_one_kind() -> None:
    texts = ["x" * 100, "x" * 300, "x" * 900, "x" * 2000, "@triton.jit" + "x" * 5000]
    known = [
        attempt(n, 1.0 + n, candidate(text=t, name=str(n)), move=Move.SEED)
        for n, t in enumerate(texts)
    ]
    for number in range(30):
        chosen = Evolution(0).choose(ledger(*known), number, slow=True)
        assert chosen is not None
        shown = [a.number for a in chosen.best]
        expected = [
            n for n in (4, 3, 2, 1, 0) if chosen.parent is None or n != chosen.parent.number
        ][:3]
        assert shown == expected
        cells = {a.cell for a in chosen.best}
        assert len(chosen.diverse) <= 2 and all(a.cell not in cells for a in chosen.diverse)
        if chosen.contrast:
            slow, fast = chosen.contrast
            assert fitness.speed(fast) >= 1.2 * fitness.speed(slow)
            assert slow.cell and fast.cell and slow.cell.strategy == fast.cell.strategy


def test_best_of_n_never_looks_at_anything() -> None:
    archive = ledger(attempt(0, 5.0))
    chosen = BestOf(1).choose(archive, 3, slow=True)
    assert chosen is not None and (chosen.move, chosen.parent, chosen.best) == (
        Move.RESTART,
        None,
        (),
    )
    assert BestOf(1).choose(archive, 3, slow=False) is None


# --- parameters ---------------------------------------------------------------------------------

SPACE = SearchSpace(
    steps=(step("f", a=0, b=0), step("g", c=0)),
    axes=(
        SearchAxis(step=0, name="a", choices=(0, 1, 2)),
        SearchAxis(step=0, name="b", choices=(0, 1)),
        SearchAxis(step=1, name="c", choices=(0, 1)),
    ),
)


def test_near_combinations_differ_in_one_step_only() -> None:
    found = list(SPACE.near((0, 0, 0), 2))
    assert sorted(found) == [(0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]
    assert SPACE.size == 12 == len(set(SPACE.all()))


@given(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)))
def test_a_point_and_its_steps_are_the_same(point: tuple[int, int, int]) -> None:
    assert SPACE.point(SPACE.at(point)) == point


def test_another_chain_or_value_is_no_point() -> None:
    assert SPACE.point((step("f", a=0, b=0),)) is None
    assert SPACE.point((step("f", a=7, b=0), step("g", c=0))) is None
    assert SPACE.point((step("f", a=1), step("g"))) == (1, 0, 0)  # what is not named is the default


def test_the_effect_of_a_value_is_carried_over() -> None:
    """b = 1 has halved the time once, c = 1 has doubled it: a = 2 is better tried with b than with
    c."""
    known = {(0, 0, 0): 0.0, (0, 1, 0): 0.7, (0, 0, 1): -0.7, (1, 0, 0): 0.05}
    with_b, with_c, plain = promises([(2, 1, 0), (2, 0, 1), (2, 0, 0)], known)
    assert with_b > plain > with_c >= 0


def test_an_unknown_value_promises_more_than_a_known_bad_one() -> None:
    """Ten plans of which the first nine were seen, a good one among them: the tenth is worth a
    look."""
    known = {(plan, 0): 1.0 if plan == 2 else 0.0 for plan in range(9)}
    unknown, bad = promises([(9, 0), (7, 1)], known)
    assert unknown > bad


def test_expected_improvement_by_hand() -> None:
    """One parameter of three values, the outer ones seen with ln speeds 0 and 2 ln 2: standardized -1
    and 1, noise 0.01. k(0, 2) = 1.3 * 0.3^2 = 0.117 and k(0, 1) = 0.39, so the weights of the middle
    are 0.39 / (1.31 + 0.117) = 0.2733 both, its mean 0, its variance 1.3 - 2 * 0.2733 * 0.39 =
    1.0868, its deviation 1.0425. z = (0 - 1) / 1.0425 = -0.9592, Phi(z) = 0.1687, phi(z) = 0.2518:
    EI = -1 * 0.1687 + 1.0425 * 0.2518 = 0.0938."""
    known = {(0,): 0.0, (2,): 2 * math.log(2)}
    assert promises([(1,)], known) == [pytest.approx(0.0938, abs=1e-4)]


def test_nothing_can_be_expected_of_a_single_attempt() -> None:
    assert promises([(1, 0), (0, 1)], {(0, 0): 1.0}) == [0.0, 0.0]
    assert promises([], {(0, 0): 1.0, (0, 1): 2.0}) == []


@given(
    st.dictionaries(st.tuples(*[st.integers(0, 3)] * 3), st.floats(-3, 3), min_size=2, max_size=20)
)
def test_expected_improvements_are_finite_and_never_negative(known: dict[Any, float]) -> None:
    found = promises(list(SearchSpace(steps=(), axes=tuple(
        SearchAxis(step=0, name=n, choices=(0, 1, 2, 3)) for n in "abc")).all()),
        known)  # fmt: skip
    assert all(0 <= value < 100 for value in found)


def test_what_was_seen_and_what_it_promises() -> None:
    known = [
        chained(0, 1.0, step("f", a=0, b=0), step("g", c=0)),
        chained(1, 2.0, step("f", a=1, b=0), step("g", c=0)),
        chained(2, None, step("f", a=0, b=1), step("g", c=0)),
        chained(3, 9.0, step("f", a=1, b=0)),  # another chain
    ]
    found = judged_speeds(SPACE, known)
    assert set(found) == {(0, 0, 0), (1, 0, 0), (0, 1, 0)}
    assert found[1, 0, 0] > found[0, 0, 0]
    assert found[0, 1, 0] == pytest.approx(found[0, 0, 0] - FAILED)  # below the slowest


async def test_mutations_are_of_the_parent_and_never_repeat() -> None:
    workshop = ScriptedWorkshop([site("f", a=[0, 1, 2], b=[0, 1])])
    parent = chained(0, 1.0, step("f", a=0, b=0), move=Move.SEED)
    mutate, found = Mutate(workshop, ledger(parent)), set()
    for seed in range(9):
        draft = await mutate.propose(helpers.task(), context(parent, seed))
        if draft and draft.candidate:
            found.add(draft.candidate.id)
    assert len(found) == len(workshop.applied) == 5  # all but the parent


async def test_what_is_tried_first_may_be_anywhere_and_then_lies_near_the_parent() -> None:
    workshop = ScriptedWorkshop([site("f", a=[0, 1, 2, 3]), site("g", c=[0, 1, 2, 3])])

    def chain(a: int, c: int) -> tuple[Any, Any]:
        return step("f", a=a), step("g", c=c)

    async def far(*known: Attempt) -> int:
        """Proposals that differ from the parent in both steps, of 20 seeds."""
        count = 0
        for seed in range(20):
            mutate = Mutate(workshop, ledger(*known))
            draft = await mutate.propose(helpers.task(), context(known[0], seed))
            assert draft and draft.candidate
            count += all(
                one.parameters[name] for one, name in zip(draft.candidate.steps, "ac", strict=True)
            )
        return count

    seen = [chained(number, 1.0, *chain(number, 0)) for number in range(4)]
    assert await far(*seen[:1]) > 5  # of fifteen nine differ in both
    assert await far(*seen) == 0


@pytest.mark.parametrize(
    "parent",
    [None, attempt(0, 1.0), chained(0, 1.0, step("gone", a=0)), chained(0, 1.0, step("plain"))],
)
async def test_nothing_is_mutated_where_nothing_can_be_chosen(parent: Attempt | None) -> None:
    workshop = ScriptedWorkshop(
        [site("f", a=[0, 1]), site("plain"), site("g", nonfinite=[False, True])]
    )
    mutate = Mutate(workshop, ledger())
    assert await mutate.propose(helpers.task(), context(parent)) is None


async def test_what_only_a_person_may_choose_is_never_mutated() -> None:
    workshop = ScriptedWorkshop([site("f", nonfinite=[False, True])])
    parent = chained(0, 1.0, step("f", nonfinite=False))
    assert await Mutate(workshop, ledger(parent)).propose(helpers.task(), context(parent)) is None


# --- chains -------------------------------------------------------------------------------------


async def chains(workshop: ScriptedWorkshop, parent: Attempt | None, **more: Any) -> set[str]:
    archive = ledger(*([parent] if parent else []))
    proposer, found = ChainProposer(workshop, list, archive), set()
    for seed in range(20):
        draft = await proposer.propose(helpers.task(**more), context(parent, seed))
        if draft and draft.candidate:
            found.add("+".join(s.skill for s in draft.candidate.steps))
    return found


async def test_a_chain_gets_a_step_more_less_or_instead() -> None:
    workshop = ScriptedWorkshop([site("f", a=[7, 8]), site("g"), site("h")])
    parent = chained(0, 1.0, step("f", a=8), step("g"))
    assert await chains(workshop, parent) == {"f+g+h", "g", "f", "h+g", "f+h"}


async def test_without_a_parent_the_target_gets_a_first_step() -> None:
    workshop = ScriptedWorkshop([site("f"), site("g")])
    assert await chains(workshop, None) == {"f", "g"}


async def test_kernels_are_not_tried_where_nobody_can_time_them() -> None:
    workshop = ScriptedWorkshop([site("f"), replace(site("kernel"), plain=False)])
    assert await chains(workshop, None, triton=False) == {"f"}
    assert await chains(workshop, None, triton=True) == {"f", "kernel"}


async def test_a_chain_that_the_engine_refuses_is_not_asked_for_again() -> None:
    workshop = ScriptedWorkshop([site("f"), site("g")], refused=lambda steps: steps[0].skill == "f")
    assert await chains(workshop, None) == {"g"}
    assert workshop.applied.count(helpers.named([step("f")])) == 1


# --- seeds --------------------------------------------------------------------------------------


def test_seeds_enter_once_and_need_no_judgement() -> None:
    archive = MemoryArchive()
    seeds = [
        proposal(candidate(name="a"), verdict(2.0)),
        proposal(candidate(name="b"), verdict(None)),
    ]
    for _ in range(2):
        attempts.enter(archive, seeds, lambda judged: {"told": judged.proposal.id})
    assert [(a.number, a.move, a.complete, a.fitness) for a in archive.attempts] == [
        (0, Move.SEED, True, 2.0),
        (1, Move.SEED, False, None),
    ]
    assert archive.attempts[0].feedback == {"told": "a"}
