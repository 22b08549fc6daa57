"""Sessions without a prompt get the one that a language model would have had: by the product's own
words.

Most sessions are planned by a rule, so nothing was asked. Where the journal has what could be
chosen (an ``asked`` event) and the program (its user keeps source), the question is written anew by
agents/prompts.py, and what was judged becomes its answer: one call of apply_skill where a single
offered site was taken, else write_rewrite with the code that was judged. Not covered: what a model
was really asked (archives.py), Triton kernels (launches.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernel_lsp import analysis, wire
from kernel_lsp.agents import feedback, prompts, sizing
from kernel_lsp.agents.tools import APPLY, WRITE
from kernel_lsp.errors import BackboneError, RewriteError
from kernel_lsp.pipeline import writing
from kernel_lsp.records import (
    Attempt,
    Candidate,
    Context,
    ModelInfo,
    Move,
    Offered,
    Program,
    Prompt,
    Proposal,
    SearchJudgement,
    SearchTask,
    Skill,
    Snapshot,
    SourceEdit,
    TargetKind,
    ToolCall,
    Workload,
)
from kernel_lsp.search import bottleneck
from kernel_lsp.search.fitness import fitness

INFO = ModelInfo(backbone="outside", model="policy", context_tokens=32_768)
"""Whose prompts are written, here and in rollouts."""


def question(
    proposal: Proposal,
    reference: str,
    offered: Offered,
    skills: Mapping[str, Skill],
    parent: Proposal | None = None,
) -> Prompt | None:
    """What leads to the proposal, from its target or from ``parent``; None: it cannot be asked (a
    kernel, a program that does not parse, no room)."""
    program = _program(reference, proposal.qualname)
    if program is None or proposal.fingerprint != offered.fingerprint:
        return None
    task = _task(program, proposal, offered, skills)
    context = Context(number=1, seed=0, move=Move.RESTART)
    start = None
    try:
        marked = writing.mark_region(program, None)
        if parent is not None:
            attempt = _attempt(parent)
            context = replace(context, move=Move.REFINE, parent=attempt, history=(attempt,))
            start = writing.mark_region(program, parent.candidate.edit)
        return prompts.policy(
            task,
            context,
            [site for site in offered.sites if site.plain or offered.triton],
            (),
            sizing.room(INFO),
            program=marked,
            start=start,
            outcome=feedback.line,
        )
    except (BackboneError, RewriteError, ValueError, SyntaxError):
        return None


def answer(candidate: Candidate, prompt: Prompt, *, fresh: bool = True) -> ToolCall | None:
    """The call that makes the candidate, valid in the prompt; None: neither its one step was
    offered nor is its code kept. ``fresh``: it starts from the target."""
    offered = {(site.skill, site.site) for site in prompt.sites}
    if fresh and len(candidate.steps) == 1:
        (step,) = candidate.steps
        if (step.skill, step.site) in offered:
            arguments = {"skill": step.skill, "site": step.site}
            return ToolCall(
                name=APPLY, arguments={**arguments, "parameters": dict(step.parameters)}
            )
    return None if candidate.edit is None else written(candidate.edit, candidate.edit.target)


def written(edit: SourceEdit, target: str) -> ToolCall | None:
    """The edit with this text of its target, as write_rewrite takes it; None: it is empty."""
    if not target.strip():
        return None
    parts = ("\n".join(edit.imports), edit.definitions.strip("\n"), target.strip("\n"))
    code = "\n\n\n".join(part for part in parts if part) + "\n"
    return ToolCall(name=WRITE, arguments={"code": code})


def offered_in(data: object) -> Offered | None:
    """What an ``asked`` event says was offered; None: another version wrote it."""
    try:
        return wire.from_json(Offered, data)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _program(reference: str, qualname: str) -> Program | None:
    snapshot = Snapshot(uri="", text=reference)
    target = analysis.find_target(analysis.analyze(snapshot), qualname)
    if target is None or target.kind is TargetKind.TRITON_KERNEL:
        return None
    return Program(source=reference, entry=qualname, kind=target.kind)


def _task(
    program: Program, proposal: Proposal, offered: Offered, skills: Mapping[str, Skill]
) -> SearchTask:
    """As `deep.task_of` makes it for a model alone, before anything was timed."""
    workload: Workload = proposal.workload
    if workload.inputs is None and offered.inputs:
        workload = replace(workload, inputs=offered.inputs)
    task = SearchTask(
        qualname=proposal.qualname,
        fingerprint=offered.fingerprint,
        program=program,
        workload=workload,
        device=offered.device,
        device_name=offered.device_name,
        triton=offered.triton,
        words=offered.words,
        sites=offered.sites,
        skills=tuple(skills[name] for name in offered.skills if name in skills),
        read_bytes=offered.read_bytes,
        written_bytes=offered.written_bytes,
    )
    return replace(task, bottleneck=bottleneck.of(task, None))


def _attempt(parent: Proposal) -> Attempt:
    return Attempt(
        number=0,
        move=Move.RESTART,
        proposer=parent.candidate.proposer,
        proposal=parent,
        complete=True,
        feedback=feedback.digest(SearchJudgement(proposal=parent)),
        fitness=fitness(parent.evaluation),
        created=parent.created,
    )
