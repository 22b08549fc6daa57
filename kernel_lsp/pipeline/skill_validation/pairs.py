"""Numbers of one task from what was judged with the skill and without it.

Not covered: what the numbers of several tasks show (library/uplift.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from kernel_lsp.library import uplift
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.skill_validation.prompted import PromptedPair
from kernel_lsp.pipeline.skill_validation.tasks import ValidationTask
from kernel_lsp.pipeline.skill_validation.treatment import ValidationArms
from kernel_lsp.records import Attempt, Candidate, EvalStatus, TaskUplift
from kernel_lsp.skillbook import conditions

AttemptSample = Mapping[str, Attempt]
"""By the candidate's id."""


def is_whole(found: AttemptSample, arms: ValidationArms) -> bool:
    """Whether both halves of the pair are there."""
    return arms.mine.id in found and (arms.without is None or arms.without.id in found)


def gain(pairs: Sequence[AttemptSample], candidate: Candidate | None) -> float:
    """The mean gain of a candidate over the pairs; 0 for the program as it is, and in a sample that
    did not judge the candidate."""
    if candidate is None or not pairs:
        return 0.0
    return fmean(_worth(found.get(candidate.id)) for found in pairs)


def of_arms(
    task: ValidationTask, one: Opened, arms: ValidationArms, pairs: Sequence[AttemptSample]
) -> TaskUplift:
    """What the pairs of one task show: how often each arm was right and how much faster it was."""
    return TaskUplift(
        task=task.title,
        fingerprint=one.prepared.target.fingerprint,
        samples=len(pairs),
        right_with=sum(_right(found, arms.mine) for found in pairs),
        right_without=sum(_right(found, arms.without) for found in pairs),
        gain_with=gain(pairs, arms.mine),
        gain_without=gain(pairs, arms.without),
        gain_null=gain(pairs, arms.null),
        differs=arms.differs,
        elements=_elements(one),
    )


def of_text(task: ValidationTask, one: Opened, pairs: Sequence[PromptedPair]) -> TaskUplift:
    """What a model wrote without the skill's text is also what it writes without the learned
    library."""
    whole = [(pair.mine, pair.without) for pair in pairs if pair.mine and pair.without]
    without = fmean(_worth(other) for _, other in whole) if whole else 0.0
    return TaskUplift(
        task=task.title,
        fingerprint=one.prepared.target.fingerprint,
        samples=len(whole),
        right_with=sum(_has_passed(mine) for mine, _ in whole),
        right_without=sum(_has_passed(other) for _, other in whole),
        gain_with=fmean(_worth(mine) for mine, _ in whole) if whole else 0.0,
        gain_without=without,
        gain_null=without,
        differs=bool(whole),
        elements=_elements(one),
    )


def _right(found: AttemptSample, candidate: Candidate | None) -> bool:
    """The program as it is is right."""
    return candidate is None or _has_passed(found[candidate.id])


def _has_passed(attempt: Attempt) -> bool:
    return attempt.proposal is not None and attempt.proposal.evaluation.status is EvalStatus.PASSED


def _worth(attempt: Attempt | None) -> float:
    if attempt is None or attempt.proposal is None:
        return 0.0
    eager = attempt.proposal.evaluation.speedups.get("eager")
    return uplift.gain(_has_passed(attempt), eager.mid if eager else None)


def _elements(one: Opened) -> int:
    sizes = (conditions.elements(spec) for spec in one.capture.inputs if spec.shape is not None)
    return max(sizes, default=0)
