"""What the journal may keep: on this machine, or in the database of a team where its user has
named one.

Kept by default: hashes of code (fingerprints), qualified names, paths relative to the workspace,
the workspace's name with a hash of its path, editor and version, skills and parameters, proofs,
measurements, devices and versions. Not kept by default: source text (its SHA-256 stands in its
place), absolute paths (in messages they shrink to their last part), tracebacks (their first and
last line stay). With the setting ``training``: what a job could choose from (sites and names of
skills, no text). With ``keep_source``: source text too, in a table of its own (`models.SourceRow`);
with both, what its user made of an accepted rewrite, there too. Not covered: the name of a class,
file or folder may itself be telling; `sessions forget` removes it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import PurePath
from typing import Any

from kernel_lsp.records import Json

# An absolute path with at least two parts; `a/b`, `x / y` and `//` are none.
_PATH = re.compile(
    r"(?<![\w./\\~])(?:[A-Za-z]:[\\/]|/)(?:[^\s\\/:'\"<>|,;()]+[\\/])+(?P<last>[^\s\\/:'\"<>|,;()]*)"
)


def folder_key(folder: str | None) -> str | None:
    """A name of the folder such as ``project-1f0c9a2b7d33``: readable, the same for the same
    folder, and not its path."""
    if folder is None:
        return None
    absolute = os.path.normcase(os.path.realpath(folder))
    digest = hashlib.sha256(absolute.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{PurePath(absolute).name or 'root'}-{digest}"


def relative_path(path: str | None, folder: str | None) -> str | None:
    """The path relative to the folder; a file outside of it keeps only its name."""
    if path is None or not PurePath(path).is_absolute():
        return path
    if folder is not None and PurePath(path).is_relative_to(folder):
        return PurePath(path).relative_to(folder).as_posix()
    return PurePath(path).name


def redact(value: Any, *, keep_source: bool = False) -> Any:
    """JSON values with absolute paths shortened and, unless source may be kept, long messages
    cut."""
    if isinstance(value, str):
        short = _PATH.sub(lambda m: f".../{m['last']}", value)
        return short if keep_source else _ends(short)
    if isinstance(value, dict):
        return {key: redact(item, keep_source=keep_source) for key, item in value.items()}
    if isinstance(value, list):
        return [redact(item, keep_source=keep_source) for item in value]
    return value


def take_source(candidate: Json) -> tuple[Json, dict[str, str]]:
    """A candidate's JSON with every source text replaced by its hash, and the texts."""
    texts = {"program": candidate["program"]}
    bare = {**candidate, "program": sha256(candidate["program"])}
    if candidate.get("edit"):
        edit = candidate["edit"]
        texts |= {f"edit.{name}": edit[name] for name in ("definitions", "target")}
        bare["edit"] = {**edit, **{name: sha256(edit[name]) for name in ("definitions", "target")}}
    return bare, texts


def put_source(candidate: Json, texts: dict[str, str]) -> Json:
    """The inverse: texts that were not kept come back empty, and without its target an edit is
    none."""
    edit = candidate.get("edit")
    if edit and "edit.target" in texts:
        edit = {
            **edit,
            **{name: texts.get(f"edit.{name}", "") for name in ("definitions", "target")},
        }
    else:
        edit = None
    return {**candidate, "program": texts.get("program", ""), "edit": edit}


def sha256(text: str) -> str:
    """The text's hash as `sha256:` and 64 digits; lone surrogates count as they are."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _ends(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return text if len(lines) <= 2 else f"{lines[0]}\n...\n{lines[-1]}"
