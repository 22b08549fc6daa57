"""What the server does when nobody types: learning from what was kept, told in one line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from editor_helpers import TEXT, URI, snapshot

from kernel_lsp.config import Settings
from kernel_lsp.consent import ConsentAnswer
from kernel_lsp.server import jobs
from kernel_lsp.server.jobs import ServerJobs
from kernel_lsp.session import EditorSession


class Server:
    """What the jobs need of the language server."""

    def __init__(self, lines: list[str | None], settings: Settings) -> None:
        self.session = EditorSession(client="test 1")
        self.session.configure("/project", settings)
        self.session.open(snapshot(TEXT), "/project", "model.py")
        self.status: list[tuple[str, str | None]] = []
        self.said: list[str] = []
        self.lines, self.learning = lines, 0
        self.host = SimpleNamespace(learn=self._learn)
        self.on_analyzed: Any = None
        self.searching: Any = None

    async def _learn(self, folder: str, settings: Settings) -> str | None:
        self.learning += 1
        if not self.lines:
            await asyncio.Event().wait()
        return self.lines.pop(0)

    def settings(self, folder: str) -> Settings:
        return self.session.settings(folder)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)

    def set_status(self, health: str, message: str | None) -> None:
        self.status.append((health, message))

    def say(self, line: str, kind: object = None) -> None:
        self.said.append(line)


def at_rest(
    monkeypatch: pytest.MonkeyPatch, server: Server, answer: ConsentAnswer | None
) -> ServerJobs:
    monkeypatch.setattr(jobs, "IDLE_S", 0.0)
    monkeypatch.setattr(jobs, "LEARN_AFTER_S", 0.0)
    made = ServerJobs(server)  # type: ignore[arg-type]

    async def consent(folder: str, path: str | None) -> ConsentAnswer | None:
        return answer

    monkeypatch.setattr(made.questions, "consent", consent)
    return made


async def test_each_lesson_is_one_line_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["learned fuse-rows (1.12x [1.05, 1.20] on 4 other targets)", "x refused: y", None]
    server = Server([*lines], Settings(background=True))
    await at_rest(monkeypatch, server, ConsentAnswer.ALLOW)._when_idle()
    assert server.said == lines[:2] and server.status[-2:] == [("ok", line) for line in lines[:2]]


@pytest.mark.parametrize(
    ("background", "answer"),
    [(False, ConsentAnswer.ALLOW), (True, ConsentAnswer.NEVER), (True, None)],
)
async def test_nothing_is_learned_without_consent(
    monkeypatch: pytest.MonkeyPatch, background: bool, answer: ConsentAnswer | None
) -> None:
    server = Server(["never"], Settings(background=background))
    await at_rest(monkeypatch, server, answer)._when_idle()
    assert server.learning == 0 and server.said == []


async def test_a_keystroke_or_a_job_that_was_asked_for_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Server([], Settings(background=True))
    made = at_rest(monkeypatch, server, ConsentAnswer.ALLOW)
    made._wait_for_rest()
    first = made._idle
    while not server.learning:  # noqa: ASYNC110
        await asyncio.sleep(0)
    made._wait_for_rest()  # somebody types
    await asyncio.sleep(0)
    await asyncio.gather(first or asyncio.sleep(0), return_exceptions=True)
    assert first is not None and first.cancelled()
    while server.learning < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    second = made._idle
    monkeypatch.setattr(made, "_run", lambda *args, **more: asyncio.sleep(0))
    made.start(URI, "Model")
    await asyncio.gather(second or asyncio.sleep(0), return_exceptions=True)
    assert second is not None and second.cancelled()
    made.stop()
