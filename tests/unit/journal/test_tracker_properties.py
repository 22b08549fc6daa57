"""Whatever an editor does, in any order: the journal never claims more than was seen."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kernel_lsp.journal.tracker import GONE, Identity, Offer, Tracker
from kernel_lsp.records import Event, EventKind

PLACES = [Identity(folder="/w", path="a.py", qualname=name) for name in ("F", "G")]
OFFERS = [
    Offer(proposal=f"{place.qualname}-{before}{after}", identity=place, before=before, after=after)
    for place in PLACES
    for before, after in (("A", "B"), ("A", "C"), ("B", "C"), ("B", "A"))
]
FINGERPRINTS = st.sampled_from(["A", "B", "C", "D", GONE, None])
IN_PLACE = {EventKind.ACCEPTED, EventKind.KEPT, EventKind.KEPT_COMMITTED}
TAKEN = IN_PLACE | {EventKind.MODIFIED, EventKind.DELETED}
FATE = TAKEN | {EventKind.REVERTED}


class Editor(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sessions = 1
        self.now = 1_700_000_000.0
        self.tracker = Tracker("session-1")
        self.fate: dict[str, EventKind] = {}
        self.chosen_at: dict[str, float] = {}
        self.this_session: Counter[tuple[EventKind, str]] = Counter()

    def take(self, events: list[Event], seen: str | None = None) -> None:
        """Check what was just logged against everything before it."""
        accepted = [e for e in events if e.kind is EventKind.ACCEPTED]
        assert len(accepted) <= 1, "one sight of the code credits one proposal"
        for event in events:
            kind, name, before = event.kind, event.proposal, self.fate.get(event.proposal)
            self.this_session[kind, name] += 1
            if kind is EventKind.ACCEPTED:
                assert seen is not None and seen == event.data["after"]
                assert before not in IN_PLACE
            elif kind is EventKind.KEPT:
                assert before is EventKind.ACCEPTED and seen == event.data["after"]
            elif kind is EventKind.KEPT_COMMITTED:
                assert before is EventKind.KEPT and seen == event.data["after"]
            elif kind is EventKind.REVERTED:
                assert before in TAKEN and seen is not None and seen != event.data["after"]
            elif kind is EventKind.MODIFIED:
                assert before in TAKEN and seen not in (None, GONE, event.data["after"])
            elif kind is EventKind.DELETED:
                assert before in TAKEN - {EventKind.DELETED} and seen == GONE
            elif kind is EventKind.REFUSED:
                assert self.now - self.chosen_at.pop(name) >= 5
            if kind in FATE:
                self.fate[name] = kind

    @rule(offer=st.sampled_from(OFFERS))
    def show(self, offer: Offer) -> None:
        self.take(self.tracker.offered(offer, self.now))

    @rule(offer=st.sampled_from(OFFERS), answer=st.sampled_from([None, True, False]))
    def choose(self, offer: Offer, answer: bool | None) -> None:
        self.chosen_at[offer.proposal] = self.now
        self.take(self.tracker.chosen(offer, self.now))
        self.tracker.client_said(offer.proposal, answer)

    @rule(
        offer=st.sampled_from(OFFERS),
        scope=st.sampled_from(["proposal", "skill", "file", "folder"]),
    )
    def dismiss(self, offer: Offer, scope: str) -> None:
        self.take(self.tracker.dismissed(offer.proposal, scope, "wrong", self.now))

    @rule(
        place=st.sampled_from(PLACES),
        fingerprint=FINGERPRINTS,
        how=st.sampled_from(["change", "save", "open", "disk", "close"]),
    )
    def see(self, place: Identity, fingerprint: str | None, how: str) -> None:
        self.take(self.tracker.observed(place, fingerprint, how, self.now), fingerprint)  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([0.2, 1.0, 6.0, 90_000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.tracker.tick(self.now))

    @precondition(lambda self: self.sessions < 4)
    @rule()
    def restart(self) -> None:
        self.sessions += 1
        self.this_session.clear()
        self.tracker = Tracker.restore(self.tracker.export(), session=f"session-{self.sessions}")

    @invariant()
    def shown_and_expired_count_once(self) -> None:
        once = (EventKind.OFFERED, EventKind.EXPIRED)
        assert all(n == 1 for (kind, _), n in self.this_session.items() if kind in once)

    @invariant()
    def a_choice_is_settled_within_five_seconds_of_ticks(self) -> None:
        assert not self.tracker.waiting or any(self.now - t < 5 for t in self.chosen_at.values())


class TestEditor(Editor.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
