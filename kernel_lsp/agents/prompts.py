"""The questions of the three agents: which skills, which rewrite, what was learned. One call
answers each.

Formats and prohibitions follow daVinci-kernel (arXiv 2606.16497), with differences: choosing
nothing is said to be good, the policy may let the engine apply a skill, and what it reads of its
attempts is within a budget, newest and best first. The words are in wording.py, what fits in
sizing.py. Inputs are given as shapes: who cannot see how they are made cannot write for their
values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from kernel_lsp import parsing
from kernel_lsp.agents import sizing, tools, wording
from kernel_lsp.agents.sizing import ExchangeLimits, PromptPart
from kernel_lsp.agents.tools import MAX_SELECTED
from kernel_lsp.agents.wording import line, quote_text
from kernel_lsp.errors import BackboneError
from kernel_lsp.records import (
    SEMANTIC_PARAMETERS,
    ArgSpec,
    ArmStats,
    Attempt,
    Bottleneck,
    Context,
    Message,
    Move,
    Prompt,
    Role,
    Sampling,
    SearchTask,
    Site,
    Skill,
    ToolSchema,
)

SELECTION_TOKENS, SUMMARY_TOKENS = 2048, 2048
"""Of their replies at most, daVinci-kernel's summary; policy takes what the room has."""
MAX_CODE = 10_000
"""Characters of a rewrite that is written by hand."""
TITLES = (wording.REFERENCES, "# Attempts, newest and best first", "# Result of the last attempt")

DescribeOutcome = Callable[[Attempt], str]
"""One line of how an attempt went."""


def selection(
    task: SearchTask,
    room: ExchangeLimits,
    *,
    arms: Sequence[ArmStats] = (),
    seed: int | None = None,
) -> Prompt:
    """Which of the task's skills (at least one) help here; at most three, fewer where the reply is
    short.

    Raises BackboneError when nothing fits.
    """
    names = [skill.name for skill in task.skills]
    most = next(
        (
            n
            for n in range(MAX_SELECTED, 1, -1)
            if sizing.is_bounded(tools.select_skills(names, n), room)
        ),
        1,
    )
    system, end = wording.SELECTION.format(most=most), "Which help?"
    head = [_target(task), quote_text(without_inputs(task.program.source), "python"), "# Skills"]
    entries = [_entry(number, skill, task, arms) for number, skill in enumerate(task.skills, 1)]
    count, offered = len(names), (tools.select_skills(names, most),)
    while count > 1 and sizing.spare([system, *head, *entries[:count], end], offered, room) < 0:
        count -= 1  # the last one matches worst
        offered = (tools.select_skills(names[:count], most),)
    sizing.left_for([system, *head, *entries[:count], end], offered, room)
    body = _join_texts([*head, "\n".join(entries[:count]), end])
    return _prompt(system, body, offered, room, seed, tokens=SELECTION_TOKENS)


def policy(
    task: SearchTask,
    context: Context,
    sites: Sequence[Site],
    chosen: Sequence[str],
    room: ExchangeLimits,
    *,
    program: str,
    start: str | None = None,
    outcome: DescribeOutcome,
) -> Prompt:
    """The next attempt. ``program`` is the marked original, ``start`` the marked parent
    (`Workshop.marked`).

    ``sites`` are ranked, ``chosen`` are names of skills whose text is given; ``outcome`` tells an
    attempt in one line (agents/feedback.py). Raises BackboneError when not even program and tools
    fit."""
    sites = sizing.sites_that_fit(
        [site for site in sites if all(proof.holds for proof in site.proofs)], room
    )
    unread = [skill.name for skill in task.skills if skill.name not in chosen]
    offered = _policy_tools(sites, unread, start or program, room)
    system = wording.POLICY.format(
        answers="\n".join(wording.ANSWERS[tool.name] for tool in offered)
    )
    begun = _start(context, program, start)
    head = [_target(task), quote_text(program, "python"), *begun, *_places(sites)]
    groups = [
        _references(task, chosen),
        _attempts(context, outcome, context.parent.number if begun and context.parent else None),
        _results(context),
    ]
    end = _request(context)
    left = sizing.left_for([system, *head, end, *TITLES, wording.AFTER_REFERENCES], offered, room)
    kept = iter(sizing.fit_parts([part for group in groups for part in group], left))
    references, attempts, results = (
        [text for _ in group if (text := next(kept))] for group in groups
    )
    system = _join_texts(
        [
            system,
            *_title_section(TITLES[0], references),
            *[wording.AFTER_REFERENCES] * bool(references),
        ]
    )
    body = _join_texts(
        [*head, *_title_section(TITLES[1], attempts), *_title_section(TITLES[2], results), end]
    )
    return _prompt(system, body, offered, room, context.seed, sites)


