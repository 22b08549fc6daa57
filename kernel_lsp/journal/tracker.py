"""What became of an offer: accepted, kept, modified, reverted … proved by looking, never by being
told.

A pure state machine, standard library only: no clock, no disk. The caller passes POSIX seconds and
the fingerprint of a target each time it sees one; each method returns the events that follow, for
the journal. LSP tells a server nothing about the fate of an edit (`applied: true` is a claim, and
some make it for edits that they drop), so a proposal is accepted only when its after-fingerprint
was seen in the document.

    offered ─> chosen ─> accepted ─> kept ─> kept_committed
       │          └─> refused (5 s)     └──────┴─> modified | reverted | deleted
       │                                        (and from there back to accepted)
       └─> expired | dismissed

Not covered: a target that is renamed or moved to another file reads as deleted; an edit that is
applied and undone between two looks (Eglot batches changes for 0.5 s) reads as refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from kernel_lsp import wire
from kernel_lsp.records import Event, EventKind, Json, Proposal

How: TypeAlias = Literal["change", "save", "open", "disk", "close"]
"""Where a fingerprint was seen. ``close``: on disk, right after the editor let go of the
document."""

GONE = ""
"""Fingerprint of a target that its file (or the file itself) no longer has."""
CHOICE_TIMEOUT_S = 5.0
"""Neovim debounces didChange by 150 ms and Eglot by 500 ms; format-on-type adds to that."""
DAY_S = 86_400.0
MAX_TRACKED = 2_000
CHANGED = "changed"
"""Key of a `modified` event, and field of the source text, that hold what a person made of an
accepted rewrite."""
STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Which target: it survives edits, restarts and a change of editor."""

    folder: str
    """Workspace root."""
    path: str
    """Relative to ``folder``."""
    qualname: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What the tracker has to know about a proposal."""

    proposal: str
    identity: Identity
    before: str
    """Fingerprint of the target that the proposal was made for."""
    after: str
    """Fingerprint of the target once the edit is applied."""
    skills: tuple[str, ...] = ()
    speedup: float | None = None

    def __post_init__(self) -> None:
        if self.before == self.after or not self.before or not self.after:
            raise ValueError(
                f"{self.proposal}: an edit that cannot be seen in fingerprints cannot be tracked"
            )


def offer_of(proposal: Proposal, folder: str, path: str) -> Offer | None:
    """The offer of a judged rewrite; None for an edit that could not be seen in fingerprints, and
    so never be proved. ``path``: relative to ``folder``."""
    before, after = proposal.fingerprint, proposal.fingerprint_after
    if not after or before == after:
        return None
    speedup = proposal.evaluation.speedup
    return Offer(
        proposal=proposal.id,
        identity=Identity(folder=folder, path=path, qualname=proposal.qualname),
        before=before,
        after=after,
        skills=tuple(dict.fromkeys(step.skill for step in proposal.candidate.steps)),
        speedup=speedup.mid if speedup else None,
    )


class AcceptancePhase(StrEnum):
    OFFERED = "offered"
    CHOSEN = "chosen"
    REFUSED = "refused"
    EXPIRED = "expired"
    DISMISSED = "dismissed"
    ACCEPTED = "accepted"
    KEPT = "kept"
    COMMITTED = "committed"
    MODIFIED = "modified"
    REVERTED = "reverted"
    DELETED = "deleted"


IN_PLACE = {AcceptancePhase.ACCEPTED, AcceptancePhase.KEPT, AcceptancePhase.COMMITTED}
"""The target is, as far as was seen, exactly what was proposed."""
TAKEN = IN_PLACE | {AcceptancePhase.MODIFIED, AcceptancePhase.DELETED}
"""Accepted, and not taken back since."""
SETTLED = {
    AcceptancePhase.OFFERED,
    AcceptancePhase.REFUSED,
    AcceptancePhase.EXPIRED,
    AcceptancePhase.DISMISSED,
    AcceptancePhase.REVERTED,
}
"""Forgotten first when too many are tracked."""
FORGETTABLE = {AcceptancePhase.OFFERED, AcceptancePhase.EXPIRED, AcceptancePhase.DISMISSED}
"""Shown and not taken: no later session has to know (dismissals are events of the journal)."""


@dataclass(kw_only=True, slots=True)
class Tracked:
    """One proposal's state. The only mutable record of ours; never leaves the tracker but as
    JSON."""

    offer: Offer
    phase: AcceptancePhase = AcceptancePhase.OFFERED
    since: float = 0.0
    """When the last event of this proposal happened, POSIX seconds."""
    deadline: float | None = None
    said: Json | None = None
    """What the client said about the edit, kept to be compared with what was seen."""
    seen: str | None = None
    """The last fingerprint seen at this identity."""
    logged: str | None = None
    """The fingerprint in the last `modified` event."""
    kept_at: float | None = None
    kept_session: str | None = None
    accepted_session: str | None = None


@dataclass(slots=True)
class Tracker:
    """The states of all proposals of one session; see the module's docstring.

    ``session`` and ``client`` name the editor session; a restored tracker goes on under a new one.
    """

    session: str = ""
    client: str | None = None
    _tracked: dict[tuple[str, Identity], Tracked] = field(default_factory=dict)
    """By proposal and place: two copies of one class share their proposals' ids."""
    _at: dict[Identity, list[Tracked]] = field(default_factory=dict)
    """The same by place, because every keystroke asks."""
    _counted: set[tuple[EventKind, str, Identity]] = field(default_factory=set)
    """What is logged at most once per proposal and session."""
    _open: set[tuple[str, str]] = field(default_factory=set)
    """Documents an editor holds: for them the buffer is the truth, not the disk."""

    # --- what the user was shown and did -------------------------------------------------

    def offered(self, offer: Offer, now: float) -> list[Event]:
        """The proposal was put before the user's eyes; counted once per session."""
        item = self._item(offer)
        if item.phase in (
            AcceptancePhase.EXPIRED,
            AcceptancePhase.REFUSED,
            AcceptancePhase.REVERTED,
        ):
            item.phase = AcceptancePhase.OFFERED
        return self._once(EventKind.OFFERED, item, now)

    def chosen(self, offer: Offer, now: float) -> list[Event]:
        """The user picked it; proof is awaited for `CHOICE_TIMEOUT_S`. What is chosen was shown."""
        item = self._item(offer)
        events = self._once(EventKind.OFFERED, item, now)
        events.append(self._event(EventKind.CHOSEN, item, now))
        if item.phase not in IN_PLACE:
            # A client may apply the edit first and run the command second.
            item.phase, item.deadline, item.said = (
                AcceptancePhase.CHOSEN,
                now + CHOICE_TIMEOUT_S,
                None,
            )
        return events

    def client_said(self, proposal: str, applied: bool | None, reason: str | None = None) -> None:
        """Remember the client's answer. It is written down beside what is seen, and proves
        nothing."""
        item = self._latest(proposal)
        if item is not None:
            item.said = {"applied": applied, "reason": reason}

    def dismissed(self, proposal: str, scope: str, reason: str, now: float) -> list[Event]:
        """The user said no. Scopes: proposal, skill, file, folder. Reasons: slower, wrong, style,
        later."""
        item = self._latest(proposal)
        if item is None:
            return []
        if item.phase not in TAKEN:
            item.phase, item.deadline = AcceptancePhase.DISMISSED, None
        offer = item.offer
        return [
            self._event(
                EventKind.DISMISSED,
                item,
                now,
                scope=scope,
                reason=reason,
                fingerprint=offer.before,
                skills=list(offer.skills),
                speedup=offer.speedup,
            )
        ]

    # --- what was seen -------------------------------------------------------------------

    def observed(
        self, identity: Identity, fingerprint: str | None, how: How, now: float
    ) -> list[Event]:
        """The target's fingerprint now: None when the file does not parse, `GONE` when the target
        is absent.

        While an editor holds the document, a look at the disk (``how="disk"``) only confirms.
        """
        unsaved_buffer = how == "disk" and (identity.folder, identity.path) in self._open
        self._note_open(identity, how)
        if fingerprint is None:
            return []
        items = self._at.get(identity, [])
        credited = _find_credited(items, fingerprint)
        if unsaved_buffer:
            items = [one for one in items if one is credited and one.phase in IN_PLACE]
        events: list[Event] = []
        for item in items:
            item.seen = fingerprint
            if item is credited:
                events += self._in_place(item, how, now)
            elif fingerprint in _befores(item, items):
                events += self._taken_back(item, how, now)
            elif fingerprint != item.offer.after:
                events += self._something_else(item, how, now, credited)
        return events

    def tick(self, now: float) -> list[Event]:
        """Choices whose proof never came. Call about once a second while `waiting`."""
        late = [
            item
            for item in self._tracked.values()
            if item.deadline is not None and now >= item.deadline
        ]
        events = []
        for item in late:
            item.phase, item.deadline = AcceptancePhase.REFUSED, None
            events.append(
                self._event(EventKind.REFUSED, item, now, client_said=item.said, seen=item.seen)
            )
        return events

    @property
    def waiting(self) -> bool:
        """Whether a choice still waits for its proof."""
        return any(item.deadline is not None for item in self._tracked.values())

    def phase(self, proposal: str) -> AcceptancePhase | None:
        """Where the proposal stands; in the place where something last happened, if it fits
        several."""
        item = self._latest(proposal)
        return None if item is None else item.phase

    def knows(self, identity: Identity, fingerprint: str) -> bool:
        """Is this the target before or after some proposal, rather than something in between?"""
        return any(
            fingerprint in (t.offer.before, t.offer.after) for t in self._at.get(identity, ())
        )

    def watched(self, folder: str) -> tuple[Identity, ...]:
        """Targets whose fate is still open: look at them when their file is opened or changes on
        disk."""
        live = {
            item.offer.identity
            for item in self._tracked.values()
            if item.offer.identity.folder == folder
            and (item.phase in TAKEN or item.phase is AcceptancePhase.REVERTED)
        }
        return tuple(sorted(live, key=lambda identity: (identity.path, identity.qualname)))

    # --- across restarts -----------------------------------------------------------------

    def export(self) -> Json:
        """The state as JSON values, for :meth:`restore` and :meth:`adopt`."""
        return {
            "version": STATE_VERSION,
            "proposals": [wire.to_json(t) for t in self._tracked.values()],
        }

    @classmethod
    def restore(cls, state: Json, *, session: str = "", client: str | None = None) -> Tracker:
        """A new tracker that goes on from an export."""
        tracker = cls(session, client)
        tracker.adopt(state)
        return tracker

    def adopt(self, state: Json) -> None:
        """Take over what an export knows about proposals that are not tracked here yet.

        A state of another version, or an item that cannot be read, is left behind.
        """
        if state.get("version") != STATE_VERSION:
            return
        for data in state.get("proposals", ()):
            try:
                item = wire.from_json(Tracked, data)
            except (TypeError, ValueError, KeyError):
                continue  # one bad row must not cost the others their history
            if (item.offer.proposal, item.offer.identity) not in self._tracked:
                self._add(item)

    # --- transitions ---------------------------------------------------------------------

    def _in_place(self, item: Tracked, how: How, now: float) -> list[Event]:
        events: list[Event] = []
        if item.phase not in IN_PLACE:
            events.append(self._accept(item, how, now))
        survived = how == "open" and item.accepted_session != self.session
        if how not in ("save", "disk", "close") and not survived:
            return events
        if item.phase is AcceptancePhase.ACCEPTED:
            events.append(self._keep(item, now))
        elif item.phase is AcceptancePhase.KEPT and item.kept_session != self.session:
            events.append(self._commit(item, now, "still there in the next session"))
        elif (
            item.phase is AcceptancePhase.KEPT
            and item.kept_at is not None
            and now - item.kept_at >= DAY_S
        ):
            events.append(self._commit(item, now, "still there a day later"))
        return events

    def _accept(self, item: Tracked, how: How, now: float) -> Event:
        waited = now - item.since if item.phase is AcceptancePhase.CHOSEN else None
        data = {
            "how": how,
            "came_from": item.phase.value,
            "waited_s": waited,
            "client_said": item.said,
        }
        item.phase, item.deadline, item.accepted_session = (
            AcceptancePhase.ACCEPTED,
            None,
            self.session,
        )
        item.kept_at = item.kept_session = item.logged = None
        return self._event(EventKind.ACCEPTED, item, now, **data)

    def _keep(self, item: Tracked, now: float) -> Event:
        item.phase, item.kept_at, item.kept_session = AcceptancePhase.KEPT, now, self.session
        return self._event(EventKind.KEPT, item, now)

    def _commit(self, item: Tracked, now: float, because: str) -> Event:
        item.phase = AcceptancePhase.COMMITTED
        return self._event(EventKind.KEPT_COMMITTED, item, now, because=because)

    def _taken_back(self, item: Tracked, how: How, now: float) -> list[Event]:
        if item.phase is AcceptancePhase.EXPIRED:
            # The user's own edit was undone: the offer fits again.
            item.phase = AcceptancePhase.OFFERED
        if item.phase not in TAKEN:
            return []
        data = {
            "how": how,
            "came_from": item.phase.value,
            "was_kept": item.kept_at is not None,
            "lived_s": now - item.since,
        }
        item.phase = AcceptancePhase.REVERTED
        return [self._event(EventKind.REVERTED, item, now, **data)]

    def _something_else(
        self, item: Tracked, how: How, now: float, by: Tracked | None
    ) -> list[Event]:
        """The target is neither the offer nor what it was before. ``by``: the offer that it is."""
        fingerprint = item.seen
        if item.phase is AcceptancePhase.OFFERED:
            item.phase = AcceptancePhase.EXPIRED
            return self._once(EventKind.EXPIRED, item, now, seen=fingerprint)
        if item.phase not in TAKEN:
            return []
        if fingerprint == GONE:
            if item.phase is AcceptancePhase.DELETED:
                return []
            item.phase = AcceptancePhase.DELETED
            return [self._event(EventKind.DELETED, item, now, how=how)]
        # One event when editing begins, and one for each different version that is saved: not one
        # per key.
        settled = how in ("save", "disk", "close") and fingerprint != item.logged
        if item.phase is AcceptancePhase.MODIFIED and not settled:
            return []
        item.phase, item.logged = AcceptancePhase.MODIFIED, fingerprint
        data = {"how": how, "seen": fingerprint, "by": by.offer.proposal if by else None}
        return [self._event(EventKind.MODIFIED, item, now, **data)]

    # --- helpers -------------------------------------------------------------------------

    def _item(self, offer: Offer) -> Tracked:
        item = self._tracked.get((offer.proposal, offer.identity))
        if item is None:
            self._make_room()
            item = self._add(Tracked(offer=offer, seen=offer.before))
        item.offer = offer  # measured again, it may have another speedup
        return item

    def _add(self, item: Tracked) -> Tracked:
        self._tracked[item.offer.proposal, item.offer.identity] = item
        self._at.setdefault(item.offer.identity, []).append(item)
        return item

    def _make_room(self) -> None:
        """Forget the oldest, those first whose fate is sealed: memory is bounded in a week-long
        session."""
        if len(self._tracked) < MAX_TRACKED:
            return
        sealed = (key for key, item in self._tracked.items() if item.phase in SETTLED)
        item = self._tracked.pop(next(sealed, next(iter(self._tracked))))
        self._at[item.offer.identity].remove(item)

    def _latest(self, proposal: str) -> Tracked | None:
        found = (item for (name, _), item in self._tracked.items() if name == proposal)
        return max(found, key=lambda item: item.since, default=None)

    def _note_open(self, identity: Identity, how: How) -> None:
        document = (identity.folder, identity.path)
        if how == "close":
            self._open.discard(document)
        elif how != "disk":
            self._open.add(document)

    def _once(self, kind: EventKind, item: Tracked, now: float, **data: Any) -> list[Event]:
        key = (kind, item.offer.proposal, item.offer.identity)
        if key in self._counted:
            return []
        self._counted.add(key)
        return [self._event(kind, item, now, **data)]

    def _event(self, kind: EventKind, item: Tracked, now: float, **data: Any) -> Event:
        item.since = now
        offer, identity = item.offer, item.offer.identity
        return Event(
            kind=kind,
            proposal=offer.proposal,
            time=datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            folder=identity.folder,
            path=identity.path,
            qualname=identity.qualname,
            client=self.client,
            data={"before": offer.before, "after": offer.after, **data},
        )


