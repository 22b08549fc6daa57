"""Every row of the acceptance state machine, each as what was done and what the journal reads."""

import json
from collections.abc import Callable

import pytest

from kernel_lsp import wire
from kernel_lsp.journal.tracker import (
    DAY_S,
    GONE,
    AcceptancePhase,
    Dismissal,
    Identity,
    Offer,
    Tracker,
    is_silenced,
)
from kernel_lsp.records import Event

NET = Identity(folder="/work", path="net.py", qualname="Net")
OFFER = Offer(proposal="p1", identity=NET, before="A", after="B", skills=("fuse",), speedup=1.5)
NEXT = Offer(proposal="p2", identity=NET, before="B", after="C", skills=("hoist",))
TWIN = Offer(proposal="p3", identity=NET, before="A", after="B", skills=("fuse",))

T0 = 1_700_000_000.0
Act = Callable[[Tracker, float], list[Event]]


def see(fingerprint: str | None, how: str = "change") -> Act:
    return lambda tracker, now: tracker.observed(NET, fingerprint, how, now)  # type: ignore[arg-type]


def offer(proposal: Offer = OFFER) -> Act:
    return lambda tracker, now: tracker.offered(proposal, now)


def choose(proposal: Offer = OFFER) -> Act:
    return lambda tracker, now: tracker.chosen(proposal, now)


def wait(seconds: float) -> Act:
    return lambda tracker, now: tracker.tick(now + seconds)


def dismiss(reason: str = "slower") -> Act:
    return lambda tracker, now: tracker.dismissed("p1", "proposal", reason, now)


def run(*acts: Act, tracker: Tracker | None = None, start: float = T0) -> list[Event]:
    """The acts one after another, a tenth of a second apart."""
    tracker = tracker or Tracker("s1", "test 1.0")
    return [event for i, act in enumerate(acts) for event in act(tracker, start + i / 10)]


def words(events: list[Event]) -> str:
    return " ".join(
        f"{e.kind.value}" if e.proposal == "p1" else f"{e.proposal}:{e.kind.value}" for e in events
    )


TAKEN = [offer(), choose(), see("B")]

