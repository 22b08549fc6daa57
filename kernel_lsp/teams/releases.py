"""Releases of a team and what was decided of them: pure functions, no SQL.

A release is pushed once and never changed. What becomes of it says a list of decisions, which only
grows: *approve* puts it on trial with a share of the users (a canary), *promote* gives it to all,
*refuse* and *withdraw* end it. A rollback is a withdrawal: the promoted release before it counts
again, for everybody, with the next sync. Who decides is a coordinator, never of one's own work.

A canary is promoted when its uplift holds (`pool`): over the pairs that its users' machines have
measured at work (library/usage.py), where one owner's pairs count for at most `MAX_PAIRS`, and the
mean without the best owner is above 1x too. Two who lie together are not covered: their
coordinators exclude them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kernel_lsp.files import is_plain_name
from kernel_lsp.library.uplift import t95

SKILL, POLICY = KINDS = ("skill", "policy")
MAX_PAIRS = 20
"""Of one owner's measurements, so many count: a machine that measures all day, or lies, decides
nothing alone."""
MAX_UPLIFT = 14.0
"""Natural logarithm of a million times: more is no measurement."""
MIN_OWNERS, MIN_PAIRS = 2, 6
DEFAULT_SHARE = 0.25


class DecisionKind(StrEnum):
    APPROVE = "approve"
    PROMOTE = "promote"
    REFUSE = "refuse"
    WITHDRAW = "withdraw"


class ReleaseStanding(StrEnum):
    PROPOSED = "proposed"
    CANARY = "canary"
    PROMOTED = "promoted"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


_NEXT = {
    ReleaseStanding.PROPOSED: {
        DecisionKind.APPROVE: ReleaseStanding.CANARY,
        DecisionKind.REFUSE: ReleaseStanding.REFUSED,
    },
    ReleaseStanding.CANARY: {
        DecisionKind.APPROVE: ReleaseStanding.CANARY,  # with another share
        DecisionKind.PROMOTE: ReleaseStanding.PROMOTED,
        DecisionKind.WITHDRAW: ReleaseStanding.WITHDRAWN,
    },
    ReleaseStanding.PROMOTED: {DecisionKind.WITHDRAW: ReleaseStanding.WITHDRAWN},
    ReleaseStanding.REFUSED: {},
    ReleaseStanding.WITHDRAWN: {},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One line of a release's history."""

    action: DecisionKind
    by: str
    """The coordinator's role on the server, which the server itself fills in."""
    time: float
    """POSIX seconds."""
    share: float | None = None
    """Of users that a canary goes to."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Something that was pushed, and its history."""

    kind: str
    name: str
    number: int
    digest: str
    """SHA-256 of its packed files."""
    pushed_by: str
    """The role on the server."""
    time: float
    """POSIX seconds."""
    evidence: str = ""
    """What its maker measured, in one line."""
    better: bool = False
    """Of a policy: its held-out check is clearly better than the rule."""
    decisions: tuple[Decision, ...] = ()

    @property
    def id(self) -> str:
        """`kind:name#number`, as commands name a release."""
        return f"{self.kind}:{self.name}#{self.number}"

    @property
    def is_plain(self) -> bool:
        """Whether its kind is one of this version's, and its name and hash name no other place, and
        its time is one: a member can write any row."""
        return (
            self.kind in KINDS
            and math.isfinite(self.time)
            and is_plain_name(self.name)
            and re.fullmatch("[0-9a-f]{64}", self.digest) is not None
        )

    @property
    def standing(self) -> ReleaseStanding:
        """What all decisions together made of it; proposed where nobody has decided."""
        found = ReleaseStanding.PROPOSED
        for decision in self.decisions:
            found = _NEXT[found].get(decision.action, found)
        return found

    @property
    def share(self) -> float:
        """The share of users that a canary goes to now."""
        shares = [one.share for one in self.decisions if one.share is not None]
        return shares[-1] if shares else 0.0

    def allows(self, action: DecisionKind) -> bool:
        """Whether that decision may follow now."""
        return action in _NEXT[self.standing]


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerUsage:
    """What one owner's machine measured of a release at work; uplift is a natural logarithm."""

    owner: str
    uses: int
    wins: int
    pairs: int
    uplift_sum: float
    uplift_squares: float

    @property
    def is_sound(self) -> bool:
        """Whether there are pairs, and sums that pairs can have (infinite ones could not be shown,
        and would keep a release from everybody)."""
        most = MAX_UPLIFT * self.pairs
        sums = abs(self.uplift_sum) <= most and 0 <= self.uplift_squares <= MAX_UPLIFT * most
        return self.pairs > 0 and sums


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledUplift:
    """What a release is worth to those who have it."""

    owners: int
    pairs: float
    """That were counted, after each owner's weight was bounded."""
    left_out: float
    """Pairs above an owner's bound."""
    mean: float
    low: float
    high: float
    """Natural logarithms; each bound one-sided, 95 %."""
    without_best: float | None
    """Mean of the others, without the owner whose mean is the highest; None: there are none."""

    @property
    def holds(self) -> bool:
        """Whether the uplift holds for enough users, and not because of one of them."""
        enough = self.owners >= MIN_OWNERS and self.pairs >= MIN_PAIRS
        return enough and self.low > 0 and (self.without_best or 0.0) > 0

    def __str__(self) -> str:
        mean, low, high = map(math.exp, (self.mean, self.low, self.high))
        text = f"{mean:.3f}x [{low:.3f}, {high:.3f}] (each bound one-sided, 95 %)"
        text += f", {self.pairs:g} pairs of {self.owners} users"
        return text + (f", {self.left_out:g} above a user's bound" if self.left_out else "")


