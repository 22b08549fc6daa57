"""Where a reply calls tools: native calls, the envelope, tags, fences, code; in this order.

What is found is as the model wrote it: nothing is checked against a schema here (replies.py does
that)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernel_lsp.agents import blocks, reading
from kernel_lsp.agents.blocks import BlockKind, MessageBlock
from kernel_lsp.agents.notes import MISSING, Notes, short
from kernel_lsp.agents.tools import WRITE, names
from kernel_lsp.records import CallForm, Json, Reply, ToolSchema

MAX_BLOCKS = 1000
"""Of one reply; nobody means more of them."""
_PYTHON = ("", "python", "py", "python3", "triton", "diff")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCall:
    """A call as it stands in the reply."""

    name: Any
    arguments: Any
    form: CallForm
    id: str = ""


def find(reply: Reply, tools: Sequence[ToolSchema], note: Notes) -> list[FoundCall]:
    """The calls of a reply in order, and what can be no call; empty without a note: it has none."""
    if reply.calls:
        return [
            FoundCall(name=call.name, arguments=call.arguments, form=CallForm.NATIVE, id=call.id)
            for call in reply.calls[: reading.MAX_CALLS]
        ]
    whole = reply.text.strip()
    answer, ended = blocks.without_thinking(whole)
    answer = answer.strip()
    unread = Notes()
    for text in dict.fromkeys((whole, answer)):  # a call's own text may speak of <think>
        mine = Notes()
        if found := _as_json(text, "reply", CallForm.ENVELOPE, tools, mine):
            note.take(mine)
            return found
        unread.take(mine)
    if not ended and not answer:
        note("reply", "has thinking that does not end", "think less and call a tool")
        return []
    found = _in_blocks(_first(answer), tools, note) or _in_prose(answer, tools, note)
    if not found and not note.problems:  # nothing else explains the reply
        note.take(unread)
    return found


def _first(text: str) -> list[MessageBlock]:
    return list(itertools.islice(blocks.blocks(text), MAX_BLOCKS))


def _as_json(
    text: str, where: str, form: CallForm, tools: Sequence[ToolSchema], note: Notes
) -> list[FoundCall]:
    """The calls of a text that is JSON from its beginning, or Python's calls of the tools."""
    if made := reading.python_call(text, [tool.name for tool in tools]):
        note(
            where,
            "is a call in Python",
            'was read all the same; send {"name": …, "arguments": {…}}',
        )
        return [FoundCall(name=name, arguments=arguments, form=form) for name, arguments in made]
    if text[:1] not in ("{", "["):
        return []
    mine = Notes()
    value = reading.load(text, where, mine)
    made = reading.shape_calls(value, [(tool.name, tool.parameters) for tool in tools])
    if value is not MISSING and not made:
        mine(where, "is JSON, but no call", 'send {"name": …, "arguments": {…}}')
    note.take(mine)
    return [FoundCall(name=name, arguments=arguments, form=form) for name, arguments in made]


def _in_blocks(
    found: Sequence[MessageBlock], tools: Sequence[ToolSchema], note: Notes
) -> list[FoundCall]:
    tagged = [block for block in found if block.kind is BlockKind.TAG][: reading.MAX_CALLS]
    fences = [block for block in found if block.kind is BlockKind.FENCE][: reading.MAX_CALLS]
    calls: list[FoundCall] = []
    for number, block in enumerate(tagged, 1):
        calls += _find_tagged(block, number, tools, note)
    fenced: list[FoundCall] = []
    for number, block in enumerate(fences, 1):
        fenced += _find_fenced(block, number, tools, note)
    if len(fenced) > 1:
        note("reply", f"has {len(fenced)} calls in code blocks", "the last one counts; write one")
    code = _code(found, note)
    if calls or fenced or code is None:
        return [*calls, *fenced[-1:]]
    if any(tool.name == WRITE for tool in tools):
        return [code]
    note("reply", "holds code, which cannot be used here", f"call one of {names(tools)}")
    return []


def _find_tagged(
    block: MessageBlock, number: int, tools: Sequence[ToolSchema], note: Notes
) -> list[FoundCall]:
    where, text = f"tool_call {number}", block.text.strip()
    xml = blocks.xml_call(text) if text.startswith("<") else None
    if xml is not None:
        name, values = xml
        return [
            FoundCall(name=name, arguments=_type_values(name, values, tools), form=CallForm.TAGGED)
        ]
    if made := _as_json(text, where, CallForm.TAGGED, tools, note):
        return made
    if text[:1] not in ("{", "["):
        note(where, f"begins with {short(text[:20])}", 'write {"name": …, "arguments": {…}} in it')
    return []


