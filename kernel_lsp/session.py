"""What the server remembers about open documents: analyses, verdicts, dismissals, and what became of offers.

No LSP, no processes, no disk: methods take facts and return what to show and which events to log.
Everything is answered from memory, because pygls runs cancelled requests too. Verdicts are kept by
fingerprint, so they outlive edits elsewhere in the file and closing it. A text that does not parse
keeps its last good analysis. Not covered: when to analyze or to measure (server/).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernel_lsp import analysis, workloads
from kernel_lsp.config import Settings
from kernel_lsp.errors import StaleProposal
from kernel_lsp.journal.tracker import GONE, IN_PLACE, Dismissal, How, Identity, Offer, Tracker, silenced
from kernel_lsp.presenter import cards
from kernel_lsp.presenter.items import Action, Hint, Lens, TextEdit
from kernel_lsp.records import (
    Analysis,
    Card,
    Event,
    EventKind,
    Finding,
    Json,
    Outcome,
    Progress,
    Proposal,
    Snapshot,
    Span,
    Target,
    Verdict,
)
from kernel_lsp.rewrite import edit

__all__ = ["NO_WORKLOAD", "Dismissal", "Document", "How", "Session"]

MAX_OUTCOMES = 2_000
NO_WORKLOAD = "KL000"
"""Rule id of the hint that a target cannot be measured because nobody said what it is called with."""


@dataclass(slots=True, kw_only=True)
class Document:
    """One open document."""

    snapshot: Snapshot
    folder: str
    """Workspace root, or the file's own folder."""
    path: str
    """Relative to ``folder``."""
    analysis: Analysis = field(default_factory=Analysis)
    """The last good one: what is shown while the text does not parse."""
    analyzed: Snapshot | None = None
    """The snapshot of ``analysis``."""
    unmeasurable: frozenset[str] = frozenset()
    """Targets (qualified names) without a workload."""
    measurable: frozenset[str] = frozenset()
    """Targets with one; the others were not looked at yet."""

    @property
    def current(self) -> bool:
        return self.analyzed is self.snapshot


