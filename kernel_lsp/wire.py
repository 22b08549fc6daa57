"""Records to JSON and back, and newline-framed messages between our own processes.

Standard library only, because both ends of every pipe import it, one of them in the
project's interpreter. Decoding follows the type hints, refuses unknown enum values and
ignores unknown keys, so an older process can read a newer one's message.

Frames are numbered and sealed with a key that the child receives as its first input: what anybody
else writes into the pipe (a print, a stray write to a descriptor, another process) is no message.
Not covered: code in the child's own process that looks for the sealing object or reads its memory;
so a worker's words are only claims, which the judge and the parent's clock check.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import json
import os
import types
import typing
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A record (or a container of records) as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(kind: type[T], data: Any) -> T:
    """The inverse of :func:`to_json`. Raises TypeError or ValueError on data of another shape."""
    return typing.cast(T, _decode(kind, data))


def dumps(value: Any) -> str:
    """The value as JSON in ASCII without spaces."""
    return json.dumps(to_json(value), separators=(",", ":"), ensure_ascii=True)


def _decode(kind: Any, data: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return None if data is None else _decode(next(a for a in args if a is not type(None)), data)
    if origin in (tuple, list):
        return origin(_decode(args[0], item) for item in data)
    if origin is dict:
        if not isinstance(data, dict):
            raise TypeError(f"expected an object, got {type(data).__name__}")
        return {key: _decode(args[1], item) for key, item in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, data)
    return _decode_plain(kind, data) if isinstance(kind, type) else data


def _decode_plain(kind: type, data: Any) -> Any:
    if issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as error:  # JSON knows integers of any size
            raise ValueError(str(error)) from None
    if not isinstance(data, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(data).__name__}")
    return data


def _decode_record(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise TypeError(f"expected an object for {kind.__name__}, got {type(data).__name__}")
    hints = _hints(kind)
    names = [f.name for f in dataclasses.fields(kind) if f.name in data]
    return kind(**{name: _decode(hints[name], data[name]) for name in names})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


# --- frames ------------------------------------------------------------------------------
# header length (4 bytes, big endian) | header: JSON with the blobs' sizes | seal | blobs | seal
#
# The seals cover the frame's number and its header, not the blobs' bytes: nobody can change bytes
# that are in a pipe already, and bytes that were pushed in between shift the closing seal out of
# its place. Sealing costs 2 us a frame; hashing the blobs too would cost 1.2 s per GB at both ends.

KEY_BYTES = 32
SEAL_BYTES = 16
MAX_HEADER_BYTES = 64 * 1024 * 1024


class Forged(ValueError):
    """Bytes that are no frame of the other end's."""


class Seal:
    """One direction of a channel: seals frame after frame. Both ends keep one, in step.

    It holds the key inside a hash and not as bytes, so that no repr, print or pickle shows it.
    """

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=SEAL_BYTES, person=direction)
        self._number = 0

    def __call__(self, header: bytes) -> tuple[bytes, bytes]:
        """The opening and the closing seal of the next frame."""
        self._number += 1
        made = []
        for part in (b"open", b"shut"):
            hasher = self._keyed.copy()
            hasher.update(part + self._number.to_bytes(8, "big") + header)
            made.append(hasher.digest())
        return made[0], made[1]


REQUESTS, REPLIES = b"requests", b"replies"


def check(found: bytes, expected: bytes) -> None:
    """Raises Forged unless the bytes are the expected ones; takes as long either way."""
    if not hmac.compare_digest(found, expected):
        raise Forged("bytes that are no frame of ours")


def encode_frame(
    seal: Seal, message: dict[str, Any], blobs: typing.Sequence[bytes | memoryview] = ()
) -> list[bytes | memoryview]:
    """The chunks of one frame, in order; blobs are not copied."""
    header = dumps(
        {"message": message, "blobs": [memoryview(blob).nbytes for blob in blobs]}
    ).encode()
    opening, closing = seal(header)
    return [len(header).to_bytes(4, "big"), header, opening, *blobs, closing]


@dataclasses.dataclass(slots=True)
class Pipe:
    """The child's end of one direction."""

    stream: typing.BinaryIO
    seal: Seal


def write_frame(
    pipe: Pipe, message: dict[str, Any], blobs: typing.Sequence[bytes | memoryview] = ()
) -> None:
    """Blocking write, for the child's end of a pipe."""
    for chunk in encode_frame(pipe.seal, message, blobs):
        pipe.stream.write(chunk)
    pipe.stream.flush()


def read_frame(pipe: Pipe) -> tuple[dict[str, Any], list[bytes]] | None:
    """Blocking read, for the child's end of a pipe; None at end of file. Raises Forged."""
    head = pipe.stream.read(4)
    if len(head) < 4:
        return None
    raw = pipe.stream.read(int.from_bytes(head, "big"))
    opening, closing = pipe.seal(raw)
    check(pipe.stream.read(SEAL_BYTES), opening)
    header = json.loads(raw)
    blobs = [pipe.stream.read(size) for size in header["blobs"]]
    check(pipe.stream.read(SEAL_BYTES), closing)
    return header["message"], blobs


def claim_stdio() -> tuple[Pipe, Pipe]:
    """Take the protocol's pipes away from everybody else: returns (requests, replies).

    Afterwards descriptor 0 is /dev/null and descriptor 1 is stderr, so a print() in user code
    is a log line and never a message. The key is the first thing read, and is not kept.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    key = requests.read(KEY_BYTES)
    if len(key) < KEY_BYTES:
        raise SystemExit("the parent went before it had said anything")
    return Pipe(requests, Seal(key, REQUESTS)), Pipe(replies, Seal(key, REPLIES))
