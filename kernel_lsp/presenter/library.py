"""The skill library for a terminal and for scripts: skills and problems in, strings and rows out.
Pure.

Strings end without a line break; the command that prints them adds one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernel_lsp import wire
from kernel_lsp.presenter.objects import to_versioned_json
from kernel_lsp.presenter.plurals import count
from kernel_lsp.records import (
    ArmStats,
    Json,
    LearnedSkill,
    RecipeStep,
    Requirements,
    Skill,
    SkillProblem,
)

COLUMNS = ("skill", "scope", "kind", "version", "from", "tries", "wins", "mean gain", "description")
_KINDS = {
    "rewrites": "rewrites code by itself",
    "recipe": "a recipe of executable skills",
    "advises": "advice in words only",
}


def skill_row(skill: Skill, arms: Sequence[ArmStats] = ()) -> tuple[str, ...]:
    """One line of the list, in the order of COLUMNS. ``arms``: what searches have learned, of any
    skill."""
    kind = kind_of(skill)
    mine = [arm for arm in arms if arm.skill == skill.name]
    tries = sum(arm.tries for arm in mine)
    gain = f"{math.exp(sum(arm.gain_sum for arm in mine) / tries):.2f}x" if tries else "-"
    learned = (str(tries), str(sum(arm.wins for arm in mine)), gain)
    return (
        skill.name,
        skill.scope,
        kind,
        str(skill.version),
        skill.source,
        *learned,
        skill.description,
    )


def kind_of(skill: Skill) -> str:
    """rewrites, recipe or advises."""
    return "rewrites" if skill.executable else "recipe" if skill.recipe else "advises"


def skills_text(
    skills: Sequence[Skill], problems: Sequence[SkillProblem] = (), arms: Sequence[ArmStats] = ()
) -> str:
    """The list as aligned columns, then what was left out and why."""
    rows = [COLUMNS, *(skill_row(skill, arms) for skill in skills)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS) - 1)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    lines += ["", f"left out because of {count(len(problems), 'problem')}:"] if problems else []
    return "\n".join([*lines, *map(str, problems)])


def skills_json(
    skills: Sequence[Skill],
    problems: Sequence[SkillProblem] = (),
    arms: Sequence[ArmStats] = (),
    papers: Sequence[LearnedSkill] = (),
) -> str:
    """One object: every skill without its body and with what was learned of it, the problems, and
    the papers of learned skills and drafts."""
    entries = [{**_without_body(skill), "learned": _arm_rows(skill, arms)} for skill in skills]
    return to_versioned_json(skills=entries, problems=list(problems), papers=list(papers))


def skill_text(skill: Skill) -> str:
    """One skill whole, as Markdown."""
    facts = [
        f"{skill.scope}, version {skill.version}, {skill.source}",
        _KINDS[kind_of(skill)],
        f"tags: {', '.join(skill.tags)}",
        *_requirement_lines(skill.requires),
        *(f"step {number}: {_step(step)}" for number, step in enumerate(skill.recipe, 1)),
        skill.path,
    ]
    bullets = "\n".join(f"- {fact}" for fact in facts)
    return f"# {skill.name}\n\n{skill.description}\n\n{bullets}\n\n{skill.body.rstrip()}"


def skill_json(skill: Skill, papers: LearnedSkill | None = None) -> str:
    """The skill as versioned JSON, with its papers where it was learned."""
    return to_versioned_json(skill=skill, papers=papers)


def lint_text(problems: Sequence[SkillProblem], *, num_skills: int) -> str:
    """One problem per line as ``file: field: cause (remedy)``, and a summary."""
    num_files = len({problem.path for problem in problems})
    found = (
        f"{count(len(problems), 'problem')} in {count(num_files, 'file')}"
        if problems
        else "no problems"
    )
    return "\n".join([*map(str, problems), f"{count(num_skills, 'skill')} checked, {found}"])


def lint_json(problems: Sequence[SkillProblem], *, num_skills: int) -> str:
    """What is wrong with how many skills, as versioned JSON."""
    return to_versioned_json(num_skills=num_skills, problems=list(problems))


def _requirement_lines(found: Requirements | None) -> list[str]:
    """What a learned skill requires, in a line."""
    if found is None:
        return []
    words = [found.device, *found.architectures, *found.dtypes, *found.layouts]
    ends = (("dimensions", found.ranks), ("elements", found.elements))
    words += [f"{bounds.least} to {bounds.most} {name}" for name, bounds in ends if bounds]
    words += [f"multiples of {found.multiple}"] if found.multiple else []
    words += [
        f"{name} from {least}"
        for name, least in (("torch", found.torch), ("triton", found.triton))
        if least
    ]
    words += [f"{name} is planned" for name in found.planned]
    words += [f"{name} is not planned" for name in found.unplanned]
    text = ", ".join(word for word in words if word)
    return [f"requires: {text}"] if text else []


def _step(step: RecipeStep) -> str:
    where = f" where it covers {', '.join(step.covers)}" if step.covers else ""
    text = ", ".join(f"{name}={value}" for name, value in step.parameters.items())
    how = ", every site" if step.every else ", wherever it is planned" if step.planned else ""
    return f"{step.skill}{where}{how}{f', {text}' if text else ''}"


def _without_body(skill: Skill) -> Json:
    return {key: value for key, value in wire.to_json(skill).items() if key != "body"}


def _arm_rows(skill: Skill, arms: Sequence[ArmStats]) -> list[Json]:
    """By what limits a target, and device; ``mean_gain`` is ln(speedup), of failures 0."""
    return [
        {**wire.to_json(arm), "mean_gain": arm.mean_gain} for arm in arms if arm.skill == skill.name
    ]
