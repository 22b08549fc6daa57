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
_ONE_STAR = re.compile(r"\\.|(?:(?<![^/])|(?<=^!))\*\*(?![^/\s])|(\*+)")
"""However many are written, they mean what one means, unless they are two and stand for any number
of folders, or are escaped. Written as 5,000 they were 5,000 loops."""
_INNER_STAR = re.compile(
    r"\[\^/\]\*((?:\[\^/\](?!\*)|(?!\[\^/\])\[(?:\\.|[^\]\\])+\]|\\.|[^\[\\/()*+?|^$])+)"
    r"(?=\[\^/\]\*)"
)
"""A star, and what is between it and the next of the same name, in an expression of pathspec's:
where that is found first, it need not be looked for again."""


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

    found = [_ONE_STAR.sub(_with_one_star, line) for line in lines[:MAX_PATTERNS]]
    spec = GitIgnoreSpec.from_lines([line for line in found if _means_something(line)])
    for pattern in spec.patterns:
        if pattern.regex is not None:
            pattern.regex = re.compile(_INNER_STAR.sub(r"(?>[^/]*?\1)", pattern.regex.pattern))
    return spec


def _with_one_star(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else "*"


def _means_something(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    if len(_STARS.findall(line)) > MAX_STARS:
        return False
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):  # git ignores such a line; ``[z-a]`` is no set
        return False
    return True