class Session:
    """All open documents of one client."""

    def __init__(self, client: str | None = None, name: str = "") -> None:
        self.documents: dict[str, Document] = {}
        self.tracker = Tracker(session=name, client=client)
        self.proposals: dict[str, Proposal] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._applied: dict[str, str] = {}
        """Fingerprint after -> proposal."""
        self._dismissals: dict[str, list[Dismissal]] = {}
        self._running: dict[tuple[str, str], Progress | None] = {}
        self._settings: dict[str, Settings] = {}

    # --- documents ---------------------------------------------------------------------------

    def open(self, snapshot: Snapshot, folder: str, path: str) -> Document:
        document = Document(snapshot=snapshot, folder=folder, path=path)
        self.documents[snapshot.uri] = document
        return document

    def change(self, snapshot: Snapshot) -> None:
        self.documents[snapshot.uri].snapshot = snapshot

    def close(self, uri: str) -> None:
        self.documents.pop(uri, None)

    def analyzed(self, snapshot: Snapshot, found: Analysis) -> bool:
        """Take an analysis. False: the document moved on or does not parse, so nothing new is shown."""
        document = self.documents.get(snapshot.uri)
        if document is None or document.snapshot is not snapshot or found.problem is not None:
            return False
        document.analysis, document.analyzed = found, snapshot
        return True

    def settings(self, folder: str) -> Settings:
        return self._settings.get(folder) or _DEFAULTS

    def configure(self, folder: str, settings: Settings) -> None:
        self._settings[folder] = settings

    # --- verdicts ----------------------------------------------------------------------------

    def learn(self, fingerprint: str, outcome: Outcome) -> None:
        """Remember what a job (or the cache) said about a target."""
        self._outcomes.pop(fingerprint, None)
        self._outcomes[fingerprint] = outcome
        for proposal in outcome.proposals:
            self.proposals[proposal.id] = proposal
            if proposal.verdict is Verdict.FASTER and proposal.fingerprint_after:
                self._applied[proposal.fingerprint_after] = proposal.id
        if len(self._outcomes) > MAX_OUTCOMES:
            oldest = self._outcomes.pop(next(iter(self._outcomes)))
            for proposal in oldest.proposals:
                self.proposals.pop(proposal.id, None)

    def verified(self, fingerprint: str, proposal: Proposal) -> None:
        """One rewrite of a job that is still running: offered at once, the fastest first."""
        earlier = self._outcomes.get(fingerprint)
        others = [p for p in earlier.proposals if p.id != proposal.id] if earlier else []
        ranked = sorted([proposal, *others], key=_speed, reverse=True)
        self.learn(fingerprint, Outcome(qualname=proposal.qualname, proposals=tuple(ranked)))

    def outcome(self, fingerprint: str) -> Outcome | None:
        return self._outcomes.get(fingerprint)

    def running(self, uri: str, qualname: str, progress: Progress | None) -> None:
        self._running[uri, qualname] = progress

    def finished(self, uri: str, qualname: str) -> None:
        self._running.pop((uri, qualname), None)

    # --- what is shown -----------------------------------------------------------------------

    def hints(self, uri: str) -> list[Hint]:
        """Verified rewrites first, the fastest before the others; then findings, which claim no speed."""
        document = self.documents[uri]
        settings = self.settings(document.folder)
        verified: list[tuple[float, Hint]] = []
        for target in document.analysis.targets:
            best = self._best(document, target)
            if best is not None:
                verified.append((-_speed(best), _verified_hint(target, best)))
        covered = {hint.qualname for _, hint in verified}
        shown = [hint for _, hint in sorted(verified, key=lambda pair: pair[0])]
        if settings.static_hints:
            shown += self._finding_hints(document, covered, settings)
        return shown[: settings.max_hints_per_file]

    def actions(self, uri: str, where: Span) -> list[Action]:
        """Verified rewrites of the targets that the selection touches; only what is already known."""
        document = self.documents[uri]
        found = []
        for target in _touched(document.analysis.targets, where):
            best = self._best(document, target)
            if best is not None:
                found.append(_action(target, best))
        return found

    def targets(self, uri: str, where: Span) -> list[Target]:
        """The targets that the selection touches, the innermost first."""
        return _touched(self.documents[uri].analysis.targets, where)

    def findings(self, uri: str, where: Span) -> list[Finding]:
        document = self.documents[uri]
        return [f for f in document.analysis.findings if _touches(f.span, where)]

    def lenses(self, uri: str) -> list[Lens]:
        """Exactly one per target, whatever its state: text that jumps is worse than no lens."""
        document = self.documents[uri]
        return [self._lens(uri, document, target) for target in document.analysis.targets]

    def inlays(self, uri: str) -> list[tuple[Span, str]]:
        """Measured time of each target as it is, after its name."""
        document = self.documents[uri]
        found = []
        for target in document.analysis.targets:
            outcome = self._outcomes.get(target.fingerprint)
            first = outcome.proposals[0].evaluation if outcome and outcome.proposals else None
            eager = cards.median_ms(first, "eager") if first is not None else None
            if first is not None and eager is not None:
                found.append((target.name_span, f"{cards.duration(eager)} on {cards.device(first)}"))
        return found

    def hover(self, uri: str, offset: int) -> tuple[Span, str] | None:
        """Evidence for the target whose name is at ``offset``; None unless there is any."""
        document = self.documents[uri]
        for target in document.analysis.targets:
            if target.name_span.start <= offset <= target.name_span.end:
                text = self._evidence(document, target)
                return None if text is None else (target.name_span, text)
        return None

    def card(self, uri: str, proposal_id: str) -> Card:
        """Everything about a proposal. Raises StaleProposal when it is not known any more."""
        proposal = self._proposal(proposal_id)
        document = self.documents.get(uri)
        text = document.snapshot.text if document is not None else ""
        target = self._target_now(document, proposal.qualname) if document is not None else None
        fits = target is not None and target.fingerprint == proposal.fingerprint
        after = _apply(text, target, proposal) if target is not None and fits else None
        return cards.make_card(proposal, text, after, document.path if document else "file.py")

    # --- applying ----------------------------------------------------------------------------

    def resolve(self, uri: str, proposal_id: str) -> tuple[Snapshot, list[TextEdit]]:
        """The edit on the document as it is now. Raises StaleProposal when the target changed."""
        proposal = self._proposal(proposal_id)
        document = self.documents.get(uri)
        target = self._target_now(document, proposal.qualname) if document is not None else None
        if document is None or target is None or proposal.candidate.edit is None:
            raise StaleProposal(f"{proposal.qualname} is not in the document any more", _REVERIFY)
        if target.fingerprint != proposal.fingerprint:
            raise StaleProposal(f"{proposal.qualname} changed since it was measured", _REVERIFY)
        text = document.snapshot.text
        after = _apply(text, target, proposal)
        if after is None or analysis.fingerprint_of(after, proposal.qualname) != proposal.fingerprint_after:
            raise StaleProposal(f"the rewrite of {proposal.qualname} does not fit this file", _REVERIFY)
        changes = edit.changes(text, target.span, proposal.candidate.edit)
        return document.snapshot, [TextEdit(start=c.start, end=c.end, new=c.new) for c in changes]

    # --- what becomes of offers --------------------------------------------------------------

    def offered(self, uri: str, shown: Iterable[Action]) -> list[Event]:
        """The user opened a menu with these in it."""
        document, now = self.documents[uri], time.time()
        events: list[Event] = []
        for action in shown:
            offer = self._offer(document, self.proposals[action.proposal])
            events += self.tracker.offered(offer, now) if offer else []
        return events

    def chosen(self, uri: str, proposal_id: str) -> list[Event]:
        document, proposal = self.documents.get(uri), self.proposals.get(proposal_id)
        if document is None or proposal is None or (offer := self._offer(document, proposal)) is None:
            return []
        events = self.tracker.chosen(offer, time.time())
        return events + self.observe(uri, "change", settled=False)

    def observe(self, uri: str, how: How, *, settled: bool = True) -> list[Event]:
        """Compare the document with what was proposed: the only proof of acceptance.

        Not ``settled``: a text between two keystrokes, or between two parts of one undo (Neovim sends
        them 150 ms apart). It can prove that a rewrite is in place or gone, but not that it was modified.
        """
        document = self.documents.get(uri)
        if document is None or not document.current:
            return []
        return self._look(document, document.analysis, how, settled=settled)

    def observe_text(self, folder: str, path: str, text: str | None, how: How) -> list[Event]:
        """The same for a file on disk; None: it is gone."""
        snapshot = Snapshot(uri="", text=text or "")
        document = Document(snapshot=snapshot, folder=folder, path=path)
        if not self._tracked_names(document):
            return []
        return self._look(document, analysis.analyze(snapshot), how)

    def unreadable(self, folder: str, path: str, how: How) -> None:
        """The file on disk is there, but not UTF-8 or not ours to read: nothing can be said about it."""
        for identity in self.tracker.watched(folder):
            if identity.path == path:
                self.tracker.observed(identity, None, how, time.time())

    def tick(self) -> list[Event]:
        """Choices whose proof never came."""
        return self.tracker.tick(time.time())

    def tracked_paths(self, folder: str) -> set[str]:
        """Relative paths of files with proposals whose fate is open."""
        return {identity.path for identity in self.tracker.watched(folder)}

    def dismiss(self, uri: str, qualname: str, code: str, scope: str, reason: str) -> list[Event]:
        """Silence a rule or skill for this target (scope ``proposal``) or this folder (``skill``)."""
        document = self.documents[uri]
        target = analysis.find_target(document.analysis, qualname)
        fingerprint = target.fingerprint if target else None
        best = self._best(document, target) if target else None
        offer = self._offer(document, best) if best is not None else None
        now = time.time()
        skills = offer.skills if offer and code in offer.skills and scope == "proposal" else (code,)
        no = Dismissal(
            scope=scope, reason=reason, time=now, path=document.path, fingerprint=fingerprint, skills=skills,
            speedup=offer.speedup if offer else None,
        )  # fmt: skip
        self._dismissals.setdefault(document.folder, []).append(no)
        if offer is not None and code in offer.skills:
            self.tracker.offered(offer, now)
            return self.tracker.dismissed(offer.proposal, scope, reason, now)
        return [_dismissed_finding(document, qualname, no, self.tracker.client, now)]

    def restore(self, folder: str, dismissals: Sequence[Dismissal], tracker: Json) -> None:
        """Go on where earlier sessions in this folder ended."""
        self._dismissals[folder] = [*dismissals, *self._dismissals.get(folder, [])]
        if tracker.get("proposals"):
            mine = self.tracker.export()
            both = {**mine, "proposals": [*tracker["proposals"], *mine["proposals"]]}
            name, client = self.tracker.session, self.tracker.client
            self.tracker = Tracker.restore(both, session=name, client=client)

    # --- helpers -----------------------------------------------------------------------------

    def _best(self, document: Document, target: Target) -> Proposal | None:
        """The proposal that may be offered for a target as it is now."""
        outcome = self._outcomes.get(target.fingerprint)
        best = outcome.best if outcome is not None else None
        if best is None or not best.evaluation.faster(self.settings(document.folder).threshold):
            return None
        offer = self._offer(document, best)
        return None if offer is None or self._silenced(document, offer) else best

    def _silenced(self, document: Document, offer: Offer) -> bool:
        return silenced(offer, self._dismissals.get(document.folder, ()), time.time())

    def _finding_hints(self, document: Document, covered: set[str], settings: Settings) -> list[Hint]:
        fingerprints = {t.qualname: t.fingerprint for t in document.analysis.targets}
        hints = []
        for finding in document.analysis.findings:
            superseded = finding.target in covered and finding.severity == "hint"
            if superseded or finding.rule in settings.disabled_rules:
                continue
            if not self._finding_silenced(document, finding.rule, fingerprints.get(finding.target)):
                hints.append(_finding_hint(finding))
        flagged = {finding.target for finding in document.analysis.findings}
        missing = [
            t
            for t in document.analysis.targets
            if t.qualname in document.unmeasurable and t.qualname in flagged
        ]
        if NO_WORKLOAD not in settings.disabled_rules:
            hints += [
                _workload_hint(t)
                for t in missing
                if not self._finding_silenced(document, NO_WORKLOAD, t.fingerprint)
            ]
        return hints

    def _finding_silenced(self, document: Document, rule: str, fingerprint: str | None) -> bool:
        identity = Identity(folder=document.folder, path=document.path, qualname="")
        before = fingerprint or "unknown"
        offer = Offer(proposal=rule, identity=identity, before=before, after=f"{before}'", skills=(rule,))
        return self._silenced(document, offer)

    def _lens(self, uri: str, document: Document, target: Target) -> Lens:
        title, act, proposal = "▷ measure", "benchmark", None
        applied = self.proposals.get(self._applied.get(target.fingerprint, ""))
        best = self._best(document, target)
        outcome = self._outcomes.get(target.fingerprint)
        if (uri, target.qualname) in self._running:
            title, act = _progress_title(self._running[uri, target.qualname]), "cancel"
        elif best is not None:
            title, act, proposal = _available(best), "showEvidence", best.id
        elif applied is not None:
            kept = self.tracker.phase(applied.id) in IN_PLACE
            speedup = applied.evaluation.speedup
            words = "kept" if kept else "rewritten"
            title = (
                f"{words} {cards.spread(speedup)} on {cards.device(applied.evaluation)}" if speedup else words
            )
            act, proposal = "showEvidence", applied.id
        elif outcome is not None:
            title = "▷ measure again · nothing faster found"
        return Lens(span=target.span, qualname=target.qualname, title=title, act=act, proposal=proposal)

    def _evidence(self, document: Document, target: Target) -> str | None:
        best = self._best(document, target) or self.proposals.get(self._applied.get(target.fingerprint, ""))
        if best is not None:
            return cards.evidence(best)
        outcome = self._outcomes.get(target.fingerprint)
        if outcome is None:
            return None
        if outcome.note is not None:
            return f"**{target.qualname}**: nothing is offered; {outcome.note}"
        return cards.evidence(outcome.proposals[0]) if outcome.proposals else None

    def _proposal(self, proposal_id: str) -> Proposal:
        proposal = self.proposals.get(proposal_id)
        if proposal is None:
            raise StaleProposal("this rewrite is not known any more", "measure again")
        return proposal

    def _target_now(self, document: Document, qualname: str) -> Target | None:
        """On the text of this very moment, also when the debounced analysis is behind."""
        if not document.current:
            self.analyzed(document.snapshot, analysis.analyze(document.snapshot))
        return analysis.find_target(document.analysis, qualname) if document.current else None

    def _offer(self, document: Document, proposal: Proposal) -> Offer | None:
        """None for an edit that could not be seen in fingerprints, and so never be proved."""
        before, after = proposal.fingerprint, proposal.fingerprint_after
        if not after or before == after:
            return None
        speedup = proposal.evaluation.speedup
        return Offer(
            proposal=proposal.id,
            identity=Identity(folder=document.folder, path=document.path, qualname=proposal.qualname),
            before=before,
            after=after,
            skills=tuple(dict.fromkeys(step.skill for step in proposal.candidate.steps)),
            speedup=speedup.mid if speedup else None,
        )

    def _tracked_names(self, document: Document) -> set[str]:
        """Targets of this file that proposals were ever shown for."""
        names = {p.qualname for p in self.proposals.values() if self.tracker.phase(p.id) is not None}
        watched = self.tracker.watched(document.folder)
        return names | {identity.qualname for identity in watched if identity.path == document.path}

    def _look(self, document: Document, found: Analysis, how: How, *, settled: bool = True) -> list[Event]:
        now = time.time()
        fingerprints = {target.qualname: target.fingerprint for target in found.targets}
        events: list[Event] = []
        for qualname in sorted(self._tracked_names(document)):
            seen = None
            if found.problem is None:
                seen = fingerprints.get(qualname) or _fingerprint_anyway(document, qualname)
            identity = Identity(folder=document.folder, path=document.path, qualname=qualname)
            if not settled and seen is not None and not self.tracker.knows(identity, seen):
                continue
            events += self.tracker.observed(identity, seen, how, now)
        return events


