"""What becomes of offers: who was shown what, what was chosen, kept, taken back or dismissed.

A rewrite counts as accepted when its fingerprint is seen in the text, and only then. Methods
return the events to log; the states themselves are journal/tracker.py's."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kernel_lsp import analysis
from kernel_lsp.journal.tracker import (
    CHANGED,
    GONE,
    Dismissal,
    How,
    Identity,
    Offer,
    Tracker,
    is_silenced,
    offer_of,
)
from kernel_lsp.presenter.items import Action
from kernel_lsp.records import (
    Analysis,
    Event,
    EventKind,
    Finding,
    Json,
    ProgramRewrite,
    Proposal,
    Snapshot,
    Target,
)
from kernel_lsp.session.document import Document
from kernel_lsp.session.verdicts import Verdicts


class OfferTracking(Verdicts):
    """Verdicts, and what the user did with them."""

    def __init__(self, client: str | None = None, name: str = "") -> None:
        super().__init__()
        self.tracker = Tracker(session=name, client=client)
        self._dismissals: dict[str, list[Dismissal]] = {}
        self._in_programs: set[Identity] = set()
        """Targets whose rewrites were shown as part of a whole program's."""

    # --- what becomes of offers --------------------------------------------------------------

    def offered(self, uri: str, actions: Iterable[Action]) -> list[Event]:
        """The user opened a menu with these in it."""
        document, now = self.documents[uri], time.time()
        events: list[Event] = []
        for action in actions:
            offer = self._offer(document, self.proposals[action.proposal])
            events += self.tracker.offered(offer, now) if offer else []
        return events

    def offered_in_program(
        self, folder: str, path: str, rewrites: Iterable[ProgramRewrite]
    ) -> list[Event]:
        """The user opened a menu with the edits of a program; ``rewrites``: those of this file.

        No command tells that they were chosen: seeing them in place is the proof, as it is with
        every other rewrite."""
        events: list[Event] = []
        for one in rewrites:
            identity = Identity(folder=folder, path=path, qualname=one.qualname)
            self._in_programs.add(identity)
            offer = Offer(
                proposal=one.proposal,
                identity=identity,
                before=one.before,
                after=one.after,
                skills=one.skills,
                speedup=one.speedup,
            )
            events += self.tracker.offered(offer, time.time())
        return events

    def chosen(self, uri: str, proposal_id: str) -> list[Event]:
        """The events of a user's choice of that proposal; [] where document or proposal is gone."""
        document, proposal = self.documents.get(uri), self.proposals.get(proposal_id)
        if (
            document is None
            or proposal is None
            or (offer := self._offer(document, proposal)) is None
        ):
            return []
        events = self.tracker.chosen(offer, time.time())
        return events + self.observe(uri, "change", settled=False)

    def observe(self, uri: str, how: How, *, settled: bool = True) -> list[Event]:
        """Compare the document with what was proposed: the only proof of acceptance.

        Not ``settled``: a text between two keystrokes, or between two parts of one undo (Neovim
        sends them 150 ms apart). It can prove that a rewrite is in place or gone, but not that it
        was modified."""
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
        """The file on disk is there, but not UTF-8 or not ours to read: nothing can be said about
        it."""
        for identity in self.tracker.watched(folder):
            if identity.path == path:
                self.tracker.observed(identity, None, how, time.time())

    def tick(self) -> list[Event]:
        """Choices whose proof never came."""
        return self.tracker.tick(time.time())

    def tracked_paths(self, folder: str) -> set[str]:
        """Relative paths of files with proposals whose fate is open."""
        return {identity.path for identity in self.tracker.watched(folder)}

    def dismiss(
        self,
        uri: str,
        qualname: str | None,
        code: str,
        scope: str,
        reason: str,
        fingerprint: str | None = None,
    ) -> list[Event]:
        """Silence a rule or skill for this target (scope ``proposal``) or this folder (``skill``).

        ``fingerprint``: of a finding without a target, which has no qualname.
        """
        document = self.documents[uri]
        target = analysis.find_target(document.analysis, qualname) if qualname is not None else None
        fingerprint = target.fingerprint if target else fingerprint
        best = self._best(document, target) if target else None
        offer = self._offer(document, best) if best is not None else None
        now = time.time()
        skills = offer.skills if offer and code in offer.skills and scope == "proposal" else (code,)
        no = Dismissal(
            scope=scope, reason=reason, time=now, path=document.path, fingerprint=fingerprint,
            skills=skills,
            speedup=offer.speedup if offer else None,
        )  # fmt: skip
        self._dismissals.setdefault(document.folder, []).append(no)
        if offer is not None and code in offer.skills:
            self.tracker.offered(offer, now)
            return self.tracker.dismissed(offer.proposal, scope, reason, now)
        return [_dismissed_finding(document, qualname, no, self.tracker.client, now)]

    def count_dismissals(self, folder: str) -> int:
        """Grows with what is not to be shown any more in a folder."""
        return len(self._dismissals.get(folder, ()))

    def restore(self, folder: str, dismissals: Sequence[Dismissal], tracker: Json) -> None:
        """Go on where earlier sessions in this folder ended."""
        self._dismissals[folder] = [*dismissals, *self._dismissals.get(folder, [])]
        if tracker.get("proposals"):
            mine = self.tracker.export()
            both = {**mine, "proposals": [*tracker["proposals"], *mine["proposals"]]}
            name, client = self.tracker.session, self.tracker.client
            self.tracker = Tracker.restore(both, session=name, client=client)

    # --- what may be offered -----------------------------------------------------------------

    def _best(self, document: Document, target: Target) -> Proposal | None:
        """The proposal that may be offered for a target as it is now."""
        outcome = self._outcomes.get(target.fingerprint)
        best = outcome.best if outcome is not None else None
        settings = self.settings(document.folder)
        if best is None or not best.faster(settings.threshold, may_compile=settings.torch_compile):
            return None
        offer = self._offer(document, best)
        return None if offer is None or self._silenced(document, offer) else best

    def _silenced(self, document: Document, offer: Offer) -> bool:
        return is_silenced(offer, self._dismissals.get(document.folder, ()), time.time())

    def _finding_silenced(self, document: Document, rule: str, fingerprint: str | None) -> bool:
        identity = Identity(folder=document.folder, path=document.path, qualname="")
        before = fingerprint or "unknown"
        offer = Offer(
            proposal=rule, identity=identity, before=before, after=f"{before}'", skills=(rule,)
        )
        return self._silenced(document, offer)

    def _offer(self, document: Document, proposal: Proposal) -> Offer | None:
        return offer_of(proposal, document.folder, document.path)

    def _tracked_names(self, document: Document) -> set[str]:
        """Targets of this file that proposals were ever shown for."""
        names = {
            p.qualname for p in self.proposals.values() if self.tracker.phase(p.id) is not None
        }
        shown = {one for one in self._in_programs if one.folder == document.folder}
        watched = shown.union(self.tracker.watched(document.folder))
        return names | {identity.qualname for identity in watched if identity.path == document.path}

    def _look(
        self, document: Document, found: Analysis, how: How, *, settled: bool = True
    ) -> list[Event]:
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
            made = self.tracker.observed(identity, seen, how, now)
            events += [self._with_change(event, document, found) for event in made]
        return events

    def _with_change(self, event: Event, document: Document, found: Analysis) -> Event:
        """What a person made of an accepted rewrite, where they allow to keep text and to learn."""
        settings = self.settings(document.folder)
        if event.kind is not EventKind.MODIFIED or event.data.get("by"):
            return event
        if not (settings.keep_source and settings.training):
            return event
        target = analysis.find_target(found, event.qualname or "")
        if target is None:
            return event
        text = document.snapshot.text[target.span.start : target.span.end]
        return replace(event, data={**event.data, CHANGED: text})


def fingerprint_of(document: Document, finding: Finding) -> str | None:
    """The fingerprint by which a dismissed finding is known again: its target's; without one, its
    own file and text."""
    if finding.target is None:
        text = document.snapshot.text[finding.span.start : finding.span.end]
        named = f"{document.path}\0{finding.rule}\0{text}"
        return hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()
    target = analysis.find_target(document.analysis, finding.target)
    return target.fingerprint if target is not None else None


def _fingerprint_anyway(document: Document, qualname: str) -> str:
    """Of something that is no target any more, for example because a pragma silences it."""
    return analysis.fingerprint_of(document.snapshot.text, qualname) or GONE


def _dismissed_finding(
    document: Document, qualname: str | None, no: Dismissal, client: str | None, now: float
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
