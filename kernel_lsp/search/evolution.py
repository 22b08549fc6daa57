"""MAP-Elites with islands: whom to start from next, and what a model is shown beside it.

Parents as in OpenEvolve: with 0.2 any occupied cell, with 0.7 one of the best tenth of the island,
else in proportion to speed. The target itself is one of the cells: from there a model begins
afresh. Pure: the same archive and number give the same answer, so a resumed search goes on alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kernel_lsp.records import Archive, Attempt, Context, Move
from kernel_lsp.search import islands
from kernel_lsp.search.fitness import speed
from kernel_lsp.search.islands import ISLANDS

EXPLORE, EXPLOIT = 0.2, 0.7
CHAINED = 0.2
"""Share of quick moves that change the chain of steps and not the parameters of one."""
SHOWN_BEST, SHOWN_DIVERSE = 3, 2
"""Elites in a prompt (OpenEvolve's numbers)."""
TELLING = 1.2
"""A pair of one kind teaches something when the fast one is faster by this factor."""


class Evolution:
    """A `Strategy`."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, archive: Archive, number: int, *, slow: bool) -> Context | None:
        """What to do next on the island of this number: change a member of its population, or begin
        anew."""
        draw = random.Random(f"{self._seed}:{number}")
        attempts, island = archive.attempts, number % ISLANDS
        members = islands.population(attempts, island)
        if not slow:  # quick moves change steps
            members = [m for m in members if m.candidate and m.candidate.steps]
        parent = _parent(members, draw, fresh=slow)
        if slow:
            move = Move.REFINE if parent else Move.RESTART
        else:
            move = Move.CHAIN if parent is None or draw.random() < CHAINED else Move.MUTATE
        shown = _exemplars(attempts, parent, draw) if slow else ((), (), ())
        return Context(
            number=number,
            seed=draw.getrandbits(32),
            move=move,
            parent=parent,
            best=shown[0],
            diverse=shown[1],
            contrast=shown[2],
            island=island,
            turn=1 if slow else 0,
        )


def _parent(members: Sequence[Attempt], draw: random.Random, *, fresh: bool) -> Attempt | None:
    """None: the target itself. ``fresh``: it is one of the cells."""
    if not members:
        return None
    chance = draw.random()
    if chance < EXPLORE:
        cells: list[Attempt | None] = list(islands.elites(members).values())
        return draw.choice([None, *cells] if fresh or not cells else cells)
    if chance < EXPLORE + EXPLOIT:
        return draw.choice(islands.top(members))
    return draw.choices(members, weights=[speed(member) for member in members])[0]


Exemplars = tuple[tuple[Attempt, ...], tuple[Attempt, ...], tuple[Attempt, ...]]


def _exemplars(
    attempts: Sequence[Attempt], parent: Attempt | None, draw: random.Random
) -> Exemplars:
    """(best, of other cells, a slow and a fast one of one kind), none of them the parent."""
    fit = {a.candidate.id: a for a in attempts if a.fitness is not None and a.candidate}
    if parent and parent.candidate:
        fit.pop(parent.candidate.id, None)
    ordered = sorted(fit.values(), key=lambda attempt: (-speed(attempt), attempt.number))
    best = tuple(ordered[:SHOWN_BEST])
    taken = {attempt.cell for attempt in (*best, *([parent] if parent else []))}
    others = [a for cell, a in islands.elites(ordered).items() if cell not in taken]
    diverse = tuple(draw.sample(others, min(SHOWN_DIVERSE, len(others))))
    return best, diverse, _contrast(ordered, parent)


def _contrast(ordered: Sequence[Attempt], parent: Attempt | None) -> tuple[Attempt, ...]:
    """The slowest and the fastest of the parent's kind of strategy, else of the best one's."""
    for leader in (parent, *ordered[:1]):
        kind = leader.cell.strategy if leader and leader.cell else None
        alike = [a for a in ordered if a.cell and a.cell.strategy == kind]
        if len(alike) > 1 and speed(alike[0]) >= TELLING * speed(alike[-1]):
            return alike[-1], alike[0]
    return ()
