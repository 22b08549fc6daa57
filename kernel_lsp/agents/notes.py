"""What was wrong with a reply, collected while it is read, in words that are short whatever it
says."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp.records import ReplyProblem

MAX_PROBLEMS = 8
"""Said of one reply: a next turn mends the first ones."""
MAX_SHOWN = 400
"""Characters of a list of choices in a remedy."""
MISSING: Any = object()
"""In place of a value that is not there or cannot be used; None is one."""

AddNote = Callable[[str, str, str], None]
"""Takes where, cause and remedy of a fault, mended or not."""


@dataclass(slots=True)
class Notes:
    """The problems of a reply, each once; a `AddNote`."""

    problems: list[ReplyProblem] = field(default_factory=list)

    def __call__(self, where: str, cause: str, remedy: str) -> None:
        problem = ReplyProblem(where=where, cause=cause, remedy=remedy)
        if len(self.problems) < MAX_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def take(self, other: Notes) -> None:
        """Adds the problems of ``other`` to these."""
        for problem in other.problems:
            self(problem.where, problem.cause, problem.remedy)


def short(value: Any) -> str:
    """A value in a message: one line of at most 80 characters."""
    if value is MISSING:
        return "nothing"
    text = as_words(value)[:80]
    text = "".join(
        char if char.isprintable() else " " for char in text.encode("utf-8", "replace").decode()
    )
    return f"`{text if len(text) < 80 else text[:77] + '...'}`"


def short_name(key: Any) -> str:
    """A key as it is named in a problem: shortened, at most 40 characters."""
    return short(key).strip("`")[:40]


def list_choices(choices: Iterable[Any]) -> str:
    """The choices with commas between them; `…` stands for those beyond MAX_SHOWN characters."""
    text = ""
    for choice in choices:
        word = json.dumps(choice) if not isinstance(choice, str) else choice
        if len(text) + len(word) > MAX_SHOWN:
            return f"{text}, …" if text else f"{word[:MAX_SHOWN]}…"
        text = f"{text}, {word}" if text else word
    return text


def as_words(value: Any) -> str:
    """The value as text: a string as it is, anything else by a repr of bounded size."""
    return value if isinstance(value, str) else reprlib.repr(value)  # repr of a deep list can fail
