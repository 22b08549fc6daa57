"""Successive halving, as arithmetic: who meets how often, and who goes on. Standard library, no
processes.

Every stage doubles the rounds and halves the field, so that each costs about the same (Karnin,
Koren and Somekh 2013). Two departures: who is far behind the best leaves at once, because the
times of one machine scatter by a few percent and not by half; and the last two meet once more,
because they are the decision. Not covered: whether any of them is right, and claims of speed: both
are the gate's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

FIRST_ROUNDS, MAX_ROUNDS = 3, 24
FAR_BEHIND = 1.25
"""Times the best median. Rounds of one kernel on an H200 scatter by 1 to 3 %, so this is no
accident."""


def stages(count: int) -> Iterator[tuple[int, int]]:
    """(most that go on afterwards, rounds) of each stage for a field of ``count``.

    A field of 12 meets 3 times, 6 of it 6 times, 3 of them 12 times and 2 of these 24 times.
    """
    rounds = FIRST_ROUNDS
    while count > 2:
        yield -(-count // 2), rounds
        count, rounds = -(-count // 2), min(MAX_ROUNDS, 2 * rounds)
    if count == 2:
        yield 1, rounds


def survivors(times: Mapping[str, Sequence[float]], most: int) -> list[str]:
    """The fastest by median, at most ``most`` and none that is far behind; ties by order of
    entry."""
    medians = {name: median(values) for name, values in times.items() if values}
    ordered = sorted(medians, key=lambda name: medians[name])
    if not ordered:
        return []
    bar = FAR_BEHIND * medians[ordered[0]]
    return [name for name in ordered[:most] if medians[name] <= bar]
