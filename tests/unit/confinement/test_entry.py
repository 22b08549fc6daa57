"""Starts by the entry that are given up."""

import asyncio
import sys
from pathlib import Path

import pytest

from kernel_lsp.confinement import Confinement, clean_environment, entry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux only")


async def test_a_start_that_is_cancelled_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, is_begun = list[asyncio.subprocess.Process](), asyncio.Event()
    start = asyncio.create_subprocess_exec

    async def starting(*argv: str, **options: object) -> asyncio.subprocess.Process:
        begun.append(await start(*argv, **options))
        return begun[0]

    async def never(report_end: int) -> dict[str, object]:
        is_begun.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)
    monkeypatch.setattr(entry, "_hear", never)
    asked = asyncio.create_task(
        entry.start(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            confinement=Confinement(scratch=tmp_path),
            environment=clean_environment(),
        )
    )
    await is_begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert begun[0].returncode is not None
