"""The way forward from a simple form: which executable skill makes the expert's again, with which
numbers.

Nothing is believed: the engine opens the simple form, and only what it makes there is a recipe.
Not covered: what the recipe becomes (lessons.py)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_lsp.errors import CaptureError, RewriteError
from kernel_lsp.lineage.environment import Setup
from kernel_lsp.pipeline import recipes
from kernel_lsp.records import Candidate, Json, LineageStep, Program, RecipeStep, Step
from kernel_lsp.rewrite.kernels.source import KernelSource, find_assignments, find_calls

INVERSE = {
    "one_tile_per_program": "triton-persistent",
    "plain_pointers": "triton-descriptors",
    "no_grouped_order": "triton-grouped-order",
    "no_split": "triton-split-k",
    "masks_everywhere": "triton-unmasked",
    "loads_where_used": "triton-hoisted-loads",
    "two_passes": "triton-online",
    "plain_exponentials": "triton-exp2",
    "no_hints": "triton-hints",
    "no_eviction": "triton-eviction",
    "exact_products": "triton-dot-precision",
    "plain_loops": "triton-loop-stages",
    "one_stage": "triton-launch-options",
    "smaller_tile": "triton-block-size",
    "fewer_warps": "triton-launch-options",
}
"""Operator -> the executable skill that goes the other way. One that is not installed makes no
recipe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """The way back to the expert's form, as the engine could make it."""

    recipe: tuple[RecipeStep, ...] = ()
    how: str
    made: Candidate | None = None


async def forward(on: Setup, step: LineageStep, parent: Program, child: Program) -> Forward:
    """Whether a skill leads from ``child`` back to ``parent``, which one accepted step made simpler.
    Raises EvaluationError when the engine is lost."""
    name = INVERSE.get(step.operator)
    if name is None:
        return Forward(how="no executable skill goes this way; the words and the example say how")
    wanted = RecipeStep(
        skill=name, parameters=numbers(step.operator, _source(parent), _source(child))
    )
    way = await apply_recipe(on, (wanted,), child)
    if way.made is None:
        return way
    if way.made.program == parent.source:
        return replace(way, how=f"{name} gives the expert's text back, character for character")
    return replace(way, how=f"{way.how}, in a form of its own: the effect is that of the expert's")


async def apply_recipe(on: Setup, recipe: tuple[RecipeStep, ...], simple: Program) -> Forward:
    """Whether the engine makes it of the simple form, with these numbers."""
    names = ", ".join(dict.fromkeys(step.skill for step in recipe))
    engine, known = on.one.engine, {skill.name: skill for skill in on.skills.skills}
    if missing := [step.skill for step in recipe if step.skill not in known]:
        return Forward(how=f"{missing[0]} is not installed")
    opened = [skill for skill in known.values() if skill.executable and skill.scope == "triton"]
    try:
        capture = await engine.open(simple, on.prepared.workload, "cuda", opened)
        placed = await recipes.place(recipe, capture.sites, engine.look, triton=True)
        if placed is None:
            return Forward(how=f"{names} finds no place in the simple form")
        if other := _other_numbers(recipe, placed.steps):
            return Forward(how=f"{names} has a place there, but does not offer {other}")
        made = await engine.make(placed.steps)
    except (CaptureError, RewriteError) as error:
        return Forward(how=f"{names} could not be applied to the simple form: {error.cause}")
    return Forward(
        recipe=recipe, how=f"{names} was applied to the simple form by the engine", made=made
    )


def _other_numbers(recipe: Sequence[RecipeStep], steps: Sequence[Step]) -> str:
    """Parameters that a place does not offer, in words."""
    pairs = zip(recipe, steps, strict=False)
    missing = [
        f"{name} = {value}"
        for wanted, step in pairs
        for name, value in wanted.parameters.items()
        if step.parameters.get(name) != value
    ]
    return ", ".join(missing)


def merge_steps(steps: Sequence[RecipeStep]) -> tuple[RecipeStep, ...]:
    """Each skill once, at its first place: another step of it at one site would only change its
    numbers."""
    found: dict[str, RecipeStep] = {}
    for step in steps:
        had = found.get(step.skill, RecipeStep(skill=step.skill))
        found[step.skill] = replace(had, parameters={**had.parameters, **step.parameters})
    return tuple(found.values())


def numbers(operator: str, parent: KernelSource, child: KernelSource) -> Json:
    """Parameters with which the inverse skill gives the parent's form."""
    if operator == "exact_products":
        return {"precision": "tf32x3"}
    if operator == "no_grouped_order":
        calls = [
            c for c in find_calls(parent.function(parent.kernel), "swizzle2d") if len(c.args) == 5
        ]
        group = calls[0].args[4] if calls else None
        return {"group": group.value} if isinstance(group, ast.Constant) else {}
    if operator == "plain_loops":
        said = [k.value for node in ast.walk(parent.function(parent.kernel)) for k in _stages(node)]
        return {"num_stages": said[0].value} if said and isinstance(said[0], ast.Constant) else {}
    if operator in ("one_stage", "fewer_warps", "smaller_tile"):
        before, after = _given_numbers(parent), _given_numbers(child)
        return {name: value for name, value in before.items() if after.get(name) != value}
    return {}


def _stages(node: ast.AST) -> list[ast.keyword]:
    """What a loop's range says of stages."""
    return [k for k in node.keywords if k.arg == "num_stages"] if isinstance(node, ast.Call) else []


def _given_numbers(source: KernelSource) -> dict[str, int]:
    """Whole numbers by keyword at the launch, also by a name of the launcher that has one."""
    found, launcher = {}, source.function(source.launcher)
    for keyword in (k for launch in source.launches() for k in launch.call.keywords):
        value = keyword.value
        said = find_assignments(launcher, value.id) if isinstance(value, ast.Name) else []
        value = said[0].value if len(said) == 1 else value
        if keyword.arg and isinstance(value, ast.Constant) and type(value.value) is int:
            found[keyword.arg] = value.value
    return found


def _source(program: Program) -> KernelSource:
    return KernelSource.parse(
        program.source, str(program.kernel), program.launcher or program.entry
    )
