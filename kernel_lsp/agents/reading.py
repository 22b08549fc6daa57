"""Calls out of text: JSON with small faults, Python's literals and calls, and the shapes that
products use.

What is mended is named: raw control characters, trailing commas, Python's spelling. Nothing is
run. Not covered: whether a call is valid (repairs.py fits it to its schema)."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable
from typing import Any

from kernel_lsp import parsing
from kernel_lsp.agents.notes import MISSING, AddNote, short
from kernel_lsp.records import Json

MAX_LITERAL = 64 * 1024
"""Longest text that is tried as Python: its parser takes 100 times as long as JSON's."""
MAX_CALLS = 32
"""Of one reply; what comes after them is repetition."""
MAX_COMMAS = 8
NO_LITERAL = (AttributeError, IndexError, MemoryError, RecursionError, SyntaxError, TypeError,
              ValueError)  # fmt: skip
"""What reading a text as Python's literals raises where it is something else."""

_NAME_KEYS = ("name", "tool", "tool_name", "function", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input")
_TRAILING = re.compile(r",\s*+[}\]]")


def load(text: str, where: str, note: AddNote) -> Any:
    """The JSON value that a text begins with, or MISSING and a note of where it breaks off."""
    text = text.strip()
    value, error = _decode(text, strict=True)
    if error is None:
        return value
    value, another = _decode(text, strict=False)
    if another is None:
        note(
            where,
            "has raw line breaks or tabs in a string",
            "was read all the same; write strict JSON",
        )
        return value
    value = _without_trailing_commas(text, another)
    if value is not MISSING:
        note(
            where,
            "has a comma before a closing bracket",
            "was read all the same; write strict JSON",
        )
        return value
    value = _literal(text)
    if value is not MISSING:
        note(where, "is a Python literal", "was read all the same; write JSON")
        return value
    note(where, *_locate_break(text, error))
    return MISSING


def _decode(text: str, *, strict: bool) -> tuple[Any, ValueError | RecursionError | None]:
    try:
        return json.JSONDecoder(strict=strict).raw_decode(text)[0], None
    except (ValueError, RecursionError) as error:  # the former also of more than 4300 digits
        return MISSING, error


def _without_trailing_commas(text: str, error: ValueError | RecursionError | None) -> Any:
    for _ in range(MAX_COMMAS):
        if not isinstance(error, json.JSONDecodeError):
            return MISSING
        # Where the parser stands, by version: at the comma or at the bracket behind it.
        found = _TRAILING.match(text, error.pos) or _TRAILING.match(
            text, text.rfind(",", 0, error.pos + 1)
        )
        if found is None or found.end() < error.pos:
            return MISSING
        text = text[: found.start()] + " " + text[found.start() + 1 :]
        value, error = _decode(text, strict=False)
        if error is None:
            return value
    return MISSING


def _literal(text: str) -> Any:
    if len(text) > MAX_LITERAL:
        return MISSING
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in a model's strings
            value = ast.literal_eval(parsing.parse(text).body[0].value)  # type: ignore[attr-defined]
            # Sets, bytes and numbers with a j are none.
            return json.loads(json.dumps(value, allow_nan=False))
    except NO_LITERAL:
        return MISSING


def python_call(text: str, names: Iterable[str]) -> list[tuple[str, Json]]:
    """The calls in ``apply_skill(skill="a", …)`` or a list of such: Llama's pythonic format."""
    begins = re.match(r"\[?\s*+([a-z_]{1,40})\(", text)
    if begins is None or begins[1] not in set(names) or len(text) > MAX_LITERAL:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parsing.parse(text)
            value = tree.body[0].value if len(tree.body) == 1 else None  # type: ignore[attr-defined]
            found = value.elts if isinstance(value, ast.List) else [value]
            return [_arguments(call) for call in found]
    except NO_LITERAL:
        return []


def _arguments(call: Any) -> tuple[str, Json]:
    """Raises what literal_eval and wrong trees do."""
    if call.args:
        raise ValueError("unnamed arguments")
    values = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    return str(call.func.id), dict(json.loads(json.dumps(values, allow_nan=False)))


def _locate_break(text: str, error: ValueError | RecursionError) -> tuple[str, str]:
    if not isinstance(error, json.JSONDecodeError):
        return (
            "holds JSON that is nested too deeply or a number that is too long",
            "write it as it was asked",
        )
    if error.msg.startswith("Unterminated string"):
        begin = short(text[error.pos : error.pos + 60])
        cause = f"ends after {len(text)} characters, inside the string that begins {begin}"
        return cause, "send the whole JSON object, shorter if it was cut"
    if error.pos >= len(text.rstrip()):
        return (
            f"ends after {len(text)} characters, before its last bracket",
            "send the whole JSON object",
        )
    near = short(text[max(0, error.pos - 20) : error.pos + 20])
    return (
        f"is no JSON at character {error.pos}, near {near}: {error.msg}",
        "send one valid JSON object",
    )


def shape_calls(value: Any, tools: Iterable[tuple[str, Json]]) -> list[tuple[Any, Any]]:
    """(name, arguments) of every call in a JSON value; empty: it is none. ``tools``: name and
    schema."""
    known = dict(tools)
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    found = []
    for one in value[:MAX_CALLS] if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            inner = one.get("function")  # as OpenAI nests it
            found += _name_calls(inner if isinstance(inner, dict) else one, known)
    return found


def _name_calls(value: Json, known: dict[str, Json]) -> list[tuple[Any, Any]]:
    bare = [name for name, schema in known.items() if set(value) == _required_fields(schema)]
    if len(bare) == 1 and value.get("name") not in known:
        return [(bare[0], value)]
    if len(value) == 1 and next(iter(value)) in known:
        return [next(iter(value.items()))]
    for key in _NAME_KEYS:
        if isinstance(value.get(key), str):
            beside = {name: content for name, content in value.items() if name != key}
            if value[key] in known and set(beside) >= _required_fields(known[value[key]]):
                return [(value[key], beside)]
            return [
                (value[key], next((value[one] for one in _ARGUMENT_KEYS if one in value), beside))
            ]
    return []


def _required_fields(schema: Json) -> set[str]:
    return set(schema.get("anyOf", [schema])[0]["required"])
