"""What the server remembers and shows, without a server."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from editor_helpers import TEXT, URI, evaluation, outcome, proposal, snapshot, target_of

from kernel_lsp import analysis
from kernel_lsp.config import Settings
from kernel_lsp.errors import StaleProposal
from kernel_lsp.presenter.items import Hint
from kernel_lsp.records import (
    Analysis,
    Event,
    Finding,
    Outcome,
    Progress,
    Proposal,
    Snapshot,
    Span,
    Step,
    Verdict,
    rank,
)
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.session import NO_WORKLOAD, EditorSession, has_workload, shares_of
from kernel_lsp.snapshots import store

FOLDER = "/project"
EVERYWHERE = Span(start=0, end=10**6)


def opened(text: str = TEXT, **settings: object) -> EditorSession:
    session = EditorSession(client="test 1")
    session.configure(FOLDER, Settings(static_hints=False, **settings))  # type: ignore[arg-type]
    session.open(snapshot(text), FOLDER, "model.py")
    look(session, session.documents[URI].snapshot)
    return session


def look(session: EditorSession, seen: Snapshot, how: str = "change") -> list[Event]:
    session.analyzed(seen, analysis.analyze(seen))
    return session.observe(URI, how)  # type: ignore[arg-type]


def edited(session: EditorSession, text: str) -> list[Event]:
    fresh = Snapshot(uri=URI, text=text, version=2)
    session.change(fresh)
    return look(session, fresh)


def learned(session: EditorSession, *proposals: object) -> EditorSession:
    for found in proposals or (proposal(),):
        session.learn(found.fingerprint, outcome(found))  # type: ignore[attr-defined]
    return session


def verified(session: EditorSession) -> list[Hint]:
    return [hint for hint in session.hints(URI) if hint.proposal]


def kinds(events: list[Event]) -> list[str]:
    return [event.kind.value for event in events]


def test_only_verified_wins_become_hints_on_the_name() -> None:
    session = learned(opened())
    (hint,) = verified(session)
    assert TEXT[hint.span.start : hint.span.end] == "Model"
    assert hint.code == "sum-method"
    assert "2.50x (2.38–2.62)" in hint.message
    session.learn(
        hint_fingerprint := proposal().fingerprint, outcome(proposal(verdict=Verdict.CORRECT))
    )
    assert session.outcome(hint_fingerprint) is not None
    assert verified(session) == []


def test_a_raised_threshold_withdraws_the_hint() -> None:
    session = learned(opened())
    session.configure(FOLDER, Settings(threshold=2.4, static_hints=False))
    assert verified(session) == []
    session.configure(FOLDER, Settings(threshold=2.3, static_hints=False))
    assert len(verified(session)) == 1


def test_the_best_come_first_and_the_number_is_limited() -> None:
    slow, fast = proposal(), proposal(qualname="Other")
    quicker = {
        k: replace(v, low=4.0, mid=4.0, high=4.0) for k, v in fast.evaluation.speedups.items()
    }
    fast = replace(fast, evaluation=replace(fast.evaluation, speedups=quicker))
    session = learned(opened(), slow, fast)
    assert [hint.qualname for hint in verified(session)] == ["Other", "Model"]
    session.configure(FOLDER, Settings(max_hints_per_file=1, static_hints=False))
    assert [hint.qualname for hint in verified(session)] == ["Other"]


def test_findings_follow_verified_rewrites_and_yield_to_them() -> None:
    session = opened()
    session.configure(FOLDER, Settings(disabled_rules=("KL109",)))
    text = session.documents[URI].snapshot
    spans = {name: target_of(TEXT, name).name_span for name in ("Model", "Other")}
    findings = tuple(
        Finding(rule=rule, name="n", target=name, span=spans[name], message=rule)
        for rule, name in (("KL101", "Model"), ("KL102", "Other"), ("KL109", "Other"))
    )
    found = replace(analysis.analyze(text), findings=findings)
    session.analyzed(text, found)
    session.documents[URI].unmeasurable = frozenset({"Other"})
    assert [hint.code for hint in session.hints(URI)] == ["KL101", "KL102", NO_WORKLOAD]
    learned(session)
    assert [hint.code for hint in session.hints(URI)] == ["sum-method", "KL102", NO_WORKLOAD]
    session.dismiss(URI, "Other", "KL102", "proposal", "style")
    assert [hint.code for hint in session.hints(URI)] == ["sum-method", NO_WORKLOAD]


def test_the_edit_is_made_on_the_text_of_this_moment() -> None:
    session = learned(opened())
    moved = f"# one\n# two\n{TEXT}"
    session.change(Snapshot(uri=URI, text=moved, version=9))
    seen, edits = session.resolve(URI, "p-Model")
    assert seen.version == 9
    (only,) = edits
    after = moved[: only.start] + only.new + moved[only.end :]
    assert after == moved.replace("torch.sum(x, dim=1)", "x.sum(1)", 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT.replace("dim=1", "dim=0", 1), "changed since"),
        (TEXT.replace("class Model", "class Renamed"), "not in the document"),
        (TEXT + "def broken(:\n", "not in the document"),
    ],
)
def test_a_stale_rewrite_is_refused(text: str, words: str) -> None:
    session = learned(opened())
    session.change(Snapshot(uri=URI, text=text, version=2))
    with pytest.raises(StaleProposal, match=words):
        session.resolve(URI, "p-Model")


def test_a_rewrite_that_would_not_be_what_was_measured_is_refused() -> None:
    session = learned(opened(), proposal(fingerprint_after="something else"))
    with pytest.raises(StaleProposal, match="does not fit"):
        session.resolve(URI, "p-Model")


def test_acceptance_is_seen_in_the_text_and_nowhere_else() -> None:
    session = learned(opened())
    assert kinds(session.offered(URI, session.actions(URI, EVERYWHERE))) == ["offered"]
    assert kinds(session.offered(URI, session.actions(URI, EVERYWHERE))) == []
    assert kinds(session.chosen(URI, "p-Model")) == ["chosen"]
    after = apply_edit(TEXT, target_of(TEXT, "Model").span, proposal().candidate.edit)  # type: ignore[arg-type]
    assert kinds(edited(session, after)) == ["accepted"]
    assert kinds(edited(session, after + "# more\n")) == []
    assert kinds(edited(session, after.replace("x.sum(1)", "x.sum(0)", 1))) == ["modified"]
    assert kinds(edited(session, TEXT)) == ["reverted"]


@pytest.mark.parametrize(("keep", "train"), [(True, True), (True, False), (False, True)])
def test_what_a_person_changed_is_told_where_they_allow_it(keep: bool, train: bool) -> None:
    """The target alone, and nothing of it without both consents."""
    session = learned(opened(keep_source=keep, training=train))
    (hint,) = verified(session)
    session.offered(URI, session.actions(URI, EVERYWHERE))
    session.chosen(URI, str(hint.proposal))
    after = apply_edit(TEXT, target_of(TEXT, "Model").span, proposal().candidate.edit)  # type: ignore[arg-type]
    edited(session, after)
    (event,) = edited(session, after.replace("x.sum(1)", "x.sum(0)", 1))
    assert event.kind.value == "modified" and ("changed" in event.data) == (keep and train)
    if keep and train:
        told = event.data["changed"]
        assert told.startswith("class Model") and "x.sum(0)" in told and "Other" not in told


def test_a_text_that_does_not_parse_changes_nothing() -> None:
    session = learned(opened())
    before = session.hints(URI), session.lenses(URI)
    assert edited(session, TEXT + "def broken(:\n") == []
    assert (session.hints(URI), session.lenses(URI)) == before


def test_an_analysis_of_an_older_text_is_dropped() -> None:
    session = opened()
    old = session.documents[URI].snapshot
    session.change(Snapshot(uri=URI, text="x = 1\n", version=2))
    assert session.analyzed(old, Analysis()) is False
    session.close(URI)
    assert session.analyzed(old, Analysis()) is False


def test_one_lens_per_target_in_every_state() -> None:
    session = opened()
    titles = lambda: [lens.title for lens in session.lenses(URI)]  # noqa: E731
    assert titles() == ["▷ measure", "▷ measure"]
    session.running(URI, "Model", None)
    assert titles() == ["queued", "▷ measure"]
    session.running(URI, "Model", Progress(phase="evaluate", message="m", done=2, total=5))
    assert titles() == ["measuring 40 %", "▷ measure"]
    session.finished(URI, "Model")
    learned(session)
    assert titles() == ["1 ms · 2.50x (2.38–2.62) available on H100", "▷ measure"]
    session.chosen(URI, "p-Model")
    edited(session, TEXT.replace("torch.sum(x, dim=1)", "x.sum(1)", 1))
    assert titles() == ["kept 2.50x (2.38–2.62) on H100", "▷ measure"]


def test_a_hover_shows_evidence_or_the_reason_or_nothing() -> None:
    session = opened()
    name = target_of(TEXT, "Model").name_span
    assert session.hover(URI, name.start) is None
    session.learn(proposal().fingerprint, Outcome(qualname="Model", note="no skill applies"))
    assert session.hover(URI, name.start) == (
        name,
        "**Model**: nothing is offered; no skill applies",
    )
    learned(session)
    found = session.hover(URI, name.start)
    assert found is not None
    assert "before → after" in found[1]
    assert session.hover(URI, 0) is None


def test_dismissing_silences_until_the_gain_doubles() -> None:
    session = learned(opened())
    session.offered(URI, session.actions(URI, EVERYWHERE))
    assert kinds(session.dismiss(URI, "Model", "sum-method", "proposal", "wrong")) == ["dismissed"]
    assert session.actions(URI, EVERYWHERE) == []
    better = proposal()
    much = {
        k: replace(v, low=5.2, mid=5.3, high=5.4) for k, v in better.evaluation.speedups.items()
    }
    learned(session, replace(better, evaluation=replace(better.evaluation, speedups=much)))
    assert len(session.actions(URI, EVERYWHERE)) == 1


def test_never_suggesting_a_skill_covers_the_folder() -> None:
    session = learned(opened(), proposal(), proposal(qualname="Other"))
    session.dismiss(URI, "Model", "sum-method", "skill", "style")
    assert session.actions(URI, EVERYWHERE) == []


def test_a_proposal_whose_edit_cannot_be_seen_is_not_offered() -> None:
    same = proposal()
    session = learned(opened(), replace(same, fingerprint_after=same.fingerprint))
    assert verified(session) == []
    assert session.actions(URI, EVERYWHERE) == []


def test_the_state_goes_on_in_the_next_session() -> None:
    first = learned(opened())
    first.chosen(URI, "p-Model")
    after = TEXT.replace("torch.sum(x, dim=1)", "x.sum(1)", 1)
    edited(first, after)
    second = EditorSession(client="test 2", name="second")
    second.restore(FOLDER, [], first.tracker.export())
    assert second.tracked_paths(FOLDER) == {"model.py"}
    assert kinds(second.observe_text(FOLDER, "model.py", TEXT, "disk")) == ["reverted"]


def test_a_deleted_file_is_seen() -> None:
    session = learned(opened())
    session.chosen(URI, "p-Model")
    edited(session, TEXT.replace("torch.sum(x, dim=1)", "x.sum(1)", 1))
    session.close(URI)
    assert "deleted" in kinds(session.observe_text(FOLDER, "model.py", None, "close"))


def test_a_verified_rewrite_is_offered_before_its_job_ends_and_the_faster_one_first() -> None:
    session = opened()
    slow, fast = proposal(id="slow"), proposal(id="fast", evaluation=evaluation(2.9, 3.0, 3.1))
    session.verified(slow.fingerprint, slow)
    assert [hint.proposal for hint in verified(session)] == ["slow"]
    session.verified(slow.fingerprint, fast)
    session.verified(slow.fingerprint, slow)
    assert [hint.proposal for hint in verified(session)] == ["fast"]
    session.learn(
        slow.fingerprint, outcome(replace(fast, verdict=Verdict.CORRECT), note="not surely faster")
    )
    assert verified(session) == []


def test_half_an_undo_is_no_modification() -> None:
    session = learned(opened())
    session.chosen(URI, "p-Model")
    after = TEXT.replace("torch.sum(x, dim=1)", "x.sum(1)", 1)
    assert kinds(edited(session, after)) == ["accepted"]
    half = Snapshot(uri=URI, text=after.replace("x.sum(1)", "x.sum(1) + 0"), version=3)
    session.change(half)
    session.analyzed(half, analysis.analyze(half))
    assert session.observe(URI, "change", settled=False) == []
    assert kinds(session.observe(URI, "change")) == ["modified"]
    whole = Snapshot(uri=URI, text=TEXT, version=4)
    session.change(whole)
    session.analyzed(whole, analysis.analyze(whole))
    assert kinds(session.observe(URI, "change", settled=False)) == ["reverted"]


def test_a_file_that_cannot_be_read_is_not_deleted() -> None:
    session = learned(opened())
    session.chosen(URI, "p-Model")
    edited(session, TEXT.replace("torch.sum(x, dim=1)", "x.sum(1)", 1))
    session.close(URI)
    session.unreadable(FOLDER, "model.py", "close")
    assert "deleted" in kinds(session.observe_text(FOLDER, "model.py", None, "disk"))


def test_a_finding_brings_its_page_and_its_data() -> None:
    session = EditorSession()
    session.open(
        snapshot(TEXT.replace("torch.sum(x, dim=1)", "torch.diag(x) @ x")), FOLDER, "model.py"
    )
    look(session, session.documents[URI].snapshot)
    hint = next(hint for hint in session.hints(URI) if hint.code == "KL105")
    assert hint.page is not None
    assert hint.page.endswith("KL105-diag-matmul.md")
    assert hint.data["line"] == 7


def test_the_share_of_a_recorded_run_is_told_wherever_its_target_is() -> None:
    """Behind what was there before, in any state; a small one without a number."""
    session = opened()
    before = {lens.qualname: lens.title for lens in session.lenses(URI)}
    session.documents[URI].shares = {"Model": 0.624, "Other": 0.001}
    titles = {lens.qualname: lens.title for lens in session.lenses(URI)}
    assert titles["Model"] == f"{before['Model']} · 62% of the recorded time"
    assert titles["Other"] == f"{before['Other']} · below 1% of the recorded time"
    assert [text for _, text in session.inlays(URI)] == [
        "62% of the recorded time",
        "below 1% of the recorded time",
    ]
    place = target_of(TEXT, "Model").name_span.start
    hovered = session.hover(URI, place)
    assert hovered is not None and hovered[1] == "**Model**: 62% of the recorded time"
    learned(session)
    titles = {lens.qualname: lens.title for lens in session.lenses(URI)}
    assert "available" in titles["Model"] and titles["Model"].endswith(
        " · 62% of the recorded time"
    )
    hovered = session.hover(URI, place)
    assert hovered is not None and hovered[1].endswith("**Model**: 62% of the recorded time")
    assert hovered[1] != "**Model**: 62% of the recorded time"


def test_a_recording_may_say_anything_of_shares(tmp_path: Path) -> None:
    folder = tmp_path / ".kernel-lsp"
    folder.mkdir()
    entries = [("Model", "1e300"), ("Other", "nan"), ("Third", "0.25"), ("Fourth", "-1.0")]
    tables = [
        f'[[seen]]\ntarget = "m.py::{name}"\ncalls = 1\nshare = {share}\n'
        for name, share in entries
    ]
    (folder / "train.recorded.toml").write_text("".join(tables))
    assert shares_of("m.py", str(tmp_path)) == {"Third": 0.25}


def test_what_cannot_be_measured_says_first_to_record_a_run() -> None:
    session = opened()
    session.configure(FOLDER, Settings())
    text = session.documents[URI].snapshot
    span = target_of(TEXT, "Other").name_span
    finding = Finding(rule="KL102", name="n", target="Other", span=span, message="m")
    session.analyzed(text, replace(analysis.analyze(text), findings=(finding,)))
    session.documents[URI].unmeasurable = frozenset({"Other"})
    (hint,) = [one for one in session.hints(URI) if one.code == NO_WORKLOAD]
    ways = [
        "kernel-lsp record -- python your_program.py",
        "Record a Run",
        "# kernel-lsp: workload",
        "get_inputs()",
    ]
    assert [hint.message.index(way) for way in ways] == sorted(
        hint.message.index(way) for way in ways
    )
    assert "*" not in hint.message, "a diagnostic is plain text: editors show the asterisks"


@pytest.mark.parametrize(("comment", "known"), [("x=f32[4,8]", True), ("x=f33[4,8]", False)])
def test_a_comment_that_cannot_be_read_is_no_workload(
    comment: str, known: bool, tmp_path: Path
) -> None:
    text = TEXT.replace("get_inputs", "others")
    text = text.replace("class Model", f"# kernel-lsp: workload {comment}\nclass Model", 1)
    seen = Snapshot(uri=(tmp_path / "model.py").as_uri(), text=text)
    target = target_of(text, "Model")
    assert has_workload(seen, target, str(tmp_path), str(tmp_path / "data")) == known


def test_a_recorded_call_is_a_workload_even_where_no_file_can_hold_it(tmp_path: Path) -> None:
    """An object of the program's own as argument: the repository's TOML says unknown, the snapshot
    has it."""
    project, data_dir = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    path = project / "model.py"
    text = TEXT.replace("get_inputs", "others")
    path.write_text(text)
    seen = Snapshot(uri=path.as_uri(), text=text)
    ask = {name: target_of(text, name) for name in ("Model", "Other")}

    def known() -> dict[str, bool]:
        return {
            name: has_workload(seen, target, str(project), str(data_dir))
            for name, target in ask.items()
        }

    assert known() == {"Model": False, "Other": False}
    folder = store.begin(data_dir, project, "train.py")
    (folder / "calls" / "1.call").touch()
    ways = [
        {"target": "model.py::Model", "snapshot": "1.call"},
        {"target": "model.py::Other", "snapshot": "gone.call"},
    ]
    index = {
        "program": "train.py",
        "root": str(project),
        "created": "2026",
        "command": [],
        "elapsed_s": 1.0,
    }
    assert known() == {"Model": False, "Other": False}, "not complete"
    store.finish(folder, {**index, "seen": [], "ways": ways})
    assert known() == {"Model": True, "Other": False}
    store.forget(data_dir, project)
    assert known() == {"Model": False, "Other": False}


def test_the_lens_of_a_target_that_nobody_has_called_asks_for_a_recorded_run() -> None:
    """Also after it was tried in vain; a recording ends that."""
    session = opened()
    document = session.documents[URI]
    document.unmeasurable = frozenset({"Other"})
    fingerprint = target_of(TEXT, "Other").fingerprint
    session.learn(fingerprint, Outcome(qualname="Other", note="no workload: …"))
    lens = {one.qualname: (one.title, one.act) for one in session.lenses(URI)}
    assert lens == {
        "Model": ("▷ measure", "benchmark"),
        "Other": ("▷ record a run to measure", "recordRun"),
    }
    document.unmeasurable = frozenset()
    session.unlearn(fingerprint)
    assert [one.title for one in session.lenses(URI)] == ["▷ measure", "▷ measure"]


def ranked_proposals() -> list[Proposal]:
    """Proposals of one target that are fastest by their middle, by their lower bound, or as
    torch.compile."""
    found = target_of(TEXT, "Model").fingerprint

    def judged(
        name: str, *, compiles: bool = False, searched: bool = True, **bounds: float
    ) -> Proposal:
        made = proposal(id=name, fingerprint=found, evaluation=evaluation(**bounds))
        by_search = "1f0c9a2b7d33#12" if searched else None
        steps = (Step(skill="compile-target", site="s"),) if compiles else made.candidate.steps
        return replace(
            made, candidate=replace(made.candidate, id=name, steps=steps, search=by_search)
        )

    return [
        judged("surest", low=2.35, mid=2.4, high=2.45),
        judged("fastest", low=2.0, mid=2.52, high=2.9),
        judged("compiled", compiles=True, low=2.3, mid=2.5, high=2.6),
        judged("slow", low=1.3, mid=1.4, high=1.5, searched=False),
        replace(judged("refused", low=3.0, mid=3.1, high=3.2), verdict=Verdict.REJECTED),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_tournament_session_and_server_order_proposals_alike(seed: int) -> None:
    proposals = ranked_proposals()
    random.Random(seed).shuffle(proposals)
    in_order = [one.id for one in sorted(proposals, key=rank)]  # as the tournament returns them
    assert in_order == ["compiled", "fastest", "surest", "slow", "refused"]

    session, fingerprint = opened(), proposals[0].fingerprint
    for one in proposals:
        session.verified(fingerprint, one)
    while_running = session.outcome(fingerprint)
    assert while_running is not None and [one.id for one in while_running.proposals] == in_order

    quick = [one for one in proposals if one.candidate.search is None]
    ended = session.merge(fingerprint, Outcome(qualname="Model", proposals=tuple(quick)))
    assert [one.id for one in ended.proposals] == in_order
