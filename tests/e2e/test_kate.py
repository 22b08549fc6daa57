"""Findings, a quick fix and a rewrite in Kate itself, with the settings of
docs/how-to/other-editors.md.

Kate has no batch mode: it runs under Xvfb, gets keys from xdotool and is told over D-Bus where its
cursor stands and when to end. What both sides said is read from a record of the pipe. CI does not
install it, which would cost minutes; by hand: `apt-get install --no-install-recommends kate xvfb
xdotool dbus`. What it taught is tested without it in test_other_editors.py."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import blocks
from stories import CLIENTS, EXAMPLE, ON_CPU, PATIENCE_S, ROOT, STEPS, seen, told
from test_vim import TEXT

PROGRAMS = ("kate", "Xvfb", "xdotool", "dbus-daemon", "dbus-send")
MISSING = [name for name in PROGRAMS if not shutil.which(name)]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed (see above): {', '.join(MISSING)}"),
    pytest.mark.skipif(
        "TESTS_IN_CI" in os.environ, reason="CI has no Kate, also where one was left behind"
    ),
    pytest.mark.timeout(900),
]
PAGE = ROOT / "docs" / "how-to" / "other-editors.md"
RECORDER = """#!/bin/sh
tee -a "$RECORD/asked" | sh -c 'echo $$ > "$RECORD/pid"; exec "$SERVER" "$@"' sh "$@" |
  tee -a "$RECORD/answered"
"""
FRAME = re.compile(rb"Content-Length: (\d+)\r\n(?:[^\r\n]+\r\n)*\r\n")


def until(look: Callable[[], Any], limit_s: float = PATIENCE_S) -> Any:
    """What was looked for, once it is there."""
    end = time.monotonic() + limit_s
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.05)
    assert found
    return found


class Kate:
    """A running Kate with one file open, and what it and the server have said so far."""

    def __init__(self, process: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
        self.process = process
        self.environment = environment
        self.record = Path(environment["RECORD"])

    def key(self, *keys: str) -> None:
        self._run("xdotool", "key", "--delay", "60", *keys)

    def focus(self) -> None:
        """Give the window the keys, as no window manager does it here."""
        self._run("xdotool", "search", "--onlyvisible", "--class", "kate", "windowfocus")

    def cursor(self, line: int, column: int) -> None:
        """Counted from 0."""
        self._call("MainApplication", "org.kde.Kate.Application.setCursor", line, column)

    def action(self, name: str) -> None:
        self._call("kate/MainWindow_1", "org.kde.KMainWindow.activateAction", name)

    def windows(self) -> list[tuple[int, int]]:
        """Width and height of all that are seen, menus and questions too."""
        search = ["xdotool", "search", "--onlyvisible", "--class", "kate"]
        found = self._run(*search, "getwindowgeometry", "--shell", "%@", check=False)
        return [(int(x), int(y)) for x, y in re.findall(r"WIDTH=(\d+)\nHEIGHT=(\d+)", found)]

    def asked(self, method: str) -> list[dict[str, Any]]:
        """What Kate has sent by that name."""
        return [one for one in self._said("asked") if one.get("method") == method]

    def diagnostics(self) -> list[str]:
        """Codes and lines, as last published."""
        return [f"{one['code']}:{one['range']['start']['line'] + 1}" for one in self._published()]

    def messages(self) -> list[str]:
        """Of the diagnostics, as last published."""
        return [one["message"] for one in self._published()]

    def answer(self, method: str) -> dict[str, Any] | None:
        """To the last request by that name."""
        requests = self.asked(method)
        if not requests:
            return None
        replies = [one for one in self._said("answered") if one.get("id") == requests[-1]["id"]]
        return next((one for one in replies if "method" not in one), None)

    def text(self) -> str:
        """Of the buffer, as Kate told it last."""
        changes = self.asked("textDocument/didChange")
        if changes:
            return changes[-1]["params"]["contentChanges"][-1]["text"]
        (opened,) = self.asked("textDocument/didOpen")
        return opened["params"]["textDocument"]["text"]

    def menu(self, line: int, column: int) -> list[str]:
        """The titles of the code actions there, in a menu that is open."""
        before = len(self.asked("textDocument/codeAction"))
        self.cursor(line, column)
        self.key("alt+Return")
        until(lambda: len(self.asked("textDocument/codeAction")) > before)
        reply = until(lambda: self.answer("textDocument/codeAction"))
        titles = [one["title"] for one in reply["result"]]
        until(lambda: any(20 * len(titles) < height < 500 for _, height in self.windows()))
        return titles

    def choose(self, titles: list[str], wanted: str) -> None:
        (place,) = [place for place, title in enumerate(titles) if wanted in title]
        self.key(*["Down"] * (place + 1), "Return")

    def server(self) -> bool:
        """Whether the server's process is alive."""
        return Path("/proc", (self.record / "pid").read_text().strip()).exists()

    def _published(self) -> list[dict[str, Any]]:
        said = self._said("answered")
        told = [one for one in said if one.get("method") == "textDocument/publishDiagnostics"]
        return told[-1]["params"]["diagnostics"] if told else []

    def _said(self, who: str) -> list[dict[str, Any]]:
        path = self.record / who
        data = path.read_bytes() if path.exists() else b""
        found, at = [], 0
        while (head := FRAME.match(data, at)) and len(data) >= head.end() + int(head[1]):
            at = head.end() + int(head[1])
            found.append(json.loads(data[head.end() : at]))
        return found

    def _call(self, place: str, method: str, *arguments: int | str) -> None:
        typed = [f"{'int32' if isinstance(one, int) else 'string'}:{one}" for one in arguments]
        name = f"org.kde.kate-{self.process.pid}"
        self._run("dbus-send", "--session", "--print-reply", f"--dest={name}", f"/{place}",
                  method, *typed)  # fmt: skip

    def _run(self, *command: str, check: bool = True) -> str:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=check
        ).stdout