def _type_values(name: str, values: dict[str, str], tools: Sequence[ToolSchema]) -> Json:
    """XML carries text alone: what the schema wants otherwise is JSON in it."""
    schema: Json = next((tool.parameters for tool in tools if tool.name == name), {})
    properties = schema.get("anyOf", [schema])[0].get("properties", {})
    return {
        key: text if _is_text(properties.get(key, {})) else _load_json(text)
        for key, text in values.items()
    }


def _is_text(schema: Json) -> bool:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return schema.get("type") == "string" or any(isinstance(value, str) for value in values)


def _load_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _find_fenced(
    block: MessageBlock, number: int, tools: Sequence[ToolSchema], note: Notes
) -> list[FoundCall]:
    text = block.text.strip()
    if text.startswith(("<tool_call>", "<function=")):
        inner = [one for one in blocks.blocks(text) if one.kind is BlockKind.TAG]
        return [
            call
            for one in inner[: reading.MAX_CALLS]
            for call in _find_tagged(one, number, tools, note)
        ]
    where, of_json = f"code block {number}", ("json", "json5", "jsonc", "tool_call", "")
    if block.language not in (*of_json, *_PYTHON):
        return []
    mine = Notes()
    made = _as_json(text, where, CallForm.FENCED, tools, mine)
    if made or block.language in of_json:
        note.take(mine)
    return made


def _code(found: Sequence[MessageBlock], note: Notes) -> FoundCall | None:
    """Every complete edit block, else the last code block, as a write_rewrite."""
    edits = [one for b in found for one in ([b] if b.kind is BlockKind.EDIT else _edits_in(b))]
    return _join_edits(edits, note) if edits else _last_fence(found, note)


def _join_edits(edits: Sequence[MessageBlock], note: Notes) -> FoundCall | None:
    for number, one in enumerate(edits, 1):
        if not one.complete:
            note(f"edit {number}", "has no line `>>>>>>> REPLACE`", "end every edit block with it")
    whole = [one.text for one in edits if one.complete]
    return _code_call("\n".join(whole)) if whole else None


def _last_fence(found: Sequence[MessageBlock], note: Notes) -> FoundCall | None:
    """The last complete block of Python, else the last; None where there is none."""
    fences = [block for block in found if _is_python_fence(block)]
    if not fences:
        return None
    last = next((fence for fence in reversed(fences) if fence.complete), fences[-1])
    if len(fences) > 1:
        note("reply", f"has {len(fences)} code blocks", "the last complete one counts; write one")
    if not last.complete:
        note("reply", "has a code block without an end", "was read all the same; end it with ```")
    return _code_call(last.text)


def _is_python_fence(block: MessageBlock) -> bool:
    return block.kind is BlockKind.FENCE and block.language in _PYTHON and _is_code(block)


def _is_code(block: MessageBlock) -> bool:
    return block.text.strip()[:1] not in ("{", "[", "<", "") or bool(blocks.edits(block.text))


def _edits_in(block: MessageBlock) -> list[MessageBlock]:
    return blocks.edits(block.text) if block.kind is BlockKind.FENCE else []


def _code_call(code: str) -> FoundCall:
    return FoundCall(name=WRITE, arguments={"code": code}, form=CallForm.CODE)


def _in_prose(text: str, tools: Sequence[ToolSchema], note: Notes) -> list[FoundCall]:
    """A call written into a sentence: the last one that is complete."""
    if not tools:
        return []
    named = "|".join(re.escape(tool.name) for tool in tools)
    begins = re.compile(rf"""\{{\s*+["'](?:name|tool|function)["']\s*+:\s*+["'](?:{named})["']""")
    made: list[FoundCall] = []
    for start in itertools.islice(begins.finditer(text), reading.MAX_CALLS):
        piece = text[start.start() : start.start() + reading.MAX_LITERAL]
        made = _as_json(piece, "reply", CallForm.ENVELOPE, tools, Notes()) or made
    if made:
        note("reply", "has words around its call", "was read all the same; send the call alone")
    return made
