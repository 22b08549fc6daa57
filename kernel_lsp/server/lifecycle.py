"""Start and end of the server's process: who may write to stdout, exit codes, never staying
behind.

`initialize` is answered by its announcement (announced.py); only then is imported what serves."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import select
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp import origins
from kernel_lsp.plain import plain
from kernel_lsp.server import abilities, announced, framing
from kernel_lsp.server.collecting import many_that_stay
from kernel_lsp.server.protocol import RequestFailed, is_id, log

if TYPE_CHECKING:
    from kernel_lsp.server.app import KernelServer

PARENT_POLL_S = 2.0
SWITCH_S = 0.0005
"""How long an analysis may hold the interpreter against a request; Python's default is ten times
that."""
KEEP_TIMEOUT_S = 0.3
CANCEL_S = 0.5
MAX_PORT = 65_535
MAX_SILENT = 64
"""Connections to ``--tcp`` that have said nothing yet."""
LOG_LEVELS = ("error", "warning", "info", "debug")


class _PlainLines(logging.Formatter):
    """Editors show standard error in a panel, and people run the server in a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with characters that would steer a terminal taken out."""
        return plain(super().format(record))


def make_server() -> KernelServer:
    """A server with all its requests and commands, not yet connected to anybody."""
    with many_that_stay():
        from kernel_lsp.server import commands, reads, sync
        from kernel_lsp.server.app import KernelServer
        from kernel_lsp.server.jobs import ServerJobs
    ls = KernelServer()
    jobs = ServerJobs(ls)

    def on_initialize(params: types.InitializeParams) -> None:
        settings, trusted = _options(params.initialization_options)
        ls.start(abilities.of(params), settings, trusted=trusted)
        reads.register(ls)

    async def on_shutdown(*arguments: Any) -> None:
        jobs.stop()
        ls.watch.stop()
        if ls.host.pid is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ls.keep_tracker(), KEEP_TIMEOUT_S)
        await ls.host.close()

    async def on_initialized(params: types.InitializedParams) -> None:
        ls.loop = asyncio.get_running_loop()
        if ls.process_id and ls.process_id > 0:
            ls.spawn(_die_with(ls.process_id))
        await sync.on_initialized(ls, params)

    sync.register(ls)
    commands.register(ls, jobs)
    ls.feature(types.INITIALIZE)(on_initialize)
    ls.feature(types.INITIALIZED)(on_initialized)
    ls.feature(types.SHUTDOWN)(on_shutdown)
    return ls


def _start_log(level: str, file: Path | None) -> None:
    """To standard error, which editors show; and to ``file``, with the time of each line."""
    to_editor = logging.StreamHandler(sys.stderr)
    to_editor.setFormatter(_PlainLines("%(levelname)s %(message)s"))
    handlers: list[logging.Handler] = [to_editor]
    if file is not None:
        to_file = logging.FileHandler(file, encoding="utf-8")
        to_file.setFormatter(_PlainLines("%(asctime)s %(levelname)s %(message)s"))
        handlers.append(to_file)
    logging.basicConfig(level=logging.WARNING, handlers=handlers)
    logging.getLogger("pygls").setLevel(logging.ERROR)  # it logs every cancelled request
    logging.getLogger("pygls.protocol.json_rpc").addFilter(_is_no_refusal)
    log.setLevel(level.upper())


def serve(
    tcp: tuple[str, int] | None = None, *, log_level: str = "info", log_file: Path | None = None
) -> None:
    """Run until the client ends it; does not return. ``tcp`` (host, port) is for debugging: one
    client. Raises OSError when the port or the log file cannot be had."""
    _start_log(log_level, log_file)
    sys.setswitchinterval(SWITCH_S)
    if tcp is not None:
        family = socket.AF_INET6 if ":" in tcp[0] else socket.AF_INET
        with socket.create_server(tcp, family=family) as listening:
            given = taken = accept_client(listening).detach()
    else:
        # From here on a stray print() is a log line and never a broken message.
        given, taken = (0, os.dup(1))
        os.dup2(2, 1)
        sys.stdout = sys.stderr
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_converse(given, taken))
    _end(1)


def accept_client(listening: socket.socket) -> socket.socket:
    """The first that begins as a client does, whoever else is connected and silent. A page in a
    browser reaches the port as well, and its request of HTTP has a Content-Length and whatever
    body."""
    silent: list[socket.socket] = []
    """The oldest first: of many it makes room, and an editor speaks as soon as it is connected."""
    try:
        while True:
            ready, _, _ = select.select([listening, *silent], [], [])
            for client in ready:
                if client is listening:
                    silent.append(client.accept()[0])
                    continue
                silent.remove(client)
                if _begins_as_client(client):
                    return client
                client.close()
            if len(silent) > MAX_SILENT:
                silent.pop(0).close()
    finally:
        for client in silent:
            client.close()


def _begins_as_client(client: socket.socket) -> bool:
    with contextlib.suppress(OSError):  # it has gone again, with a reset
        return client.recv(1, socket.MSG_PEEK) in (b"C", b"c")
    return False


async def _converse(given: int, taken: int) -> None:
    """Until the client says `exit`, or one of the two descriptors ends; then the process does."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    serving: list[KernelServer] = []

    def gone() -> None:
        with contextlib.suppress(RuntimeError):  # the loop ended before
            loop.call_soon_threadsafe(ended.set)

    def handle(value: Any) -> None:
        if not ended.is_set() and serving:
            serving[0].protocol.receive(value)
        elif not ended.is_set():
            try:
                serving.append(_begin(value, outbox, ended))
            except Exception:  # of an import, say: editors start a server that has ended again
                log.exception("the server cannot be made")
                ended.set()
        inbox.done()

    outbox = framing.FrameWriter(framing.descriptor_writer(taken), gone)
    inbox = framing.FrameReader(
        framing.descriptor_reader(given),
        deliver=lambda value: loop.call_soon_threadsafe(handle, value),
        ended=gone,
        outbox=outbox,
    )
    inbox.start()
    await ended.wait()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_S)
    outbox.close()
    _end(serving[0].protocol.exit_code() if serving else 1)


