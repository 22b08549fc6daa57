"""Layers and weights that a rewritten forward names more than once are looked up once, in its
guard.

``self.conv`` is no attribute of the object: nn.Module finds it in Python, 0.7 us each time and 1.5
us for ``self.conv.weight``, so that a guard over two layers took 20 us where a kernel takes 10.
Not covered: what only the statements name, and names that are first met where Python may not get
to (behind an ``or``)."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Sequence

SKIPS = (" or ", " and ")
"""Behind these an expression may not be evaluated."""
DETOURS = (" if ", " for ", "lambda")
"""Where these are, the order of the text is not the order of evaluation."""
CHAIN = re.compile(r"\bself(?:\.\w+|\[\d+\]|\['[^']*'\])+")
BARE = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def bound_once(
    checks: Sequence[str], body: Sequence[str], paths: Collection[str], taken: Collection[str]
) -> tuple[list[str], list[str]]:
    """The conditions of a guard and the statements behind it, with local names for ``paths``
    (``self.conv``).

    What is named twice or more is bound (``:=``) by the first condition that names it; ``taken``
    are names that the function uses. What is evaluated, and in which order, stays the same."""
    checks, body = list(checks), list(body)
    code = [line for line in body if not _is_comment(line)]
    used = {name for line in (*checks, *code) for name in BARE.findall(line)} | set(taken)
    for path in sorted(_prefixes([*checks, *code]) & set(paths), key=_depth, reverse=True):
        at = next((i for i, text in enumerate(checks) if _always(text, path)), None)
        if at is None or _count([*checks[at:], *code], path) < 2:
            continue
        name = _name(path, used)
        used.add(name)
        checks[at:] = [_rename_path(text, path, name) for text in checks[at:]]
        checks[at] = _binding(checks[at], path, name)
        code = [_rename_path(line, path, name) for line in code]
    left = iter(code)
    return checks, [line if _is_comment(line) else next(left) for line in body]


def _is_comment(line: str) -> bool:
    return line.lstrip("\0 ").startswith("#")


def _prefixes(lines: Sequence[str]) -> set[str]:
    """Every chain of attributes in the lines, and what each begins with."""
    found = set[str]()
    for chain in {chain for line in lines for chain in CHAIN.findall(line)}:
        parts = re.findall(r"self|\.\w+|\[[^\]]*\]", chain)
        found.update("".join(parts[:end]) for end in range(2, len(parts) + 1))
    return found


def _depth(path: str) -> tuple[int, str]:
    return path.count(".") + path.count("["), path


def _pattern(path: str) -> str:
    return rf"(?<![\w.]){re.escape(path)}(?!\w)"


def _count(lines: Sequence[str], path: str) -> int:
    return sum(len(re.findall(_pattern(path), line)) for line in lines)


def _always(text: str, path: str) -> bool:
    """The path is named where Python gets to whenever the condition is asked for, and not in a
    binding."""
    found = re.search(_pattern(path), text)
    before = text[: found.start()] if found else ""
    detour = any(word in text for word in DETOURS) or any(word in before for word in SKIPS)
    return found is not None and ":=" not in before and not detour


def _rename_path(text: str, path: str, name: str) -> str:
    return re.sub(_pattern(path), name, text)


def _binding(text: str, path: str, name: str) -> str:
    """The first mention becomes the binding; the only argument of a call needs no parentheses."""
    lone = re.search(rf"(?<=[\w]\(){re.escape(name)}(?=\))", text)
    first = re.search(_pattern(name), text)
    assert first is not None
    plain = lone is not None and lone.start() == first.start()
    made = f"{name} := {path}" if plain else f"({name} := {path})"
    return text[: first.start()] + made + text[first.end() :]


def _name(path: str, used: Collection[str]) -> str:
    """``conv`` for self.conv, ``conv_weight`` for its weight, ``layers_0`` for one of a list; more
    of the path when that is taken."""
    words = re.findall(r"\w+", path)[1:]
    keep = 2 if len(words) > 1 and (words[-1].isdigit() or words[-1] in ("weight", "bias")) else 1
    for count in range(keep, len(words) + 1):
        name = "_".join(words[-count:])
        name += "_" * hasattr(builtins, name)  # self.input
        if name.isidentifier() and name not in used:
            return name
    whole, number = "_".join(words), 2
    while f"{whole}_{number}" in used or not f"{whole}_{number}".isidentifier():
        whole, number = (whole, number + 1) if whole.isidentifier() else (f"layer_{whole}", number)
    return f"{whole}_{number}"
