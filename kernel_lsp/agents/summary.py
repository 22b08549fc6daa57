"""The summary agent: what a rollout that clearly improved has taught, as drafts of skills.

Asked when the best turn beats both the first and the best baseline by a fifth (as in
daVinci-kernel, arXiv 2606.16497; ours are lower bounds). A draft has the form of a SKILL.md and
passes a filter of lazy advice: a compiler or library instead of a rewrite, skipped work, lower
precision. Nothing is admitted here: drafts are staged (pipeline/learning.py), and used by nobody
before they were verified (pipeline/skill_validation). What needs no model is summary_rule.py's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernel_lsp import fences
from kernel_lsp.agents import prompts, replies, sizing
from kernel_lsp.agents.notes import Notes
from kernel_lsp.records import (
    SKILL_SECTIONS,
    Attempt,
    Backbone,
    Cost,
    Exchange,
    Json,
    Parsed,
    Progress,
    SearchTask,
    SkillDraft,
)

BETTER = 1.2
MAX_CONTENT = 8192
"""Characters: twice the longest built-in skill, and five times what is asked for."""

_NARROW = r"(?:float16|fp16|bfloat16|bf16|half precision|tf32|fp8|int8)\b"
_LAZY = {
    "a compiler": r"\btorch\.compile\b|\btorch\.jit\b|\binductor\b|\bmax-autotune\b",
    "a library call": (
        r"\b(?:call|use|using|rely on|relies on|delegate to|fall(?:s|ing)? ?back to|leave it "
        r"to|keep)\b"
        r"[^.\n]{0,40}\b(?:cublas\w*|cudnn|cutlass|flash_attn|xformers|aten|eager|pytorch'?s?|library|vendor)\b"
        r"|\bavoid(?:ing)?\b[^.\n]{0,20}\b(?:custom|own|triton|writing)\b[^.\n]{0,20}\bkernels?\b"
    ),
    "skipped work": (
        r"\b(?:skip|omit|bypass|elide)(?:s|ping|ting|ing)?\b[^.\n]{0,40}"
        r"\b(?:computation|work|operations?|forward|checks?|reduction|kernel|steps?)\b"
        r"|\b(?:cache|reuse|memoi[sz]e|return)\b[^.\n]{0,40}\b(?:previous|constant|cached|last|earlier)\b"
        r"[^.\n]{0,20}\b(?:results?|outputs?|calls?)\b"
    ),
    "lower precision": (
        r"\b(?:lower|reduce|drop|relax)(?:s|ing)?\b[^.\n]{0,30}\bprecision\b|\ballow_tf32\b"
        r"|\b(?:cast|downcast|convert|switch|comput|accumulat)(?:e|es|s|ing)?(?:\s+\w+){0,4}?"
        rf"\s+(?:to|in|into|as)\s+{_NARROW}|\b(?:us|enabl)(?:e|es|ing)\s+(?:the\s+)?{_NARROW}"
    ),
}
_PATTERNS = {what: re.compile(pattern, re.IGNORECASE) for what, pattern in _LAZY.items()}
_DENIED = re.compile(
    r"\b(?:no|not|never|without|instead of|rather than|do not|cannot)\b|n't\b|\bfaster than\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_HEADING = re.compile(r"^#{1,2}[ \t]+(\S.*)$", re.MULTILINE)


def trigger(attempts: Sequence[Attempt]) -> tuple[Attempt, Attempt] | None:
    """(first, best) of a rollout that is worth a summary. ``attempts``: its own, in any order."""
    turns = sorted(attempts, key=lambda one: one.turn)
    right = [one for one in turns if one.fitness is not None]
    if not right or right[0] is not turns[0]:
        return None
    first, best = turns[0], max(right, key=lambda one: one.fitness or 0.0)
    bar = BETTER * max(1.0, first.fitness or 0.0)
    return (first, best) if (best.fitness or 0.0) >= bar else None


async def distill(
    backbone: Backbone,
    task: SearchTask,
    first: Attempt,
    best: Attempt,
    had: Sequence[str],
    seed: int,
) -> tuple[tuple[SkillDraft, ...], Exchange, Cost]:
    """At most two drafts of skills that a model makes of what made the difference; the exchange's
    problems name those that were turned down, and why.

    ``had``: skills that the rollout was given. Raises BackboneError, also when the context is too
    small."""
    room = sizing.room(await backbone.open(_ignore_progress))
    prompt = prompts.summary(task, first, best, had, room, seed=seed)
    reply = await backbone.reply(prompt)
    parsed = replies.parse(reply, prompt.tools)
    note = Notes(problems=list(parsed.problems))
    known = {skill.name for skill in task.skills} | set(had)
    drafts = tuple(_drafts(parsed, known, note))
    parsed = replace(parsed, problems=tuple(note.problems))
    exchange = Exchange(agent="summary", prompt=prompt, reply=reply, parsed=parsed)
    return drafts, exchange, sizing.cost(prompt, reply)


def _drafts(parsed: Parsed, known: set[str], note: Notes) -> Iterator[SkillDraft]:
    for call in parsed.calls:
        for number, skill in enumerate(call.arguments["new_skills"]):
            where = f"{call.name}.new_skills[{number}]"
            draft = _draft(skill)
            wrong = next(faults(draft, known), None)
            if wrong is None:
                known.add(draft.name)
                yield draft
            else:
                note(where, wrong, "was turned down")


def _draft(skill: Json) -> SkillDraft:
    tags = (re.sub(r"[-_]{2,}", "-", tag).strip("-_") for tag in skill["tags"])
    return SkillDraft(
        name=re.sub(r"-{2,}", "-", skill["name"]).strip("-"),
        description=skill["description"].strip(),
        scope=skill["scope"],
        tags=tuple(dict.fromkeys(tag for tag in tags if tag)),
        content=skill["content"].strip() + "\n",
    )


def faults(draft: SkillDraft, known: set[str]) -> Iterator[str]:
    """Why a draft is no skill."""
    if len(draft.name) < 3 or not draft.tags or not draft.description:
        yield "has no name, description or tags"
    if draft.name in known:
        yield f"is called {draft.name}, as another skill is"
    if len(draft.content) > MAX_CONTENT:
        yield f"is {len(draft.content)} characters long, and {MAX_CONTENT} is the most"
    sections = _sections(draft.content)
    if [title for title, _ in sections if title in SKILL_SECTIONS] != list(SKILL_SECTIONS):
        yield f"does not have the sections {', '.join(SKILL_SECTIONS)}, each once and in this order"
        return
    texts = dict(sections)
    if empty := [title for title in SKILL_SECTIONS if not texts[title].strip()]:
        yield f"has an empty section {empty[0]}"
    if not any(fences.blocks(texts["Example"])):
        yield "has an example without a code block"
    advice = f"{draft.description}\n{fences.without(texts['Key Idea'])}"
    if lazy := lazy_advice(advice):
        yield f"advises {lazy}"


def lazy_advice(text: str) -> str | None:
    """What a text advises that is no optimization; a sentence that denies it does not count."""
    for sentence in _SENTENCE.split(text):
        for what, pattern in _PATTERNS.items():
            found = pattern.search(sentence)
            if found and not _DENIED.search(sentence[: found.end()]):
                return what
    return None


def _sections(content: str) -> list[tuple[str, str]]:
    """(title, text) per heading outside of code blocks."""
    heads = list(_HEADING.finditer(fences.mask_blocks(content)))
    ends = [head.start() for head in heads[1:]] + [len(content)]
    return [
        (head[1].strip(" \t#"), content[head.end() : end])
        for head, end in zip(heads, ends, strict=True)
    ]


def _ignore_progress(progress: Progress) -> None:
    """It is open already: there is nothing to report."""
