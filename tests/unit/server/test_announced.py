"""The answer to `initialize` comes before what serves is imported, and is the one it would give."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_lsp

from kernel_lsp.server import announced, commands
from kernel_lsp.server.lifecycle import make_server

CAPTURED = (
    *Path(pytest_lsp.__file__).parent.glob("clients/*.json"),
    *(Path(__file__).parents[2] / "e2e" / "capabilities").glob("*.json"),
)
HEAVY = ("records", "analysis", "session", "presenter", "config", "hostclient", "documents")


class Written:
    """What is sent to a client."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def capabilities_of(client: Path) -> dict[str, Any]:
    captured: dict[str, Any] = json.loads(client.read_text())
    return captured.get("capabilities", captured)


@pytest.mark.parametrize("client", CAPTURED, ids=lambda path: path.stem)
@pytest.mark.parametrize("root", [None, "file:///tmp", "no place"])
async def test_both_answer_the_same_to_the_byte(client: Path, root: str | None) -> None:
    params = {"processId": None, "rootUri": root, "capabilities": capabilities_of(client)}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    ahead, then, ls = Written(), Written(), make_server()
    announced.answer(message, ahead)
    ls.protocol.set_writer(then)
    ls.protocol.receive(message)
    assert ahead.data == then.data and ahead.data


async def test_what_is_no_initialize_is_refused_by_both_alike() -> None:
    message = {"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": {"capabilities": 3}}
    ahead = Written()
    announced.answer(message, ahead)
    assert b"-32602" in ahead.data


async def test_what_serves_says_the_rest_and_answers_no_second_time() -> None:
    options = {"threshold": "fast"}
    params = {"processId": None, "capabilities": {}, "initializationOptions": options}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    then, ls = Written(), make_server()
    ls.protocol.set_writer(then)
    ls.protocol.answered_ahead = 1
    ls.protocol.receive(message)
    assert b"cannot be used" in then.data and b'"id"' not in then.data
    ls.protocol.receive(message)
    assert b"initialized already" in then.data


def test_commands_are_those_that_are_served() -> None:
    assert tuple(commands.COMMANDS) == announced.COMMANDS


def test_an_answer_waits_for_no_import_of_what_serves() -> None:
    script = (
        "import sys, kernel_lsp.server\n"
        f"print([n for n in {HEAVY} if f'kernel_lsp.{{n}}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
