"""From a command to a verified rewrite that a real model has asked for, with nothing replaced.

The program has one place where one skill applies, so a random model that asks for any rewrite asks
for the right one; what is shown is that its call becomes a candidate, a verdict, an offer and an
edit."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from vllm_helpers import ENVIRONMENT, ROOT

from kernel_lsp.journal.store import FILE_NAME, Journal

pytestmark = [pytest.mark.vllm, pytest.mark.torch, pytest.mark.timeout(1500)]

EXAMPLE = '''"""A product with a diagonal matrix: 2 * 512**3 operations where 512**2 would do."""

import torch
from torch import nn


class Model(nn.Module):
    # the comment stays
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal


def get_inputs():
    return [torch.rand(512), torch.randn(512, 512)]
'''
TOKENS = 20_000
"""Some six turns: a model that has only one candidate repeats it until nothing better comes any
more."""
PATIENCE_S = 400


def _editors() -> ModuleType:
    """tests/e2e/conftest.py, which is no conftest of ours, with what it imports from beside it."""
    sys.path.append(str(ROOT / "tests" / "e2e"))
    spec = importlib.util.spec_from_file_location("editors", ROOT / "tests" / "e2e" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules["editors"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


launch = _editors().launch
from editor_client import until  # noqa: E402


def settings(policy: str, model: Path) -> dict[str, str]:
    return {
        "KERNEL_LSP_POLICY": policy,
        "KERNEL_LSP_MODEL": str(model),
        "KERNEL_LSP_MODEL_PYTHON": str(ENVIRONMENT / "python"),
        "KERNEL_LSP_MODEL_DEVICE": "cpu",
        "KERNEL_LSP_DEVICE": "cpu",
        "KERNEL_LSP_BACKGROUND": "no",
        "KERNEL_LSP_MODEL_TIMEOUT_S": "600",
        "KERNEL_LSP_EVALUATE_TIMEOUT_S": "600",
    }


def naming(model: Path) -> list[psutil.Process]:
    """Processes whose command line names the model."""
    return [
        found
        for found in psutil.process_iter(["cmdline"])
        if str(model) in " ".join(found.info["cmdline"] or ()) and found.pid != os.getpid()
    ]


@pytest.mark.usefixtures("vllm_environment")
@pytest.mark.parametrize("policy", ["vllm", "transformers"])
def test_the_command_line_finds_what_a_model_asked_for(
    tmp_path: Path, small_model: Path, policy: str
) -> None:
    path, home = tmp_path / "gain.py", tmp_path / "data"
    path.write_text(EXAMPLE)
    command = [sys.executable, "-m", "kernel_lsp", "optimize", str(path), "--json"]
    limits = ["--candidates", "12", "--seconds", "500", "--tokens", str(TOKENS)]
    done = subprocess.run(
        [*command, "--search", "turns", "--policy", policy, "--model", str(small_model), *limits],
        env={**os.environ, **settings("plan", small_model), "KERNEL_LSP_DATA_DIR": str(home)},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stderr + done.stdout
    (outcome,) = json.loads(done.stdout)["outcomes"]
    best, search = outcome["proposals"][0], outcome["search"]
    assert best["verdict"] == "faster"
    check_provenance(Path(best["evidence"]), policy)
    assert (search["mode"], search["gains"], search["notes"]) == ("turns", 1, [])
    assert set(search["moves"]) <= {"restart", "refine"}
    assert search["cost"]["completion_tokens"] > 0
    assert Path(search["archive"]).exists()
    gone, left = psutil.wait_procs(naming(small_model), timeout=120)
    assert not left, gone
    assert path.read_text() == EXAMPLE


def check_provenance(evidence: Path, policy: str) -> None:
    """It names the model, its turn, its move and the search."""
    said: dict[str, Any] = json.loads(evidence.read_text())["provenance"]
    assert said["proposer"].startswith(f"{policy}:small-qwen3@")
    assert said["turn"] >= 1
    assert said["move"] in ("restart", "refine")
    assert said["skills"] == ["diagonal-matmul"]
    assert "#" in said["search"]


@pytest.mark.usefixtures("vllm_environment")
async def test_the_editor_offers_and_applies_what_a_model_asked_for(
    launch: Any, small_model: Path
) -> None:
    async with launch(fault=None, environment=settings("vllm", small_model)) as session:
        uri = session.open("example.py", EXAMPLE)
        plan = await session.command(
            "searchDeeper", uri=uri, qualname="Model", mode="turns", candidates=12, tokens=TOKENS
        )
        assert plan["mode"] == "turns"
        action = await session.rewrite(uri, seconds=PATIENCE_S)
        (server,) = [one for one in naming(small_model) if "--port" in one.cmdline()]
        kept = of_group(os.getpgid(server.pid))
        assert len(kept) >= 3, "server, engine and worker"
        port = int(server.cmdline()[server.cmdline().index("--port") + 1])

        report = await session.command("showEvidence", **action.command.arguments[0])
        assert "x (" in report["title"]
        assert "vllm:small-qwen3@" in json.dumps(report)
        after = await session.take(uri, action)
        assert "Verified on cpu" in after
        assert "# the comment stays" in after
        compile(after, "example.py", "exec")
        assert "torch.diag(gain) @ signal" in after, "the original stays as the way back"
        await until(lambda: "accepted" in kinds(session.data_dir))
        for evidence in (session.data_dir / "evidence").glob("*.json"):
            check_provenance(evidence, "vllm")
    await until(lambda: not any(one.is_running() for one in kept))
    with socket.create_server(("127.0.0.1", port)):
        pass  # it is free
    assert {"evaluated", "offered", "chosen", "accepted"} <= set(kinds(session.data_dir))


def of_group(group: int) -> list[psutil.Process]:
    """vLLM's own processes: engine and worker cannot be told by their environment."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(one.pid) == group:
                found.append(one)
    return found


def kinds(data_dir: Path) -> list[str]:
    """What the journal has of this session."""
    if not (data_dir / FILE_NAME).exists():
        return []
    with Journal.open(data_dir / FILE_NAME) as journal:
        events = [event for row in journal.sessions() for event in journal.session(row.id)[1]]
    return [event.kind.value for event in events]