@contextlib.contextmanager
def _child(command: list[str], **given: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **given) as process:
        try:
            yield process
        finally:
            process.terminate()


def _first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@contextlib.contextmanager
def kate(
    tmp_path: Path, name: str, text: str, *, trusted: bool = False, **more: str
) -> Iterator[Kate]:
    """Kate with that file of a project, as somebody has it who copied the settings and says yes to
    the question whether the server may start."""
    home, project, bin_, run = (tmp_path / one for one in ("home", "project", "bin", "run"))
    for folder in (home / ".config" / "kate" / "lspclient", project, bin_, run):
        folder.mkdir(parents=True)
    run.chmod(0o700)
    (switched,) = [one.text for one in blocks(PAGE, "ini")]
    settings = CLIENTS / "kate" / "settings.json"
    shutil.copy(settings, home / ".config" / "kate" / "lspclient")
    (home / ".config" / "katerc").write_text(switched)
    (bin_ / "kernel-lsp").write_text(RECORDER)
    (bin_ / "kernel-lsp").chmod(0o755)
    (project / name).write_text(text)
    (project / "pyproject.toml").touch()
    server = Path(sys.executable).parent / "kernel-lsp"
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("XDG_")},
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(run),
        "PATH": os.pathsep.join([str(bin_), os.environ["PATH"]]),
        "KERNEL_LSP_DATA_DIR": str(tmp_path / "data"),
        "SERVER": str(server),
        "RECORD": str(run),
        **more,
    }
    if trusted:
        subprocess.run([server, "trust", "."], cwd=project, env=environment, check=True)
    quiet = {"env": environment, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    screen = ["Xvfb", "-displayfd", "1", "-screen", "0", "1280x900x24", "-nolisten", "tcp"]
    bus = ["dbus-daemon", "--session", "--nofork", "--print-address=1"]
    with (
        _child(screen, stdout=subprocess.PIPE, **quiet) as display,
        _child(bus, stdout=subprocess.PIPE, **quiet) as messages,
    ):
        environment["DISPLAY"] = f":{_first_line(display)}"
        environment["DBUS_SESSION_BUS_ADDRESS"] = _first_line(messages)
        with _child(
            ["kate", "-b", name], cwd=project, stdout=subprocess.DEVNULL, **quiet
        ) as process:
            one = Kate(process, environment)
            until(lambda: any(100 < height < 300 for _, height in one.windows()))
            one.key("Return")
            until(lambda: one.asked("textDocument/didOpen") and len(one.windows()) == 1)
            one.focus()
            yield one
            one.action("file_quit")
            process.wait(60)
            until(lambda: not one.server())


def test_a_finding_is_ignored_saved_and_undone(tmp_path: Path) -> None:
    path = tmp_path / "project" / "model.py"
    with kate(tmp_path, "model.py", TEXT, KERNEL_LSP_BACKGROUND="no") as editor:
        until(lambda: editor.diagnostics() == ["KL105:7", "KL000:5"])
        titles = editor.menu(6, 18)
        editor.choose(titles, "Ignore on this line (KL105)")
        until(lambda: editor.text().endswith("signal  # kernel-lsp: ignore[KL105]\n"))
        editor.key("ctrl+s")
        until(lambda: path.read_text() == editor.text())
        until(lambda: "KL105:7" not in editor.diagnostics())
        editor.key("ctrl+z", "ctrl+s")
        until(lambda: path.read_text() == TEXT)
        until(lambda: "KL105:7" in editor.diagnostics())
        path.write_text(f"# Changed by another program.\n{TEXT}")
        editor.key("F5")
        until(lambda: "KL105:8" in editor.diagnostics())
    assert not editor.server()


@pytest.mark.torch
def test_a_rewrite_is_offered_applied_saved_and_undone(judged: Path, tmp_path: Path) -> None:
    """After `kernel-lsp trust .`: Kate 22.12 shows no questions of a server."""
    path, data = tmp_path / "project" / "example.py", tmp_path / "data"
    data.mkdir()
    (data / "cache").symlink_to(judged)
    with kate(tmp_path, "example.py", EXAMPLE, trusted=True, **ON_CPU) as editor:
        until(lambda: any("verified" in one for one in editor.messages()))
        line = next(place for place, one in enumerate(EXAMPLE.splitlines()) if "class" in one)
        editor.cursor(line, 8)
        editor.key("alt+l", "Return")  # Symbol Info, the first that our server serves
        hover = until(lambda: editor.answer("textDocument/hover"))
        assert "verified" in str(hover["result"])
        editor.key("Escape")
        titles = editor.menu(line, 8)
        editor.choose(titles, "Rewrite Model")
        until(lambda: "Verified on cpu" in editor.text())
        editor.key("ctrl+s")
        until(lambda: path.read_text() == editor.text())
        until(lambda: "accepted" in told(data))
        editor.key("ctrl+z", "ctrl+s")
        until(lambda: path.read_text() == EXAMPLE)
        until(lambda: told(data)[-1] == "reverted")
        until(lambda: any("verified" in one for one in editor.messages()))
        titles = editor.menu(line, 8)
        editor.choose(titles, next(one for one in titles if one.startswith("Dismiss ")))
        until(lambda: told(data)[-1] == "dismissed")
    shown = ("hint", "hover", "menu", "apply", "undo", "dismiss")
    features = {feature: feature in shown or None for feature in STEPS.values()}
    features |= {"lens": False, "evidence": False}
    seen("kate", {"editor": "Kate 22.12", "how": "the program", "features": features})
