"""Judging on another machine: a real sshd and a real Slurm, both of this machine alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import slurm_cluster
import ssh_server
from typer.testing import CliRunner

from kernel_lsp import config
from kernel_lsp.commands.app import application
from kernel_lsp.confinement import entry
from kernel_lsp.errors import ConfigError, EvaluationError, Unconfined
from kernel_lsp.evaluator import EvaluationRequest
from kernel_lsp.evaluator.remote import connection, machines
from kernel_lsp.evaluator.remote.connection import MachineLost
from kernel_lsp.evaluator.remote.link import Link
from kernel_lsp.evaluator.remote.remote_gate import RemoteGate, judged_by
from kernel_lsp.evaluator.tuning import ORIGINAL, TunedVariant, TuneRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.interpreter import Probe
from kernel_lsp.records import EvalStatus, Evidence, Progress

needs_sshd = pytest.mark.skipif(not ssh_server.installed(), reason="there is no sshd")
needs_slurm = pytest.mark.skipif(not slurm_cluster.installed(), reason="there is no Slurm")

REFERENCE = """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1
def get_inputs():
    return [torch.randn(16, 16)]
def get_init_inputs():
    return []
"""
RIGHT = REFERENCE.replace("torch.relu(x) + 1", "1 + x.clamp(min=0)")
WRONG = REFERENCE.replace("torch.relu(x) + 1", "x + 1")
ENDLESS = REFERENCE.replace(
    "return ", "while x is not None:\n            x = x + 0\n        return ", 1
)


def request(candidate: str) -> EvaluationRequest:
    return request_from_files(REFERENCE, candidate, device="cpu", require_speed=False)


# --- what a setting names ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "command"),
    [
        ("ssh://gpu-box", f"{' '.join(machines.SSH)} -- gpu-box python3 -V"),
        ("ssh://ada@box:22022/opt/v/bin/python", "-p 22022 -- ada@box /opt/v/bin/python -V"),
        ("ssh://[::1]/~/v/bin/python", "-- ::1 ./v/bin/python -V"),
        ("slurm://", f"{' '.join(machines.SRUN)} --gres=gpu:1 python3 -V"),
        ("slurm://a100/opt/python", "--gres=gpu:1 --partition=a100 /opt/python -V"),
        ("slurm://?gpus=h100:1&time=01:00:00", "kernel-lsp --gpus=h100:1 --time=01:00:00 python3"),
        ("slurm+ssh://login?partition=gpu", "-- login srun --quiet --ntasks=1"),
    ],
)
def test_a_machine_is_reached_by_plain_ssh_and_srun(setting: str, command: str) -> None:
    assert command in " ".join(machines.parse(setting).command("-V"))


def test_what_runs_behind_ssh_is_one_word_for_the_shell_there() -> None:
    assert machines.parse("ssh://box/opt/my python").command("-c", "a;b")[-1] == (
        "'/opt/my python' -c 'a;b'"
    )


@pytest.mark.parametrize(
    "setting",
    ["gpu-box", "http://gpu-box", "ssh://", "ssh://-oProxyCommand=x", "ssh://ada:secret@box",
     "ssh://box?gres=gpu:1", "ssh://box//python", "slurm://-x", "slurm://?a b=1", "slurm://?--x=1",
     "ssh://box/folder/"],
)  # fmt: skip
def test_what_names_no_machine_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="names no machine"):
        machines.parse(setting)


def test_a_repository_cannot_say_where_its_code_is_judged(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kernel-lsp]\njudge_on = 'ssh://evil'\n")
    settings, problems = config.load(tmp_path, environ={})
    assert settings.judge_on is None and "judge_on is ignored here" in str(problems[0])


# --- versions ---------------------------------------------------------------------------------


def test_another_torch_and_an_old_python_are_named_with_the_way_out() -> None:
    here, there = Probe(python="a", torch="2.13.0+cpu"), Probe(python="b", torch="2.13.1+cu130")
    assert judged_by(here, replace(there, cuda=True)) == replace(there, cuda=True, python="a")
    with pytest.raises(EvaluationError, match=r"torch 2.9.1 judges there.*install torch 2.9 here"):
        judged_by(here, replace(there, torch="2.9.1"))
    old = {"python": [3, 8, 10], "system": "linux", "host": "box"}
    with pytest.raises(EvaluationError, match=r"is Python 3.8.10.*needs 3.11.*ssh://box/PATH"):
        connection._refuse_interpreter(old, machines.parse("ssh://box"))


# --- over ssh ---------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ssh_server.SshServer]:
    one = ssh_server.SshServer()
    monkeypatch.setenv("PATH", f"{one.bin}:{os.environ['PATH']}")
    yield one
    one.remove()


def left_behind() -> set[str]:
    """Folders of stations whose process is gone, or will be."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("kernel-lsp-station-*")}


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != "zombie" for one in processes)


