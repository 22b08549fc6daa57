"""Small faults of a reply that leave no doubt about what was meant, mended and named.

Read: JSON with raw control characters, trailing commas, Python's literals; a call in another product's shape.
Fitted to a schema: an object or list sent as text, a number as text, ``fused_pointwise`` for
``fused-pointwise``, a thought that is too long. Whatever leaves a doubt is a problem instead, with what would
be right. Not covered: where in a text a call stands (blocks.py), which call counts (replies.py).
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import reprlib
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp import parsing
from kernel_lsp.records import Json, ReplyProblem

MOST_LITERAL = 64 * 1024
"""Longest text that is tried as a Python literal: the parser takes 100 times as long as JSON's."""
MOST_CALLS = 32
"""Of one reply; what comes after them is repetition."""
MOST_COMMAS = 8
MOST_SHOWN = 400
"""Characters of a list of choices in a remedy."""
MISSING: Any = object()

MOST_PROBLEMS = 8
"""Told of one reply: a next turn mends the first ones."""

Note = Callable[[str, str, str], None]
"""Takes where, cause and remedy of a fault, mended or not."""

_NAME_KEYS = ("name", "tool", "tool_name", "function", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input")
_TRAILING = re.compile(r",\s*+[}\]]")
_CLASS = re.compile(r"\^(\[(?:\\.|[^\\\]])*\])\{(\d+),(\d+)\}\$")


@dataclass(slots=True)
class Notes:
    """The problems of a reply, each once; a `Note`."""

    problems: list[ReplyProblem] = field(default_factory=list)

    def __call__(self, where: str, cause: str, remedy: str) -> None:
        problem = ReplyProblem(where=where, cause=cause, remedy=remedy)
        if len(self.problems) < MOST_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def take(self, other: Notes) -> None:
        for problem in other.problems:
            self(problem.where, problem.cause, problem.remedy)


# --- reading -----------------------------------------------------------------------------


def load(text: str, where: str, note: Note) -> Any:
    """The JSON value that a text begins with, or MISSING and a note of where it breaks off."""
    text = text.strip()
    value, error = _decoded(text, strict=True)
    if error is None:
        return value
    value, another = _decoded(text, strict=False)
    if another is None:
        note(where, "has raw line breaks or tabs in a string", "was read all the same; write strict JSON")
        return value
    value = _without_trailing_commas(text, another)
    if value is not MISSING:
        note(where, "has a comma before a closing bracket", "was read all the same; write strict JSON")
        return value
    value = _literal(text)
    if value is not MISSING:
        note(where, "is a Python literal", "was read all the same; write JSON")
        return value
    note(where, *_broken(text, error))
    return MISSING


def _decoded(text: str, *, strict: bool) -> tuple[Any, ValueError | RecursionError | None]:
    try:
        return json.JSONDecoder(strict=strict).raw_decode(text)[0], None
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more than 4300 digits
        return MISSING, error


def _without_trailing_commas(text: str, error: ValueError | RecursionError | None) -> Any:
    for _ in range(MOST_COMMAS):
        if not isinstance(error, json.JSONDecodeError):
            return MISSING
        # Where the parser stands, by version: at the comma or at the bracket behind it.
        found = _TRAILING.match(text, error.pos) or _TRAILING.match(text, text.rfind(",", 0, error.pos + 1))
        if found is None or found.end() < error.pos:
            return MISSING
        text = text[: found.start()] + " " + text[found.start() + 1 :]
        value, error = _decoded(text, strict=False)
        if error is None:
            return value
    return MISSING


def _literal(text: str) -> Any:
    if len(text) > MOST_LITERAL:
        return MISSING
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a model's strings are nobody's concern
            value = ast.literal_eval(parsing.parse(text).body[0].value)  # type: ignore[attr-defined]
            return json.loads(json.dumps(value, allow_nan=False))  # sets, bytes and numbers with a j are none
    except (SyntaxError, ValueError, TypeError, AttributeError, IndexError, RecursionError, MemoryError):
        return MISSING


def _broken(text: str, error: ValueError | RecursionError) -> tuple[str, str]:
    if not isinstance(error, json.JSONDecodeError):
        return "holds JSON that is nested too deeply or a number that is too long", "write it as it was asked"
    if error.msg.startswith("Unterminated string"):
        begin = short(text[error.pos : error.pos + 60])
        cause = f"ends after {len(text)} characters, inside the string that begins {begin}"
        return cause, "send the whole JSON object, shorter if it was cut"
    if error.pos >= len(text.rstrip()):
        return f"ends after {len(text)} characters, before its last bracket", "send the whole JSON object"
    near = short(text[max(0, error.pos - 20) : error.pos + 20])
    return f"is no JSON at character {error.pos}, near {near}: {error.msg}", "send one valid JSON object"


def shaped(value: Any, tools: Iterable[tuple[str, Json]]) -> list[tuple[Any, Any]]:
    """(name, arguments) of every call in a JSON value; empty: it is none. ``tools``: name and schema."""
    known = dict(tools)
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    found = []
    for one in value[:MOST_CALLS] if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            inner = one.get("function")  # as OpenAI nests it
            found += _named(inner if isinstance(inner, dict) else one, known)
    return found


def _named(value: Json, known: dict[str, Json]) -> list[tuple[Any, Any]]:
    bare = [name for name, schema in known.items() if set(value) == _required(schema)]
    if len(bare) == 1 and value.get("name") not in known:
        return [(bare[0], value)]
    if len(value) == 1 and next(iter(value)) in known:
        return [next(iter(value.items()))]
    for key in _NAME_KEYS:
        if isinstance(value.get(key), str):
            beside = {name: content for name, content in value.items() if name != key}
            if value[key] in known and set(beside) >= _required(known[value[key]]):
                return [(value[key], beside)]
            return [(value[key], next((value[one] for one in _ARGUMENT_KEYS if one in value), beside))]
    return []


def _required(schema: Json) -> set[str]:
    return set(schema.get("anyOf", [schema])[0]["required"])


# --- fitting -----------------------------------------------------------------------------


def fit(value: Any, schema: Json, where: str, note: Note) -> Any:
    """The value as the schema wants it, or MISSING when that is not clear; every fault is noted."""
    if "const" in schema or "enum" in schema:
        return _fit_choice(value, schema.get("enum", [schema.get("const")]), where, note)
    if "anyOf" in schema:
        branch = branch_of(value, schema, where, note)
        return MISSING if branch is None else fit(value, branch, where, note)
    if schema["type"] == "object":
        return _fit_object(value, schema, where, note)
    if schema["type"] == "array":
        return _fit_array(value, schema, where, note)
    return _fit_text(value, schema, where, note)


def branch_of(value: Any, schema: Json, where: str, note: Note) -> Json | None:
    """The alternative that its constants name, one key after the other."""
    if not isinstance(value, dict):
        note(where, f"is {short(value)}", "send an object")
        return None
    branches = schema["anyOf"]
    constants = [key for key, of_key in branches[0]["properties"].items() if "const" in of_key]
    for key in constants:
        choices = list(dict.fromkeys(branch["properties"][key]["const"] for branch in branches))
        given = value.get(key, choices[0] if len(choices) == 1 else MISSING)
        chosen = _fit_choice(given, choices, f"{where}.{key}", note)
        if chosen is MISSING:
            return None
        branches = [branch for branch in branches if branch["properties"][key]["const"] == chosen]
    return dict(branches[0])


def _fit_choice(value: Any, choices: Sequence[Any], where: str, note: Note) -> Any:
    if same := [choice for choice in choices if _same(value, choice)]:
        return same[0]
    if value is MISSING:
        note(where, "is missing", f"add it: one of {listed(choices)}")
        return MISSING
    close = [choice for choice in choices if _plain(choice) == _plain(value)]
    if len(close) == 1:
        note(where, f"{short(value)} was read as {short(close[0])}", "write it as it is listed")
        return close[0]
    words = {_words(choice): choice for choice in choices}
    near = difflib.get_close_matches(_words(value)[:80], [word for word in words if len(word) <= 200], n=1)
    nearest = f"did you mean {short(words[near[0]])}? " if near else ""
    note(where, f"{short(value)} is none of the choices", f"{nearest}one of {listed(choices)}")
    return MISSING


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, but 1.0 is."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _plain(value: Any) -> str:
    """What is left of a choice without case, quotes, blanks and kinds of hyphens: 64, "64" and 64.0 agree."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return re.sub(r"[\s_\-'\"`]", "", _words(value)[:400]).lower()


def _words(value: Any) -> str:
    return value if isinstance(value, str) else reprlib.repr(value)  # repr of a deep list can fail


def _fit_object(value: Any, schema: Json, where: str, note: Note) -> Any:
    value = unpacked(value, dict, where, note)
    if isinstance(value, str) and "name" in schema["properties"]:
        note(where, "is a bare name", "was read all the same; send an object")
        value = {"name": value}
    if not isinstance(value, dict):
        note(where, "is missing" if value is MISSING else f"is {short(value)}", "send an object")
        return MISSING
    properties = schema["properties"]
    value = renamed(value, properties, where, note)
    fitted = {key: fit(value.get(key, MISSING), of_key, f"{where}.{key}", note)
              for key, of_key in properties.items()}  # fmt: skip
    return MISSING if MISSING in fitted.values() else fitted


def renamed(value: Json, properties: Json, where: str, note: Note) -> Json:
    """Keys as the schema writes them; what it does not know is left out."""
    known = {_plain(key): key for key in properties}
    kept = {key: content for key, content in value.items() if key in properties}
    for key, content in value.items():
        meant = known.get(_plain(key))
        if key in properties:
            continue
        if meant is not None and meant not in kept:
            kept[meant] = content
            note(f"{where}.{short_name(key)}", f"was read as {meant}", "write it as it is listed")
        else:
            remedy = f"leave it out; known are {listed(properties)}" if properties else "leave it out"
            note(f"{where}.{short_name(key)}", "is unknown and was left out", remedy)
    return kept


def _fit_array(value: Any, schema: Json, where: str, note: Note) -> Any:
    value = unpacked(value, list, where, note)
    if isinstance(value, dict | str):
        note(where, "is no list", "was read as a list of one; send a list")
        value = [value]
    if not isinstance(value, list):
        note(
            where, "is missing" if value is MISSING else f"is {short(value)}", "send a list; it may be empty"
        )
        return MISSING
    most = schema["maxItems"]
    if len(value) > most:
        note(where, f"has {len(value)} entries", f"at most {most} count; the first {most} were taken")
    fitted = [fit(item, schema["items"], f"{where}[{i}]", note) for i, item in enumerate(value[:most])]
    fitted = [item for item in fitted if item is not MISSING]
    if len(fitted) < schema.get("minItems", 0):
        note(where, f"has {len(fitted)} usable entries", f"send at least {schema['minItems']}")
        return MISSING
    return fitted


def _fit_text(value: Any, schema: Json, where: str, note: Note) -> Any:
    pattern = schema.get("pattern")
    if (value is MISSING or value is None) and pattern and "{0," in pattern:
        return ""  # a thought that was not told
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        note(where, "is missing" if value is MISSING else f"is {short(value)}", "send text")
        return MISSING
    if pattern is None:
        return _encodable(value, where, note)
    return _fit_pattern(value, pattern, where, note)


def _encodable(value: str, where: str, note: Note) -> str:
    clean = value.encode("utf-8", "replace").decode("utf-8")
    if clean != value:
        note(where, "has half a surrogate pair", "was replaced by `?`; write whole characters")
    return clean


def _fit_pattern(value: str, pattern: str, where: str, note: Note) -> Any:
    bounds = _CLASS.fullmatch(pattern)
    if bounds is None or re.fullmatch(pattern, value):  # None: no pattern that tools.py makes
        return value
    least, most = int(bounds[2]), int(bounds[3])
    one = re.compile(bounds[1])
    text = unicodedata.normalize("NFKD", value[: 4 * most]).replace('"', "'")
    text = text if one.fullmatch("A") else text.lower()
    filler = next(filler for filler in (" ", "-", "_") if one.fullmatch(filler))
    shown = (char for char in text if not unicodedata.combining(char))
    clean = "".join(char if one.fullmatch(char) else filler for char in shown)
    clean = re.sub(f"{filler}{{2,}}", filler, clean).strip(filler)[:most].rstrip(filler)
    if len(clean) < least:
        note(
            where, f"{short(value)} has too few usable characters", f"write {least} to {most} of {bounds[1]}"
        )
        return MISSING
    if least:  # a name or a description; nobody misses the end of a thought
        note(where, f"{short(value)} was read as {short(clean)}", f"write at most {most} of {bounds[1]}")
    return clean


def unpacked(value: Any, kind: type, where: str, note: Note) -> Any:
    """An object or list that was sent as text with JSON in it."""
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    inner = load(value, where, lambda *_: None)
    if not isinstance(inner, kind):
        return value
    note(where, "is JSON inside a string", "was read all the same; send it without quotes")
    return inner


# --- words -------------------------------------------------------------------------------


def short(value: Any) -> str:
    """A value in a message: one line of at most 80 characters."""
    if value is MISSING:
        return "nothing"
    text = _words(value)[:80]
    text = "".join(char if char.isprintable() else " " for char in text.encode("utf-8", "replace").decode())
    return f"`{text if len(text) < 80 else text[:77] + '...'}`"


def short_name(key: Any) -> str:
    return short(key).strip("`")[:40]


def listed(choices: Iterable[Any]) -> str:
    text = ""
    for choice in choices:
        word = json.dumps(choice) if not isinstance(choice, str) else choice
        if len(text) + len(word) > MOST_SHOWN:
            return f"{text}, …" if text else f"{word[:MOST_SHOWN]}…"
        text = f"{text}, {word}" if text else word
    return text
