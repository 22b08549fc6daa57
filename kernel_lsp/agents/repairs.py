"""Arguments in the form of their schema, where no doubt is left about what was meant; each fault
is named.

Mended: an object or list sent as text, a number as text, ``fused_pointwise`` for
``fused-pointwise``, a thought that is too long, a key in other letters. Whatever leaves a doubt is
a problem instead, with what would be right. The schemas are of tools.py's dialect. Not covered:
reading text (reading.py), which call counts (replies.py)."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from kernel_lsp.agents.notes import MISSING, AddNote, as_words, list_choices, short, short_name
from kernel_lsp.agents.reading import load
from kernel_lsp.records import Json

_CLASS = re.compile(r"\^(\[(?:\\.|[^\\\]])*\])\{(\d+),(\d+)\}\$")


def fit(value: Any, schema: Json, where: str, note: AddNote) -> Any:
    """The value as the schema wants it, or MISSING when that is not clear; every fault is noted.
    Of alternatives (anyOf) one is chosen before, by `branch_of`."""
    if "const" in schema or "enum" in schema:
        return _fit_choice(value, schema.get("enum", [schema.get("const")]), where, note)
    if schema["type"] == "object":
        return _fit_object(value, schema, where, note)
    if schema["type"] == "array":
        return _fit_array(value, schema, where, note)
    return _fit_text(value, schema, where, note)


def branch_of(value: Any, branches: Sequence[Json], where: str, note: AddNote) -> Json | None:
    """The alternative schema whose constants the value names, one key after the other; None when
    that is not clear, which is noted."""
    if not isinstance(value, dict):
        note(where, f"is {short(value)}", "send an object")
        return None
    constants = [key for key, of_key in branches[0]["properties"].items() if "const" in of_key]
    for key in constants:
        choices = list(dict.fromkeys(branch["properties"][key]["const"] for branch in branches))
        given = value.get(key, choices[0] if len(choices) == 1 else MISSING)
        chosen = _fit_choice(given, choices, f"{where}.{key}", note)
        if chosen is MISSING:
            return None
        branches = [branch for branch in branches if branch["properties"][key]["const"] == chosen]
    return dict(branches[0])


def _fit_choice(value: Any, choices: Sequence[Any], where: str, note: AddNote) -> Any:
    if same := [choice for choice in choices if _same(value, choice)]:
        return same[0]
    if value is MISSING:
        note(where, "is missing", f"add it: one of {list_choices(choices)}")
        return MISSING
    close = [choice for choice in choices if _plain(choice) == _plain(value)]
    if len(close) == 1:
        note(where, f"{short(value)} was read as {short(close[0])}", "write it as it is listed")
        return close[0]
    words = {as_words(choice): choice for choice in choices}
    near = difflib.get_close_matches(
        as_words(value)[:80], [word for word in words if len(word) <= 200], n=1
    )
    nearest = f"did you mean {short(words[near[0]])}? " if near else ""
    note(
        where, f"{short(value)} is none of the choices", f"{nearest}one of {list_choices(choices)}"
    )
    return MISSING


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, but 1.0 is."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _plain(value: Any) -> str:
    """What is left of a choice without case, quotes, blanks and kinds of hyphens: 64, "64" and
    64.0 agree."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return re.sub(r"[\s_\-'\"`]", "", as_words(value)[:400]).lower()


def _fit_object(value: Any, schema: Json, where: str, note: AddNote) -> Any:
    value = unpack_json(value, dict, where, note)
    if isinstance(value, str) and "name" in schema["properties"]:
        note(where, "is a bare name", "was read all the same; send an object")
        value = {"name": value}
    if not isinstance(value, dict):
        note(where, "is missing" if value is MISSING else f"is {short(value)}", "send an object")
        return MISSING
    properties = schema["properties"]
    value = rename_keys(value, properties, where, note)
    fitted = {key: fit(value.get(key, MISSING), of_key, f"{where}.{key}", note)
              for key, of_key in properties.items()}  # fmt: skip
    return MISSING if MISSING in fitted.values() else fitted


def rename_keys(value: Json, properties: Json, where: str, note: AddNote) -> Json:
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
            remedy = (
                f"leave it out; known are {list_choices(properties)}"
                if properties
                else "leave it out"
            )
            note(f"{where}.{short_name(key)}", "is unknown and was left out", remedy)
    return kept


def _fit_array(value: Any, schema: Json, where: str, note: AddNote) -> Any:
    value = unpack_json(value, list, where, note)
    if isinstance(value, dict | str):
        note(where, "is no list", "was read as a list of one; send a list")
        value = [value]
    if not isinstance(value, list):
        note(
            where,
            "is missing" if value is MISSING else f"is {short(value)}",
            "send a list; it may be empty",
        )
        return MISSING
    most = schema["maxItems"]
    if len(value) > most:
        note(
            where, f"has {len(value)} entries", f"at most {most} count; the first {most} were taken"
        )
    fitted = [
        fit(item, schema["items"], f"{where}[{i}]", note) for i, item in enumerate(value[:most])
    ]
    fitted = [item for item in fitted if item is not MISSING]
    if len(fitted) < schema.get("minItems", 0):
        note(where, f"has {len(fitted)} usable entries", f"send at least {schema['minItems']}")
        return MISSING
    return fitted


def _fit_text(value: Any, schema: Json, where: str, note: AddNote) -> Any:
    pattern = schema.get("pattern")
    if (value is MISSING or value is None) and pattern and "{0," in pattern:
        return ""  # a thought that was not sent
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        note(where, "is missing" if value is MISSING else f"is {short(value)}", "send text")
        return MISSING
    if pattern is None:
        return _encodable(value, where, note)
    return _fit_pattern(value, pattern, where, note)


def _encodable(value: str, where: str, note: AddNote) -> str:
    clean = value.encode("utf-8", "replace").decode("utf-8")
    if clean != value:
        note(where, "has half a surrogate pair", "was replaced by `?`; write whole characters")
    return clean


def _fit_pattern(value: str, pattern: str, where: str, note: AddNote) -> Any:
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
            where,
            f"{short(value)} has too few usable characters",
            f"write {least} to {most} of {bounds[1]}",
        )
        return MISSING
    if least:  # a name or a description; nobody misses the end of a thought
        note(
            where,
            f"{short(value)} was read as {short(clean)}",
            f"write at most {most} of {bounds[1]}",
        )
    return clean


def unpack_json(value: Any, kind: type, where: str, note: AddNote) -> Any:
    """An object or list that was sent as text with JSON in it."""
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    inner = load(value, where, lambda *_: None)
    if not isinstance(inner, kind):
        return value
    note(where, "is JSON inside a string", "was read all the same; send it without quotes")
    return inner
