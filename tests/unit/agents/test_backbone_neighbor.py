"""Whether somebody else's model server computes on a GPU here; a file plays the GPU's device."""

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_model import ScriptedModel

from kernel_lsp.agents import backbones
from kernel_lsp.agents.backbones import neighbor
from kernel_lsp.config import Settings


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    device = tmp_path / "nvidia-uvm"
    device.touch()
    monkeypatch.setattr(neighbor, "COMPUTE_DEVICE", str(device))
    return device


@contextlib.contextmanager
def server(child: str, address: str = "127.0.0.1") -> Iterator[int]:
    """A server whose child process does something, like vLLM's engine; its port."""
    family = "AF_INET6" if ":" in address else "AF_INET"
    code = f"""
        import socket, subprocess, sys, time
        listener = socket.socket(socket.{family})
        listener.bind(({address!r}, 0))
        listener.listen()
        engine = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
        engine.stdout.readline()
        print(listener.getsockname()[1], flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            os.killpg(process.pid, 9)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_engine_beside_the_server_that_listens_counts(device: Path, address: str) -> None:
    held = f"import time; held = open({str(device)!r}); print(flush=True); time.sleep(600)"
    with server(held, address) as port:
        assert neighbor.computes_here(port)


def test_a_server_without_a_gpu_does_not(device: Path) -> None:
    with device.open(), server("import time; print(flush=True); time.sleep(600)") as port:
        assert not neighbor.computes_here(port)  # we hold the device, and are no part of it


def test_one_that_cannot_be_seen_may(device: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        # Ours: nobody else listens there meanwhile.
        assert neighbor.computes_here(probe.getsockname()[1])


def test_without_a_gpu_nobody_does() -> None:
    if Path(neighbor.COMPUTE_DEVICE).exists():
        pytest.skip("this machine has a GPU")
    assert not neighbor.computes_here(8000)


async def test_it_is_told_of_an_endpoint_here(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyring.get_password", lambda service, user: None)
    shared = []
    async with ScriptedModel() as scripted:
        for judged_on, held in (("auto", True), ("auto", False), ("cpu", True)):
            settings = Settings(policy="openai", endpoint=scripted.endpoint, device=judged_on)
            backbone = backbones.make(
                settings, python="python", allowed_origin=None, data_dir="/nowhere"
            )
            with device.open() if held else contextlib.nullcontext():
                shared.append((await backbone.open(lambda progress: None)).on_measured_gpu)
            await backbone.close()
    assert shared == [True, False, False]
