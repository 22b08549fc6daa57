"""Drafts that are turned down before anything is measured: duplicates, and constants of one task.

A recipe is a duplicate when it takes the same steps to the same kinds of sites in programs that
both are for; a text when it shares almost all of its weight of words with a skill that exists
(BM25, against the score of the draft with itself). Lazy advice is refused where drafts are made
(agents/summary.py, agents/summary_rule.py). Whether two recipes lead to the same candidates is
seen in verification."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernel_lsp import fences
from kernel_lsp.records import ArgSpec, Bounds, Skill, SkillDraft
from kernel_lsp.skillbook import Skillbook

ALIKE = 0.8
"""Share of the draft's own score. The most that two of the built-in skills reach of each other is
0.49."""
SMALL = 16
"""Numbers up to this are counts and not sizes."""
_NUMBER = re.compile(r"(?<![\w.])\d[\d_,]*(?![\w.]*\.\d)")
_COMMON = frozenset(("Model", "Net", "Module", "Block", "forward", "kernel"))


def faults(
    draft: SkillDraft, known: Sequence[Skill], inputs: Sequence[ArgSpec] = (), qualname: str = ""
) -> Iterator[str]:
    """Why it is not worth a verification. ``inputs``, ``qualname``: of the task that it was
    learned from."""
    yield from _constants(draft, inputs, qualname)
    if draft.recipe:
        same = [
            skill.name for skill in known if skill.recipe == draft.recipe and _meets(skill, draft)
        ]
        if same:
            yield f"takes the steps of {same[0]} to the same sites"
        return
    if twin := _twin(draft, known):
        yield f"says what {twin} says"


def _meets(skill: Skill, draft: SkillDraft) -> bool:
    """Whether both are for the same programs: for some at least, and instead of the same skills."""
    mine, other = draft.requires, skill.requires
    if mine is None or other is None:
        return True
    instead = (mine.planned, mine.unplanned) == (other.planned, other.unplanned)
    dtypes = not mine.dtypes or not other.dtypes or not set(mine.dtypes).isdisjoint(other.dtypes)
    return instead and dtypes and _overlap(mine.elements, other.elements)


def _overlap(mine: Bounds | None, other: Bounds | None) -> bool:
    return mine is None or other is None or (mine.least <= other.most and other.least <= mine.most)


def _twin(draft: SkillDraft, known: Sequence[Skill]) -> str | None:
    """The skill that a text repeats."""
    mine = _as_skill(draft)
    others = [skill for skill in known if skill.name != draft.name]
    book = Skillbook(skills=(mine, *others))
    asked = [draft.description, *draft.tags, draft.content]
    scores = {match.skill: match.score for match in book.select(asked, limit=8)}
    own = scores.pop(draft.name, 0.0)
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and own and scores[best] >= ALIKE * own else None


def _constants(draft: SkillDraft, inputs: Sequence[ArgSpec], qualname: str) -> Iterator[str]:
    """Yields what holds for one program only, in the text that tells a reader what to do."""
    text = f"{draft.description}\n{fences.without(_section(draft.content, 'Key Idea'))}"
    sizes = {size for spec in inputs for size in spec.shape or () if size > SMALL}
    known_names = {int(re.sub(r"\D", "", found)) for found in _NUMBER.findall(text)}
    if hit := sorted(sizes & known_names):
        yield f"names a size of its task ({hit[0]}): say what it depends on instead"
    own = qualname.split(".")[0]
    if own and own not in _COMMON and re.search(rf"\b{re.escape(own)}\b", text):
        yield f"names its task's class ({own})"


def _section(content: str, title: str) -> str:
    found = re.search(
        rf"^#+[ \t]+{title}[ \t]*$(.*?)(?=^#+[ \t]+\w|\Z)", content, re.MULTILINE | re.DOTALL
    )
    return found[1] if found else ""


def _as_skill(draft: SkillDraft) -> Skill:
    return Skill(
        name=draft.name,
        description=draft.description,
        scope=draft.scope,
        tags=draft.tags,
        version=1,
        body=draft.content,
        path="",
        executable=False,
    )
