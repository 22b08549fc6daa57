"""The learned part of the skill library: drafts, versioned snapshots, and what became of every
skill.

store.py      drafts and snapshots on disk: atomic, append-only, any number of processes
uplift.py     what a verification's pairs show: bounds of the uplift, credit, the verdict
admission.py  drafts that are turned down unmeasured: duplicates, constants of one task
usage.py      how verified skills do at work, per hardware, and which of them has stopped helping

Not covered: where drafts come from (agents/), how pairs are judged (pipeline/skill_validation).
"""

from kernel_lsp.library.store import SkillLibrary

__all__ = ["SkillLibrary"]