def examine(snapshot: Snapshot) -> Analysis:
    """Everything known without running anything; for a thread."""
    return analysis.analyze(snapshot)


def has_workload(snapshot: Snapshot, target: Target, folder: str) -> bool:
    """Did anybody say what this target is called with? Reads the folder's recorded workloads."""
    return bool(workloads.workloads_for(snapshot, target, folder)[0])


_DEFAULTS = Settings()
_REVERIFY = "nothing was edited; it is measured again when you ask or when the editor is idle"


def _apply(text: str, target: Target, proposal: Proposal) -> str | None:
    if proposal.candidate.edit is None:
        return None
    return edit.apply_edit(text, target.span, proposal.candidate.edit)


def _fingerprint_anyway(document: Document, qualname: str) -> str:
    """Of something that is no target any more, for example because a pragma silences it."""
    return analysis.fingerprint_of(document.snapshot.text, qualname) or GONE


def _touches(span: Span, where: Span) -> bool:
    return span.start <= where.end and where.start <= span.end


def _touched(targets: Iterable[Target], where: Span) -> list[Target]:
    found = [target for target in targets if _touches(target.span, where)]
    return sorted(found, key=lambda target: target.span.end - target.span.start)


def _speed(proposal: Proposal) -> float:
    speedup = proposal.evaluation.speedup
    return speedup.mid if speedup else 0.0


