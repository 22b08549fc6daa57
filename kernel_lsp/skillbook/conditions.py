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

from kernel_lsp.records import ArgSpec, Bounds, Json, RecipeStep, Requirements

Wrong: TypeAlias = Callable[[str, str, str], None]
"""Takes a problem's field, cause and remedy."""

DEVICES = ("cuda", "cpu")
LAYOUTS = ("contiguous", "channels_last", "strided")
MAX_STEPS = 12
"""As the planner's longest chain."""
STEP_KEYS = ("skill", "covers", "parameters", "every", "planned")
_WORDS = ("architectures", "dtypes", "layouts")
_SKILLS = ("planned", "unplanned")
_BOUNDS = ("ranks", "elements")
_VERSIONS = ("torch", "triton")
REQUIREMENT_KEYS = ("device", *_WORDS, *_BOUNDS, "multiple", *_VERSIONS, *_SKILLS)
_WORD = re.compile(r"[a-z0-9_]{1,40}")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSION = re.compile(r"\d+(\.\d+){0,3}")
_PLAIN = (str, int, float, bool)


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


# --- reading ------------------------------------------------------------------------------


def check(metadata: dict[str, Any], wrong: Wrong) -> None:
    """Everything that is wrong with ``requires`` and ``recipe``, where they are."""
    if "requires" in metadata:
        _check_requires(metadata["requires"], wrong)
    if "recipe" in metadata:
        _check_recipe(metadata["recipe"], wrong)


def requirements(data: dict[str, Any] | None) -> Requirements | None:
    """Of checked data."""
    if data is None:
        return None
    found: dict[str, Any] = {name: data[name] for name in ("device", "multiple") if name in data}
    found |= {name: tuple(data[name]) for name in (*_WORDS, *_SKILLS) if name in data}
    found |= {name: Bounds(**data[name]) for name in _BOUNDS if name in data}
    found |= {name: str(data[name]) for name in _VERSIONS if name in data}
    return Requirements(**found)


def recipe(data: Sequence[dict[str, Any]] | None) -> tuple[RecipeStep, ...]:
    """Of checked data."""
    return tuple(
        RecipeStep(
            skill=step["skill"],
            covers=tuple(step.get("covers", ())),
            parameters=dict(step.get("parameters", {})),
            every=step.get("every", False),
            planned=step.get("planned", False),
        )
        for step in data or ()
    )


def _check_requires(data: Any, wrong: Wrong) -> None:
    if not isinstance(data, dict):
        wrong(
            "metadata.requires", "holds no fields", f"indent {', '.join(REQUIREMENT_KEYS)} under it"
        )
        return
    for key in data:
        if key not in REQUIREMENT_KEYS:
            remedy = f"remove it; known fields are {', '.join(REQUIREMENT_KEYS)}"
            wrong(f"metadata.requires.{key}", "unknown field", remedy)
    if data.get("device", DEVICES[0]) not in DEVICES:
        wrong("metadata.requires.device", "no device", f"use one of {', '.join(DEVICES)}")
    for name in _WORDS:
        if name in data and not _are_words(data[name]):
            wrong(
                f"metadata.requires.{name}", "no list of words", "write e.g. `[float32, bfloat16]`"
            )
    if (
        "layouts" in data
        and _are_words(data["layouts"])
        and not set(data["layouts"]) <= set(LAYOUTS)
    ):
        wrong("metadata.requires.layouts", "an unknown layout", f"use {', '.join(LAYOUTS)}")
    for name in _SKILLS:
        if name in data and not _are_names(data[name]):
            wrong(f"metadata.requires.{name}", "no list of skills", "write e.g. `[fused-matmul]`")
    _check_numbers(data, wrong)


def _check_numbers(data: dict[str, Any], wrong: Wrong) -> None:
    """Sizes and versions."""
    for name in _BOUNDS:
        if name in data and not _are_bounds(data[name]):
            wrong(
                f"metadata.requires.{name}", "no bounds", "write e.g. `{least: 1024, most: 65536}`"
            )
    if "multiple" in data and not (type(data["multiple"]) is int and data["multiple"] > 0):
        wrong("metadata.requires.multiple", "no whole number above 0", "write e.g. `multiple: 16`")
    for name in _VERSIONS:
        if name in data and not (isinstance(data[name], str) and _VERSION.fullmatch(data[name])):
            wrong(f"metadata.requires.{name}", "no version", 'write e.g. `"2.6"`, in quotes')


