"""The words of a session: hints, actions and lens titles, made of targets, findings and proposals.
Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_lsp import analysis
from kernel_lsp.positions import split_lines
from kernel_lsp.presenter import cards
from kernel_lsp.presenter.items import Action, Hint
from kernel_lsp.records import Break, Finding, Progress, Proposal, Span, Target
from kernel_lsp.workloads import RECORD_A_RUN

MIN_SHOWN_SHARE = 0.005
"""Of the shares that are written in numbers."""
NO_WORKLOAD = "KL000"
"""Rule id of the hint that a target cannot be measured because nobody said what it is called
with."""

BREAK = "graph-break"
"""Code of the hint that a target cannot be one graph because of a line."""


def _skill(proposal: Proposal) -> str:
    return proposal.candidate.steps[0].skill if proposal.candidate.steps else "rewrite"


def verified_hint(target: Target, best: Proposal) -> Hint:
    """The hint on a target's name that says how much faster the best rewrite is."""
    return Hint(
        span=target.name_span,
        code=_skill(best),
        message=f"{target.qualname}: {cards.headline(best)}: {best.candidate.summary}",
        qualname=target.qualname,
        proposal=best.id,
    )


def finding_hint(finding: Finding) -> Hint:
    """The hint of one finding, with the page that explains its rule."""
    return Hint(
        span=finding.span,
        code=finding.rule,
        message=finding.message,
        qualname=finding.target,
        page=str(analysis.page(finding)),
        severity=finding.severity,
        unnecessary=finding.unnecessary,
        data=finding.data,
    )


def break_hint(target: Target, one: Break, line: int, text: str) -> Hint:
    """The hint at a break of the graph. ``line``: where the break stands now, from 1."""
    before = split_lines(text)[: line - 1]
    start = sum(map(len, before))
    whole = split_lines(text)[line - 1].rstrip("\r\n")
    start += len(whole) - len(whole.lstrip())
    return Hint(
        span=Span(start=start, end=start + len(whole.strip())),
        code=BREAK,
        message=f"{target.qualname} cannot be one graph: this line {one.cause}; {one.remedy}",
        qualname=target.qualname,
    )


def workload_hint(target: Target, *, in_notebook: bool = False) -> Hint:
    """The hint that says how to make an unmeasured target measurable. A notebook is no program
    that could be recorded."""
    message = (
        f"{target.qualname} cannot be measured: nobody said what it is called with; "
        f"{'' if in_notebook else f'{RECORD_A_RUN}, or '}write "
        "`# kernel-lsp: workload x=f32[128,4096]` above it, or get_inputs() in the same "
        f"{'notebook' if in_notebook else 'file'}"
    )
    return Hint(span=target.name_span, code=NO_WORKLOAD, message=message, qualname=target.qualname)


def action(target: Target, best: Proposal) -> Action:
    """The action that puts the best rewrite into the text."""
    return Action(
        proposal=best.id,
        fingerprint=target.fingerprint,
        qualname=target.qualname,
        skill=_skill(best),
        title=cards.title(best),
        name_span=target.name_span,
    )


def progress_title(progress: Progress | None) -> str:
    """A few words on how far a job is; None: it waits."""
    if progress is None:
        return "queued"
    if progress.phase == "search":
        return f"searching: {progress.message}"
    if progress.total and progress.done is not None:
        return f"measuring {100 * progress.done // progress.total} %"
    return "measuring"


def shares(known: Mapping[str, float], target: Target) -> tuple[str, ...]:
    """``62% of the recorded time``, where a recording says so."""
    share = known.get(target.qualname)
    if share is None:
        return ()
    return (
        f"{share:.0%} of the recorded time"
        if share >= MIN_SHOWN_SHARE
        else "below 1% of the recorded time",
    )


def available(best: Proposal) -> str:
    """What a lens says of a rewrite that was measured: time now, speedup with its spread,
    device."""
    speedup, baseline = best.evaluation.speedup, best.evaluation.baseline
    before = cards.median_ms(best.evaluation, baseline) if baseline else None
    head = f"{cards.duration(before)} · " if before is not None else ""
    where = cards.device(best.evaluation)
    return f"{head}{cards.spread(speedup)} available on {where}" if speedup else "rewrite available"
