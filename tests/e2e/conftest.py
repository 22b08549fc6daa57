"""Drives the real server over stdio as VS Code, Neovim or Emacs would, by their captured
capabilities."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from auditing import audited
from editor_client import EDITORS, PATIENCE_S, ROOT, Answering, Editor, Launch, listen, make_client
from filelock import FileLock
from lsprotocol import types
from pytest_lsp import ClientServerConfig, client_capabilities
from stories import measure


@pytest.fixture(scope="module", autouse=True)
def audit() -> Iterator[None]:
    """In no end-to-end test does anything foreign run unconfined. Not for the whole session: one
    process runs unit tests as well, whose own children are no user's."""
    if not sys.platform.startswith("linux"):
        yield
        return
    with audited() as seen:
        yield
    assert seen.bare == set()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What scripts/test names for all calls of pytest in its run; without it, a folder of this
    one."""
    named = os.environ.get("KERNEL_LSP_TESTS_SHARED")
    return Path(named) if named else tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def verdicts(shared: Path) -> Path:
    """One folder of verdicts for all tests of a run: the first one measures, the others find it
    measured."""
    folder = shared / "verdicts"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def judged(verdicts: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of verdicts, with one about the example of the stories. Who comes second waits
    for it."""
    done = shared / "judged"
    with FileLock(shared / "judged.lock"):
        if not done.exists():
            measure(verdicts, tmp_path_factory.mktemp("judged"))
            done.touch()
    return verdicts


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """``async with launch(editor, fault=…) as session``"""

    @contextlib.asynccontextmanager
    async def run(
        editor: str = EDITORS[0],
        *,
        fault: str | None = "offer",
        answer: Answering = "Allow for this folder",
        options: dict[str, Any] | None = None,
        strip: Callable[[types.ClientCapabilities], None] | None = None,
        folders: list[Path] | None = None,
        stop: bool = True,
        environment: dict[str, str] | None = None,
        server: str = "kernel_lsp.server",
    ) -> AsyncIterator[Editor]:
        """``server``: the module that is started."""
        folder, data_dir = tmp_path / "project", tmp_path / "data"
        folder.mkdir(exist_ok=True)
        env = {**os.environ, "KERNEL_LSP_DATA_DIR": str(data_dir), **(environment or {})}
        if fault is not None:
            env |= {"KERNEL_LSP_HOST": "fault_host", "FAULT": fault}
            env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
        command = [sys.executable, "-m", server, "--stdio"]
        client = await ClientServerConfig(command, make_client, env).start()
        captured = client_capabilities(editor)
        capabilities = captured.capabilities if hasattr(captured, "capabilities") else captured
        if strip is not None:
            strip(capabilities)
        session = Editor(client=client, folder=folder, data_dir=data_dir, result=None)  # type: ignore[arg-type]
        listen(session, answer)
        roots = [types.WorkspaceFolder(uri=f.as_uri(), name=f.name) for f in folders or [folder]]
        session.result = await asyncio.wait_for(
            client.initialize_session(
                types.InitializeParams(
                    capabilities=capabilities,
                    client_info=types.ClientInfo(
                        name=editor.partition("@")[0], version=editor.partition("@")[2]
                    ),
                    workspace_folders=roots,
                    root_uri=roots[0].uri,
                    initialization_options=options or {},
                )
            ),
            PATIENCE_S,
        )
        try:
            yield session
        finally:
            session.unanswered.set()
            if stop:
                await asyncio.wait_for(client.shutdown_session(), PATIENCE_S)
            await client.stop()

    return run
