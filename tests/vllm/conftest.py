"""A real vLLM on the CPU for the tests in this folder: made once, started once, stopped whatever happens.

The model is random (tests/models/tiny_qwen3.py), so these tests are about the path to a model and back,
not about what it says.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-vllm" / "bin"
LOAD_SECONDS = 240  # 30 to 41 on an idle machine, nearly all of it imports in three processes
STOP_SECONDS = 30  # 2.2 on an idle machine

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: half a million tokens of this model
    # Otherwise tool calls are held to the model's own markup by structural tags, which know nothing of
    # disable_any_whitespace: the random model pads until its limit (most of 100 calls were cut).
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",
    "TORCH_COMPILE_DISABLE": "1",  # the first request with log-probabilities took 12.8 s without, 0.3 with
}
OPTIONS = [
    *("--served-model-name", "tiny", "--max-model-len", "16384", "--max-num-seqs", "16", "--enforce-eager"),
    *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--disable-uvicorn-access-log"),
]
# A killed test run takes the server along, which would otherwise keep its 3 GB.
END_WITH_PARENT = ["setpriv", "--pdeathsig", "TERM"]


@pytest.fixture(scope="session")
def vllm_environment() -> Path:
    """The folder with `python` and `vllm`; installed by the first test that asks (105 s)."""
    _run(["bash", ROOT / "scripts" / "setup-vllm"])
    return ENVIRONMENT


@pytest.fixture(scope="session")
def tiny_model(vllm_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny-qwen3"
    _run([vllm_environment / "python", ROOT / "tests" / "models" / "tiny_qwen3.py", folder])
    return folder


@pytest.fixture(scope="session")
def vllm_url(
    vllm_environment: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """`http://127.0.0.1:PORT` of a server that answers."""
    port = _free_port()
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    address = ["--host", "127.0.0.1", "--port", str(port)]
    program: list[str | Path] = [vllm_environment / "vllm", "serve", tiny_model]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*END_WITH_PARENT, *program, *address, *OPTIONS],
            env=os.environ | SETTINGS,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(server, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(server)


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        ended = server.poll()
        assert ended is None, f"vllm ended with {ended}:\n{_tail(log)}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (URLError, TimeoutError):  # refused until the engine has loaded
            time.sleep(0.2)
    pytest.fail(f"vllm did not answer within {LOAD_SECONDS} s:\n{_tail(log)}")


def _stop(server: "subprocess.Popen[bytes]") -> None:
    """Ask, wait for the whole group, kill what is left of it.

    Engine and worker outlive the front end. Killed while they clean up, they leave 400 MB in /dev/shm.
    """
    server.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    with suppress(ProcessLookupError):  # nobody is left in the group
        while time.monotonic() < deadline:
            server.poll()
            os.killpg(server.pid, 0)
            time.sleep(0.1)
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]
