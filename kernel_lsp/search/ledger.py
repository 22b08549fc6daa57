"""Every attempt of one search, in memory: an archive while it is open. Not covered: disks
(archive.py)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from kernel_lsp.records import ArchiveCell, Attempt, Candidate, Cost, Exchange, SkillDraft
from kernel_lsp.search import islands

ReadClock = Callable[[], float]


class MemoryArchive:
    """An `Archive` that forgets everything when it goes: for replays, and below the one on disk."""

    def __init__(self, clock: ReadClock = time.monotonic, seed: int | None = None) -> None:
        """``seed``: of all randomness in this search; None: drawn."""
        self._id = secrets.token_hex(6)
        self._seed = secrets.randbits(32) if seed is None else seed
        self._done: dict[int, Attempt] = {}
        self._begun: dict[int, tuple[Attempt, Candidate]] = {}
        self._numbers: dict[str, int] = {}
        """Candidate -> the first attempt that had it."""
        self._ordered: tuple[Attempt, ...] | None = ()
        self._cost = Cost()
        self._next = 0
        self._problems: list[str] = []
        self._clock, self._opened, self._spent_s = clock, clock(), 0.0

    @property
    def id(self) -> str:
        """The search's id."""
        return self._id

    @property
    def seed(self) -> int:
        """The seed of all randomness in this search."""
        return self._seed

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Attempts that are done, in the order of their numbers."""
        if self._ordered is None:
            self._ordered = tuple(self._done[number] for number in sorted(self._done))
        return self._ordered

    @property
    def unfinished(self) -> Sequence[tuple[Attempt, Candidate]]:
        """Begun, and no verdict was noted: they are being judged, or a process was killed."""
        return [self._begun[number] for number in sorted(self._begun)]

    @property
    def cost(self) -> Cost:
        """What all attempts have cost so far, those included that are not done."""
        return sum((attempt.cost for attempt, _ in self._begun.values()), self._cost)

    @property
    def seconds(self) -> float:
        """Seconds spent on the search, in earlier runs too."""
        return self._spent_s + self._clock() - self._opened

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong while attempts were kept, in words."""
        return tuple(self._problems)

    def elites(self, island: int) -> Mapping[ArchiveCell, Attempt]:
        """Cell -> the best attempt in it, of one island."""
        return islands.elites(islands.population(self.attempts, island))

    @property
    def upcoming(self) -> int:
        """The number that `reserve` would give."""
        return self._next

    def reserve(self) -> int:
        """The next number that no attempt has."""
        self._next += 1
        return self._next - 1

    def begin(
        self,
        attempt: Attempt,
        candidate: Candidate,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> Attempt | None:
        """Note that the candidate is tried; the earlier attempt where it was tried before, else
        None."""
        if (earlier := self._numbers.get(candidate.id)) is not None:
            return self._done.get(earlier) or self._begun[earlier][0]
        self._numbers[candidate.id] = attempt.number
        self._begun[attempt.number] = attempt, candidate
        self._next = max(self._next, attempt.number + 1)
        return None

    def add(
        self,
        attempt: Attempt,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> None:
        """Note how an attempt ended; its cost counts once."""
        again = attempt.number in self._done
        self._begun.pop(attempt.number, None)
        self._done[attempt.number] = attempt
        self._ordered = None
        self._next = max(self._next, attempt.number + 1)
        if attempt.candidate:
            self._numbers.setdefault(attempt.candidate.id, attempt.number)
        self._cost = _sum(self._done.values()) if again else self._cost + attempt.cost

    def close(self) -> None:
        """Nothing is held."""


def _sum(attempts: Iterable[Attempt]) -> Cost:
    return sum((attempt.cost for attempt in attempts), Cost())
