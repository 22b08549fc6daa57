"""Debug configurations of VS Code that run a Python program: what the editor has read, or
launch.json.

Taken are those that say everything themselves: a program or module of the workspace, with plain
arguments. One that asks for a variable that only an editor knows, or holds what a terminal would
obey, is left out and said. launch.json is read as plain JSON: with comments in it only VS Code
reads it, and hands it over."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_lsp import foreign
from kernel_lsp.records import EntryKind, EntryPoint

FILE = Path(".vscode", "launch.json")
MAX_BYTES = 256 * 1024
MAX_CONFIGURATIONS = 100
_TYPES = ("debugpy", "python")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class _UnusableConfiguration(Exception):
    """Why a configuration is not among the entry points."""


def entry_points(
    folder: Path, debug: Sequence[Any] | None, open_file: Path | None
) -> tuple[tuple[EntryPoint, ...], tuple[str, ...]]:
    """(those that can be run in a terminal, why the others cannot). ``debug``: what an editor has
    read."""
    given, problems = (debug, []) if debug is not None else _read(folder)
    found: list[EntryPoint] = []
    for one in given[:MAX_CONFIGURATIONS]:
        if (
            not isinstance(one, dict)
            or one.get("type") not in _TYPES
            or one.get("request") != "launch"
        ):
            continue
        try:
            found.append(_entry_point(one, folder, open_file))
        except _UnusableConfiguration as reason:
            problems.append(f"the debug configuration {one.get('name')!r} is left out: {reason}")
    return tuple(found), tuple(problems)


def _read(folder: Path) -> tuple[Sequence[Any], list[str]]:
    path = folder / FILE
    try:
        content = foreign.json_value(foreign.read_text(path, most=MAX_BYTES, within=folder))
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as error:
        return [], [
            f"{FILE.as_posix()} is left out: {error} (comments in it are read in VS Code alone)"
        ]
    listed = content.get("configurations") if isinstance(content, dict) else None
    return (listed, []) if isinstance(listed, list) else ([], [])


def _entry_point(one: dict[str, Any], folder: Path, open_file: Path | None) -> EntryPoint:
    """Raises _Unusable."""
    known = {"workspaceFolder": str(folder), "workspaceFolderBasename": folder.name}
    if open_file is not None:
        known["file"] = str(open_file)
    name = _word(one.get("name"), known, "name")
    where = _inside(Path(_word(one.get("cwd", str(folder)), known, "cwd")), folder, "cwd")
    environment = _environment(one.get("env"), known)
    given = one.get("args", [])
    if not isinstance(given, list):
        raise _UnusableConfiguration("args is no list")
    arguments = [_word(each, known, "args") for each in given]
    path = None
    if "module" in one:
        words = ["-m", _word(one["module"], known, "module")]
    else:
        program = _inside(where / _word(one.get("program"), known, "program"), folder, "program")
        if not program.is_file():
            raise _UnusableConfiguration(f"there is no {program}")
        path = program.relative_to(folder).as_posix()
        words = [str(program.relative_to(where)) if program.is_relative_to(where) else str(program)]
        words = [f"./{words[0]}" if words[0].startswith("-") else words[0]]
    python = one.get("python")
    return EntryPoint(
        name=name,
        kind=EntryKind.DEBUG,
        words=(*words, *arguments),
        folder=str(where),
        path=path,
        python=None if python is None else _word(python, known, "python"),
        environment=environment,
    )


def _environment(given: Any, known: dict[str, str]) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    if not isinstance(given, dict) or not all(
        re.fullmatch(r"[A-Za-z_]\w*", key, re.A) for key in given
    ):
        raise _UnusableConfiguration("env is no table of variables")
    return tuple((key, _word(value, known, "env")) for key, value in given.items())


def _word(given: Any, known: dict[str, str], key: str) -> str:
    """One word of a command line. Raises _Unusable."""
    if not isinstance(given, str):
        raise _UnusableConfiguration(f"{key} is no text")
    text = _VARIABLE.sub(lambda found: known.get(found[1], found[0]), given)
    if "${" in text:
        raise _UnusableConfiguration(
            f"{key} has a variable that only an editor knows: {text[text.index('${') :][:40]}"
        )
    if not text.isprintable():
        raise _UnusableConfiguration(f"{key} has characters that a terminal would obey")
    return text


def _inside(path: Path, folder: Path, key: str) -> Path:
    """Raises _Unusable for what lies elsewhere, be it by ``..`` or by a link."""
    absolute = Path(os.path.normpath(folder / path))
    try:
        inside = absolute.is_relative_to(folder) and absolute.resolve().is_relative_to(
            folder.resolve()
        )
    except (OSError, RuntimeError):  # a link to itself
        inside = False
    if not inside:
        raise _UnusableConfiguration(f"its {key} lies outside of the workspace")
    return absolute
