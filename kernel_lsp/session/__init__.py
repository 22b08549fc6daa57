"""What the server remembers about open documents: analyses, verdicts, dismissals, and what became
of offers.

No LSP, no processes, no disk: methods take facts and return what to show and which events to log.
Everything is answered from memory, because pygls runs cancelled requests too. A text that does not
parse keeps its last good analysis. Not covered: when to analyze or to measure (server/)."""

from __future__ import annotations

from pathlib import PurePath

from kernel_lsp import analysis, rulesets
from kernel_lsp.analysis.silence import ignoring
from kernel_lsp.config import Settings
from kernel_lsp.errors import StaleProposal
from kernel_lsp.journal.tracker import IN_PLACE, Dismissal, How
from kernel_lsp.notebooks import is_notebook
from kernel_lsp.presenter import breaks, cards, near_misses
from kernel_lsp.presenter.items import Action, Hint, Lens, TextEdit
from kernel_lsp.records import Card, Finding, Proposal, Snapshot, Span, Target
from kernel_lsp.rewrite import edit
from kernel_lsp.session import wording
from kernel_lsp.session.document import Document, examine, has_workload, shares_of, touches
from kernel_lsp.session.offer_tracking import OfferTracking, fingerprint_of
from kernel_lsp.session.verdicts import speed
from kernel_lsp.session.wording import NO_WORKLOAD, finding_hint

__all__ = [
    "NO_WORKLOAD",
    "Dismissal",
    "Document",
    "EditorSession",
    "How",
    "examine",
    "finding_hint",
    "fingerprint_of",
    "has_workload",
    "shares_of",
]

_REVERIFY = "nothing was edited; it is measured again when you ask or when the editor is idle"