def _begin(first: Any, outbox: framing.FrameWriter, ended: asyncio.Event) -> KernelServer:
    """What serves, once it has taken the first message."""
    asked = first if isinstance(first, dict) and first.get("method") == types.INITIALIZE else {}
    ahead = is_id(asked.get("id"))
    if ahead:
        announced.answer(first, outbox)
    ls = make_server()
    ls.protocol.ended = ended
    ls.protocol.set_writer(outbox)
    if ahead:
        ls.protocol.answered_ahead = asked["id"]
    ls.protocol.receive(first)
    return ls


def main(argv: Sequence[str] | None = None) -> None:
    """``python -m kernel_lsp.server``; accepts the flags that the protocol recommends."""
    parser = argparse.ArgumentParser(prog="kernel-lsp serve")
    parser.add_argument("--stdio", action="store_true", help="the default")
    parser.add_argument("--tcp", metavar="HOST:PORT", type=_address)
    parser.add_argument("--clientProcessId", type=int, help="ignored: initialize says it")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    parser.add_argument("--log-file", metavar="FILE", type=Path, help="the log goes there too")
    arguments = parser.parse_args(argv)
    try:
        serve(arguments.tcp, log_level=arguments.log_level, log_file=arguments.log_file)
    except OSError as error:  # of the start: what comes later is said to the client
        parser.error(plain(str(error)))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{plain(text)!r} is no HOST:PORT, as 127.0.0.1:2087")
    host = host.strip("[]") or "127.0.0.1"
    if origins.is_remote(f"tcp://[{host}]" if ":" in host else f"tcp://{host}"):
        raise argparse.ArgumentTypeError(
            f"{plain(host)!r} can be reached from elsewhere, and whoever connects is the editor: "
            f"give 127.0.0.1:{port}, and `ssh -L {port}:127.0.0.1:{port}` where the editor runs"
        )
    return host, int(port)


def _end(code: int) -> None:
    """At once: an analysis that still runs on a thread must not hold the editor's exit up."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """A refused request is an answer; pygls would log its traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (RequestFailed, JsonRpcInvalidParams))


def _options(options: Any) -> tuple[dict[str, Any], bool]:
    """(settings, trusted) from initializationOptions: flat, or under ``settings``."""
    given = dict(options) if isinstance(options, dict) else {}
    trusted = given.pop("isTrusted", True) is not False
    nested = given.pop("settings", None)
    return {**given, **(nested if isinstance(nested, dict) else {})}, trusted


async def _die_with(process_id: int) -> None:
    """Nobody else watches the editor's process id; without this a crashed editor leaves us
    behind."""
    while True:
        try:
            os.kill(process_id, 0)
        except (ProcessLookupError, OverflowError):
            os._exit(1)  # our children end with us
        except PermissionError:
            return  # it lives, as somebody else
        await asyncio.sleep(PARENT_POLL_S)
