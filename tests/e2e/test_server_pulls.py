"""Clients that ask for diagnostics (LSP 3.17) and for edits before a rename, over real stdio."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import CAPABILITIES, RawClient, running

DIAGONAL = """import torch


def scaled(gain, signal):
    return torch.diag(gain) @ signal
"""
SYNTAX = DIAGONAL + "def f(:\n"
PULL, WORKSPACE = "textDocument/diagnostic", "workspace/diagnostic"
ASKS = {
    **CAPABILITIES,
    "textDocument": {**CAPABILITIES["textDocument"], "diagnostic": {}},
    "workspace": {
        "diagnostics": {"refreshSupport": True},
        "fileOperations": {"willRename": True},
    },
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RawClient]:
    with running(tmp_path / "project", ready=False) as client:
        yield client


def start(client: RawClient, capabilities: Any = ASKS, **options: Any) -> dict[str, Any]:
    answer = client.initialize(capabilities=capabilities, initializationOptions=options)
    return dict(answer["result"]["capabilities"])


def pull(client: RawClient, uri: str, previous: str | None = None) -> dict[str, Any]:
    params = {"textDocument": {"uri": uri}, "previousResultId": previous}
    return dict(client.request(PULL, params)["result"])


def codes(report: dict[str, Any]) -> list[str]:
    return [item["code"] for item in report["items"]]


def pushed(client: RawClient) -> list[Any]:
    return [m for m in client.messages if m.get("method") == "textDocument/publishDiagnostics"]


def refreshes(client: RawClient) -> int:
    return sum(m.get("method") == "workspace/diagnostic/refresh" for m in client.messages)


def test_what_is_asked_for_is_of_the_text_as_it_was_sent_last(server: RawClient) -> None:
    provider = start(server, ignore=["KL000"])["diagnosticProvider"]
    assert provider["workspaceDiagnostics"]
    assert not provider["interFileDependencies"]
    uri = server.open(DIAGONAL)
    first = pull(server, uri)
    assert (first["kind"], codes(first)) == ("full", ["KL105"])
    assert pull(server, uri, first["resultId"]) == {
        "kind": "unchanged",
        "resultId": first["resultId"],
    }
    server.change(uri, {"text": "import torch\n"})
    empty = pull(server, uri, first["resultId"])
    assert (empty["kind"], empty["items"]) == ("full", [])
    server.change(uri, {"text": DIAGONAL + "# more\n"}, version=3)
    assert pull(server, uri, empty["resultId"])["resultId"] == first["resultId"]
    server.change(uri, {"text": SYNTAX}, version=4)
    assert pull(server, uri, first["resultId"])["kind"] == "unchanged"  # it is being typed in
    server.close_document(uri)
    assert codes(pull(server, uri)) == []
    assert codes(pull(server, "file:///nowhere.py")) == []
    assert not pushed(server)
    assert not refreshes(server)


def test_settings_that_change_what_is_found_make_the_client_ask_again(server: RawClient) -> None:
    start(server, ignore=["KL000"])
    uri = server.open(DIAGONAL)
    assert codes(pull(server, uri)) == ["KL105"]
    settings = {"kernel-lsp": {"ignore": ["KL0", "KL105"]}}
    server.notify("workspace/didChangeConfiguration", {"settings": settings})
    server.until(lambda message: message.get("method") == "workspace/diagnostic/refresh")
    assert codes(pull(server, uri)) == []
    assert not pushed(server)


@pytest.mark.parametrize("missing", ["textDocument", "workspace"])
def test_who_does_not_ask_or_cannot_be_told_to_is_pushed_to(
    server: RawClient, missing: str
) -> None:
    less = {**ASKS, missing: CAPABILITIES.get(missing, {})}
    assert "diagnosticProvider" not in start(server, less, ignore=["KL000"])
    assert [hint["code"] for hint in server.hints(server.open(DIAGONAL))] == ["KL105"]


def workspace(client: RawClient, *reports: dict[str, Any], partial: bool = True) -> int:
    previous = [{"uri": one["uri"], "value": one["resultId"]} for one in reports]
    token = {"partialResultToken": "some"} if partial else {}
    return client.ask(WORKSPACE, {"previousResultIds": previous, **token})


def reported(client: RawClient, msg_id: int) -> dict[str, dict[str, Any]]:
    items = client.answer_to(msg_id)["result"]["items"]
    return {one["uri"].rpartition("/")[2]: one for one in items}


def test_findings_of_a_workspace_are_told_once_and_news_when_they_come(server: RawClient) -> None:
    server.folder.mkdir(exist_ok=True)
    for name in ("a.py", "b.py", "ignored.py"):
        (server.folder / name).write_text(DIAGONAL)
    (server.folder / ".gitignore").write_text("ignored.py\n")
    (server.folder / "zero.py").symlink_to("/dev/zero")
    start(server, workspace_diagnostics=True)
    server.open(DIAGONAL, "b.py")  # the client asks for it by itself
    first = reported(server, workspace(server))
    assert set(first) == {"a.py", "zero.py"}
    assert codes(first["a.py"]) == ["KL105"]
    waiting = workspace(server, *first.values())
    time.sleep(0.3)
    assert not any(m.get("id") == waiting for m in server.messages)
    (server.folder / "a.py").write_text("x = 1\n")
    change = {"uri": (server.folder / "a.py").as_uri(), "type": 2}
    server.notify("workspace/didChangeWatchedFiles", {"changes": [change]})
    then = reported(server, waiting)
    assert (then["a.py"]["kind"], then["a.py"]["items"]) == ("full", [])
    assert then["zero.py"]["kind"] == "unchanged"
    asked = reported(server, workspace(server, *then.values(), partial=False))
    assert {one["kind"] for one in asked.values()} == {"unchanged"}
    held = workspace(server, *then.values())
    server.notify("$/cancelRequest", {"id": held})
    assert server.answer_to(held)["error"]["code"] == -32800


def test_a_verdict_that_comes_late_makes_the_client_ask_again(server: RawClient) -> None:
    """That nothing says what a target is called with is found after the first answer."""
    start(server)
    uri = server.open(DIAGONAL)
    if codes(pull(server, uri)) == ["KL105"]:
        server.until(lambda message: message.get("method") == "workspace/diagnostic/refresh")
    assert codes(pull(server, uri)) == ["KL105", "KL000"]


def test_files_that_are_not_open_are_read_only_where_settings_say_so(server: RawClient) -> None:
    server.folder.mkdir(exist_ok=True)
    (server.folder / "a.py").write_text(DIAGONAL)
    start(server)
    assert reported(server, workspace(server)) == {}
    again = workspace(server)  # as an editor does two seconds later, for ever
    time.sleep(0.3)
    assert not any(m.get("id") == again for m in server.messages)
    settings = {"kernel-lsp": {"workspace_diagnostics": True}}
    server.notify("workspace/didChangeConfiguration", {"settings": settings})
    assert set(reported(server, again)) == {"a.py"}


WORKLOADS = """# mine \U0001f600
[[workload]]
  target = "models/block.py::Block" # the \U0001f600 block