def _find_credited(items: Iterable[Tracked], fingerprint: str) -> Tracked | None:
    """The one proposal that a fingerprint is put down to: two can lead to the same code.

    Whoever is in place already stays; then the one chosen last; then the one shown last.
    """
    same = [item for item in items if item.offer.after == fingerprint]
    rank = {AcceptancePhase.CHOSEN: 1} | dict.fromkeys(IN_PLACE, 2)
    return max(same, key=lambda item: (rank.get(item.phase, 0), item.since), default=None)


def _befores(item: Tracked, items: Iterable[Tracked]) -> set[str]:
    """Fingerprints that take the proposal back: its own before, and those under it in a stack of
    rewrites."""
    found, below = {item.offer.before}, item.offer.before
    under = {t.offer.after: t.offer.before for t in items if t is not item}
    while (below := under.get(below, below)) not in found:
        found.add(below)
    return found - {item.offer.after}


# --- dismissals --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Dismissal:
    """A "no" that is still in force: what `journal.Journal.dismissals` returns."""

    scope: str
    reason: str
    time: float
    """POSIX seconds."""
    path: str | None = None
    fingerprint: str | None = None
    skills: tuple[str, ...] = ()
    speedup: float | None = None


def is_silenced(offer: Offer, dismissals: Iterable[Dismissal], now: float) -> bool:
    """Whether the user has said no to this, so that it must not be offered.

    A dismissed proposal stays silent for its (fingerprint, skills) until the target changes or the
    measured gain doubles; ``later`` holds for a day; a skill, file or folder is silent until
    `sessions forget`."""
    return any(_covers(dismissal, offer, now) for dismissal in dismissals)


def _covers(no: Dismissal, offer: Offer, now: float) -> bool:
    if no.reason == "later" and now - no.time >= DAY_S:
        return False
    if no.scope == "folder":
        return True
    if no.scope == "file":
        return no.path == offer.identity.path
    if no.scope == "skill":
        return bool(set(no.skills) & set(offer.skills))
    doubled = (
        no.speedup is not None
        and offer.speedup is not None
        and offer.speedup - 1 >= 2 * max(no.speedup - 1, 0.0)
        and offer.speedup > no.speedup
    )
    return no.fingerprint == offer.before and set(no.skills) == set(offer.skills) and not doubled
