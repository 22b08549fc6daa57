"""What of a workspace can be run, as data: nothing here runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EntryKind(StrEnum):
    SCRIPT = "script"
    TEST = "test"
    DEBUG = "debug"
    """A debug configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryPoint:
    """One program that a person may run."""

    name: str
    """As a person chooses it: a path from the workspace, or the name of a debug configuration."""
    kind: EntryKind
    words: tuple[str, ...]
    """Behind the interpreter."""
    folder: str
    """Where it is run."""
    path: str | None = None
    """Of its file, from the workspace; None: a module that is not there, such as an installed
    one."""
    uses_torch: bool = False
    """Its text names torch; what it imports was not looked at."""
    python: str | None = None
    """The interpreter that a debug configuration names; None: the workspace's."""
    environment: tuple[tuple[str, str], ...] = ()
    """What a debug configuration sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryPoints:
    points: tuple[EntryPoint, ...]
    problems: tuple[str, ...] = ()
    """Why a debug configuration is not among them."""
    complete: bool = True
    """False: the workspace is too large to be looked through."""
