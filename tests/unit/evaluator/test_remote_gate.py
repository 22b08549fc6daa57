"""Judging on another machine: a real sshd and a real Slurm, both of this machine alone."""

from __future__ import annotations

import asyncio
import contextlib
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

from kernel_lsp import config, secret_names, wire
from kernel_lsp.commands.app import application
from kernel_lsp.confinement import entry
from kernel_lsp.errors import ConfigError, EvaluationError, Unconfined
from kernel_lsp.evaluator import EvaluationRequest, Gate
from kernel_lsp.evaluator.remote import connection, gate_server, machines, messages, remote_gate
from kernel_lsp.evaluator.remote.connection import MachineLost
from kernel_lsp.evaluator.remote.link import Link
from kernel_lsp.evaluator.remote.remote_gate import RemoteGate, judged_by
from kernel_lsp.evaluator.tuning import ORIGINAL, TunedVariant, TuneRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.interpreter import Probe
from kernel_lsp.records import EvalStatus, Evidence, Home, Progress

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


# --- a machine that is not to be believed -----------------------------------------------------


HOSTILE = """\
#!{python} -I
import base64, json, re, sys, time
token = re.search(r"run\\('([^']+)'", base64.b64decode(sys.stdin.readline()).decode())[1]
def say(text):
    print(token, text, flush=True)
say({hello!r})
sys.stdin.readline()
say({about!r})
asked = json.loads(sys.stdin.readline().partition(" ")[2])
say({answer!r}.replace("NUMBER", str(asked["id"])))
time.sleep(60)
"""
HELLO = json.dumps({"op": "hello", "about": {"python": [3, 12, 1], "system": "linux"}})
ABOUT = json.dumps(
    {
        "op": "about",
        "about": {"host": "box", "probe": {"python": "x", "torch": "2.13"}, "sandbox": ""},
    }
)


def hostile(folder: Path, *, answer: str = "", hello: str = HELLO, about: str = ABOUT) -> Link:
    """A link to a machine that says this."""
    python = folder / "python"
    python.write_text(
        HOSTILE.format(python=sys.executable, hello=hello, about=about, answer=answer)
    )
    python.chmod(0o755)
    link = Link("slurm://")
    link.machine = machines.Machine(setting="slurm://", name="box", python=str(python))
    return link


@pytest.mark.parametrize(
    "answer",
    [
        '{"id": NUMBER}',
        '{"op": "progress", "id": NUMBER, "progress": 3}',
        '{"op": "reply", "id": NUMBER}',
        '{"op": "failed", "id": NUMBER, "kind": []}',
        '{"op": "reply", "id": {}}',
    ],
)
async def test_a_machine_that_says_nonsense_keeps_nobody_waiting(
    tmp_path: Path, answer: str
) -> None:
    async with hostile(tmp_path, answer=answer) as link, RemoteGate(link) as gate:
        with pytest.raises(MachineLost, match="no message of kernel-lsp"):
            await asyncio.wait_for(gate.evaluate(request(RIGHT)), 20)


@pytest.mark.parametrize(
    ("hello", "about"),
    [
        ('{"op": "hello"}', ABOUT),
        ('{"op": "hello", "about": {"python": 3}}', ABOUT),
        (HELLO, '{"op": "about", "about": {"probe": []}}'),
        ('{"op": "hello", "about": null}', ABOUT),
    ],
)
async def test_a_machine_that_begins_with_nonsense_is_an_error_of_ours(
    tmp_path: Path, hello: str, about: str
) -> None:
    async with hostile(tmp_path, hello=hello, about=about) as link:
        with pytest.raises(EvaluationError, match="could not judge on box"):
            await asyncio.wait_for(link.look(), 20)


async def test_brackets_without_end_are_no_message(tmp_path: Path) -> None:
    token = b"@kernel-lsp-1"
    assert messages.decode(token.decode(), token + b" " + b"[" * 1_000_000) is None


async def test_a_machine_that_judges_something_else_is_not_believed(tmp_path: Path) -> None:
    kept = list[Evidence]()
    async with Gate() as local:
        await local.evaluate(request(WRONG), keep=kept.append)
    other = wire.to_json(replace(kept[0], candidate_source="import os\n"))
    answer = '{"op": "reply", "id": NUMBER, "value": ' + json.dumps(other) + "}"
    async with hostile(tmp_path, answer=answer) as link, RemoteGate(link) as gate:
        with pytest.raises(EvaluationError, match="judged another program"):
            await asyncio.wait_for(gate.evaluate(request(WRONG), keep=kept.append), 20)
    assert len(kept) == 1


def test_ssh_hands_on_neither_keys_nor_ports_and_srun_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ssh = machines.parse("ssh://box").ssh
    assert {"-a", "-x", "-oClearAllForwardings=yes"} <= set(ssh)
    monkeypatch.setenv("SOME_API_KEY", "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    handed = secret_names.environment_without_secrets()
    assert "SOME_API_KEY" not in handed and handed["SLURM_CONF"] == "/etc/slurm.conf"


def test_a_recorded_program_that_is_a_device_now_is_not_read(tmp_path: Path) -> None:
    """Reading /dev/zero would never end."""
    with pytest.raises(EvaluationError, match="could not judge"):
        gate_server._require_file("/dev/zero", "0" * 64)
    device = "/dev/zero"
    home = Home(module="m", path=device, snapshot=device, search_path=(), pickler=device)
    assert remote_gate._digests(replace(request(RIGHT).reference, home=home)) == {}


# --- over ssh ---------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ssh_server.SshServer]:
    one = ssh_server.SshServer()
    monkeypatch.setenv("PATH", f"{one.bin}:{os.environ['PATH']}")
    yield one
    one.remove()


def left_behind() -> set[str]:
    """Folders of gate servers whose process is gone, or will be."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("kernel-lsp-remote-*")}


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
async def test_a_gate_server_that_is_killed_leaves_nothing_there(
    server: ssh_server.SshServer,
) -> None:
    before = left_behind()
    async with Link(server.setting) as link:
        await link.look()
        assert left_behind() - before
        servers = [one for one in server.started if connection.GATE_SERVER in one.cmdline()]
        for one in [servers[0].parent(), *servers]:  # the shim first, which would clean up
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    await until(lambda: left_behind() <= before)


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
