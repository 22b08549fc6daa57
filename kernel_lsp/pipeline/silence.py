"""Why nothing is offered for a target: in one line, and where skills nearly applied.

Not covered: why a step that another one replaced was refused, and what the judge said of each
candidate (agents/feedback.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernel_lsp.agents.plan import rank_sites
from kernel_lsp.errors import KernelLspError
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.records import (
    QUIET_REMEDY,
    EvalStatus,
    Evaluation,
    Explained,
    Proposal,
    Site,
    Step,
    Verdict,
)
from kernel_lsp.rewrite.client import Capture

MAX_INTERPRETED = 2**20
"""Input elements up to which a kernel is checked in Triton's interpreter, which is about 200x
slower than torch: eight trials of 8 million elements took more than two minutes on two cores."""


def too_large(capture: Capture) -> bool:
    """Whether the program is too large for Triton's interpreter."""
    return sum(math.prod(spec.shape) for spec in capture.inputs if spec.shape) > MAX_INTERPRETED


async def explain(one: Opened, proposals: Sequence[Proposal]) -> Explained:
    """Near misses, by lines of the program; nothing where there is something to offer, or where
    the machine was too busy to say."""
    late = any(proposal.evaluation.status is EvalStatus.TIMED_OUT for proposal in proposals)
    if late or any(proposal.verdict is Verdict.FASTER for proposal in proposals):
        return Explained()
    try:
        return await one.engine.explain()
    except KernelLspError:  # it explains a silence: no reason to break it
        return Explained()


async def note(one: Opened, proposals: Sequence[Proposal]) -> str | None:
    """Why nothing is offered, from proposals with the best first; None when there is something to
    offer."""
    if not proposals:
        return await _nothing_to_judge(one) if one.sites else "no skill applies to this program"
    best = proposals[0]
    if best.verdict is Verdict.FASTER:
        return None
    if best.verdict is not Verdict.CORRECT:
        return f"no rewrite passed: {best.evaluation.detail or best.evaluation.status.value}"
    if (speedup := best.evaluation.speedup) is None:
        return f"a rewrite is right, but {_untimed_reason(best.evaluation)}"
    between = f"{speedup.low:.2f}x to {speedup.high:.2f}x"
    if best.evaluation.disturbed:
        return (
            f"the best rewrite is right, and it is not sure whether it is faster on "
            f"{one.bench.device} ({between}): {best.evaluation.unsure}; {QUIET_REMEDY}"
        )
    if (compiled := best.evaluation.beaten_by_compile) is not None:
        return (
            f"the best rewrite is right and {between} vs {best.evaluation.baseline} on "
            f"{one.bench.device}, but {compiled.low:.2f}x to {compiled.high:.2f}x vs "
            "torch.compile, which is faster still"
        )
    return f"the best rewrite is right but not surely faster on {one.bench.device}: {between}"


def _untimed_reason(evaluation: Evaluation) -> str:
    """Why nothing is known of a right rewrite's speed."""
    dull = next(
        (c.detail for c in evaluation.checks if c.name == "degenerate" and c.passed is False), ""
    )
    if dull:
        return f"the program computes a constant, or nothing: {dull}"
    if evaluation.device == "cuda":
        return "it was not timed"
    return f"its speed is unknown without a GPU (judged by {evaluation.device})"


async def _nothing_to_judge(one: Opened) -> str:
    proved = rank_sites(one.sites)
    if not proved:
        unproved = (
            f"{p.claim} ({p.because})" for site in one.sites for p in site.proofs if not p.holds
        )
        return f"nothing could be proved safe to rewrite: {next(unproved)}"
    if (
        one.bench.device != "cuda"
        and too_large(one.capture)
        and not all(site.plain for site in proved)
    ):
        return (
            "a fused Triton kernel applies, but this workload is too large to check it in Triton's"
            f" interpreter (more than {MAX_INTERPRETED:,} input elements): run where there is a GPU"
        )
    return f"{proved[0].skill} applies, but could not be written: {await _refusal(one, proved[0])}"


async def _refusal(one: Opened, site: Site) -> str:
    """Of its first guess, made once more: the planner passes over what fails."""
    first = {name: choices[0] for name, choices in site.parameters.items()}
    try:
        await one.engine.make([Step(skill=site.skill, site=site.site, parameters=first)])
    except KernelLspError as error:
        return str(error)
    return "it cannot be written where it stands"