def _check_recipe(data: Any, wrong: Wrong) -> None:
    if not isinstance(data, list) or not 1 <= len(data) <= MAX_STEPS:
        wrong(
            "metadata.recipe",
            f"no list of 1 to {MAX_STEPS} steps",
            "write one `- skill: name` per step",
        )
        return
    for number, step in enumerate(data):
        where = f"metadata.recipe[{number}]"
        if not isinstance(step, dict) or not isinstance(step.get("skill"), str):
            wrong(where, "names no skill", "write `- skill: fused-norm`")
            continue
        _check_step(step, where, wrong)
    kinds = {bool(step.get("planned")) for step in data if isinstance(step, dict)}
    if len(kinds) > 1:
        wrong("metadata.recipe", "some steps are planned and some are not", "write two skills")


def _check_step(step: dict[str, Any], where: str, wrong: Wrong) -> None:
    if not _NAME.fullmatch(step["skill"]):
        wrong(
            f"{where}.skill",
            f"{step['skill']!r} is no skill's name",
            "use a skill that can rewrite",
        )
    for key in step:
        if key not in STEP_KEYS:
            wrong(
                f"{where}.{key}",
                "unknown field",
                f"remove it; known fields are {', '.join(STEP_KEYS)}",
            )
    if "covers" in step and not _are_words(step["covers"]):
        wrong(f"{where}.covers", "no list of operations", "write e.g. `covers: [layer_norm]`")
    if not _are_parameters(step.get("parameters", {})):
        wrong(f"{where}.parameters", "no names with plain values", "write e.g. `{num_warps: 8}`")
    for name in ("every", "planned"):
        if not isinstance(step.get(name, False), bool):
            wrong(
                f"{where}.{name}",
                "neither true nor false",
                f"write `{name}: true`, or leave it out",
            )


def _are_words(data: Any) -> bool:
    return isinstance(data, list) and all(
        isinstance(one, str) and _WORD.fullmatch(one) for one in data
    )


def _are_names(data: Any) -> bool:
    return isinstance(data, list) and all(
        isinstance(one, str) and _NAME.fullmatch(one) for one in data
    )


def _are_bounds(data: Any) -> bool:
    if not isinstance(data, dict) or set(data) != {"least", "most"}:
        return False
    whole = all(type(data[end]) is int and data[end] >= 0 for end in ("least", "most"))
    return whole and bool(data["least"] <= data["most"])


def _are_parameters(data: Any) -> bool:
    return isinstance(data, dict) and all(
        isinstance(name, str) and isinstance(value, _PLAIN) for name, value in data.items()
    )


# --- writing ------------------------------------------------------------------------------


def as_data(asked: Requirements | None, steps: Sequence[RecipeStep]) -> Json:
    """The two fields as they stand in the front matter, without empty parts."""
    found: Json = {}
    if asked is not None and (required := _requirements_json(asked)):
        found["requires"] = required
    if steps:
        found["recipe"] = [_step(step) for step in steps]
    return found


def _requirements_json(asked: Requirements) -> Json:
    record: Json = {"device": asked.device} if asked.device else {}
    record |= {name: list(getattr(asked, name)) for name in _WORDS if getattr(asked, name)}
    ends = {name: getattr(asked, name) for name in _BOUNDS if getattr(asked, name) is not None}
    record |= {name: {"least": bounds.least, "most": bounds.most} for name, bounds in ends.items()}
    record |= {"multiple": asked.multiple} if asked.multiple else {}
    record |= {name: list(getattr(asked, name)) for name in _SKILLS if getattr(asked, name)}
    return record | {name: getattr(asked, name) for name in _VERSIONS if getattr(asked, name)}


def _step(step: RecipeStep) -> Json:
    record: Json = {"skill": step.skill}
    record |= {"covers": list(step.covers)} if step.covers else {}
    record |= {"parameters": dict(step.parameters)} if step.parameters else {}
    record |= {"every": True} if step.every else {}
    return record | ({"planned": True} if step.planned else {})
