"""What is open and what is known of it: documents, settings by folder, outcomes, running jobs.

Verdicts are kept by fingerprint, so they outlive edits elsewhere in the file and closing it.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp import analysis
from kernel_lsp.config import Settings
from kernel_lsp.errors import StaleProposal
from kernel_lsp.records import (
    Analysis,
    Outcome,
    Progress,
    Proposal,
    Snapshot,
    Target,
    Verdict,
    rank,
)
from kernel_lsp.session.document import Document

MAX_OUTCOMES = 2_000
_DEFAULTS = Settings()


class Verdicts:
    """Documents of one client, and the outcomes of their targets."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self.proposals: dict[str, Proposal] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._applied: dict[str, str] = {}
        """Fingerprint after -> proposal."""
        self._running: dict[tuple[str, str], Progress | None] = {}
        self._settings: dict[str, Settings] = {}

    # --- documents ---------------------------------------------------------------------------

    def open(self, snapshot: Snapshot, folder: str, path: str) -> Document:
        """The document that the client has opened, from now on among those that are known."""
        document = Document(snapshot=snapshot, folder=folder, path=path)
        self.documents[snapshot.uri] = document
        return document

    def change(self, snapshot: Snapshot) -> None:
        """Takes the new text of an open document."""
        self.documents[snapshot.uri].snapshot = snapshot

    def close(self, uri: str) -> None:
        """Forgets the document; outcomes of its targets stay."""
        self.documents.pop(uri, None)

    def analyzed(self, snapshot: Snapshot, found: Analysis) -> bool:
        """Take an analysis. False: the document moved on or does not parse, so nothing new is
        shown."""
        document = self.documents.get(snapshot.uri)
        if document is None or document.snapshot is not snapshot or found.problem is not None:
            return False
        document.analysis, document.analyzed = found, snapshot
        return True

    def settings(self, folder: str) -> Settings:
        """The settings of the folder; defaults where it has none."""
        return self._settings.get(folder) or _DEFAULTS

    def configure(self, folder: str, settings: Settings) -> None:
        """Keeps the folder's settings."""
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
        """One rewrite of a job that is still running: offered at once, the best first."""
        earlier = self._outcomes.get(fingerprint)
        others = [p for p in earlier.proposals if p.id != proposal.id] if earlier else []
        ranked = sorted([proposal, *others], key=rank)
        self.learn(fingerprint, Outcome(qualname=proposal.qualname, proposals=tuple(ranked)))

    def merge(self, fingerprint: str, outcome: Outcome) -> Outcome:
        """Returns the outcome of a quick job with what a search has verified for the same target,
        so that a job which ends beside or after a search takes nothing away."""
        earlier = self._outcomes.get(fingerprint)
        if earlier is None or outcome.search is not None:
            return outcome
        known = {proposal.id for proposal in outcome.proposals}
        found = [
            p for p in earlier.proposals if p.candidate.search is not None and p.id not in known
        ]
        if not found:
            return outcome
        ranked = tuple(sorted([*outcome.proposals, *found], key=rank))
        offered = any(proposal.verdict is Verdict.FASTER for proposal in found)
        return replace(outcome, proposals=ranked, note=None if offered else outcome.note)

    def unlearn(self, fingerprint: str) -> None:
        """What was found does not hold any more: it can be measured now."""
        self._outcomes.pop(fingerprint, None)

    def outcome(self, fingerprint: str) -> Outcome | None:
        """What the last job found for that text of a target; None: there was none."""
        return self._outcomes.get(fingerprint)

    @property
    def device(self) -> str | None:
        """What measured last: its name, or its kind where it has none. None: nothing was measured
        yet."""
        for outcome in reversed(self._outcomes.values()):
            for proposal in outcome.proposals:
                if proposal.evaluation.device != "interpreter":
                    return proposal.evaluation.device_name or proposal.evaluation.device
        return None

    def running(self, uri: str, qualname: str, progress: Progress | None) -> None:
        """Notes how far a target's job is; None: it waits in the queue."""
        self._running[uri, qualname] = progress

    def finished(self, uri: str, qualname: str) -> None:
        """Notes that a target's job is over."""
        self._running.pop((uri, qualname), None)

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


def speed(proposal: Proposal) -> float:
    """The middle of the proposal's speedup; 0.0 where it has none, so that it comes last."""
    speedup = proposal.evaluation.speedup
    return speedup.mid if speedup else 0.0
