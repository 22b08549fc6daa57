"""Patterns of paths as in .gitignore: of the settings ``exclude`` and ``per-file-ignores``, and
of git itself.

What a pattern means is pathspec's; it is imported with the first pattern, so a server whose
folders have none never loads it. Patterns come from repositories: one that means nothing matches
nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

MAX_PATTERNS = 10_000
"""Of one file: beyond it a .gitignore is generated, and each pattern is tried on each path."""


MAX_STARS = 4
"""Of one pattern: with more, a name that somebody chose for it is tried for minutes (each star is
a loop in a regular expression). No pattern that a person wrote was found to have more."""
_STARS = re.compile(r"\*+")


class Patterns:
    """Lines of one .gitignore, or one setting."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._spec = _spec(tuple(lines)) if lines else None

    def verdict(self, path: PurePath | str) -> bool | None:
        """True: a pattern names it. False: one that begins with ``!`` takes it back. None:
        nothing is said.

        ``path`` is relative to where the patterns stand; a folder's ends with a slash.
        """
        if self._spec is None:
            return None
        said: bool | None = self._spec.check_file(str(path)).include
        return said

    def names(self, path: PurePath) -> bool:
        """Whether the file is meant, or a folder around it: what a folder loses, no ``!`` brings
        back."""
        if self._spec is None:
            return False
        folders = [f"{folder.as_posix()}/" for folder in reversed(path.parents) if folder.parts]
        return any(self.verdict(one) for one in [*folders, path.as_posix()])


@functools.lru_cache(maxsize=256)
def _spec(lines: tuple[str, ...]) -> Any:
    from pathspec import GitIgnoreSpec

    good = [line for line in lines[:MAX_PATTERNS] if _means_something(line)]
    return GitIgnoreSpec.from_lines(good)


def _means_something(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    if len(_STARS.findall(line)) > MAX_STARS:
        return False
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:  # git ignores such a line
        return False
    return True
