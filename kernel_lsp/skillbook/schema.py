"""What `requires` and `recipe` of a SKILL.md may hold, for pydantic, which is loaded with the first
skill that has one. The records are what is made of it (kernel_lsp.records.skills)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from kernel_lsp.records import Json, RecipeStep, Requirements

MAX_STEPS = 12
"""As the planner's longest chain."""
Device = Literal["cuda", "cpu"]
LayoutName = Literal["contiguous", "channels_last", "strided"]
Words = list[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}\z")]]
SkillName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\z")]
SkillVersion = Annotated[str, Field(pattern=r"^\d+(\.\d+){0,3}\z")]
Whole = Annotated[StrictInt, Field(ge=0)]

REMEDIES = {
    "requires": "indent its fields under it",
    "device": f"use one of {', '.join(get_args(Device))}",
    "architectures": "write e.g. `[sm_90]`",
    "dtypes": "write e.g. `[float32, bfloat16]`",
    "layouts": f"use {', '.join(get_args(LayoutName))}, in a list",
    "ranks": "write e.g. `{least: 2, most: 4}`",
    "elements": "write e.g. `{least: 1024, most: 65536}`",
    "multiple": "write e.g. `multiple: 16`",
    "torch": 'write e.g. `"2.6"`, in quotes',
    "triton": 'write e.g. `"3.2"`, in quotes',
    "planned": "write e.g. `[fused-matmul]`, or `planned: true` in a step",
    "unplanned": "write e.g. `[fused-matmul]`",
    "recipe": "write one `- skill: name` per step, all planned or none",
    "skill": "name a skill that can rewrite, e.g. `- skill: fused-norm`",
    "covers": "write e.g. `covers: [layer_norm]`",
    "parameters": "write e.g. `{num_warps: 8}`",
    "every": "write `every: true`, or leave it out",
}


class _SkillSchema(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _BoundsSchema(_SkillSchema):
    least: Whole
    most: Whole

    @model_validator(mode="after")
    def _in_order(self) -> _BoundsSchema:
        if self.least > self.most:
            raise ValueError("least is above most")
        return self


class _RequirementsSchema(_SkillSchema):
    device: Device | None = None
    architectures: Words = []
    dtypes: Words = []
    layouts: list[LayoutName] = []
    ranks: _BoundsSchema | None = None
    elements: _BoundsSchema | None = None
    multiple: Annotated[StrictInt, Field(ge=1)] | None = None
    torch: SkillVersion | None = None
    triton: SkillVersion | None = None
    planned: list[SkillName] = []
    unplanned: list[SkillName] = []


class _StepSchema(_SkillSchema):
    skill: SkillName
    covers: Words = []
    parameters: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = {}
    every: StrictBool = False
    planned: StrictBool = False


class _MetadataSchema(BaseModel):
    """Other fields of the metadata are checked where they are read (skillbook/format.py)."""

    requires: _RequirementsSchema = _RequirementsSchema()
    recipe: Annotated[list[_StepSchema], Field(min_length=1, max_length=MAX_STEPS)] | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> _MetadataSchema:
        if len({step.planned for step in self.recipe or ()}) > 1:
            raise ValueError("some steps are planned and some are not: write two skills")
        return self


def problems(metadata: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Field, cause and remedy of each thing that is wrong."""
    try:
        _MetadataSchema.model_validate(_with_text_keys(metadata))
    except ValidationError as error:
        seen: set[str] = set()
        for one in error.errors(include_url=False):
            # A fault within a list or bounds is one of the whole field.
            part, *rest = one["loc"] or ("recipe",)
            depth = 2 if part == "recipe" else 1
            field = f"metadata.{part}" + "".join(
                f"[{name}]" if isinstance(name, int) else f".{name}" for name in rest[:depth]
            )
            if field not in seen:
                seen.add(field)
                known = REMEDIES.get(str(rest[:depth][-1] if rest[:depth] else part))
                yield field, one["msg"], known or "remove it, or mend its name"


def _with_text_keys(data: Any) -> Any:
    """YAML 1.1 reads the key `on` as true."""
    if isinstance(data, dict):
        return {str(key): _with_text_keys(value) for key, value in data.items()}
    return [_with_text_keys(value) for value in data] if isinstance(data, list) else data


_REQUIREMENTS = TypeAdapter(Requirements)
_STEPS = TypeAdapter(tuple[RecipeStep, ...])


def requirements(data: Json) -> Requirements:
    """The requirements that checked data holds."""
    return _REQUIREMENTS.validate_python(data)


def recipe(data: list[Json]) -> tuple[RecipeStep, ...]:
    """The steps that checked data holds."""
    return _STEPS.validate_python(data)


def as_data(asked: Requirements | None, steps: tuple[RecipeStep, ...]) -> Json:
    """The two fields as they stand in the front matter, without empty parts."""
    found = {
        "requires": asked and _REQUIREMENTS.dump_python(asked, mode="json", exclude_defaults=True),
        "recipe": _STEPS.dump_python(steps, mode="json", exclude_defaults=True),
    }
    return {name: part for name, part in found.items() if part}
