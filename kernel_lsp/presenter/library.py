"""The skill library for a terminal and for scripts: skills and problems in, strings and rows out. Pure.

Strings end without a line break; the command that prints them adds one.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp import wire
from kernel_lsp.presenter.objects import versioned
from kernel_lsp.records import Json, Skill, SkillProblem

COLUMNS = ("skill", "scope", "kind", "version", "from", "description")


def skill_row(skill: Skill) -> tuple[str, ...]:
    """One line of the list, in the order of COLUMNS."""
    kind = "rewrites" if skill.executable else "advises"
    return (skill.name, skill.scope, kind, str(skill.version), skill.source, skill.description)


def skills_text(skills: Sequence[Skill], problems: Sequence[SkillProblem] = ()) -> str:
    """The list as aligned columns, then what was left out and why."""
    rows = [COLUMNS, *(skill_row(skill) for skill in skills)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS) - 1)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
    lines += ["", f"left out because of {_count(len(problems), 'problem')}:"] if problems else []
    return "\n".join([*lines, *map(str, problems)])


def skills_json(skills: Sequence[Skill], problems: Sequence[SkillProblem] = ()) -> str:
    """One object: every skill without its body, and the problems."""
    return versioned(skills=[_without_body(skill) for skill in skills], problems=list(problems))


def skill_text(skill: Skill) -> str:
    """One skill whole, as Markdown."""
    facts = [
        f"{skill.scope}, version {skill.version}, {skill.source}",
        "rewrites code by itself" if skill.executable else "advice in words only",
        f"tags: {', '.join(skill.tags)}",
        skill.path,
    ]
    bullets = "\n".join(f"- {fact}" for fact in facts)
    return f"# {skill.name}\n\n{skill.description}\n\n{bullets}\n\n{skill.body.rstrip()}"


def skill_json(skill: Skill) -> str:
    return versioned(skill=skill)


def lint_text(problems: Sequence[SkillProblem], *, num_skills: int) -> str:
    """One problem per line as ``file: field: cause (remedy)``, and a summary."""
    num_files = len({problem.path for problem in problems})
    found = (
        f"{_count(len(problems), 'problem')} in {_count(num_files, 'file')}" if problems else "no problems"
    )
    return "\n".join([*map(str, problems), f"{_count(num_skills, 'skill')} checked, {found}"])


def lint_json(problems: Sequence[SkillProblem], *, num_skills: int) -> str:
    return versioned(num_skills=num_skills, problems=list(problems))


def _without_body(skill: Skill) -> Json:
    return {key: value for key, value in wire.to_json(skill).items() if key != "body"}


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