ROWS: dict[str, tuple[list[Act], str]] = {
    "shown twice counts once": ([offer(), offer()], "offered"),
    "chosen without a list was shown all the same": ([choose()], "offered chosen"),
    "apply": (TAKEN, "offered chosen accepted"),
    "apply with save": ([*TAKEN, see("B", "save")], "offered chosen accepted kept"),
    "first seen on save": ([choose(), see("B", "save")], "offered chosen accepted kept"),
    "saved twice, kept once": ([*TAKEN, see("B", "save"), see("B", "save")], "offered chosen accepted kept"),
    "undo": ([*TAKEN, see("A")], "offered chosen accepted reverted"),
    "redo": ([*TAKEN, see("A"), see("B")], "offered chosen accepted reverted accepted"),
    "comment or formatting": ([*TAKEN, see("B"), see("B")], "offered chosen accepted"),
    "broken syntax": ([*TAKEN, see(None), see("B")], "offered chosen accepted"),
    "edited by hand, key by key": ([*TAKEN, see("x"), see("y")], "offered chosen accepted "
                                                                 "modified"),
    "edited, then saved in another shape": (
        [*TAKEN, see("x"), see("y"), see("y", "save"), see("y", "save")],
        "offered chosen accepted modified modified",
    ),
    "edited back": ([*TAKEN, see("x"), see("B")], "offered chosen accepted modified accepted"),
    "edited, then undone whole": ([*TAKEN, see("x"), see("A")], "offered chosen accepted modified "
                                                                "reverted"),
    "deleted once": ([*TAKEN, see(GONE), see(GONE)], "offered chosen accepted deleted"),
    "cut and pasted": ([*TAKEN, see(GONE), see("B")], "offered chosen accepted deleted accepted"),
    "git checkout after save": (
        [*TAKEN, see("B", "save"), see("B", "close"), see("A", "disk")],
        "offered chosen accepted kept reverted",
    ),
    "closed without saving": ([*TAKEN, see("A", "close")], "offered chosen accepted reverted"),
    "unsaved buffer, old file on disk": ([*TAKEN, see("A", "disk")], "offered chosen accepted"),
    "a client that never says "
    "didSave": ([*TAKEN, see("B", "disk")], "offered chosen accepted kept"),
    "proof never came": ([choose(), wait(5)], "offered chosen refused"),
    "proof still awaited": ([choose(), wait(4.8)], "offered chosen"),
    "proof came late": ([choose(), wait(5), see("B")], "offered chosen refused accepted"),
    "refused only once": ([choose(), wait(5), wait(50)], "offered chosen refused"),
    "typing elsewhere while waiting": ([choose(), see("A"), see("B")], "offered chosen accepted"),
    "stale offer": ([offer(), see("x"), see("y")], "offered expired"),
    "stale offer, edit undone, applied": ([offer(), see("x"), see("A"), choose(), see("B")],
                                          "offered expired chosen accepted"),
    "dismissed": ([offer(), dismiss()], "offered dismissed"),
    "dismissed after accepting stays in place": ([*TAKEN, dismiss(), see("A")],
                                                 "offered chosen accepted dismissed reverted"),
    "nothing known, nothing said": ([see("B"), dismiss()], ""),
    "typed by hand what was shown": ([offer(), see("B")], "offered accepted"),
    "two proposals, one code: the chosen one is credited": (
        [offer(), offer(TWIN), choose(), see("B"), see("A")],
        "offered p3:offered chosen accepted reverted",
    ),
    "stacked: the lower one is modified by the upper": (
        [*TAKEN, choose(NEXT), see("C"), see("B"), see("A")],
        "offered chosen accepted p2:offered p2:chosen modified p2:accepted accepted p2:reverted "
        "reverted",
    ),
    "stacked: one checkout takes both back": (
        [*TAKEN, choose(NEXT), see("C"), see("A")],
        "offered chosen accepted p2:offered p2:chosen modified p2:accepted reverted p2:reverted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_row_of_the_state_machine(name: str) -> None:
    acts, expected = ROWS[name]
    assert words(run(*acts)) == expected


def test_an_event_says_who_what_where_and_when() -> None:
    event = run(*TAKEN)[-1]
    assert (event.folder, event.path, event.qualname, event.client) == (
        "/work",
        "net.py",
        "Net",
        "test 1.0",
    )
    assert event.time == "2023-11-14T22:13:20.200+00:00"
    assert (
        event.data["before"] == "A" and event.data["after"] == "B" and event.data["how"] == "change"
    )
    assert event.data["waited_s"] == pytest.approx(0.1, abs=1e-3)


def test_what_the_client_said_stands_beside_what_was_seen() -> None:
    tracker = Tracker("s1")
    tracker.chosen(OFFER, T0)
    tracker.client_said("p1", True)
    tracker.observed(NET, "x", "change", T0 + 1)
    (refused,) = tracker.tick(T0 + 5)
    assert refused.data["client_said"] == {"applied": True, "reason": None}
    assert refused.data["seen"] == "x"
    assert not tracker.waiting


def test_a_client_that_says_no_is_not_believed_either() -> None:
    tracker = Tracker("s1")
    tracker.chosen(OFFER, T0)
    tracker.client_said("p1", False, "stale version")
    assert words(tracker.observed(NET, "B", "change", T0 + 1)) == "accepted"


def test_modified_names_the_version_that_was_seen_and_the_rewrite_that_did_it() -> None:
    by_hand = run(*TAKEN, see("x"))[-1]
    assert by_hand.data["seen"] == "x" and by_hand.data["by"] is None
    stacked = next(e for e in run(*TAKEN, choose(NEXT), see("C")) if e.kind.value == "modified")
    assert stacked.data["by"] == "p2"


def reopened(*acts: Act) -> Tracker:
    """A tracker that went through a restart of the server."""
    tracker = Tracker("s1")
    run(*acts, tracker=tracker)

    return Tracker.restore(
        json.loads(json.dumps(tracker.export())), session="s2", client="test 2.0"
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (TAKEN, [see("B", "open")], "kept"),
        ([*TAKEN, see("B", "save")], [see("B", "open")], "kept_committed"),
        ([*TAKEN, see("B", "save")], [see("B", "open"), see("B", "save")], "kept_committed"),
        ([*TAKEN, see("B", "save")], [see("A", "open")], "reverted"),
        ([*TAKEN, see("B", "save")], [see("A", "disk")], "reverted"),
        ([*TAKEN, see("A")], [see("B", "open")], "accepted"),
        ([choose()], [wait(60)], "refused"),
        ([offer()], [offer()], "offered"),
    ],
)
def test_a_restart_goes_on_where_it_was(before: list[Act], after: list[Act], expected: str) -> None:
    assert words(run(*after, tracker=reopened(*before), start=T0 + 60)) == expected


def test_a_day_later_in_the_same_session_confirms() -> None:
    tracker = Tracker("s1")
    run(*TAKEN, see("B", "save"), tracker=tracker)
    assert tracker.observed(NET, "B", "save", T0 + DAY_S / 2) == []
    (event,) = tracker.observed(NET, "B", "save", T0 + DAY_S + 1)
    assert (
        event.kind.value == "kept_committed" and event.data["because"] == "still there a day later"
    )
    assert tracker.observed(NET, "B", "save", T0 + 3 * DAY_S) == []


def test_an_unreadable_state_loses_only_the_unreadable_rows() -> None:
    good = wire.to_json(Tracker("s1").export())
    assert Tracker.restore({"version": 99, "proposals": [1]}).phase("p1") is None
    tracker = Tracker("s1")
    run(*TAKEN, tracker=tracker)
    state = tracker.export()
    state["proposals"] = [{"phase": "no such phase"}, 7, *state["proposals"]]
    assert Tracker.restore(state).phase("p1") is AcceptancePhase.ACCEPTED
    assert good["proposals"] == []


def test_only_targets_with_an_open_fate_are_looked_at_again() -> None:
    tracker = Tracker("s1")
    other = Offer(
        proposal="q",
        identity=Identity(folder="/work", path="b.py", qualname="F"),
        before="1",
        after="2",
    )
    run(*TAKEN, offer(other), tracker=tracker)
    assert tracker.watched("/work") == (NET,)
    assert tracker.watched("/elsewhere") == ()


def test_memory_is_bounded_and_what_was_accepted_is_forgotten_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernel_lsp.journal.tracker.MAX_TRACKED", 10)
    tracker = Tracker("s1")
    run(*TAKEN, tracker=tracker)
    for i in range(50):
        tracker.offered(Offer(proposal=f"n{i}", identity=NET, before="A", after=f"Z{i}"), T0)
    assert [tracker.phase(f"n{i}") is None for i in (40, 41)] == [True, False]
    assert (
        tracker.phase("p1") is AcceptancePhase.ACCEPTED
        and tracker.phase("n49") is AcceptancePhase.OFFERED
    )


def test_an_edit_without_effect_cannot_be_tracked() -> None:
    with pytest.raises(ValueError, match="cannot be seen"):
        Offer(proposal="p", identity=NET, before="A", after="A")


NO = Dismissal(
    scope="proposal",
    reason="slower",
    time=T0,
    path="net.py",
    fingerprint="A",
    skills=("fuse",),
    speedup=1.5,
)


@pytest.mark.parametrize(
    ("no", "offered", "later_s", "silent"),
    [
        (NO, OFFER, 0, True),
        (NO, OFFER, 100 * DAY_S, True),
        (
            wire.from_json(Dismissal, {**wire.to_json(NO), "reason": "later"}),
            OFFER,
            DAY_S / 2,
            True,
        ),
        (wire.from_json(Dismissal, {**wire.to_json(NO), "reason": "later"}), OFFER, DAY_S, False),
        (NO, wire.from_json(Offer, {**wire.to_json(OFFER), "before": "changed"}), 0, False),
        (NO, wire.from_json(Offer, {**wire.to_json(OFFER), "skills": ["hoist"]}), 0, False),
        (NO, wire.from_json(Offer, {**wire.to_json(OFFER), "speedup": 1.9}), 0, True),
        (NO, wire.from_json(Offer, {**wire.to_json(OFFER), "speedup": 2.0}), 0, False),
        (Dismissal(scope="skill", reason="wrong", time=T0, skills=("fuse",)), OFFER, 0, True),
        (Dismissal(scope="skill", reason="wrong", time=T0, skills=("hoist",)), OFFER, 0, False),
        (Dismissal(scope="file", reason="style", time=T0, path="net.py"), OFFER, 0, True),
        (Dismissal(scope="file", reason="style", time=T0, path="other.py"), OFFER, 0, False),
        (Dismissal(scope="folder", reason="style", time=T0), OFFER, 0, True),
    ],
)
def test_a_no_is_respected_until_the_code_changes_or_the_gain_doubles(
    no: Dismissal, offered: Offer, later_s: float, silent: bool
) -> None:
    assert is_silenced(offered, [no], T0 + later_s) is silent


def test_adopting_an_older_state_keeps_what_this_session_has_seen() -> None:
    older, tracker = Tracker("s1"), Tracker("s2")
    run(offer(), choose(NEXT), tracker=older)
    run(*TAKEN, tracker=tracker)
    tracker.adopt(older.export())
    assert (
        tracker.phase("p1") is AcceptancePhase.ACCEPTED
        and tracker.phase("p2") is AcceptancePhase.CHOSEN
    )
    assert words(tracker.offered(OFFER, T0 + 9)) == "", (
        "counted once per session, also after adopting"
    )


def test_a_copy_of_a_class_in_another_file_is_tracked_on_its_own() -> None:
    copy = wire.from_json(
        Offer, wire.to_json(OFFER) | {"identity": {**wire.to_json(NET), "path": "copy.py"}}
    )
    tracker = Tracker("s1")
    run(*TAKEN, tracker=tracker)
    assert words(tracker.chosen(copy, T0 + 1)) == "offered chosen"
    assert words(tracker.observed(copy.identity, "A", "change", T0 + 2)) == ""
    assert words(tracker.observed(NET, "A", "change", T0 + 2)) == "reverted"
