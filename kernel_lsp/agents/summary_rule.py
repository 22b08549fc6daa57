"""The summary agent without a language model: the steps of a rewrite, generalized into a recipe.

What is specific goes: which node a site was, how often a pattern came in the program, exact sizes,
the user's names. What is kept: which executable skills in which order, what kind of operations
their sites covered, the parameters, and where that was measured. Two drafts come of it: the whole
order, and the parameters alone, for programs that are planned in another order. Precision and what
changes results are never part of a recipe: those are a person's choice. Not covered: whether it
helps elsewhere; that is what verification is for."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.records import (
    SEMANTIC_PARAMETERS,
    ArgSpec,
    Bounds,
    Evaluation,
    Interval,
    Json,
    RecipeStep,
    Requirements,
    SkillDraft,
    Step,
)

LEFT_OUT = (*SEMANTIC_PARAMETERS, "precision")
REACH = 16
"""Sizes may differ by this factor from what was seen: the parameters of a kernel depend on sizes
by their power of two, and beyond that verification has to show it anew."""
OF_KERNELS = "triton-"
"""How the names of the built-in skills begin that rewrite a person's own kernel: what is learned
of them is shown on kernels."""
MAX_NAMED = 2
"""Steps and operations in a name; a digest tells the rest."""
LAZY_STEPS = {
    "compile-target": "a compiler",
    "remove-dead-work": "skipped work",
    "value-range-collapse": "skipped work",
}
"""Built-in skills that are sound where they are proved and teach nothing: of these alone no recipe
is made."""
_NUMBER = re.compile(r"(_default|_tensor|_\d{1,9}){1,8}$")
_ANCHOR = re.compile(
    r"linear|(?:add|b|badd)?b?mm|matmul|einsum|conv(?:_transpose)?[123]d|\w*norm|(?:log_)?softmax|logsumexp"
    r"|sum|mean|max|min|amax|amin|argmax|argmin|cum\w+|\w*pool[123]d|\w*loss|cross_entropy|\w*attention|lstm|gru"
    r"|embedding|var|std|prod"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPlace:
    """Where a rewrite was measured."""

    device: str
    """cuda or cpu."""
    device_name: str | None
    architecture: str | None
    """sm_90 …"""
    inputs: tuple[ArgSpec, ...]
    """What entered; empty: unknown."""
    layouts: tuple[str, ...]
    """Of the tensors in ``inputs``."""
    torch: str | None = None
    triton: str | None = None
    speedup: Interval | None = None
    """Over the best baseline."""


def drafts(
    steps: Sequence[Step], seen: MeasuredPlace, before: Sequence[Step] = ()
) -> list[SkillDraft]:
    """The order of these steps as a skill, and their parameters as another. ``before``: as in
    `tune_steps`; the order is for programs where what it lacks is planned, and what is new in it
    is not."""
    found = [draft_skill(recipe, seen)] if (recipe := tuple(tune_steps(steps, before))) else []
    if not steps:
        return found
    mine, usual = {step.skill for step in steps}, {step.skill for step in before}
    asked = (sorted(usual - mine), sorted(mine - usual)) if before else ((), ())
    return [draft_skill(tuple(generalize_steps(steps)), seen, *asked), *found]


def draft(steps: Sequence[Step], seen: MeasuredPlace) -> SkillDraft | None:
    """A skill of these steps in their order; None: there is nothing to generalize."""
    recipe = tuple(generalize_steps(steps))
    return draft_skill(recipe, seen) if recipe else None


def draft_skill(
    recipe: Sequence[RecipeStep],
    seen: MeasuredPlace,
    planned: Sequence[str] = (),
    unplanned: Sequence[str] = (),
) -> SkillDraft:
    """The whole skill of one recipe, which is not empty. ``planned``, ``unplanned``: as
    `Requirements` has them."""
    named = [step.skill for step in recipe]
    operations = list(dict.fromkeys(op for step in recipe for op in step.covers))
    return SkillDraft(
        name=_name(recipe, operations, planned, unplanned),
        description=_description(recipe, operations, planned),
        scope="triton" if all(name.startswith(OF_KERNELS) for name in named) else "graph",
        tags=tuple(dict.fromkeys([*operations, *named, seen.device]))[:12],
        content=_content(recipe, seen),
        requires=replace(requirements(seen), planned=tuple(planned), unplanned=tuple(unplanned)),
        recipe=tuple(recipe),
    )


def generalize_steps(steps: Sequence[Step]) -> Iterator[RecipeStep]:
    """Steps in order; neighbors that do the same at another place of the same kind become one."""
    last: RecipeStep | None = None
    for step in steps:
        made = RecipeStep(skill=step.skill, covers=anchors(step.site), parameters=_parameters(step))
        if last is not None and (last.skill, last.covers, last.parameters) == (
            made.skill,
            made.covers,
            made.parameters,
        ):
            last = RecipeStep(
                skill=made.skill, covers=made.covers, parameters=made.parameters, every=True
            )
            continue
        if last is not None:
            yield last
        last = made
    if last is not None:
        yield last


def tune_steps(steps: Sequence[Step], before: Sequence[Step] = ()) -> Iterator[RecipeStep]:
    """Parameters per kind of site, whatever the order: those on which all of its sites agree.

    ``before``: steps that were planned there without any of this; what they had already is no news.
    """
    had = {(step.skill, step.site): step.parameters for step in before}
    kinds: dict[tuple[str, tuple[str, ...]], list[Json]] = {}
    for step in steps:
        usual = had.get((step.skill, step.site), {})
        news = {n: v for n, v in _parameters(step).items() if n not in usual or usual[n] != v}
        kinds.setdefault((step.skill, anchors(step.site)), []).append(news)
    for (skill, covers), settings in kinds.items():
        agreed = {
            n: v
            for n, v in settings[0].items()
            if all(n in other and other[n] == v for other in settings)
        }
        if agreed:
            yield RecipeStep(skill=skill, covers=covers, parameters=agreed, planned=True)


def anchors(site: str) -> tuple[str, ...]:
    """Operations of a site's label that do more than one element at a time: ``linear_1+gelu`` ->
    linear.

    What is pointwise changes from program to program, and a skill that takes one takes the others.
    """
    names = (_NUMBER.sub("", part) for part in site.split("+"))
    return tuple(dict.fromkeys(name for name in names if _ANCHOR.fullmatch(name)))


def _parameters(step: Step) -> Json:
    return {name: value for name, value in step.parameters.items() if name not in LEFT_OUT}


def requirements(seen: MeasuredPlace) -> Requirements:
    """What held there, sizes with `REACH`."""
    tensors = [spec for spec in seen.inputs if spec.shape is not None]
    sizes = [math.prod(spec.shape or ()) for spec in tensors]
    ranks = [len(spec.shape or ()) for spec in tensors if math.prod(spec.shape or ()) == max(sizes)]
    return Requirements(
        device=seen.device,
        architectures=(seen.architecture,) if seen.architecture else (),
        dtypes=tuple(sorted({spec.dtype for spec in tensors if spec.dtype})),
        layouts=tuple(sorted(set(seen.layouts))),
        ranks=Bounds(least=min(ranks), most=max(ranks)) if ranks else None,
        elements=_reach(max(sizes)) if sizes else None,
        torch=_release(seen.torch),
        triton=_release(seen.triton) if seen.device == "cuda" else None,
    )


def faults(made: SkillDraft, instead_of: Sequence[Step] = ()) -> Iterator[str]:
    """Why a recipe is no skill, whoever wrote it down. ``instead_of``: other steps that were
    suggested first where it was learned: instead of those one step alone is news."""
    lazy = [LAZY_STEPS.get(step.skill) for step in made.recipe]
    if made.recipe and None not in lazy:
        yield f"advises {lazy[0]}: its steps are {', '.join(step.skill for step in made.recipe)}"
    if len(made.recipe) == 1 and not made.recipe[0].parameters and not instead_of:
        yield f"is what the skill {made.recipe[0].skill} does by itself"


def architecture(evaluation: Evaluation) -> str | None:
    """sm_90 … of the device that judged; None on a CPU, and where it is unknown."""
    text = str(evaluation.environment.get("capability") or "")
    return f"sm_{text.replace('.', '')}" if re.fullmatch(r"\d+\.\d+", text) else None


def _reach(size: int) -> Bounds:
    exponent, margin = max(0, size - 1).bit_length(), REACH.bit_length() - 1
    return Bounds(least=2 ** max(0, exponent - 1 - margin), most=2 ** (exponent + margin))


def _release(version: str | None) -> str | None:
    found = re.match(r"\d+\.\d+", version or "")
    return found[0] if found else None


# --- words --------------------------------------------------------------------------------


def _name(
    recipe: Sequence[RecipeStep],
    operations: Sequence[str],
    planned: Sequence[str],
    unplanned: Sequence[str],
) -> str:
    """The same recipe has the same name, so that it is not learned twice."""
    entries = [
        [
            s.skill,
            list(s.covers),
            sorted(s.parameters.items()),
            s.every,
            *(["planned"] if s.planned else []),
        ]
        for s in recipe
    ]
    where = [list(planned), list(unplanned)] if planned or unplanned else []
    mark = hashlib.sha256(json.dumps(entries + where, default=str).encode()).hexdigest()[:6]
    words = ["tuned"] if recipe[0].planned else []
    words += [*dict.fromkeys(step.skill for step in recipe)][:MAX_NAMED]
    words += [operation.replace("_", "-") for operation in operations][:MAX_NAMED]
    stem = re.sub(r"-{2,}", "-", "-".join(words))[:56].strip("-")
    return f"{stem}-{mark}"


def _description(
    recipe: Sequence[RecipeStep], operations: Sequence[str], planned: Sequence[str]
) -> str:
    skills = ", then ".join(dict.fromkeys(step.skill for step in recipe))
    where = f" on {', '.join(operations)}" if operations else ""
    text = f"Apply {skills}{where}, with parameters that won before"
    if planned:
        text = f"Apply {skills}{where} instead of {' and '.join(planned)}"
    if recipe[0].planned:
        text = (
            f"Where {skills.replace(', then ', ' or ')} is planned{where}, take parameters that "
            f"won before"
        )
    return text if len(text) <= 120 else text[:117].rstrip(", ") + "..."


def _content(recipe: Sequence[RecipeStep], seen: MeasuredPlace) -> str:
    numbered = "\n".join(f"{number}. {_sentence(step)}" for number, step in enumerate(recipe, 1))
    example = "\n".join(_line(step) for step in recipe)
    return (
        f"## Motivation\n\n{_motivation(seen)}\n\n"
        f"## Key Idea\n\n{_idea(recipe)}\n\n"
        f"{numbered}\n\n"
        f"## Example\n\n```\n{example}\n```\n\n"
        "## Pitfalls\n\n"
        "- The engine proves every step at every site anew; where a proof fails, this does not "
        "apply.\n"
        f"- {_limits(seen)}\n"
        "- Parameters are a starting point: a comparison on the device may find better ones.\n"
    )


def _motivation(seen: MeasuredPlace) -> str:
    where = seen.device_name or seen.device
    speed = "was faster"
    if seen.speedup is not None:
        low, high = seen.speedup.low, seen.speedup.high
        speed = (
            f"was {seen.speedup.mid:.2f}x ({low:.2f}x to {high:.2f}x) as fast as the program was"
        )
    return f"One rewrite with these steps {speed}, measured on {where}{_tensors(seen)}."


def _tensors(seen: MeasuredPlace) -> str:
    tensors = [spec for spec in seen.inputs if spec.shape is not None]
    if not tensors:
        return ""
    largest = max(math.prod(spec.shape or ()) for spec in tensors)
    dtypes = sorted({spec.dtype for spec in tensors if spec.dtype})
    return f", {' and '.join(dtypes)} of about 2^{max(0, largest - 1).bit_length()} elements"


def _limits(seen: MeasuredPlace) -> str:
    asked = requirements(seen)
    bounds = (
        f" with {asked.elements.least} to {asked.elements.most} elements" if asked.elements else ""
    )
    dtypes = f" of {', '.join(asked.dtypes)}" if asked.dtypes else ""
    return (
        f"Learned from one program; tensors{dtypes}{bounds} alone are in scope until more was seen."
    )


def _idea(recipe: Sequence[RecipeStep]) -> str:
    if recipe[0].planned:
        return (
            "Which steps are taken, and in which order, stays as it is planned; these parameters "
            "are better."
        )
    return "The order matters, because each step works on what the one before has left."


def _sentence(step: RecipeStep) -> str:
    where = "at every site" if step.every or step.planned else "at the site that saves most"
    on = f" that covers {', '.join(step.covers)}" if step.covers else ""
    text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in step.parameters.items())
    return f"`{step.skill}` {where}{on}{f', with {text}' if text else ''}."


def _line(step: RecipeStep) -> str:
    text = " ".join(f"{name}={json.dumps(value)}" for name, value in step.parameters.items())
    how = " (every)" if step.every else " (where planned)" if step.planned else ""
    return f"{step.skill} @ {'+'.join(step.covers) or 'any'}{how} {text}".rstrip()
