"""A lineage as Markdown: the kernel it began with, each step, its skill, and what was rejected.
Pure.

Not covered: the picture (charts.py), the page it stands on (report.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp import fences
from kernel_lsp.presenter.plurals import count
from kernel_lsp.records import Interval, Lineage, LineageSkill, LineageStep, Requirements


def markdown(lineage: Lineage) -> str:
    """The whole walk, to be read from the expert's kernel on."""
    parts = [f"# Lineage of `{lineage.qualname}`", _about(lineage), _table(lineage)]
    if lineage.skills:
        parts += ["## Skills", *(_skill(one) for one in lineage.skills)]
    if lineage.avoided:
        parts += ["## Rejected", "\n".join(f"- {_rejection(step)}" for step in lineage.avoided)]
    parts += ["## The expert's kernel", _code(lineage.text)]
    if lineage.steps:
        parts += ["## The naive kernel", _code(lineage.steps[-1].text)]
    return "\n\n".join(parts)


def brief(lineage: Lineage) -> str:
    """The lineage for a terminal: one line a step, and what became of its skill."""
    lines = [f"{lineage.qualname}, {_where(lineage)}: {_outcome(lineage)}"]
    standing = {skill.parent + skill.child: skill for skill in lineage.skills}
    for number, step in enumerate(lineage.steps, 1):
        skill = standing.get(step.judgement.parent + step.judgement.child)
        lines.append(
            f"{number:3}  {step.operator:22} {effect(step.judgement.effect):28} {step.summary}"
        )
        lines += [f"     {skill.name}: {skill.standing}"] if skill is not None else []
    lines += [f"  -  {_rejection(step)[:160]}" for step in lineage.avoided]
    return "\n".join(lines)


def effect(found: Interval | None) -> str:
    """What the expert's form gains, ``-`` where nobody knows."""
    return "-" if found is None else f"{found.mid:.2f}x ({found.low:.2f} to {found.high:.2f})"


def _about(lineage: Lineage) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in lineage.versions.items())
    called = f"`{lineage.path}`, called with `{lineage.workload}`"
    text = f"{called}, {_where(lineage)}, {versions}, {lineage.created}."
    return f"{text}\n\n{_outcome(lineage).capitalize()}.{_meaning(lineage)}"


def _where(lineage: Lineage) -> str:
    return f"on {lineage.device_name or lineage.hardware}" + (
        "" if lineage.measured else " (interpreter)"
    )


def _outcome(lineage: Lineage) -> str:
    text = f"{count(len(lineage.steps), 'step')} accepted, {len(lineage.avoided)} rejected"
    if not lineage.finished:
        return f"{text}; it was stopped, and the same command goes on"
    whole = lineage.whole.effect if lineage.whole else None
    return text + (
        f"; the naive kernel takes {effect(whole)} of the expert's time" if whole else ""
    )


def _meaning(lineage: Lineage) -> str:
    if lineage.measured:
        return (
            " Effects are ratios of times, of the simple form over the expert's, with 95 % "
            "intervals."
        )
    return (
        " **Unmeasured:** this device tells no times, so steps were accepted for being right "
        "alone, no effect"
        " is known, and nothing of this lineage can come into the library."
    )


def _table(lineage: Lineage) -> str:
    rows = ["| | simplification | operator | effect | hash |", "|---|---|---|---|---|"]
    rows.append(f"| 0 | the expert's kernel | | | `{lineage.expert}` |")
    for number, step in enumerate(lineage.steps, 1):
        text = f"{step.summary} {_numbers(step)}".strip()
        rows.append(
            f"| {number} | {_cell(text)} | {step.operator} | {effect(step.judgement.effect)} "
            f"| `{step.judgement.child}` |"
        )
    return "\n".join(rows)


def _skill(one: LineageSkill) -> str:
    facts = [f"{proof.claim}: {proof.because}" for proof in one.proofs]
    entries = [
        f"**Intent.** {one.intent}",
        f"**Anchor.** {one.anchor}",
        f"**Carrier.** {one.carrier}",
        f"**Preconditions.** {'; '.join([*_request_lines(one.requires), *facts])}",
        f"**Effect.** {effect(one.effect)} on {one.device_name or one.hardware}"
        + ("" if one.effect else ": unknown, not measured"),
        f"**Forward.** {_recipe(one)}{one.how}.",
        f"**From** `{one.child}` **to** `{one.parent}`. Library: {one.standing or 'not drafted'}.",
    ]
    entries += [f"**Avoided failure.** {_rejection(step)}" for step in one.avoided]
    bullets = "\n".join(f"- {line}" for line in entries)
    return f"### {one.name}\n\n{bullets}\n\n```diff\n{one.change}\n```"


def _request_lines(asked: Requirements) -> list[str]:
    lists = (asked.architectures, asked.dtypes, asked.layouts)
    entries = [", ".join(words) for words in lists if words]
    bounds = ((asked.ranks, "dimensions"), (asked.elements, "elements"))
    entries += [f"{b.least} to {b.most} {what}" for b, what in bounds if b is not None]
    entries += (
        [f"innermost extents that are multiples of {asked.multiple}"] if asked.multiple else []
    )
    versions = (("torch", asked.torch), ("triton", asked.triton))
    return entries + [f"{name} {version} or newer" for name, version in versions if version]


def _recipe(one: LineageSkill) -> str:
    if not one.recipe:
        return ""
    steps = [
        f"`{step.skill}`"
        + (
            f" with {', '.join(f'{k} = {v}' for k, v in step.parameters.items())}"
            if step.parameters
            else ""
        )
        for step in one.recipe
    ]
    return ", then ".join(steps) + ": "


def _rejection(step: LineageStep) -> str:
    text = f"{step.operator} {_numbers(step)}".strip()
    return f"{text} at {step.judgement.parent}: {' '.join(step.reason.split())}"


def _numbers(step: LineageStep) -> str:
    return ", ".join(f"{name} = {value}" for name, value in step.parameters.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return fences.fenced(text.rstrip(), "python")


def table_rows(lineages: Sequence[Lineage]) -> list[tuple[str, ...]]:
    """A row a step, for a table of several lineages."""
    return [
        (
            one.qualname,
            str(number),
            step.summary,
            effect(step.judgement.effect),
            _where(one).removeprefix("on "),
        )
        for one in lineages
        for number, step in enumerate(one.steps, 1)
    ]
