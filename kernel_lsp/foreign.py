"""The one way to read what a repository brings, before anybody has allowed anything.

    read_bytes(path, most=…, within=…)      a regular file, of bounded size, read in bounded time
    toml(text), json_value(content)         whatever is wrong with it is a ValueError, with its line

What files.py reads of Python source goes through here.

A pipe is never waited for, a device never opened, and with ``within`` no link leads out of the
workspace. Standard library only. Not covered: a program that swaps files while they are read,
which needs somebody's leave to run; and what the content makes somebody do (agents/wording.py).
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
MAX_TOML_BYTES = 512 * 1024
"""People's settings have some kilobytes; reading this much takes a second."""
MAX_DEPTH = 100
"""Brackets within brackets. The parser calls itself for each."""
MAX_KEY_PARTS = 64
"""Of ``a.b.c``: the parser takes quadratic time for them."""
MAX_INTEGER_BITS = 1023
"""What is larger is no float, and whoever computes with it gets an OverflowError."""
LIMIT_S = 5.0
_CHUNK = 1024**2
_LONG_NUMBER = re.compile(r"[0-9A-Fa-f_]{256}")
"""Every integer of more bits is written with so many digits, in whatever base."""
_TOML_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\\?\Z)'
    r"|'''(?:[^']|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+|[\[\]{}=,.\n]",
    re.DOTALL,
)


def read_bytes(path: Path, *, most: int, within: Path | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes. Raises OSError that says what is
    wrong.

    ``within``: the workspace, which no link may lead out of.
    """
    place = _real_path(path)
    if within is not None and not place.is_relative_to(_real_path(within)):
        raise _refusal(errno.ELOOP, "a link leads out of the workspace", path)
    _check(place.stat(), most, path)  # before it is opened: opening a device may do something
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(place, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb", buffering=0) as file:
        _check(os.fstat(descriptor), most, path)
        content, begun = bytearray(), time.monotonic()
        while chunk := file.read(min(_CHUNK, most + 1 - len(content))):
            content += chunk
            if len(content) > most:  # it grows, or says nothing of its size, as those of /proc
                raise _too_large(most, path)
            if time.monotonic() - begun > LIMIT_S:
                raise _refusal(errno.ETIMEDOUT, f"not read within {LIMIT_S:.0f} s", path)
    return bytes(content)


def read_text(path: Path, *, most: int, within: Path | None = None) -> str:
    """Text in UTF-8. Raises OSError, or UnicodeDecodeError, which is a ValueError."""
    return read_bytes(path, most=most, within=within).decode("utf-8")


def toml(text: str) -> dict[str, Any]:
    """The table that the text holds. Raises ValueError, whatever is wrong, with the line where that
    is known."""
    import tomllib  # children of ours import this module for files.py alone

    _check_shape(text)
    try:
        return _with_usual_integers(tomllib.loads(text), text)
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None


def json_value(content: str | bytes) -> Any:
    """The value that the text holds. Raises ValueError, whatever is wrong."""
    if isinstance(content, bytes):
        content = content.decode(json.detect_encoding(content), "surrogatepass")
    try:
        return _with_usual_integers(json.loads(content), content)
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None


def _with_usual_integers(value: T, text: str) -> T:
    """The value that the text holds. Raises ValueError for an integer that is no float."""
    left: list[Any] = [value] if _LONG_NUMBER.search(text) else []
    while left:
        one = left.pop()
        if isinstance(one, int) and one.bit_length() > MAX_INTEGER_BITS:
            raise ValueError("an integer of more than 300 digits")
        if isinstance(one, dict | list):
            left += one.values() if isinstance(one, dict) else one
    return value


def _real_path(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # Python 3.11 and 3.12, for a link to itself
        raise _refusal(errno.ELOOP, "a link leads to itself", path) from None
    except ValueError:  # a null byte
        raise _refusal(errno.EINVAL, "no name of a file", path) from None


def _check(found: os.stat_result, most: int, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder", str(path))
        raise _refusal(errno.EINVAL, "no regular file", path)
    if found.st_size > most:
        raise _too_large(most, path)


def _too_large(most: int, path: Path) -> OSError:
    return _refusal(errno.EFBIG, f"larger than {most:,} bytes", path)


def _refusal(number: int, why: str, path: Path) -> OSError:
    return OSError(number, why, str(path))


def _check_shape(text: str) -> None:
    """Raises ValueError where a parser that calls itself would not come back, or would take
    hours."""
    line, depth, dots = 1, 0, 0
    for found in _TOML_TOKEN.finditer(text):
        token = found[0]
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth = max(0, depth - 1)
        elif token == ".":
            dots += 1
        elif token in "=,\n":
            dots = 0
        line += token.count("\n")
        if depth > MAX_DEPTH:
            raise ValueError(f"brackets nested more than {MAX_DEPTH} deep (at line {line})")
        if dots >= MAX_KEY_PARTS:
            raise ValueError(f"a key of more than {MAX_KEY_PARTS} parts (at line {line})")