@needs_sshd
async def test_verdicts_come_from_there_and_nothing_stays_there(
    server: ssh_server.SshServer,
) -> None:
    before, kept, said = left_behind(), list[Evidence](), list[Progress]()
    async with Link(server.setting) as link, RemoteGate(link) as gate:
        about = await link.look()
        found = await gate.evaluate(request(RIGHT), said.append, kept.append)
        assert found.status is EvalStatus.PASSED, found.detail
        assert found.environment["judged_on"] == {"host": about.host, "python": sys.executable}
        assert found.environment["torch"] == about.probe.torch and found.environment["sandbox"]
        assert kept[0].evaluation == found and kept[0].candidate_source == RIGHT
        assert any("checking values" in one.message for one in said)
        wrong = await gate.evaluate(request(WRONG))
        assert wrong.status is EvalStatus.WRONG_RESULT

        required = entry.required_layers() | {"a moat"}
        with entry.requiring(required), pytest.raises(Unconfined, match="nothing was run"):
            await gate.evaluate(request(RIGHT))

        said.clear()
        judging = asyncio.create_task(gate.evaluate(request(ENDLESS), said.append))
        await until(lambda: any("checking values" in one.message for one in said), 60.0)
        workers = server.started
        judging.cancel()
        await asyncio.gather(judging, return_exceptions=True)
        await until(lambda: len(server.started) < len(workers))
        again = await gate.evaluate(request(RIGHT))
        assert again.status is EvalStatus.PASSED
        running = server.started
    assert len(running) > 3
    await until(lambda: gone(running))
    assert left_behind() <= before


@needs_sshd
async def test_a_lost_connection_is_made_again_once(server: ssh_server.SshServer) -> None:
    said = list[Progress]()

    async def lose(after: str) -> list[psutil.Process]:
        """End ssh, as a network that fails does."""
        await until(lambda: any(after in one.message for one in said), 60.0)
        running = server.started
        mine = psutil.Process().children()
        os.kill(next(one.pid for one in mine if one.name() == "ssh"), signal.SIGKILL)
        return running

    async with Link(server.setting) as link, RemoteGate(link) as gate:
        judging = asyncio.create_task(gate.evaluate(request(RIGHT), said.append))
        orphans = await lose("checking values")
        assert (await judging).status is EvalStatus.PASSED
        assert any("once more" in one.message for one in said)
        await until(lambda: gone(orphans))

        said.clear()
        judging = asyncio.create_task(gate.evaluate(request(ENDLESS), said.append))
        await until(lambda: any("checking values" in one.message for one in said), 60.0)
        server.refuse()
        await lose("checking values")
        with pytest.raises(MachineLost, match=r"could not judge on 127.0.0.1.*Permission denied"):
            await judging


@needs_sshd
async def test_variants_are_compared_there(server: ssh_server.SshServer) -> None:
    asked = request(RIGHT)
    tune = TuneRequest(reference=asked.reference, workload=asked.workload, device="cpu")
    variants = [
        TunedVariant(name="same", source=RIGHT, entry="Model"),
        TunedVariant(name="broken", source="x = 1 / 0", entry="Model"),
    ]
    link = Link(server.setting)
    async with link, RemoteGate(link) as gate, gate.tuner(tune) as tuner:
        race = await tuner.race(variants)
        assert race.order == ["same"] and set(race.median_ms) == {ORIGINAL, "same"}
        assert "ZeroDivisionError" in race.dropped["broken"]


@needs_sshd
def test_a_command_judges_there(
    server: ssh_server.SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "before.py").write_text(REFERENCE)
    (tmp_path / "after.py").write_text(RIGHT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KERNEL_LSP_CONSENT", "always")
    monkeypatch.setenv("KERNEL_LSP_JUDGE_ON", server.setting)
    words = ["verify", "before.py", "after.py", "--require", "correct", "--json"]
    done = CliRunner().invoke(application(["verify"]), words)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout[done.stdout.index("{") :])
    assert answer["evaluation"]["environment"]["judged_on"]["python"] == sys.executable


# --- on Slurm ---------------------------------------------------------------------------------


@needs_slurm
async def test_a_slurm_node_judges_and_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = slurm_cluster.SlurmCluster()
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    try:
        async with Link(f"slurm://gpu{sys.executable}") as link, RemoteGate(link) as gate:
            found = await gate.evaluate(request(RIGHT))
            assert found.status is EvalStatus.PASSED, found.detail
            assert "gres:gpu:1" in cluster.run("squeue", "-h", "-o", "%b")
        await until(lambda: not cluster.run("squeue", "-h"))

        async with Link(f"slurm://gpu{sys.executable}") as link:
            await link.look()
            runs = [one for one in psutil.Process().children() if one.name() == "srun"]
            for one in runs:  # two processes; killed, neither says goodbye
                one.kill()
            await until(lambda: not cluster.run("squeue", "-h"), 60.0)
    finally:
        cluster.remove()
