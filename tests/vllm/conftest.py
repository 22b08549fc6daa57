"""A real vLLM on the CPU for the tests in this folder, started by the product's own backbone.

The model is random (tests/models/tiny_qwen3.py), so these tests are about the path to a model and
back, not about what it says. One server serves all tests of a session; it is stopped whatever
happens."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
import tiny_qwen3
from vllm_helpers import AT_ONCE, ENVIRONMENT, ROOT, Served, made_for

from kernel_lsp.agents import backbones
from kernel_lsp.agents.backbones import serving
from kernel_lsp.config import Settings
from kernel_lsp.records import Backbone, ModelInfo

SMALL_CONTEXT = 4096
"""Tokens with which only calls of a known length are offered: a random model ends no text by
itself."""


@pytest.fixture(scope="session")
def vllm_environment() -> Path:
    """The folder with `python` and `vllm`; installed by the first test that asks (105 s)."""
    _run(["bash", ROOT / "scripts" / "setup-vllm"])
    return ENVIRONMENT


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny-qwen3"
    tiny_qwen3.write_model(folder)
    return folder


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a context of SMALL_CONTEXT."""
    folder = tmp_path_factory.mktemp("model") / "small-qwen3"
    tiny_qwen3.write_model(folder, context=SMALL_CONTEXT)
    return folder


@pytest.fixture(scope="session")
def served(
    vllm_environment: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    settings = Settings(
        policy="vllm",
        model=str(tiny_model),
        model_device="cpu",
        model_python=str(vllm_environment / "python"),
        model_samples=AT_ONCE,
        model_timeout_s=600.0,
        data_dir=str(tmp_path_factory.mktemp("data")),
        device="cpu",
    )
    said: list[str] = []
    try:
        info = asyncio.run(_opened(settings, said))
        yield Served(settings=settings, info=info, said=tuple(said))
    finally:
        marks = {server.mark for server in serving._running.values()}
        backbones.stop_all()
        assert not [pid for pid, mark in serving._find_marked() if mark in marks], (
            "a server outlived its stop"
        )


@pytest_asyncio.fixture
async def backbone(served: Served) -> AsyncIterator[Backbone]:
    """A face of the server, in this test's event loop."""
    made = made_for(served.settings)
    yield made
    await made.close()


async def _opened(settings: Settings, said: list[str]) -> ModelInfo:
    made = made_for(settings)
    try:
        return await made.open(
            lambda progress: said.append(f"{progress.phase}: {progress.message}")
        )
    finally:
        await made.close()


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}"
