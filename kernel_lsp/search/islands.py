"""Populations that evolve apart and now and then hand their best to a neighbor.

Everything follows from the attempts alone, so a resumed search has the same islands. An attempt
belongs to the island that it was made on, a seed to all. Migration goes around a ring
(OpenEvolve's): the best natives of an island become members of the next one; migrants do not
migrate again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.records import ArchiveCell, Attempt, Move
from kernel_lsp.search.fitness import speed

ISLANDS = 4
GENERATION = 4 * ISLANDS
"""Attempts."""
MIGRATE_EVERY = 2 * GENERATION
"""OpenEvolve's 50 generations are for a thousand programs; a search here judges 64 by default."""
BEST_SHARE = 0.1
"""Of a population: the elite that migrates, and that parents are taken from."""


def population(attempts: Sequence[Attempt], island: int) -> list[Attempt]:
    """Right and timed ones on this island, in order of number; migrants included."""
    fit = [attempt for attempt in attempts if attempt.fitness is not None]
    members = {a.number: a for a in fit if a.island == island or a.move is Move.SEED}
    neighbor = [a for a in fit if a.island == (island - 1) % ISLANDS and a.move is not Move.SEED]
    last = attempts[-1].number if attempts else 0
    for when in range(MIGRATE_EVERY, last + 1, MIGRATE_EVERY):
        for migrant in top([a for a in neighbor if a.number < when]):
            members[migrant.number] = migrant
    return [members[number] for number in sorted(members)]


def top(members: Sequence[Attempt]) -> list[Attempt]:
    """The best tenth, at least one of any; best first, of equals the older."""
    ordered = sorted(members, key=lambda attempt: (-speed(attempt), attempt.number))
    return ordered[: max(1, round(BEST_SHARE * len(ordered)))]


def elites(members: Sequence[Attempt]) -> Mapping[ArchiveCell, Attempt]:
    """The fastest of every cell; of equals the older keeps its place."""
    found: dict[ArchiveCell, Attempt] = {}
    for attempt in members:
        if attempt.cell and (
            attempt.cell not in found or speed(attempt) > speed(found[attempt.cell])
        ):
            found[attempt.cell] = attempt
    return found
