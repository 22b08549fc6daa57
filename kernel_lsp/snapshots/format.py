"""The file of one call snapshot: a header in JSON, then parts as raw bytes. Standard library only.

    magic (8 bytes)  length of the header (8 bytes, big-endian)  header  parts

The header says for each part where it begins behind the header and how long it is. Relative
imports alone: this file is also loaded inside of the user's program, under another name."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"KLSPCALL"
FORMAT = 1
MAX_HEADER_BYTES = 16 * 2**20
MAX_BYTES = 64 * 2**20
SUFFIX = ".call"
OPENED = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
"""No link is followed and no pipe waited for."""


class Unreadable(Exception):
    """A file that is no snapshot of this version; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What one file holds."""

    header: dict[str, Any]
    parts: dict[str, bytes]


def encode(header: dict[str, Any], parts: dict[str, bytes]) -> bytes:
    """The bytes of a file with these contents."""
    places, at = {}, 0
    for name, part in parts.items():
        places[name] = [at, len(part)]
        at += len(part)
    text = json.dumps({**header, "format": FORMAT, "parts": places}).encode()
    return b"".join([MAGIC, struct.pack(">Q", len(text)), text, *parts.values()])


def name_of(content: bytes) -> str:
    """The name of a file with this content."""
    return f"{hashlib.sha256(content).hexdigest()[:32]}{SUFFIX}"


def read(path: Path) -> Contents:
    """What the snapshot's file holds. Raises Unreadable, also for a file of another version, and
    OSError.

    What is read is what was found: a file that takes its place in between has another name."""
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in OPENED)
    descriptor = os.open(path, flags)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable("it is no regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) <= MAX_BYTES and name_of(content) != path.name:
        raise Unreadable("it was changed: it is named by another content")
    return decode(content)


def decode(content: bytes) -> Contents:
    """The inverse of :func:`encode`. Raises Unreadable."""
    if len(content) > MAX_BYTES:
        raise Unreadable(f"it is larger than {MAX_BYTES >> 20} MB")
    header, end = _header(content)
    parts = {}
    try:
        for name, (start, length) in header["parts"].items():
            if not 0 <= start <= start + length <= len(content) - end:
                raise Unreadable("it ends before its parts do")
            parts[name] = content[end + start : end + start + length]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable("its header does not say where its parts are") from error
    return Contents(header=header, parts=parts)


def _header(content: bytes) -> tuple[dict[str, Any], int]:
    """The header, and where the parts begin."""
    start = len(MAGIC) + 8
    if content[: len(MAGIC)] != MAGIC or len(content) < start:
        raise Unreadable("it is no snapshot of a call")
    (length,) = struct.unpack(">Q", content[len(MAGIC) : start])
    if length > min(MAX_HEADER_BYTES, len(content) - start):
        raise Unreadable("its header is cut off")
    try:
        header = json.loads(content[start : start + length])
    except (ValueError, RecursionError) as error:
        raise Unreadable("its header is no JSON") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else None
        raise Unreadable(f"it has format {found}, this version reads format {FORMAT}: record again")
    return header, start + length
