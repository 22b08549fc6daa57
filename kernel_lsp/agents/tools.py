"""The five calls that a language model can make, as JSON Schemas that decoding can be held to.

A schema is made for one prompt: it lists the skills, sites and choices of that prompt, so what
fits it names nothing that does not exist. The dialect is what xgrammar 0.2.8 keeps: enum, const,
anyOf, arrays with bounds, patterns of one bounded class, closed objects whose keys are all
required. maxLength is not in it: with it raw control characters get into strings (16 of 32 replies
were no JSON), and a pattern of more than 128 repeats is refused. So source text is unbounded, and
only the limit of tokens ends it. Not covered: reading a reply (replies.py) and what a call does
(the workshop, selection.py, summary.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from kernel_lsp.records import SEMANTIC_PARAMETERS, SKILL_SCOPES, Json, Site, ToolSchema

SELECT, READ, APPLY, WRITE, UPDATE = (
    "select_skills",
    "read_skill",
    "apply_skill",
    "write_rewrite",
    "update_skill_library",
)
MAX_SELECTED, MAX_DRAFTED = 3, 2
"""As in daVinci-kernel (arXiv 2606.16497): its selection and summary agents have these limits."""
TEXT_LIMIT = 128
"""Characters of a thought or a reason: the largest repeat that the grammar compiles."""

_PLAIN = r"[ !#-\[\]-~]"  # printable ASCII but quote and backslash: nothing in it is ever escaped
_ONE_LINE = r"[ !#-;=?-\[\]-~]"  # and no angle brackets, which a skill's description may not have
_BOUNDED = re.compile(r"\^\[(?:\\.|[^\\\]])*\]\{\d+,(\d+)\}\$")


def select_skills(skills: Sequence[str], most: int = MAX_SELECTED) -> ToolSchema:
    """The tool by which a model takes up to ``most`` of these skills (at least one); none is a
    valid answer."""
    reasoned = _object(name={"enum": list(skills)}, reason=_text(TEXT_LIMIT))
    return ToolSchema(
        name=SELECT,
        description=f"Choose up to {most} skills that help here; an empty list means that "
        f"none does.",
        parameters=_object(think=_text(TEXT_LIMIT), selected_skills=_array(reasoned, most)),
    )


def read_skill(names: Sequence[str]) -> ToolSchema:
    """Ask for the whole text of one of these skills (at least one)."""
    return ToolSchema(
        name=READ,
        description="Read the text of a skill; you are asked again afterwards.",
        parameters=_object(name={"enum": list(names)}),
    )


def apply_skill(sites: Sequence[Site]) -> ToolSchema:
    """Let the engine apply a skill at one of these sites (at least one), with parameters of that
    site.

    Parameters that change what is computed keep their default.
    """
    branches = [_application(site) for site in sites]
    return ToolSchema(
        name=APPLY,
        description="Apply a skill at a site of the program. The engine writes and proves "
        "the code.",
        parameters=branches[0] if len(branches) == 1 else {"type": "object", "anyOf": branches},
    )


def write_rewrite(max_chars: int) -> ToolSchema:
    """Write the target anew, or edit it in blocks."""
    return ToolSchema(
        name=WRITE,
        description=(
            "Replace the target by code of your own: a whole module text that defines it "
            "(imports, helpers "
            "beside it), or edit blocks `<<<<<<< SEARCH`, old lines, `=======`, new lines, "
            "`>>>>>>> REPLACE` "
            f"whose old lines occur exactly once. At most {max_chars} characters."
        ),
        parameters=_object(code={"type": "string"}),
    )


def update_skill_library(most: int = MAX_DRAFTED) -> ToolSchema:
    """Write down up to ``most`` new skills."""
    skill = _object(
        name={"type": "string", "pattern": r"^[a-z0-9-]{3,64}$"},
        description={"type": "string", "pattern": f"^{_ONE_LINE}{{1,120}}$"},
        scope={"enum": list(SKILL_SCOPES)},
        tags=_array({"type": "string", "pattern": r"^[a-z0-9_-]{1,32}$"}, 6, least=1),
        content={"type": "string"},
    )
    return ToolSchema(
        name=UPDATE,
        description=f"Write down up to {most} new skills; an empty list means that nothing new "
        f"was learned.",
        parameters=_object(think=_text(TEXT_LIMIT), new_skills=_array(skill, most)),
    )


def envelope(tools: Sequence[ToolSchema]) -> Json:
    """Schema of a whole reply that is one call: ``{"name": …, "arguments": {…}}``."""
    calls = [_object(name={"const": tool.name}, arguments=tool.parameters) for tool in tools]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def flat(tool: ToolSchema) -> Json:
    """Its parameters without alternatives, for a server that takes tools and no anyOf at their
    root.

    Looser: a skill can then be named with another one's site, which replies.parse says.
    """
    branches = tool.parameters.get("anyOf")
    if branches is None:
        return tool.parameters
    merged: dict[str, Any] = {}
    for key in branches[0]["properties"]:
        of_key = [branch["properties"][key] for branch in branches]
        plain = all("const" in schema for schema in of_key)
        values = list(dict.fromkeys(schema["const"] for schema in of_key)) if plain else []
        merged[key] = {"enum": values} if plain else {"type": "object"}
    return _object(**merged)


def in_words(tools: Sequence[ToolSchema]) -> str:
    """The calls as prose, for a server that takes neither schema nor tools."""
    head = (
        'Answer with one JSON object and nothing else: {"name": TOOL, "arguments": {…}}. The tools:'
    )
    lines = [head]
    for tool in tools:
        lines += [f"- {tool.name}: {tool.description} Its arguments:"]
        lines += [
            f"    {_sketch(branch)}" for branch in tool.parameters.get("anyOf", [tool.parameters])
        ]
    return "\n".join(lines)


def names(tools: Sequence[ToolSchema]) -> str:
    """The names of the tools with commas between them, for a sentence; what to do instead where
    there is none."""
    return ", ".join(tool.name for tool in tools) or "no tool: answer in words"


def longest_chars(schema: Json) -> int | None:
    """Characters of the longest JSON text that a schema of this dialect permits; None: there is no
    longest.

    Counted with one blank after every comma and colon (xgrammar writes them or not, by version).
    An upper bound of its tokens too: what can occur is ASCII but for names in enums, which count
    as escaped."""
    if "const" in schema or "enum" in schema:
        return max(len(json.dumps(value)) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return _most([longest_chars(branch) for branch in schema["anyOf"]])
    match schema.get("type"):
        case "object":
            return _longest_object(schema)
        case "array":
            item, most = longest_chars(schema["items"]), schema.get("maxItems")
            return None if item is None or most is None else 2 + most * item + 2 * max(0, most - 1)
        case "string":
            bounded = _BOUNDED.fullmatch(schema.get("pattern", ""))
            return 2 + int(bounded[1]) if bounded else None
        case "integer" if "minimum" in schema and "maximum" in schema:
            return max(len(str(schema["minimum"])), len(str(schema["maximum"])))
        case "boolean":
            return len("false")
    return None


def _longest_object(schema: Json) -> int | None:
    parts = {key: longest_chars(value) for key, value in schema["properties"].items()}
    if schema.get("additionalProperties") is not False or None in parts.values():
        return None
    entries = [len(json.dumps(key)) + 2 + (length or 0) for key, length in parts.items()]
    return 2 + sum(entries) + 2 * max(0, len(entries) - 1)


def _most(lengths: Sequence[int | None]) -> int | None:
    known = [length for length in lengths if length is not None]
    return max(known) if len(known) == len(lengths) else None


def _application(site: Site) -> Json:
    choices = {
        name: {"enum": values[:1] if name in SEMANTIC_PARAMETERS else list(values)}
        for name, values in site.parameters.items()
    }
    return _object(
        skill={"const": site.skill}, site={"const": site.site}, parameters=_object(**choices)
    )


def _object(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: Json, most: int, least: int = 0) -> Json:
    bounds = {"minItems": least, "maxItems": most} if least else {"maxItems": most}
    return {"type": "array", "items": items, **bounds}


def _text(limit: int) -> Json:
    return {"type": "string", "pattern": f"^{_PLAIN}{{0,{limit}}}$"}


def _sketch(schema: Json) -> str:
    """A schema as an example with its alternatives: ``{"B": 32 | 64}``."""
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "object":
            parts = (
                f"{json.dumps(key)}: {_sketch(value)}"
                for key, value in schema["properties"].items()
            )
            return "{" + ", ".join(parts) + "}"
        case "array":
            return f"[{_sketch(schema['items'])}, … at most {schema['maxItems']}]"
    return '"text"'