def summary(
    task: SearchTask,
    first: Attempt,
    best: Attempt,
    had: Sequence[str],
    room: ExchangeLimits,
    *,
    seed: int | None = None,
) -> Prompt:
    """What was learned between a rollout's first attempt and its best. ``had``: skills that it was
    given.

    Raises BackboneError when it does not fit.
    """
    known = [skill for name in had for skill in task.skills if skill.name == name]
    given = (
        "\n".join(f"- {line(skill.name)}: {line(skill.description)}" for skill in known) or "None."
    )
    body = [_target(task), quote_text(without_inputs(task.program.source), "python")]
    body += ["# Skills that the agent had", given]
    for title, attempt in (("Its first attempt", first), ("Its best attempt", best)):
        body += [f"# {title}: lower bound of the speedup {_speedup(attempt)}", *_work(attempt)]
    body += ["What can be learned from the difference?"]
    system, offered = (
        wording.SUMMARY.format(most=tools.MAX_DRAFTED),
        (tools.update_skill_library(),),
    )
    sizing.left_for([system, *body], offered, room)
    return _prompt(system, _join_texts(body), offered, room, seed, tokens=SUMMARY_TOKENS)


def without_inputs(source: str) -> str:
    """A program without get_inputs: its inputs are given as shapes."""
    try:
        found = [n for n in parsing.parse(source).body if getattr(n, "name", None) == "get_inputs"]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    lines = source.splitlines(keepends=True)
    for node in reversed(found):
        del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines).rstrip() + "\n"


# --- parts ---------------------------------------------------------------------------------


def _target(task: SearchTask) -> str:
    where = task.device_name or task.device
    lines = [f"# Target `{task.qualname}` on {line(where)}", _workload(task)]
    traffic = [
        f"{verb} {count / 1e6:.1f} MB" for verb, count in _traffic(task) if count is not None
    ]
    limit = (
        [] if task.bottleneck is Bottleneck.UNKNOWN else [f"is limited by {task.bottleneck.value}"]
    )
    if facts := [*traffic, *limit]:
        lines.append(f"A call {', '.join(facts)}.")
    if not task.triton:
        lines.append("Triton kernels do not run on this device.")
    return "\n".join(lines)


def _traffic(task: SearchTask) -> tuple[tuple[str, int | None], ...]:
    return ("reads", task.read_bytes), ("writes", task.written_bytes)


def _workload(task: SearchTask) -> str:
    inputs = task.workload.inputs
    text = (
        "as its file makes them" if inputs is None else ", ".join(map(_argument, inputs)) or "none"
    )
    mode = {True: " In training mode.", False: " In eval mode.", None: ""}[task.workload.training]
    return line(f"Inputs: {text}.{mode}")


def _argument(spec: ArgSpec) -> str:
    name = f"{spec.name}=" if spec.name else ""
    if spec.dtype is None:
        return f"{name}{spec.value!r}"
    layout = "" if spec.stride is None else f" with strides {list(spec.stride)}"
    return f"{name}{spec.dtype}{list(spec.shape or ())}{layout}" + (
        " (gradient)" if spec.requires_grad else ""
    )


def _entry(number: int, skill: Skill, task: SearchTask, arms: Sequence[ArmStats]) -> str:
    """A skill as the selection agent sees it: everything but its body."""
    tags = ", ".join(skill.tags)
    text = f"{number}. {skill.name}: {skill.description} [{skill.scope}; {tags}]"
    known = [
        arm
        for arm in arms
        if (arm.skill, arm.bottleneck) == (skill.name, task.bottleneck)
        and arm.device.startswith(task.device)
    ]
    for arm in known[:1]:
        gain = f", mean speedup {math.exp(arm.mean_gain):.2f}x" if arm.mean_gain is not None else ""
        text += f" (tried {arm.tries} times, paid {arm.wins} times{gain})"
    return line(text)


def _places(sites: Sequence[Site]) -> list[str]:
    if not sites:
        return []
    return ["# Sites", "\n".join(_place(site) for site in sites)]


def _place(site: Site) -> str:
    saves = f" (saves about {site.benefit:.0%})" if site.benefit else ""
    searched = {
        name: values for name, values in site.parameters.items() if name not in SEMANTIC_PARAMETERS
    }
    choices = "; ".join(
        f"{name}: {' | '.join(map(json.dumps, values))}" for name, values in searched.items()
    )
    text = f"- {site.skill} at {site.site}: {site.summary}{saves}"
    return line(f"{text}. Parameters {choices}" if choices else text)


def _references(task: SearchTask, chosen: Sequence[str]) -> list[PromptPart]:
    by_name = {skill.name: skill for skill in task.skills}
    skills = [by_name[name] for name in chosen if name in by_name]
    return [
        PromptPart(
            text=reference(skill),
            short=line(f"- {skill.name}: {skill.description}"),
            rank=2 * i + 2,
        )
        for i, skill in enumerate(skills)
    ]


def reference(skill: Skill) -> str:
    """A skill's whole text, as a reference or as the answer to read_skill."""
    front = [
        "---",
        f"name: {skill.name}",
        f"description: {skill.description}",
        f"scope: {skill.scope}",
        f"tags: [{', '.join(skill.tags)}]",
        "---",
    ]
    return quote_text("\n".join([*front, skill.body]), "markdown")