name = 'models/block.py::Block'

[[workload]]
target = 'models/other.py::Other'

[[workload]]
target = "models/block.py.old::Block"
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("models/block.py", "layers/b.py", {"models/block.py::Block": "layers/b.py::Block"}),
        (
            "models",
            "nets/small",
            {
                "models/block.py::Block": "nets/small/block.py::Block",
                "models/other.py::Other": "nets/small/other.py::Other",
                "models/block.py.old::Block": "nets/small/block.py.old::Block",
            },
        ),
        ("models/blo", "x", {}),
        ("models/block.py", "../elsewhere.py", {}),
        ("models/block.py", "a%22b.py", {}),
        ("models/block.py", "a%0Ab.py", {}),
    ],
)
def test_workloads_go_along_with_a_renamed_file(
    server: RawClient, old: str, new: str, expected: dict[str, str]
) -> None:
    kept = server.folder / ".kernel-lsp" / "workloads.toml"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(WORKLOADS)
    (kept.parent / "zero.toml").symlink_to("/dev/zero")
    (kept.parent / "bad.toml").write_bytes(b"\xff")
    filters = start(server)["workspace"]["fileOperations"]["willRename"]["filters"]
    assert {"**/*.py"} < {one["pattern"]["glob"] for one in filters}
    files = [
        {"oldUri": f"{server.folder.as_uri()}/{old}", "newUri": f"{server.folder.as_uri()}/{new}"}
    ]
    edit = server.request("workspace/willRenameFiles", {"files": files})["result"]
    lines = WORKLOADS.split("\n")
    for change in (edit or {"changes": {kept.as_uri(): []}})["changes"][kept.as_uri()]:
        begin, end = change["range"]["start"], change["range"]["end"]
        line = lines[begin["line"]]
        lines[begin["line"]] = (
            line[: begin["character"]] + change["newText"] + line[end["character"] :]
        )
    wanted = WORKLOADS
    for before, after in expected.items():
        wanted = wanted.replace(f'target = "{before}', f'target = "{after}')
        wanted = wanted.replace(f"target = '{before}", f"target = '{after}")
    assert "\n".join(lines) == wanted