class EditorSession(OfferTracking):
    """All open documents of one client, and what is shown of them."""

    # --- what is shown -----------------------------------------------------------------------

    def hints(self, uri: str) -> list[Hint]:
        """Verified rewrites first, the fastest before the others; then findings, which claim no
        speed."""
        return self.hints_of(self.documents[uri])

    def hints_of(self, document: Document) -> list[Hint]:
        """The same of a document that need not be open."""
        settings = self.settings(document.folder)
        verified: list[tuple[float, Hint]] = []
        for target in document.analysis.targets:
            best = self._best(document, target)
            if best is not None:
                verified.append((-speed(best), wording.verified_hint(target, best)))
        covered = {hint.qualname for _, hint in verified}
        shown = [hint for _, hint in sorted(verified, key=lambda pair: pair[0])]
        shown += self._break_hints(document)
        if settings.static_hints:
            shown += self._finding_hints(document, covered, settings)
        return shown[: settings.max_hints_per_file]

    def actions(self, uri: str, where: Span) -> list[Action]:
        """Verified rewrites of the targets that the selection touches; only what is already
        known."""
        document = self.documents[uri]
        found = []
        for target in document.touched(where):
            best = self._best(document, target)
            if best is not None:
                found.append(wording.action(target, best))
        return found

    def targets(self, uri: str, where: Span) -> list[Target]:
        """The targets that the selection touches, the innermost first."""
        return self.documents[uri].touched(where)

    def findings(self, uri: str, where: Span) -> list[Finding]:
        """Those that are reported."""
        document = self.documents[uri]
        rules, path = rulesets.of(self.settings(document.folder)), PurePath(document.path)
        if rules.excludes(path):
            return []
        return [
            f for f in rules.applied(document.analysis, path).findings if touches(f.span, where)
        ]

    def fixes(self, uri: str, where: Span) -> list[tuple[Finding, str, list[TextEdit]]]:
        """Findings with the title and edits of what mends them, of the text as it is."""
        document = self.documents[uri]
        if not document.current or not self.settings(document.folder).static_hints:
            return []
        found = [(f, f.data["fix"]) for f in self.findings(uri, where) if "fix" in f.data]
        return [(f, fix["title"], [TextEdit(**edit) for edit in fix["edits"]]) for f, fix in found]

    def ignores(self, uri: str, where: Span) -> list[tuple[Finding, str, list[TextEdit]]]:
        """Findings, each rule once, with title and edit of a comment that says to leave it out on
        its line."""
        document = self.documents[uri]
        if not document.current or not self.settings(document.folder).static_hints:
            return []
        found = {finding.rule: finding for finding in self.findings(uri, where)}
        made = []
        for rule, finding in found.items():
            comment = ignoring(document.snapshot.text, finding.span.start, rule)
            if comment is not None:
                place, new = comment
                edit = TextEdit(start=place, end=place, new=new)
                made.append((finding, "Ignore on this line", [edit]))
        return made

    def lenses(self, uri: str) -> list[Lens]:
        """Exactly one per target, whatever its state: text that jumps is worse than no lens."""
        document = self.documents[uri]
        return [self._lens(uri, document, target) for target in document.analysis.targets]

    def inlays(self, uri: str) -> list[tuple[Span, str]]:
        """Measured time of each target as it is, and its share of a recorded run, after its
        name."""
        document = self.documents[uri]
        found = []
        for target in document.analysis.targets:
            outcome = self._outcomes.get(target.fingerprint)
            first = outcome.proposals[0].evaluation if outcome and outcome.proposals else None
            eager = cards.median_ms(first, "eager") if first is not None else None
            said = (
                [f"{cards.duration(eager)} on {cards.device(first)}"]
                if first is not None and eager
                else []
            )
            if said := [*said, *wording.shares(document.shares, target)]:
                found.append((target.name_span, " · ".join(said)))
        return found

    def hover(self, uri: str, offset: int) -> tuple[Span, str] | None:
        """Evidence for the target whose name is at ``offset``, and its share of a recorded run;
        None unless there is any."""
        document = self.documents[uri]
        for target in document.analysis.targets:
            if target.name_span.start <= offset <= target.name_span.end:
                text = self._evidence(document, target)
                share = [
                    f"**{target.qualname}**: {s}" for s in wording.shares(document.shares, target)
                ]
                said = [*([] if text is None else [text]), *share]
                return (target.name_span, "\n\n".join(said)) if said else None
        return None

    def pictured(self, uri: str, offset: int) -> Proposal | None:
        """The proposal whose evidence is in the hover at ``offset``."""
        document = self.documents[uri]
        for target in document.analysis.targets:
            if target.name_span.start <= offset <= target.name_span.end:
                return self._proposal_of(document, target)
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
        if (
            after is None
            or analysis.fingerprint_of(after, proposal.qualname) != proposal.fingerprint_after
        ):
            raise StaleProposal(
                f"the rewrite of {proposal.qualname} does not fit this file", _REVERIFY
            )
        changes = edit.changes(text, target.span, proposal.candidate.edit)
        return document.snapshot, [TextEdit(start=c.start, end=c.end, new=c.new) for c in changes]

    # --- helpers -----------------------------------------------------------------------------

    def _break_hints(self, document: Document) -> list[Hint]:
        """Where a target that was looked at cannot be one graph, each line once."""
        found: dict[int, Hint] = {}
        for target in document.analysis.targets:
            outcome = self._outcomes.get(target.fingerprint)
            for one in outcome.breaks if outcome is not None else ():
                line = breaks.line_of(one, document.snapshot.text)
                if line is not None and line not in found:
                    found[line] = wording.break_hint(target, one, line, document.snapshot.text)
        return [found[line] for line in sorted(found)]

    def _finding_hints(
        self, document: Document, covered: set[str | None], settings: Settings
    ) -> list[Hint]:
        hints = []
        rules, path = rulesets.of(settings), PurePath(document.path)
        if rules.excludes(path):
            return []
        found = rules.applied(document.analysis, path).findings
        for finding in sorted(found, key=lambda one: -rulesets.rank(one.severity)):
            if finding.target in covered and finding.severity == "hint":
                continue  # a rewrite that is measured says more
            if not self._finding_silenced(
                document, finding.rule, fingerprint_of(document, finding)
            ):
                hints.append(wording.finding_hint(finding))
        flagged = {finding.target for finding in found}
        missing = [
            t
            for t in document.analysis.targets
            if t.qualname in document.unmeasurable and t.qualname in flagged
        ]
        if rules.reports(NO_WORKLOAD, path):
            hints += [
                wording.workload_hint(t, in_notebook=is_notebook(document.path))
                for t in missing
                if not self._finding_silenced(document, NO_WORKLOAD, t.fingerprint)
            ]
        return hints

    def _lens(self, uri: str, document: Document, target: Target) -> Lens:
        title, act, proposal = "▷ measure", "benchmark", None
        applied = self.proposals.get(self._applied.get(target.fingerprint, ""))
        best = self._best(document, target)
        outcome = self._outcomes.get(target.fingerprint)
        if (uri, target.qualname) in self._running:
            title, act = wording.progress_title(self._running[uri, target.qualname]), "cancel"
        elif best is not None:
            title, act, proposal = wording.available(best), "showEvidence", best.id
        elif applied is not None:
            kept = self.tracker.phase(applied.id) in IN_PLACE
            speedup = applied.evaluation.speedup
            words = "kept" if kept else "rewritten"
            title = (
                f"{words} {cards.spread(speedup)} on {cards.device(applied.evaluation)}"
                if speedup
                else words
            )
            act, proposal = "showEvidence", applied.id
        elif target.qualname in document.unmeasurable and not is_notebook(document.path):
            title, act = "▷ record a run to measure", "recordRun"
        elif outcome is not None:
            found = "the machine was too busy" if outcome.cut_short else "nothing faster found"
            title = f"▷ measure again · {found}"
        title = " · ".join((title, *wording.shares(document.shares, target)))
        return Lens(
            span=target.span, qualname=target.qualname, title=title, act=act, proposal=proposal
        )

    def _proposal_of(self, document: Document, target: Target) -> Proposal | None:
        return self._best(document, target) or self.proposals.get(
            self._applied.get(target.fingerprint, "")
        )

    def _evidence(self, document: Document, target: Target) -> str | None:
        best = self._proposal_of(document, target)
        outcome = self._outcomes.get(target.fingerprint)
        broken = breaks.markdown(outcome, document.snapshot.text) if outcome is not None else []
        if best is not None:
            return (
                "\n".join([cards.evidence(best), "", *broken]) if broken else cards.evidence(best)
            )
        if outcome is None:
            return None
        if outcome.note is not None:
            near = [*broken, *near_misses.markdown(outcome, document.snapshot.text)]
            said = f"**{target.qualname}**: nothing is offered; {outcome.note}"
            return "\n".join([said, "", *near]) if near else said
        return cards.evidence(outcome.proposals[0]) if outcome.proposals else None


def _apply(text: str, target: Target, proposal: Proposal) -> str | None:
    if proposal.candidate.edit is None:
        return None
    return edit.apply_edit(text, target.span, proposal.candidate.edit)
