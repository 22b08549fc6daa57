"""What LSP 3.17 and JSON-RPC ask of a server, and what clients that keep to neither send, over
real stdio.

After each of these the server answers the next request within 100 ms, or has ended as the
specification says; no client ever reads a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import CAPABILITIES, RawClient, framed, running

PARSE, INVALID, NO_METHOD, PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
NOT_INITIALIZED, CANCELLED, FAILED = -32002, -32800, -32803
SOON_S = 0.1
DIAGONAL = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal
"""
OPEN = {"uri": "file:///p/model.py"}
HERE = {"line": 0, "character": 0}
RANGE = {"start": HERE, "end": HERE}


def call(method: str, params: Any = None, msg_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": msg_id, "method": method, "params": params}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """One server for all cases that must leave it as it was."""
    with running(tmp_path_factory.mktemp("shared") / "project") as client:
        yield client


@pytest.fixture
def server(shared: RawClient) -> Iterator[RawClient]:
    """The shared one; afterwards it is well, and quick, and has shown no traceback."""
    yield shared
    assert shared.latency_s() < SOON_S
    assert b"Traceback" not in shared.raw
    assert b'File \\"' not in shared.raw


def code_of(answer: dict[str, Any]) -> int:
    assert "result" not in answer, answer
    assert isinstance(answer["error"]["message"], str)
    return int(answer["error"]["code"])


# --- the life of a server ------------------------------------------------------------------------


def test_before_initialize_every_request_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "p", ready=False) as client:
        for method in ("textDocument/hover", "shutdown", "workspace/executeCommand", "foo", "$/x"):
            assert code_of(client.request(method, {})) == NOT_INITIALIZED
        assert "result" in client.initialize()


def test_before_initialize_notifications_are_dropped_and_exit_is_one(tmp_path: Path) -> None:
    with running(tmp_path / "p", ready=False) as client:
        uri = client.open(DIAGONAL)
        client.change(uri, {"text": ""})
        client.notify("initialized", {})
        client.notify("foo")
        assert "result" in client.request(
            "initialize", {"processId": None, "rootUri": None, "capabilities": {}}
        )
        assert client.hover(uri)["result"] is None
    with running(tmp_path / "p", ready=False) as client:
        client.notify("exit")
        assert client.exit_code() == 1


def test_a_second_initialize_is_an_error(server: RawClient) -> None:
    params = {"processId": None, "rootUri": None, "capabilities": {}}
    assert code_of(server.request("initialize", params)) == INVALID
    server.notify("initialized", {})


BAD_INITIALIZE: dict[str, Any] = {
    "none": None,
    "a list": [],
    "capabilities of another type": {"processId": None, "rootUri": None, "capabilities": "all"},
    "nested of another type": {
        "processId": None,
        "rootUri": None,
        "capabilities": {"textDocument": 5},
    },
    "a process by name": {"processId": "1", "rootUri": None, "capabilities": {}},
    "a root that is no URI": {"processId": None, "rootUri": "file://[::1", "capabilities": {}},
    "folders in a text": {
        "processId": None,
        "rootUri": None,
        "capabilities": {},
        "workspaceFolders": "x",
    },
    "a folder that is no URI": {
        "processId": None,
        "rootUri": None,
        "capabilities": {},
        "workspaceFolders": [{"uri": "http://[", "name": "x"}],
    },
}


def test_a_bad_initialize_is_refused_and_a_good_one_may_follow(tmp_path: Path) -> None:
    with running(tmp_path / "p", ready=False) as client:
        for name, params in BAD_INITIALIZE.items():
            assert code_of(client.request("initialize", params)) == PARAMS, name
            assert code_of(client.hover("file:///x.py")) == NOT_INITIALIZED
        client.initialize()
        client.open(DIAGONAL)
        assert client.hints((client.folder / "model.py").as_uri())


ODD_INITIALIZE: dict[str, dict[str, Any]] = {
    "unknown encodings, options in a list": {
        "capabilities": {"general": {"positionEncodings": ["utf-7", "ebcdic"]}},
        "initializationOptions": [1, {"a": None}],
        "rootUri": "vscode-remote://ssh/x",
        "processId": -1,
    },
    "no encodings, options of wrong types": {
        "capabilities": {"general": {"positionEncodings": []}},
        "initializationOptions": {"settings": {"device": [1], "budget": {}}},
        "rootUri": "file:///a%00b",
        "processId": 0,
        "workDoneToken": "t",
    },
    "nothing that is known": {
        "foo": {"bar": [None]},
        "capabilities": {"foo": 1, "experimental": [3]},
        "rootUri": "file:///etc/passwd",
        "processId": None,
        "workspaceFolders": None,
    },
    "folders of other machines": {
        "rootUri": None,
        "workspaceFolders": [
            {"uri": uri, "name": "x"}
            for uri in (
                "file://server/share",
                "file:///does/not/exist",
                "untitled:x",
                "file:///C:/x",
            )
        ],
    },
}


@pytest.mark.parametrize("name", ODD_INITIALIZE)
def test_an_odd_initialize_starts_a_server_that_works(tmp_path: Path, name: str) -> None:
    with running(tmp_path / "p", ready=False) as client:
        answer = client.initialize(**ODD_INITIALIZE[name])
        assert answer["result"]["capabilities"]["positionEncoding"] == "utf-16"
        assert client.hints(client.open(DIAGONAL))
        assert client.latency_s() < SOON_S


def test_after_shutdown_nothing_is_served_and_exit_is_zero(tmp_path: Path) -> None:
    with running(tmp_path / "p") as client:
        uri = client.open(DIAGONAL)
        answer = client.request("shutdown")
        assert answer["result"] is None
        for method in ("textDocument/hover", "shutdown", "initialize", "foo"):
            assert code_of(client.request(method, {})) == INVALID
        client.close_document(uri)
        client.notify("foo")
        client.notify("exit")
        assert client.exit_code() == 0


def test_exit_without_shutdown_is_one(tmp_path: Path) -> None:
    with running(tmp_path / "p") as client:
        client.notify("exit")
        assert client.exit_code() == 1


def test_shutdown_and_exit_in_one_breath(tmp_path: Path) -> None:
    with running(tmp_path / "p") as client:
        exit_now = {"jsonrpc": "2.0", "method": "exit"}
        client.write(framed(call("shutdown", msg_id=7)) + framed(exit_now))
        assert client.answer_to(7)["result"] is None
        assert client.exit_code() == 0


@pytest.mark.parametrize(("shut_down", "code"), [(False, 1), (True, 0)])
def test_the_end_of_input_is_the_end(tmp_path: Path, shut_down: bool, code: int) -> None:
    with running(tmp_path / "p") as client:
        if shut_down:
            client.request("shutdown")
        else:
            client.write(b"Content-Length: 100\r\n\r\n{")  # in the middle of a message
        client.stdin.close()
        assert client.exit_code() == code


def test_a_client_that_closes_its_ears_is_gone(tmp_path: Path) -> None:
    with running(tmp_path / "p", ready=False, reading=False) as client:
        assert client.process.stdout is not None
        client.process.stdout.close()
        client.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        assert client.exit_code() == 1


def test_a_server_whose_editor_has_died_ends(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with running(tmp_path / "p", ready=False) as client:
        client.initialize(processId=dead.pid)
        assert client.exit_code() == 1


# --- messages ------------------------------------------------------------------------------------

NOT_MESSAGES: dict[str, tuple[str, int]] = {
    "nothing": ("", PARSE),
    "blanks": ("   ", PARSE),
    "half": ('{"jsonrpc": "2.0", "id": 1,', PARSE),
    "a word": ("hello", PARSE),
    "NaN": ('{"jsonrpc": "2.0", "id": 1, "method": "x", "params": NaN}', PARSE),
    "Infinity": ('{"jsonrpc": "2.0", "id": 1, "method": "x", "params": [-Infinity]}', PARSE),
    "single quotes": ("{'jsonrpc': '2.0'}", PARSE),
    "a trailing comma": ('{"jsonrpc": "2.0", "id": 1, "method": "x",}', PARSE),
    "a comment": ('{"jsonrpc": "2.0"} // x', PARSE),
    "a raw line break": ('{"jsonrpc": "2.0", "method": "a\nb"}', PARSE),
    "nested deeply": ("[" * 200_000, PARSE),
    "nested and closed": (
        '{"jsonrpc":"2.0","id":1,"method":"x","params":' + "[" * 99999 + "]" * 99999 + "}",
        PARSE,
    ),
    "objects nested": ('{"a":' * 100_000 + "1" + "}" * 100_000, PARSE),
    "an integer of 10,000 digits": (
        '{"jsonrpc": "2.0", "id": ' + "9" * 10_000 + ', "method": "x"}',
        PARSE,
    ),
    "null": ("null", INVALID),
    "a number": ("17", INVALID),
    "a text": ('"hello"', INVALID),
    "an empty object": ("{}", INVALID),
    "an empty batch": ("[]", INVALID),
    "a batch": (json.dumps([call("textDocument/hover", {}), call("shutdown")]), INVALID),
    "only a version": ('{"jsonrpc": "2.0"}', INVALID),
    "an id of null": ('{"jsonrpc": "2.0", "id": null, "method": "textDocument/hover"}', INVALID),
    "an id that is true": (
        '{"jsonrpc": "2.0", "id": true, "method": "textDocument/hover"}',
        INVALID,
    ),
    "an id with a fraction": (
        '{"jsonrpc": "2.0", "id": 1.5, "method": "textDocument/hover"}',
        INVALID,
    ),
    "an id that is a list": (
        '{"jsonrpc": "2.0", "id": [1], "method": "textDocument/hover"}',
        INVALID,
    ),
    "an id that is an object": (
        '{"jsonrpc": "2.0", "id": {"a": 1}, "method": "shutdown"}',
        INVALID,
    ),
    "an id of another version": ('{"id": [], "method": "textDocument/hover"}', INVALID),
}


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_what_is_no_message_is_answered_with_a_null_id(server: RawClient, name: str) -> None:
    body, code = NOT_MESSAGES[name]
    server.send(body)
    assert code_of(server.answer_to(None)) == code


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe{}",
        b'{"a": "\xc3\x28"}',
        "\ufeff{}".encode(),
        '{"a": 1}'.encode("utf-16"),
        b"\x00" * 64,
    ],
)
def test_what_is_no_utf8_is_no_json(server: RawClient, body: bytes) -> None:
    server.send(body)
    assert code_of(server.answer_to(None)) == PARSE


BAD_REQUESTS: dict[str, tuple[dict[str, Any], int]] = {
    "no version": ({"id": 1, "method": "textDocument/hover"}, INVALID),
    "an old version": ({"jsonrpc": "1.0", "id": 1, "method": "shutdown"}, INVALID),
    "a version that is a number": ({"jsonrpc": 2.0, "id": 1, "method": "shutdown"}, INVALID),
    "no method": ({"jsonrpc": "2.0", "id": 1}, INVALID),
    "a method that is a number": ({"jsonrpc": "2.0", "id": 1, "method": 5}, INVALID),
    "a method of null": ({"jsonrpc": "2.0", "id": 1, "method": None}, INVALID),
    "an unknown method": (call("textDocument/foo"), NO_METHOD),
    "an empty method": (call(""), NO_METHOD),
    "a long method": (call("x" * 100_000), NO_METHOD),
    "a method in capitals": (call("TEXTDOCUMENT/HOVER"), NO_METHOD),
    "an unknown private method": (call("$/foo"), NO_METHOD),
    "what is not offered: completion": (call("textDocument/completion", {}), NO_METHOD),
    "what is not offered: rename": (call("textDocument/rename", {}), NO_METHOD),
    "what is not offered: formatting": (call("textDocument/formatting", {}), NO_METHOD),
    "what is not offered: symbols": (call("workspace/symbol", {"query": "x"}), NO_METHOD),
    "what servers send: configuration": (call("workspace/configuration", {"items": []}), NO_METHOD),
    "a notification as a request": (call("textDocument/didOpen", {}), INVALID),
    "exit as a request": (call("exit"), INVALID),
    "cancel as a request": (call("$/cancelRequest", {"id": 1}), INVALID),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_answered_with_its_id(server: RawClient, name: str) -> None:
    message, code = BAD_REQUESTS[name]
    server.send(message)
    assert code_of(server.answer_to(1)) == code


@pytest.mark.parametrize(
    "msg_id", [0, -1, 2**31 - 1, 2**63, 10**100, "", "a" * 10_000, "\u202e\x00", "\ud800", "1"]
)
def test_an_id_comes_back_as_it_was(server: RawClient, msg_id: Any) -> None:
    for method, params in (
        ("textDocument/hover", {"textDocument": OPEN, "position": HERE}),
        ("foo", {}),
    ):
        server.send(call(method, params, msg_id))
        answer = server.answer_to(msg_id)
        assert type(answer["id"]) is type(msg_id)


def test_of_two_members_with_one_name_the_last_counts(server: RawClient) -> None:
    server.send('{"jsonrpc": "2.0", "id": 5, "id": 6, "method": "foo", "method": "bar"}')
    answer = server.answer_to(6)
    assert "bar" in answer["error"]["message"]


def test_unknown_members_are_ignored(server: RawClient) -> None:
    params = {
        "textDocument": {**OPEN, "x": 1},
        "position": {**HERE, "y": [1]},
        "z": None,
        "workDoneToken": "t",
    }
    server.send({**call("textDocument/hover", params, 8), "auth": "x", "params2": []})
    assert server.answer_to(8)["result"] is None


HOVER, ACTION, EXECUTE = "textDocument/hover", "textDocument/codeAction", "workspace/executeCommand"
BAD_PARAMS: dict[str, tuple[str, Any]] = {
    "hover: none": (HOVER, None),
    "hover: a list": (HOVER, [OPEN, HERE]),
    "hover: a text": (HOVER, "x"),
    "hover: a number": (HOVER, 3),
    "hover: no position": (HOVER, {"textDocument": OPEN}),
    "hover: no document": (HOVER, {"position": HERE}),
    "hover: a document by name": (HOVER, {"textDocument": "file:///x.py", "position": HERE}),
    "hover: a URI of null": (HOVER, {"textDocument": {"uri": None}, "position": HERE}),
    "hover: a URI that is a number": (HOVER, {"textDocument": {"uri": 5}, "position": HERE}),
    "hover: a line as a text": (
        HOVER,
        {"textDocument": OPEN, "position": {"line": "1", "character": 0}},
    ),
    "hover: a line with a fraction": (
        HOVER,
        {"textDocument": OPEN, "position": {"line": 1.5, "character": 0}},
    ),
    "hover: a line that is true": (
        HOVER,
        {"textDocument": OPEN, "position": {"line": True, "character": 0}},
    ),
    "hover: a negative line": (
        HOVER,
        {"textDocument": OPEN, "position": {"line": -1, "character": 0}},
    ),
    "hover: a negative character": (
        HOVER,
        {"textDocument": OPEN, "position": {"line": 0, "character": -5}},
    ),
    "hover: 2**31": (HOVER, {"textDocument": OPEN, "position": {"line": 2**31, "character": 0}}),
    "hover: 10**30": (HOVER, {"textDocument": OPEN, "position": {"line": 0, "character": 10**30}}),
    "hover: a position as a list": (HOVER, {"textDocument": OPEN, "position": [0, 0]}),
    "hover: a token of another type": (
        HOVER,
        {"textDocument": OPEN, "position": HERE, "workDoneToken": {"a": 1}},
    ),
    "actions: no range": (ACTION, {"textDocument": OPEN, "context": {"diagnostics": []}}),
    "actions: half a range": (
        ACTION,
        {"textDocument": OPEN, "range": {"start": HERE}, "context": {"diagnostics": []}},
    ),
    "actions: no context": (ACTION, {"textDocument": OPEN, "range": RANGE}),
    "actions: diagnostics of null": (
        ACTION,
        {"textDocument": OPEN, "range": RANGE, "context": {"diagnostics": None}},
    ),
    "actions: diagnostics of numbers": (
        ACTION,
        {"textDocument": OPEN, "range": RANGE, "context": {"diagnostics": [5]}},
    ),
    "actions: kinds in one text": (
        ACTION,
        {"textDocument": OPEN, "range": RANGE, "context": {"diagnostics": [], "only": "quickfix"}},
    ),
    "resolve: none": ("codeAction/resolve", None),
    "resolve: no title": ("codeAction/resolve", {"data": {}}),
    "resolve: an edit of another type": (
        "codeAction/resolve",
        {"title": "x", "edit": {"changes": {"a": 5}}},
    ),
    "lens: none": ("textDocument/codeLens", None),
    "lens: a list": ("textDocument/codeLens", []),
    "command: none": (EXECUTE, None),
    "command: no name": (EXECUTE, {"arguments": []}),
    "command: a name of null": (EXECUTE, {"command": None}),
    "command: unknown": (EXECUTE, {"command": "rm -rf /"}),
    "command: arguments in an object": (
        EXECUTE,
        {"command": "kernel-lsp.status", "arguments": {"a": 1}},
    ),
    "command: arguments in a text": (EXECUTE, {"command": "kernel-lsp.status", "arguments": "abc"}),
}


@pytest.mark.parametrize("name", BAD_PARAMS)
def test_bad_params_are_invalid_params(server: RawClient, name: str) -> None:
    assert code_of(server.request(*BAD_PARAMS[name])) == PARAMS


BAD_NOTIFICATIONS: dict[str, tuple[str, Any]] = {
    "unknown": ("foo/bar", {}),
    "private": ("$/foo", 5),
    "a request without an id": ("textDocument/hover", {"textDocument": OPEN, "position": HERE}),
    "initialize without an id": ("initialize", {"capabilities": {}}),
    "shutdown without an id": ("shutdown", None),
    "open: none": ("textDocument/didOpen", None),
    "open: no text": (
        "textDocument/didOpen",
        {"textDocument": {**OPEN, "languageId": "python", "version": 1}},
    ),
    "open: a version as a text": (
        "textDocument/didOpen",
        {"textDocument": {**OPEN, "languageId": "python", "version": "1", "text": ""}},
    ),
    "change: none": ("textDocument/didChange", None),
    "change: not open": (
        "textDocument/didChange",
        {
            "textDocument": {"uri": "file:///never.py", "version": 3},
            "contentChanges": [{"text": "x"}],
        },
    ),
    "change: changes in an object": (
        "textDocument/didChange",
        {"textDocument": {**OPEN, "version": 3}, "contentChanges": {"text": "x"}},
    ),
    "change: a text that is none": (
        "textDocument/didChange",
        {"textDocument": {**OPEN, "version": 3}, "contentChanges": [{"text": None}]},
    ),
    "close: not open": ("textDocument/didClose", {"textDocument": {"uri": "file:///never.py"}}),
    "close: a URI that is none": ("textDocument/didClose", {"textDocument": {"uri": "http://["}}),
    "save: not open": (
        "textDocument/didSave",
        {"textDocument": {"uri": "file:///never.py"}, "text": "x"},
    ),
    "cancel: unknown": ("$/cancelRequest", {"id": 123456789}),
    "cancel: an object": ("$/cancelRequest", {"id": {"a": 1}}),
    "cancel: none": ("$/cancelRequest", None),
    "trace: loud": ("$/setTrace", {"value": "loud"}),
    "trace: verbose": ("$/setTrace", {"value": "verbose"}),
    "trace: off": ("$/setTrace", {"value": "off"}),
    "progress: unknown": ("window/workDoneProgress/cancel", {"token": "foo"}),
    "progress: an object": ("window/workDoneProgress/cancel", {"token": {"a": [1]}}),
    "settings: none": ("workspace/didChangeConfiguration", {}),
    "settings: a text": ("workspace/didChangeConfiguration", {"settings": "x"}),
    "settings: garbage": (
        "workspace/didChangeConfiguration",
        {
            "settings": {
                "kernel-lsp": {"device": {"a": 1}, "budget": [None], "python": 5, "nonsense": True}
            }
        },
    ),
    "settings: null": ("workspace/didChangeConfiguration", {"settings": {"kernel-lsp": None}}),
    "folders: none": ("workspace/didChangeWorkspaceFolders", {"event": {}}),
    "folders: not known": (
        "workspace/didChangeWorkspaceFolders",
        {"event": {"added": [], "removed": [{"uri": "file:///never", "name": ""}]}},
    ),
    "folders: that are none": (
        "workspace/didChangeWorkspaceFolders",
        {
            "event": {
                "added": [
                    {"uri": uri, "name": "x"}
                    for uri in ("http://[", "", "untitled:x", "file:///a%00b")
                ],
                "removed": [
                    {"uri": uri, "name": "x"}
                    for uri in ("http://[", "", "untitled:x", "file:///a%00b")
                ],
            }
        },
    ),
    "watched: that are none": (
        "workspace/didChangeWatchedFiles",
        {
            "changes": [
                {"uri": uri, "type": 1}
                for uri in ("http://[", "file:///a%00b.py", "x", "file:rel.py")
            ]
        },
    ),
    "watched: a kind that is none": (
        "workspace/didChangeWatchedFiles",
        {"changes": [{"uri": "file:///x.py", "type": 99}]},
    ),
    "watched: everything": (
        "workspace/didChangeWatchedFiles",
        {"changes": [{"uri": f"file:///nowhere/{n}.py", "type": 1 + n % 3} for n in range(500)]},
    ),
}


@pytest.mark.parametrize("name", BAD_NOTIFICATIONS)
def test_a_notification_is_never_answered(server: RawClient, name: str) -> None:
    before = len(server.messages)
    server.notify(*BAD_NOTIFICATIONS[name])
    server.request("foo")
    came = [message for message in server.messages[before:] if "method" not in message]
    assert [message["error"]["code"] for message in came] == [NO_METHOD]


@pytest.mark.parametrize(
    "message",
    [
        {"id": "unknown", "result": 5},
        {"id": 5, "error": {"code": 1, "message": "x"}},
        {"id": None, "error": {"code": 1, "message": "x"}},
        {"id": {"a": 1}, "result": None},
        {"id": [1], "error": "x"},
    ],
)
def test_a_response_to_nothing_is_ignored(server: RawClient, message: dict[str, Any]) -> None:
    before = len(server.messages)
    server.send({"jsonrpc": "2.0", **message})
    server.request("foo")
    assert [m for m in server.messages[before:] if m.get("id", 0) is None] == []


# --- bytes ---------------------------------------------------------------------------------------

GOOD = json.dumps(call("foo", msg_id="good")).encode()
LONG = json.dumps(call("foo", {"x": "y" * 300}, "lost")).encode()
DAMAGED: dict[str, bytes] = {
    "no length": b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n",
    "no header": GOOD,
    "a length of zero": b"Content-Length: 0\r\n\r\n",
    "a negative length": b"Content-Length: -5\r\n\r\n",
    "a negative length and a body": b"Content-Length: -5\r\n\r\n" + LONG,
    "no number": b"Content-Length: abc\r\n\r\n" + LONG,
    "hexadecimal": b"Content-Length: 0x20\r\n\r\n" + LONG,
    "a huge length": b"Content-Length: 99999999999999999\r\n\r\n" + LONG,
    "a length of 30 digits": b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + LONG,
    "too small": b"Content-Length: %d\r\n\r\n" % (len(LONG) - 20) + LONG,
    "much too small": b"Content-Length: 5\r\n\r\n" + LONG,
    "two lengths": b"Content-Length: 5\r\nContent-Length: 17\r\n\r\n" + LONG,
    "another charset": b"Content-Length: %d\r\nContent-Type: x; charset=utf-16\r\n\r\n" % len(LONG)
    + LONG,
    "an endless header": b"X: " + b"a" * 200_000 + b"\r\n\r\n",
    "an endless header without an end": b"a" * 200_000,
    "thousands of headers": b"X-Header: 1\r\n" * 5_000 + b"\r\n",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "null bytes": b"\x00" * 1000 + b"\r\n\r\n",
    "all bytes": bytes(range(256)) * 4 + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_after_a_lie_in_the_header_the_next_message_is_read(server: RawClient, name: str) -> None:
    server.write(DAMAGED[name] + framed(GOOD))
    assert code_of(server.answer_to(None)) == PARSE
    assert code_of(server.answer_to("good")) == NO_METHOD


@pytest.mark.parametrize("more", [1, 10, 30, len(framed(GOOD)) - 1])
def test_a_length_that_is_too_large_swallows_one_message_only(server: RawClient, more: int) -> None:
    server.write(
        b"Content-Length: %d\r\n\r\n" % (len(LONG) + more) + LONG + framed(GOOD) + framed(GOOD)
    )
    assert code_of(server.answer_to(None)) == PARSE
    assert code_of(server.answer_to("good")) == NO_METHOD


@pytest.mark.parametrize(
    "header",
    [
        b"content-length: %d\r\n\r\n",
        b"CONTENT-LENGTH:%d\r\n\r\n",
        b"Content-Length:   %d  \r\n\r\n",
        b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset=utf8\r\n\r\n",
        b'Content-Type: application/vscode-jsonrpc; charset="utf-8"\r\nContent-Length: %d\r\n\r\n',
        b"X-Other: 1\r\nContent-Length: %d\r\n\r\n",
        b"Content-Length: %d\n\n",
        b"\r\n\r\nContent-Length: %d\r\n\r\n",
    ],
)
def test_headers_are_read_as_the_base_protocol_says(server: RawClient, header: bytes) -> None:
    before = len(server.messages)
    server.write(header % len(GOOD) + GOOD)
    assert code_of(server.answer_to("good")) == NO_METHOD
    assert all(message.get("id", 0) is not None for message in server.messages[before:])


def test_a_message_that_comes_byte_by_byte(server: RawClient) -> None:
    for byte in framed(GOOD):
        server.write(bytes([byte]))
    assert code_of(server.answer_to("good")) == NO_METHOD


def test_a_length_counts_bytes(server: RawClient) -> None:
    server.write(framed(json.dumps(call("fée/😀", msg_id="é😀"), ensure_ascii=False)))
    assert code_of(server.answer_to("é😀")) == NO_METHOD


# --- documents -----------------------------------------------------------------------------------

ODD_TEXTS: dict[str, str] = {
    "nothing": "",
    "null bytes": DIAGONAL + "\x00" * 10,
    "only null bytes": "\x00" * 1000,
    "half a surrogate pair": DIAGONAL + "x = '\ud800'\n",
    "halves in the wrong order": "# \udc00\ud800\n" + DIAGONAL,
    "mixed line ends": DIAGONAL.replace("\n", "\r\n", 2).replace("    def", "\r    def")
    + "\r\r\n\n",
    "form feeds and separators": "\x0c\x1c\x85\u2028\u2029" + DIAGONAL,
    "a byte order mark": "\ufeff" + DIAGONAL,
    "no Python": "<html>{{{ '''",
    "nested": "x = " + "(" * 10_000,
    "nested and closed": "x = " + "[" * 5000 + "]" * 5000,
    "a tall expression": "x = " + "1 + " * 20_000 + "1",
    "a tall chain": "x = a" + ".b" * 20_000,
    "a tall if": "\n".join(" " * n + "if x:" for n in range(200)),
    "one line of 900 kB": "# " + "a" * 900_000 + "\n" + DIAGONAL,
    "one wide line of 900 kB": "# " + "😀" * 900_000 + "\n" + DIAGONAL,
    "ten thousand lines": DIAGONAL * 1_400,
    "an integer of 10,000 digits": "x = " + "9" * 10_000 + "\n" + DIAGONAL,
    "a bad coding": "# -*- coding: rot13 -*-\n" + DIAGONAL,
    "control characters": "".join(map(chr, range(1, 32))),
    "direction marks": "# \u202e\u2066\u2069\n" + DIAGONAL,
}


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_any_text_may_be_opened_changed_and_closed(server: RawClient, name: str) -> None:
    uri = server.open(ODD_TEXTS[name], "odd.py")
    assert "result" in server.hover(uri, 6, 20)
    server.change(
        uri,
        {"range": RANGE, "text": "é"},
        {"range": {"start": HERE, "end": {"line": 99, "character": 9}}, "text": ""},
    )
    lens = server.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    assert isinstance(lens["result"], list)
    server.close_document(uri)
    assert server.hover(uri)["result"] is None


def at(line: int, character: int) -> dict[str, int]:
    return {"line": line, "character": character}


FAR = 2**31 - 1
PLACES = [at(0, 0), at(0, FAR), at(FAR, 0), at(FAR, FAR), at(6, 20), at(6, 21), at(3, 1)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_positions_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    """A hint's place is told in the client's units; places in a character and behind the end are
    taken."""
    units = {"utf-8": 4, "utf-16": 2, "utf-32": 1}[encoding]
    text = DIAGONAL.replace("return torch.diag", "return '😀' and torch.diag")
    capabilities = {**CAPABILITIES, "general": {"positionEncodings": ["utf-99", encoding]}}
    with running(tmp_path / "p", ready=False) as client:
        answer = client.initialize(capabilities=capabilities)
        assert answer["result"]["capabilities"]["positionEncoding"] == encoding
        uri = client.open(text)
        hint = next(h for h in client.hints(uri, 1) if h["code"] == "KL105")
        column = text.splitlines()[6].index("torch.diag")
        assert hint["range"]["start"] == at(6, column + units - 1)
        for inside in range(column - 7, column + 4):
            assert "result" in client.hover(uri, 6, inside)
        for place in PLACES:
            params = {"textDocument": {"uri": uri}, "range": {"start": place, "end": at(0, 0)}}
            assert "result" in client.request(ACTION, {**params, "context": {"diagnostics": []}})
        # Behind the last line's end, which has no line break, and inside the pair of surrogates.
        client.change(uri, {"text": text.rstrip("\n")}, version=2)
        client.change(
            uri, {"range": {"start": at(6, 999), "end": at(6, FAR)}, "text": " # end\n"}, version=3
        )
        client.change(
            uri, {"range": {"start": at(FAR, 0), "end": at(FAR, 9)}, "text": "x = 1\n"}, version=4
        )
        client.change(
            uri, {"range": {"start": at(0, 3), "end": at(0, 0)}, "text": "\nimp"}, version=5
        )
        hint = next(h for h in client.hints(uri, 5) if h["code"] == "KL105")
        assert hint["range"]["start"] == at(7, column + units - 1)


def test_versions_that_go_back_and_a_second_open(server: RawClient) -> None:
    uri = server.open(DIAGONAL, "versions.py", version=9)
    server.hints(uri, 9)
    server.change(uri, {"text": ""}, version=3)
    assert server.hints(uri, 3) == []
    server.change(uri, {"text": DIAGONAL}, version=-7)
    assert server.hints(uri, -7)
    server.open("x = 1\n", "versions.py", version=1)
    assert server.hints(uri, 1) == []
    server.close_document(uri)
    server.close_document(uri)
    server.change(uri, {"text": DIAGONAL}, version=10)
    assert server.hover(uri, 4, 8)["result"] is None


def test_a_document_that_becomes_another_language(server: RawClient) -> None:
    uri = server.open(DIAGONAL, "notes")
    assert server.hints(uri)
    item = {"uri": uri, "languageId": "markdown", "version": 2, "text": "# notes"}
    server.notify("textDocument/didOpen", {"textDocument": item})
    # What could not be measured of the first text may be published while it is replaced.
    while server.hints(uri):
        pass
    assert server.hover(uri)["result"] is None
    server.close_document(uri)


ODD_URIS = [
    "untitled:Untitled-1",
    "vscode-notebook-cell:/p/x.ipynb#W0sZmlsZQ%3D%3D",
    "file:///c%3A/Users/x/model.py",
    "file:///C:/Users/x/model.py",
    "file://server/share/model.py",
    "file:///tmp/%2e%2e/%2e%2e/etc/model.py",
    "file:///a%00b.py",
    "file:///%ff%fe.py",
    "file:///" + "d/" * 3000 + "x.py",
    "file:///" + "n" * 5000 + ".py",
    "file:relative.py",
    "model.py",
    "",
    "http://[::1/model.py",
    "file://[::1/model.py",
    "javascript:alert(1).py",
    "file:///p/a b%20c.py",
    "file:///p/\ud800.py",
    "file:///p/\u202e.py",
    "file:///dev/stdin.py",
    "file:///proc/self/environ.py",
    "git:/p/model.py?%7B%22ref%22%3A%22HEAD%22%7D",
]


@pytest.mark.parametrize("uri", ODD_URIS)
def test_any_uri_may_be_opened(server: RawClient, uri: str) -> None:
    before = len(server.log)
    server.open(DIAGONAL, uri=uri)
    assert "result" in server.hover(uri, 6, 20)
    server.notify("textDocument/didSave", {"textDocument": {"uri": uri}})
    for name in ("optimize", "showEvidence", "listKernels", "entryPoints", "dismiss", "apply"):
        answer = server.command(
            name, {"uri": uri, "qualname": "../../x", "proposal": "../../../x", "code": "x"}
        )
        assert answer.get("error", {"code": FAILED})["code"] in (FAILED, PARAMS), answer
    server.command("cancel")
    server.close_document(uri)
    server.notify("workspace/didChangeWatchedFiles", {"changes": [{"uri": uri, "type": 2}]})
    assert "result" in server.hover(uri)
    assert b"a background task failed" not in server.log[before:]


# --- commands ------------------------------------------------------------------------------------

COMMANDS = [
    *(
        "optimize",
        "benchmark",
        "searchDeeper",
        "cancel",
        "apply",
        "chosen",
        "showEvidence",
        "showProgram",
        "showStatus",
        "showPrompt",
    ),
    *("trust", "allowRemote", "dismiss", "listKernels", "status", "entryPoints", "recordRun"),
]
HOSTILE: list[list[Any]] = [
    [],
    [None],
    [5, "x"],
    [[{}]],
    [{}, {}, {}],
    [
        {
            "uri": 5,
            "qualname": [],
            "proposal": {},
            "code": None,
            "folder": 7,
            "origin": 5,
            "answer": 5,
        }
    ],
    [
        {
            "uri": None,
            "qualname": None,
            "proposal": None,
            "configurations": {},
            "mode": [],
            "seconds": "x",
        }
    ],
    [
        {
            "uri": "file:///x",
            "qualname": "a" * 100_000,
            "proposal": "../" * 100,
            "kind": [1],
            "candidates": -1,
        }
    ],
    [
        {
            "uri": "\ud800",
            "qualname": "\x00",
            "proposal": "\x00",
            "code": "\ud800",
            "folder": "\x00",
            "answer": "x",
        }
    ],
    [{"folder": "\ud800" * 3, "origin": "http://[", "answer": True, "uri": "http://["}],
]


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_with_hostile_arguments(server: RawClient, name: str) -> None:
    for arguments in HOSTILE:
        answer = server.command(name, *arguments)
        assert "result" in answer or code_of(answer) in (FAILED, PARAMS), (arguments, answer)


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "x",
        [],
        {},
        {"proposal": None},
        {"proposal": "../../x", "uri": 7},
        {"proposal": {"a": 1}, "uri": []},
    ],
)
def test_resolving_foreign_data(server: RawClient, data: Any) -> None:
    answer = server.request("codeAction/resolve", {"title": "x", "data": data})
    assert "result" in answer or code_of(answer) in (FAILED, PARAMS)
    if "result" in answer:
        assert answer["result"]["title"] == "x"
        assert "edit" not in answer["result"]


# --- load, cancellation, clients that do not answer -----------------------------------------------


def test_a_cancelled_request_is_answered_once(tmp_path: Path) -> None:
    """The consent question stays open, so the command waits: then it is cancelled."""
    with running(tmp_path / "p", ready=False) as client:
        client.answers["window/showMessageRequest"] = lambda _: None
        client.initialize()
        uri = client.open(DIAGONAL)
        client.hints(uri)
        params = {
            "command": "kernel-lsp.showPrompt",
            "arguments": [{"uri": uri, "qualname": "Model"}],
        }
        waiting = client.ask(EXECUTE, params)
        client.until(lambda m: m.get("method") == "window/showMessageRequest")
        client.notify("$/cancelRequest", {"id": str(waiting)})  # another id
        client.notify("$/cancelRequest", {"id": waiting})
        client.notify("$/cancelRequest", {"id": waiting})
        assert code_of(client.answer_to(waiting)) == CANCELLED
        client.send({"jsonrpc": "2.0", "id": waiting, "result": "mine"})
        client.request("foo")
        assert sum(m.get("id") == waiting for m in client.messages if "method" not in m) == 1


def test_what_is_still_worked_on_at_shutdown_is_cancelled(tmp_path: Path) -> None:
    with running(tmp_path / "p", ready=False) as client:
        client.answers["window/showMessageRequest"] = lambda _: None
        client.initialize()
        uri = client.open(DIAGONAL)
        client.hints(uri)
        params = {
            "command": "kernel-lsp.showPrompt",
            "arguments": [{"uri": uri, "qualname": "Model"}],
        }
        waiting = [client.ask(EXECUTE, params) for _ in range(3)]
        client.until(lambda m: m.get("method") == "window/showMessageRequest")
        assert client.request("shutdown").get("result", "absent") is None
        client.notify("exit")
        assert client.exit_code() == 0
        codes = [m["error"]["code"] for m in client.messages if m.get("id") in waiting]
        assert codes == [CANCELLED] * 3


def test_an_answer_of_the_client_cannot_answer_the_clients_own_request(tmp_path: Path) -> None:
    with running(tmp_path / "p", ready=False) as client:
        client.answers["window/showMessageRequest"] = lambda _: None
        client.initialize()
        uri = client.open(DIAGONAL)
        client.hints(uri)
        params = {
            "command": "kernel-lsp.showPrompt",
            "arguments": [{"uri": uri, "qualname": "Model"}],
        }
        waiting = client.ask(EXECUTE, params)
        client.until(lambda m: m.get("method") == "window/showMessageRequest")
        client.send({"jsonrpc": "2.0", "id": waiting, "result": "mine"})
        client.request("foo")
        assert not [m for m in client.messages if m.get("id") == waiting]


GARBAGE: list[Callable[[dict[str, Any]], Any]] = [
    lambda _: None,
    lambda _: {"result": 5},
    lambda _: {"result": [5, None, {"device": {}}]},
    lambda _: {"result": {"title": 5}},
    lambda _: {"result": "x" * 100_000},
    lambda _: {"error": {"code": -32601, "message": "no"}},
    lambda _: {"error": "x"},
    lambda _: {"error": {"code": "x"}},
    lambda _: {"result": [{"kernel-lsp": [], "python": 5, "budget": "a"}]},
]


def test_whatever_a_client_answers_the_server_goes_on(tmp_path: Path) -> None:
    capabilities = {
        **CAPABILITIES,
        "workspace": {
            "configuration": True,
            "applyEdit": True,
            "didChangeWatchedFiles": {"dynamicRegistration": True},
            "codeLens": {"refreshSupport": True},
        },
        "window": {"workDoneProgress": True, "showDocument": {"support": True}},
    }
    asked: dict[str, int] = {}

    def answer(message: dict[str, Any]) -> Any:
        method = message["method"]
        asked[method] = asked.get(method, -1) + 1
        return GARBAGE[asked[method] % len(GARBAGE)](message)

    with running(tmp_path / "p", ready=False) as client:
        for method in (
            *(
                "workspace/configuration",
                "client/registerCapability",
                "window/workDoneProgress/create",
            ),
            *("window/showMessageRequest", "workspace/codeLens/refresh", "window/showDocument"),
        ):
            client.answers[method] = answer
        client.initialize(capabilities=capabilities)
        uri = client.open(DIAGONAL)
        client.hints(uri)
        for _ in GARBAGE:
            client.notify("workspace/didChangeConfiguration", {"settings": None})
            client.command("optimize", {"uri": uri, "qualname": "Model"})
            client.request("foo")
        assert asked["workspace/configuration"] >= len(GARBAGE) - 1
        assert client.latency_s() < SOON_S
        client.request("shutdown")
        client.notify("exit")
        assert client.exit_code() == 0


def test_floods_do_not_delay_the_next_request(server: RawClient) -> None:
    uri = server.open(DIAGONAL, "flood.py")
    server.hints(uri)
    many = [
        ("$/cancelRequest", {"id": 1}),
        ("foo", {"x": 1}),
        ("textDocument/didSave", {"textDocument": {"uri": uri}}),
        ("$/setTrace", {"value": "off"}),
    ]
    for n in range(2_000):
        server.notify(*many[n % len(many)])
        server.change(uri, {"range": RANGE, "text": "#\n"}, version=n + 2)
    assert server.hover(uri)["jsonrpc"] == "2.0"
    server.close_document(uri)


def test_a_client_that_writes_and_does_not_read_is_answered_later(tmp_path: Path) -> None:
    """Thousands of requests before the first answer is read: no deadlock, and all are answered in
    order."""
    with running(tmp_path / "p", ready=False, reading=False) as client:
        client.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        params = {"textDocument": OPEN, "position": HERE}
        sent = [client.ask(HOVER, params) for _ in range(5_000)]
        client.read()
        for msg_id in (sent[0], sent[-1]):
            assert client.answer_to(msg_id)["result"] is None
        assert client.peak_mb() < 500


def test_large_messages_are_taken_and_not_kept(tmp_path: Path) -> None:
    with running(tmp_path / "p") as client:
        text = "x = 1\n" * 8_000_000
        client.write(framed(json.dumps(call("foo", {"text": text}, "big"))))
        assert code_of(client.answer_to("big")) == NO_METHOD
        uri = client.open("# " + "a" * 5_000_000, "line.py")
        client.change(uri, {"range": RANGE, "text": "#"})
        ten = client.open("x = 1\n" * 1_700_000, "ten.py")
        assert client.hover(ten)["result"] is None
        assert client.latency_s() < SOON_S
        assert client.peak_mb() < 500


# --- workspaces ----------------------------------------------------------------------------------


def test_a_workspace_that_vanishes(tmp_path: Path) -> None:
    with running(tmp_path / "p") as client:
        uri = client.open(DIAGONAL)
        client.hints(uri)
        client.folder.rmdir()
        client.notify("textDocument/didSave", {"textDocument": {"uri": uri}})
        client.command("status")
        client.command("entryPoints", {"uri": uri})
        client.close_document(uri)
        assert client.latency_s() < SOON_S


def test_a_root_behind_a_link_and_files_that_cannot_be_read(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "locked.py").write_text(DIAGONAL)
    (real / "locked.py").chmod(0)
    (real / "loop.py").symlink_to("loop.py")
    (real / "pyproject.toml").mkdir()
    (tmp_path / "link").symlink_to(real)
    with running(tmp_path / "link") as client:
        uri = client.open(DIAGONAL)
        assert client.hints(uri)
        for name in ("locked.py", "loop.py", "pyproject.toml"):
            changed = {"uri": (client.folder / name).as_uri(), "type": 2}
            client.notify("workspace/didChangeWatchedFiles", {"changes": [changed]})
        assert client.command("status")["result"]["folders"][0]["folder"] == str(tmp_path / "link")
        assert os.path.lexists(real / "loop.py")


def test_the_text_of_a_cell_is_never_read_from_the_disk(tmp_path: Path) -> None:
    """A client may name cells that it does not send; one that is a pipe would never be read."""
    pipe = tmp_path / "cell.py"
    os.mkfifo(pipe)
    (tmp_path / "note.ipynb").write_text(DIAGONAL)
    with running(tmp_path / "p") as client:
        uri, missing = (
            client.folder.as_uri() + "/n.ipynb",
            [
                pipe.as_uri(),
                f"vscode-notebook-cell:{tmp_path}/note.ipynb#1",
                "vscode-notebook-cell:/nowhere/n.ipynb#1",
            ],
        )
        known = "vscode-notebook-cell:/p/n.ipynb#2"
        document = {
            "uri": uri,
            "notebookType": "jupyter-notebook",
            "version": 1,
            "cells": [{"kind": 2, "document": cell} for cell in [*missing, known]],
        }
        texts = [{"uri": known, "languageId": "python", "version": 1, "text": DIAGONAL}]
        client.notify(
            "notebookDocument/didOpen", {"notebookDocument": document, "cellTextDocuments": texts}
        )
        assert client.hints(known)
        action = {"textDocument": {"uri": pipe.as_uri()}, "range": RANGE}
        answer = client.request(
            "textDocument/codeAction", {**action, "context": {"diagnostics": []}}
        )
        assert answer["result"] in (None, [])
        assert client.latency_s() < SOON_S
        assert b"Traceback" not in client.log


def test_notebook_events_in_a_wrong_order(tmp_path: Path) -> None:
    """One cell that is not open cost the texts of the others; form feeds ended lines."""
    with running(tmp_path / "p") as client:
        notebook, cell = {"uri": "file:///p/n.ipynb", "version": 1}, "vscode-notebook-cell:/p/n#%d"

        def change(**cells: Any) -> None:
            params = {"notebookDocument": notebook, "change": {"cells": cells}}
            client.notify("notebookDocument/didChange", params)

        def typed(number: int, *changes: dict[str, Any]) -> dict[str, Any]:
            return {"document": {"uri": cell % number, "version": 2}, "changes": changes}

        closed = {"notebookDocument": notebook, "cellTextDocuments": [{"uri": cell % 1}]}
        client.notify("notebookDocument/didClose", closed)
        change(textContent=[typed(1, {"text": DIAGONAL})])
        change(structure={"array": {"start": 9, "deleteCount": 9}, "didClose": [{"uri": "x"}]})
        texts = [
            {"uri": cell % n, "languageId": "python", "version": 1, "text": ""} for n in (1, 2)
        ]
        document = {**notebook, "notebookType": "jupyter-notebook"}
        document["cells"] = [{"kind": 2, "document": cell % n} for n in (1, 2)]
        opened = {"notebookDocument": document, "cellTextDocuments": texts}
        client.notify("notebookDocument/didOpen", opened)
        client.notify("notebookDocument/didOpen", opened)
        change(structure={"array": {"start": 99, "deleteCount": 99}, "didClose": [{"uri": "x"}]})
        insertion = {"range": {"start": at(2, 0), "end": at(FAR, FAR)}, "text": DIAGONAL}
        change(textContent=[typed(9, {"text": "x"}), typed(2, {"text": "#\x0c\n\n#"}, insertion)])
        found = client.hints(cell % 2)
        assert [hint["range"]["start"]["line"] for hint in found if hint["code"] == "KL105"] == [8]
        client.notify("notebookDocument/didClose", closed)
        client.notify("notebookDocument/didClose", closed)
        assert client.latency_s() < SOON_S
        assert b"ERROR" not in client.log


def test_thousands_of_documents_are_opened_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "p") as client:
        uris = [client.open(DIAGONAL, f"model{n}.py") for n in range(500)]
        assert "result" in client.hover(uris[0], 6, 20)
        assert client.hints(uris[-1])
        for uri in uris:
            client.close_document(uri)
        assert client.hover(uris[0])["result"] is None
        assert client.latency_s() < SOON_S
        assert b"Traceback" not in client.log, client.log.decode()


# --- the command that starts it ------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--tcp", "nonsense"],
        ["--tcp", "127.0.0.1:99999"],
        ["--tcp", "127.0.0.1:-1"],
        ["--tcp", "192.0.2.1:2087"],
        ["--tcp", "0.0.0.0:2087"],
        ["--tcp", "[::]:2087"],
        ["--log-level", "loud"],
        ["--log-file", "/nowhere/server.log"],
    ],
)
def test_flags_that_cannot_be_obeyed_are_told_in_one_line(flags: list[str]) -> None:
    command = [sys.executable, "-m", "kernel_lsp.server", *flags]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "kernel-lsp serve: error: " in done.stderr.splitlines()[-1]


def test_the_log_goes_to_a_file_as_loud_as_asked_for(tmp_path: Path) -> None:
    for level, lines in (("error", 0), ("warning", 1)):
        file = tmp_path / f"{level}.log"
        command = [sys.executable, "-m", "kernel_lsp.server"]
        command += ["--log-file", str(file), "--log-level", level]
        start = framed(call("initialize", {"processId": None, "rootUri": None, "capabilities": {}}))
        bad = framed({"jsonrpc": "2.0", "method": "$/setTrace", "params": {"value": "\x1b[31m"}})
        subprocess.run(command, input=start + bad, capture_output=True, check=False)
        assert len(file.read_text().splitlines()) == lines
        assert "\x1b" not in file.read_text()