def pool(usage: Iterable[OwnerUsage], max_pairs: int = MAX_PAIRS) -> PooledUplift | None:
    """The mean uplift and its one-sided bounds of 95 %; None with fewer than two pairs.

    An owner with n pairs counts with weight w = min(n, max_pairs) / n for each of them. With
    N = sum(w n), mean m = sum(w S) / N and variance v = (sum(w Q) - N m^2) / (N - 1) for each
    owner's sum S and sum of squares Q, the interval is m -+ t(N - 1) sqrt(v / N) (Student's t of
    weighted observations). Two owners, S = 0.4, Q = 0.06 of 4 pairs and S = 0.2, Q = 0.02 of 4,
    none above the bound: N = 8, m = 0.075, v = (0.08 - 0.045) / 7 = 0.005, t(7) = 1.895, so
    0.075 -+ 1.895 * sqrt(0.005 / 8) = [0.0276, 0.1224]; without the first owner 0.05."""
    counted = [one for one in usage if one.is_sound]
    weights = {one.owner: min(one.pairs, max_pairs) / one.pairs for one in counted}
    count = sum(weights[one.owner] * one.pairs for one in counted)
    if count < 2:
        return None
    mean = sum(weights[one.owner] * one.uplift_sum for one in counted) / count
    squares = sum(weights[one.owner] * one.uplift_squares for one in counted)
    variance = max(0.0, squares - count * mean**2) / (count - 1)
    half = t95(int(count) - 1) * math.sqrt(variance / count)
    best = max(counted, key=lambda one: one.uplift_sum / one.pairs)
    others = count - weights[best.owner] * best.pairs
    rest = mean * count - weights[best.owner] * best.uplift_sum
    return PooledUplift(
        owners=len(counted),
        pairs=count,
        left_out=sum(one.pairs for one in counted) - count,
        mean=mean,
        low=mean - half,
        high=mean + half,
        without_best=rest / others if others > 0 else None,
    )


def is_canary_user(release: Release, owner: str) -> bool:
    """Whether this owner is among the share that tries a release: the same ones every time, others
    for another release."""
    drawn = hashlib.sha256(f"{release.id}\0{owner}".encode()).digest()
    return int.from_bytes(drawn[:8], "big") / 2**64 < release.share


def chosen(releases: Sequence[Release], owner: str) -> list[Release]:
    """What counts for one owner: of each name the newest canary that is this owner's to try, else
    the newest promoted release. By kind and name."""
    found: dict[tuple[str, str], Release] = {}
    for release in sorted(releases, key=lambda one: one.number):
        promoted = release.standing is ReleaseStanding.PROMOTED
        tried = release.standing is ReleaseStanding.CANARY and is_canary_user(release, owner)
        if promoted or tried:
            found[release.kind, release.name] = release
    return [found[key] for key in sorted(found)]
