"""metadata.requires and metadata.recipe of a SKILL.md: read, checked, written, and compared with a
job.

    requires:                        recipe:
      device: cuda                     - skill: fused-norm
      architectures: [sm_90]             covers: [layer_norm]
      dtypes: [float32]                  parameters: {num_warps: 16}
      elements: {least: 65536, most: 16777216}

Steps with `planned: true` are none of their own: they set parameters of steps that are planned
anyway. What a learned skill asks for is data, so that a machine can say where it fits; sentences
stay in Pitfalls. Not covered: whether a recipe's sites exist in a program and what is planned
there without it (pipeline/recipes.py), what its steps prove."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kernel_lsp.records import ArgSpec, Json, RecipeStep, Requirements

Wrong: TypeAlias = Callable[[str, str, str], None]
"""Takes a problem's field, cause and remedy."""

_VERSIONS = ("torch", "triton")


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a job offers to a skill."""

    device: str
    """cuda or cpu."""
    inputs: tuple[ArgSpec, ...]
    capability: str | None = None
    """sm_90 …"""
    torch: str | None = None
    triton: str | None = None


def unmet(asked: Requirements | None, found: Surroundings) -> Iterator[str]:
    """What a job lacks, in words; nothing when the skill may be used there."""
    if asked is None:
        return
    if asked.device not in (None, found.device):
        yield f"it is for {asked.device}, this is {found.device}"
    if (
        found.device == "cuda"
        and asked.architectures
        and found.capability not in asked.architectures
    ):
        yield f"it is for {', '.join(asked.architectures)}, this is {found.capability or 'unknown'}"
    for name in _VERSIONS:
        least, have = getattr(asked, name), getattr(found, name)
        if least is not None and (have is None or _numbers(have) < _numbers(least)):
            yield f"it needs {name} {least}, this is {have or 'none'}"
    yield from _unmet_by_tensors(asked, [spec for spec in found.inputs if spec.shape is not None])


def _unmet_by_tensors(asked: Requirements, tensors: Sequence[ArgSpec]) -> Iterator[str]:
    for spec in tensors:
        if asked.dtypes and spec.dtype not in asked.dtypes:
            yield f"a tensor is {spec.dtype}, it was learned on {', '.join(asked.dtypes)}"
        if asked.layouts and layout(spec) not in asked.layouts:
            yield f"a tensor is {layout(spec)}, it was learned on {', '.join(asked.layouts)}"
        if asked.multiple and spec.shape and spec.shape[-1] % asked.multiple:
            yield (
                f"a tensor ends in {spec.shape[-1]}, it was learned on multiples of "
                f"{asked.multiple}"
            )
    largest = max(tensors, key=elements, default=None)
    for bounds, name in ((asked.ranks, "dimensions"), (asked.elements, "elements")):
        if bounds is None:
            continue
        have = (
            0
            if largest is None
            else len(largest.shape or ())
            if name == "dimensions"
            else elements(largest)
        )
        if not bounds.least <= have <= bounds.most:
            yield (
                f"the largest tensor has {have} {name}, it was learned on {bounds.least} to "
                f"{bounds.most}"
            )


def elements(spec: ArgSpec) -> int:
    """The number of elements of an argument; 1 for what has no shape."""
    return math.prod(spec.shape or ())


def layout(spec: ArgSpec) -> str:
    """contiguous, channels_last (of 4 or 5 dimensions) or strided."""
    shape, stride = spec.shape or (), spec.stride
    if stride is None or stride == _strides(shape, range(len(shape))):
        return "contiguous"
    inner_first = (0, *range(2, len(shape)), 1)
    return (
        "channels_last"
        if len(shape) in (4, 5) and stride == _strides(shape, inner_first)
        else "strided"
    )


def _strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Of dense memory in which the dimensions follow each other in ``order``, the outermost
    first."""
    strides, step = [0] * len(shape), 1
    for place in reversed(order):
        strides[place] = step
        step *= shape[place]
    return tuple(strides)


def _numbers(version: str) -> tuple[int, ...]:
    """``2.11.0+cu126`` -> (2, 11, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


# --- reading and writing ------------------------------------------------------------------
# pydantic is loaded where a skill has one of the two: no built-in one does.


def check(metadata: dict[str, Any], wrong: Wrong) -> None:
    """Everything that is wrong with ``requires`` and ``recipe``, where they are."""
    if "requires" in metadata or "recipe" in metadata:
        from kernel_lsp.skillbook import schema

        for problem in schema.problems(metadata):
            wrong(*problem)


def requirements(data: Json | None) -> Requirements | None:
    """The requirements that checked data holds; None: it holds none."""
    if data is None:
        return None
    from kernel_lsp.skillbook import schema

    return schema.requirements(data)


def recipe(data: list[Json] | None) -> tuple[RecipeStep, ...]:
    """The steps that checked data holds."""
    if data is None:
        return ()
    from kernel_lsp.skillbook import schema

    return schema.recipe(data)


def as_data(asked: Requirements | None, steps: Sequence[RecipeStep]) -> Json:
    """The two fields as they stand in the front matter, without empty parts."""
    from kernel_lsp.skillbook import schema

    return schema.as_data(asked, tuple(steps))
