"""Whether a learned skill helps: what is suggested first with it and without it, on other tasks
than its own.

tasks.py         the files, models and Triton kernels that a skill is shown on
treatment.py     first candidates for one task: with the skill, without it, with nothing learned
trials.py        each candidate judged once per sample and kept, so that a killed run goes on
prompted.py      the same for a skill that is text: what a model writes with it and without it
pairs.py         numbers of one task from what was judged
verification.py  one verification from its first task to its verdict
"""

from kernel_lsp.pipeline.skill_validation.tasks import targets, tasks_of, workspace_targets
from kernel_lsp.pipeline.skill_validation.verification import Validating, VerificationRequest

__all__ = ["Validating", "VerificationRequest", "targets", "tasks_of", "workspace_targets"]