def _skill(proposal: Proposal) -> str:
    return proposal.candidate.steps[0].skill if proposal.candidate.steps else "rewrite"


def _verified_hint(target: Target, best: Proposal) -> Hint:
    return Hint(
        span=target.name_span,
        code=_skill(best),
        message=f"{target.qualname}: {cards.headline(best)}: {best.candidate.summary}",
        qualname=target.qualname,
        proposal=best.id,
    )


def _finding_hint(finding: Finding) -> Hint:
    return Hint(
        span=finding.span,
        code=finding.rule,
        message=finding.message,
        qualname=finding.target,
        page=str(analysis.page(finding)),
        data=finding.data,
    )


def _workload_hint(target: Target) -> Hint:
    message = (
        f"{target.qualname} cannot be measured: nobody said what it is called with. Write "
        "`# kernel-lsp: workload x=f32[128,4096]` above it, or get_inputs() in the same file"
    )
    return Hint(span=target.name_span, code=NO_WORKLOAD, message=message, qualname=target.qualname)


def _action(target: Target, best: Proposal) -> Action:
    return Action(
        proposal=best.id,
        fingerprint=target.fingerprint,
        qualname=target.qualname,
        skill=_skill(best),
        title=cards.title(best),
        name_span=target.name_span,
    )


def _progress_title(progress: Progress | None) -> str:
    if progress is None:
        return "queued"
    if progress.total and progress.done is not None:
        return f"measuring {100 * progress.done // progress.total} %"
    return "measuring"


def _available(best: Proposal) -> str:
    speedup, baseline = best.evaluation.speedup, None
    if best.evaluation.speedups:
        baseline = min(best.evaluation.speedups, key=lambda name: best.evaluation.speedups[name].mid)
    before = cards.median_ms(best.evaluation, baseline) if baseline else None
    head = f"{cards.duration(before)} · " if before is not None else ""
    where = cards.device(best.evaluation)
    return f"{head}{cards.spread(speedup)} available on {where}" if speedup else "rewrite available"


def _dismissed_finding(
    document: Document, qualname: str, no: Dismissal, client: str | None, now: float
) -> Event:
    return Event(
        kind=EventKind.DISMISSED,
        proposal=f"finding:{no.skills[0]}",
        time=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now)),
        folder=document.folder,
        path=document.path,
        qualname=qualname,
        client=client,
        data={
            "scope": no.scope,
            "reason": no.reason,
            "fingerprint": no.fingerprint,
            "skills": list(no.skills),
        },
    )