def _start(context: Context, program: str, start: str | None) -> list[str]:
    """The parent, where there is one, and what it means to go on from it."""
    if start is None or start == program or context.parent is None:
        return []
    text = f"# Where you go on: attempt {context.parent.number}"
    steps = context.parent.candidate.steps if context.parent.candidate else ()
    if steps:
        text += (
            "\nNaming one of its steps again changes that step's parameters; another site is "
            "added to it."
        )
    return [text, quote_text(start, "python")]


def _attempts(context: Context, outcome: DescribeOutcome, above: int | None) -> list[PromptPart]:
    """Each once: this rollout's newest first, then the best, a contrast, and what is different.

    ``above``: number of the attempt whose code is shown already.
    """
    newest, best = list(reversed(context.history)), list(context.best)
    mixed = [one for pair in zip_longest(newest, best) for one in pair if one is not None]
    ranks = {
        one.number: rank
        for rank, one in reversed([*enumerate([*mixed, *context.contrast, *context.diverse])])
    }
    shown = {one.number: one for one in (*newest, *best, *context.contrast, *context.diverse)}
    return [
        PromptPart(
            text=_join_texts(
                [f"## {line(outcome(one))}", *_hint(one, context), *_work(one, above == number)]
            ),
            short=f"- {line(outcome(one))}",
            rank=2 * ranks[number] + 1,
        )
        for number, one in shown.items()
    ]


def _hint(attempt: Attempt, context: Context) -> list[str]:
    if attempt not in context.contrast[1:]:
        return []
    slow = context.contrast[0].number
    return [f"Of the same kind as attempt {slow}, and faster. What makes the difference?"]


def _work(attempt: Attempt, above: bool = False) -> list[str]:
    """What an attempt did: its steps and its code, unless that stands above."""
    candidate = attempt.candidate
    if candidate is None:
        return []
    steps = [
        {"skill": s.skill, "site": s.site, "parameters": s.parameters} for s in candidate.steps
    ]
    entries = [line(f"Steps: {json.dumps(steps)}")] if steps else []
    if above:
        return entries
    edit = candidate.edit
    code = (
        _join_texts([edit.definitions.strip(), edit.target])
        if edit
        else without_inputs(candidate.program)
    )
    return [*entries, quote_text(code, "python")]


def _results(context: Context) -> list[PromptPart]:
    """Of the newest attempt that was judged: a reply that was of no use has none."""
    tried = [*reversed(context.history), *([context.parent] if context.parent else [])]
    last = next((one for one in tried if one.feedback), None)
    if last is None:
        return []
    text = f"Of attempt {last.number}:"
    return [
        PromptPart(
            text=f"{text}\n{quote_text(json.dumps(last.feedback, ensure_ascii=False), 'json')}",
            rank=0,
        )
    ]


def _request(context: Context) -> str:
    if context.move is Move.REFINE and context.parent is not None:
        number = context.parent.number
        text = (
            f"Go on from attempt {number}: mend it if it was wrong, make it faster if it was right."
        )
    else:
        text = "Make a fresh start from the original."
    known = " Do not repeat an attempt." if context.history or context.best else ""
    return f"# Now\n{text}{known} One call."


def _policy_tools(
    sites: Sequence[Site], unread: Sequence[str], program: str, room: ExchangeLimits
) -> tuple[ToolSchema, ...]:
    """``unread``: names of skills whose text is not given. Raises BackboneError where the model
    could do nothing."""
    offered = [tools.apply_skill(sites)] if sites else []
    if sizing.may_write(program, room):
        offered.append(tools.write_rewrite(MAX_CODE))
    if unread and offered:
        offered.append(tools.read_skill(unread))
    if not offered:
        cause = (
            f"{room.model} has no room for a rewrite ({room.reply_tokens} tokens), and no skill "
            f"applies"
        )
        raise BackboneError(cause, "take a model with a larger context")
    return tuple(offered)


def _speedup(attempt: Attempt) -> str:
    return "unknown" if attempt.fitness is None else f"{attempt.fitness:.2f}x"


def _title_section(title: str, texts: Sequence[str]) -> list[str]:
    return [title, *texts] if texts else []


def _join_texts(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _prompt(
    system: str,
    body: str,
    offered: tuple[ToolSchema, ...],
    room: ExchangeLimits,
    seed: int | None,
    sites: tuple[Site, ...] = (),
    tokens: int | None = None,
) -> Prompt:
    """``tokens``: of the reply at most, where that is less than the room has."""
    sampling = Sampling(
        temperature=room.temperature,
        top_p=room.top_p,
        max_tokens=min(tokens or room.reply_tokens, room.reply_tokens),
        seed=seed,
        logprobs=True,
    )
    return Prompt(
        messages=(Message(role=Role.SYSTEM, text=system), Message(role=Role.USER, text=body)),
        tools=offered,
        sampling=sampling,
        sites=sites,
    )
