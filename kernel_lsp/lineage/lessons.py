"""Accepted steps turned around: what each teaches, as a record and as a draft for the library.

The way forward is a recipe of executable skills where there is one *and* the engine makes it of
the simple form anew, with the numbers of the expert; a last recipe takes all of them in order from
the naive kernel, and is judged as a whole. Words are always there. Drafts are made of what was
measured to pay alone, and are staged as every other draft: nothing is used before `kernel-lsp
skills verify` has shown that it helps elsewhere."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

from kernel_lsp.agents import summary_rule
from kernel_lsp.agents.summary_rule import MeasuredPlace
from kernel_lsp.library import SkillLibrary
from kernel_lsp.library.store import now
from kernel_lsp.lineage import catalog, forward
from kernel_lsp.lineage.walking import LineageState, LineageWalk
from kernel_lsp.pipeline import learning
from kernel_lsp.records import (
    EvalStatus,
    Interval,
    Lesson,
    Lineage,
    LineageSkill,
    LineageStep,
    Origin,
    RecipeStep,
    Requirements,
    SkillDraft,
)
from kernel_lsp.skillbook import conditions

DIVIDES = ("masks_everywhere", "no_hints", "plain_pointers")
"""Steps whose form before relied on sizes that divide."""
MAX_DIVIDES = 16
"""What loads of 128 bits of the narrowest type need."""
PAYS = 1.02
"""Lower bound of a gain that is worth a draft."""
WHOLE = "whole"


async def learn(walk: LineageWalk, lineage: Lineage) -> Lineage:
    """The lineage with its skills, staged where they were measured to pay. Raises
    KernelLspError."""
    program, skills, steps = walk.on.prepared.program, list[LineageSkill](), list[RecipeStep]()
    texts = [lineage.text, *(step.text for step in lineage.steps)]
    for step, before, after in zip(lineage.steps, texts, texts[1:], strict=False):
        parent, child = (replace(program, source=text) for text in (before, after))
        way = await forward.forward(walk.on, step, parent, child)
        skills.append(_skill(walk, lineage, step, way, _diff(after, before)))
        steps += way.recipe
    if len(steps) > 1:
        last = LineageState(program=replace(program, source=texts[-1]))
        skills += await _whole(walk, lineage, forward.merge_steps(steps[::-1]), last)
    return replace(lineage, skills=tuple(_stage(walk, one) for one in skills))


async def _whole(
    walk: LineageWalk, lineage: Lineage, recipe: tuple[RecipeStep, ...], naive: LineageState
) -> list[LineageSkill]:
    """All recipes in order, from the naive kernel, judged against it."""
    way = await forward.apply_recipe(walk.on, recipe, naive.program)
    if way.made is None:
        return []
    expert = LineageState(program=replace(naive.program, source=way.made.program))
    found = await walk.judged(expert, naive)
    if found.status is not EvalStatus.PASSED:
        return []
    step = LineageStep(
        operator=WHOLE,
        site="",
        summary="all of these steps at once",
        proofs=way.made.proofs,
        judgement=found,
        accepted=True,
        reason="",
    )
    return [_skill(walk, lineage, step, way, _diff(naive.program.source, way.made.program))]


# --- records and drafts -------------------------------------------------------------------


def _skill(
    walk: LineageWalk, lineage: Lineage, step: LineageStep, way: forward.Forward, change: str
) -> LineageSkill:
    about = _about(step.operator)
    mark = hashlib.sha256(
        json.dumps([step.judgement.parent, step.judgement.child]).encode()
    ).hexdigest()[:6]
    return LineageSkill(
        name=f"lineage-{about.forward}-{mark}",
        operator=step.operator,
        intent=about.intent,
        anchor=about.anchor,
        carrier=about.carrier,
        requires=_requires(walk, step),
        proofs=step.proofs,
        recipe=way.recipe,
        how=way.how,
        effect=step.judgement.effect if lineage.measured else None,
        hardware=lineage.hardware,
        device_name=step.judgement.device_name,
        avoided=tuple(one for one in lineage.avoided if one.operator == step.operator),
        parent=step.judgement.parent,
        child=step.judgement.child,
        change=change,
    )


def _about(operator: str) -> catalog.Simplification:
    return catalog.FROM_NAIVE if operator == WHOLE else catalog.operator(operator)


def _requires(walk: LineageWalk, step: LineageStep) -> Requirements:
    """Types, layouts, sizes, divisibility and architecture that the launch had, for code to
    check."""
    asked = summary_rule.requirements(_measured_place(walk, step.judgement.effect))
    if step.operator not in DIVIDES:
        return asked
    ends = [spec.shape[-1] for spec in walk.on.one.capture.inputs if spec.shape]
    return replace(asked, multiple=math.gcd(*ends, MAX_DIVIDES) if ends else None)


def _measured_place(walk: LineageWalk, effect: Interval | None) -> MeasuredPlace:
    probe, inputs = walk.on.one.bench.probe, walk.on.one.capture.inputs
    return MeasuredPlace(
        device="cuda",
        device_name=probe.device,
        architecture=probe.capability if walk.on.measured else None,
        inputs=inputs,
        layouts=tuple(sorted({conditions.layout(spec) for spec in inputs if spec.shape})),
        torch=probe.torch,
        triton=probe.triton,
        speedup=effect,
    )


def _stage(walk: LineageWalk, one: LineageSkill) -> LineageSkill:
    """In the library as a draft, where it was measured to pay."""
    if one.effect is None:
        return replace(one, standing="not drafted: nothing was measured on this device")
    if one.effect.low < PAYS:
        low, high = one.effect.low, one.effect.high
        return replace(one, standing=f"not drafted: no gain is shown ({low:.2f}x to {high:.2f}x)")
    library = SkillLibrary(Path(walk.on.pipeline.settings.data_dir))
    origin = Origin(
        event="lineage",
        fingerprint=walk.on.prepared.target.fingerprint,
        qualname=walk.on.prepared.target.qualname,
        hardware=one.hardware,
        device_name=one.device_name,
        writer="lineage/1",
        speedup=one.effect,
        created=now(),
    )
    lesson = Lesson(draft=draft(one), origin=origin)
    staged = learning.stage([lesson], library, walk.on.skills, walk.on.one.capture.inputs)
    found = library.find(one.name)
    if found is None:
        return replace(one, standing="not drafted: it is known already")
    why = f": {found.papers.reason}" if found.papers.reason else ""
    return replace(one, standing=f"{(staged[0] if staged else found.papers).standing.value}{why}")


def draft(one: LineageSkill) -> SkillDraft:
    """The skill as a draft of a SKILL.md."""
    about = _about(one.operator)
    return SkillDraft(
        name=one.name,
        description=one.intent,
        scope="triton",
        tags=tuple(dict.fromkeys(["lineage", *about.tags])),
        content=_content(one, about),
        requires=one.requires,
        recipe=one.recipe,
    )


def _content(one: LineageSkill, about: catalog.Simplification) -> str:
    effect = "was not measured"
    if one.effect is not None:
        line = f"{one.effect.mid:.2f}x ({one.effect.low:.2f}x to {one.effect.high:.2f}x)"
        effect = f"made one kernel {line} as fast on {one.device_name or one.hardware}"
    facts = [f"{proof.claim}: {proof.because}" for proof in one.proofs]
    failed = [
        f"{step.summary} {step.parameters or ''}".rstrip() + f": {step.reason}"
        for step in one.avoided
    ]
    pitfalls = [*about.pitfalls, *(f"There, {fact}." for fact in facts)]
    pitfalls += [f"On the way back this was rejected: {text}." for text in failed]
    bullets = "\n".join(f"- {' '.join(text.split())[:300]}" for text in pitfalls)
    return (
        f"## Motivation\n\n{one.intent} The change {effect}.\n\n"
        f"## Key Idea\n\n{about.idea}\n\nLook for {one.anchor}. The change is held by "
        f"{one.carrier}.\n\n"
        f"## Example\n\n```diff\n{one.change[:4000].rstrip()}\n```\n\n"
        f"## Pitfalls\n\n{bullets}\n"
    )


def _diff(simple: str, expert: str) -> str:
    """Forward, without file names."""
    lines = difflib.unified_diff(simple.splitlines(), expert.splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])
