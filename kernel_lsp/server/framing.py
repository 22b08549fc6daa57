"""Bytes of a client to messages and messages to bytes, each on a thread of its own.

The base protocol is a header, an empty line and a body of that length. A client may lie about the
length, send no header, or stop in the middle: each such place is one `Damaged`, and reading goes
on at the next header that can be found. The reader waits while a client does not read what it was
sent, so that no backlog fills the memory. Not covered: what a message means (protocol.py)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_HEADER_BYTES = 8_192
MAX_BODY_BYTES = 128 * 2**20
"""Twice what an editor sends for a document of 50 MB; a longer one would cost too much memory."""
MAX_BACKLOG_BYTES = 32 * 2**20
"""Of answers that the client has not read; until it reads them, nothing more is read from it."""
MAX_WAITING = 64
"""Messages between the reader and the loop: in between, other work of the loop has its turn."""
FLUSH_S = 1.0
_CHUNK = 2**20

_HEADER_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"(?i)content-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\Z")
_HEADER_IN_BODY = re.compile(rb"(?i)content-length[ \t]*:[ \t]*\d+[ \t]*\r?\n")
_CHARSET = re.compile(rb"(?i)charset[ \t]*=[ \t]*\"?([A-Za-z0-9_.:-]+)")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Damaged:
    """A place of the stream that is no message."""

    reason: str


def frames(read: Callable[[int], bytes]) -> Iterator[Any]:
    """JSON values, and `Damaged` for what is none, until ``read`` (at most n bytes) gives nothing
    more."""
    buffer = bytearray()
    lost = False
    """Between a damaged place and the next message: it is reported once."""
    while True:
        found = _HEADER_END.search(buffer)
        if found is None:
            if len(buffer) > MAX_HEADER_BYTES:
                if not lost:
                    yield Damaged(f"a header of more than {MAX_HEADER_BYTES} bytes")
                lost = True
                del buffer[: -MAX_HEADER_BYTES // 2]  # a header may begin in what is kept
            if not (chunk := read(65_536)):
                return
            buffer += chunk
            continue
        header = bytes(buffer[: found.start()])
        del buffer[: found.end()]
        if not header.strip():
            continue  # blank lines between two messages
        length, fault = _length_of(header)
        if length is None:
            if not lost:
                yield Damaged(fault)
                lost = True
            continue
        if not lost and _begins_with_a_body(header):
            yield Damaged("a body without a header")
        while len(buffer) < length:
            if not (chunk := read(min(_CHUNK, length - len(buffer)))):
                return  # the client went in the middle of a message
            buffer += chunk
        body = bytes(buffer[:length])
        del buffer[:length]
        if fault:
            yield Damaged(fault)
            continue
        value, rest = _decode(body)
        if rest is not None:
            buffer[:0] = rest
        lost = isinstance(value, Damaged)
        yield value


def _length_of(header: bytes) -> tuple[int | None, str]:
    """(length of the body, what is wrong); without a length the stream goes on behind the
    header."""
    lengths, fault = set[int](), ""
    for line in header.split(b"\n"):
        line = line.strip(b"\r")
        if (
            found := _LENGTH.search(line)
        ) is not None:  # behind the rest of a body that was longer than said
            lengths.add(int(found[1]))
        elif line.lower().startswith(b"content-length"):
            return None, "a Content-Length that is no number"
        elif line.lower().startswith(b"content-type"):
            named = _CHARSET.search(line)
            if named is not None and named[1].lower() not in (b"utf-8", b"utf8"):
                fault = f"the charset {named[1].decode('ascii')}: only utf-8 is spoken"
    if not lengths:
        return None, "a header without Content-Length"
    if len(lengths) > 1:
        return None, "a header with two Content-Length"
    length = lengths.pop()
    if length > MAX_BODY_BYTES:
        return None, f"a message of {length} bytes; at most {MAX_BODY_BYTES} are taken"
    return length, fault


def _begins_with_a_body(header: bytes) -> bool:
    return any(
        found.start() > 0
        for line in header.split(b"\n")
        if (found := _LENGTH.search(line.strip(b"\r")))
    )


def _decode(body: bytes) -> tuple[Any, bytes | None]:
    """(the JSON value or `Damaged`, what of the body belongs to the stream again)."""
    try:
        return _plain_text(json.loads(body.decode("utf-8"), parse_constant=_refuse), body), None
    except RecursionError:
        return Damaged("JSON that is nested too deeply"), None
    except ValueError as error:  # no UTF-8, no JSON, an integer of thousands of digits
        reason = f"no JSON in UTF-8: {str(error)[:200]}"
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return Damaged(reason), body[len(error.doc[: error.pos].encode()) :]
        if (
            found := _HEADER_IN_BODY.search(body)
        ) is not None:  # a line break is no part of a JSON text
            return Damaged(reason), body[found.start() :]
        return Damaged(reason), None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _plain_text(value: Any, body: bytes) -> Any:
    """Halves of surrogate pairs become U+FFFD, which has the same length in each encoding of
    positions: nothing else of this program need be afraid of text that has no UTF-8."""
    if _ESCAPED_SURROGATE.search(body) is None:
        return value
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        return {**_whole(value), "id": value["id"]}  # a client knows its own answer by it
    return _whole(value)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


class FrameWriter:
    """What is sent, on a thread of its own: a client that does not read holds nobody up."""

    def __init__(self, write: Callable[[bytes], object], on_broken: Callable[[], None]) -> None:
        self._write, self._on_broken = write, on_broken
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._backlog = 0
        self.broken = False
        self._thread = threading.Thread(target=self._run, name="to the client", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queues bytes to be sent; they are dropped where the client has gone."""
        if self.broken:
            return
        with self._room:
            self._backlog += len(data)
        self._queue.put(data)

    def wait_for_room(self) -> None:
        """Called by the reader: returns when the client has read most of what it was sent, or has
        gone."""
        with self._room:
            self._room.wait_for(lambda: self.broken or self._backlog <= MAX_BACKLOG_BYTES)

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Sends what waits and ends, within ``timeout_s`` where the client takes nothing more."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                self._write(data)
            except (OSError, ValueError):  # the pipe is gone, or was closed by us
                self.broken = True
                self._on_broken()
            with self._room:
                self._backlog -= len(data)
                self._room.notify_all()
            if self.broken:
                return


class FrameReader:
    """Reads on a thread of its own; ``deliver`` is called for each value, and whoever has dealt
    with it calls `done`; ``ended`` is called once, when nothing more comes."""

    def __init__(
        self,
        read: Callable[[int], bytes],
        *,
        deliver: Callable[[Any], object],
        ended: Callable[[], None],
        outbox: FrameWriter,
    ) -> None:
        self._read, self._deliver, self._ended, self._outbox = read, deliver, ended, outbox
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)

    def start(self) -> None:
        """Begins to read."""
        threading.Thread(target=self._run, name="from the client", daemon=True).start()

    def done(self) -> None:
        """Says that one delivered value has been dealt with, so that another may be read."""
        self._waiting.release()

    def _run(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            # RuntimeError: the loop was closed meanwhile.
            for value in frames(self._read):
                self._outbox.wait_for_room()
                self._waiting.acquire()
                self._deliver(value)
        with contextlib.suppress(RuntimeError):
            self._ended()


def descriptor_reader(descriptor: int) -> Callable[[int], bytes]:
    """A function that reads at most so many bytes of the descriptor; b"" at its end."""
    return lambda count: os.read(descriptor, count)


def descriptor_writer(descriptor: int) -> Callable[[bytes], None]:
    """A function that writes all of its bytes to the descriptor."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    return write
