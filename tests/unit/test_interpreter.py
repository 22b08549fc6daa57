"""Which interpreter a project has, and what it says about itself."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_lsp import interpreter, scratch
from kernel_lsp.confinement import entry


def environment(root: Path) -> str:
    python = root / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    return str(python)


def test_order_setting_variable_folder_own(tmp_path: Path) -> None:
    active = environment(tmp_path / "active")
    local = environment(tmp_path / "project" / ".venv")
    folder = tmp_path / "project"
    variables = {"VIRTUAL_ENV": str(tmp_path / "active")}
    assert interpreter.find(folder, "/opt/python", variables).path == "/opt/python"
    assert interpreter.find(folder, None, variables).path == active
    assert interpreter.find(folder, None, {}).path == local
    assert interpreter.find(tmp_path, None, {}).path == sys.executable


def test_a_relative_setting_belongs_to_the_folder_and_a_bare_name_to_the_path(
    tmp_path: Path,
) -> None:
    assert interpreter.find(tmp_path, "env/bin/python", {}).path == str(tmp_path / "env/bin/python")
    assert Path(interpreter.find(tmp_path, "sh", {}).path).is_absolute()


def test_a_stale_variable_is_passed_over(tmp_path: Path) -> None:
    found = interpreter.find(tmp_path, None, {"CONDA_PREFIX": str(tmp_path / "gone")})
    assert found.path == sys.executable


def test_an_active_environment_that_has_kernel_lsp_but_no_torch_is_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    active = environment(tools)
    local = environment(tmp_path / "project" / ".venv")
    folder, variables = tmp_path / "project", {"VIRTUAL_ENV": str(tools)}
    monkeypatch.setattr(sys, "prefix", str(tools))
    assert interpreter.find(folder, None, variables).path == local
    (tools / "lib" / "python3.11" / "site-packages" / "torch").mkdir(parents=True)
    assert interpreter.find(folder, None, variables).path == active


async def test_a_missing_interpreter_names_the_remedy(tmp_path: Path) -> None:
    probe = await interpreter.probe(str(tmp_path / "python"))
    assert probe.problem is not None
    assert "kernel-lsp.python" in (probe.remedy or "")


async def test_something_that_is_no_python_is_a_problem(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho surprise >&2\nexit 3\n")
    fake.chmod(0o755)
    probe = await interpreter.probe(str(fake))
    assert probe.problem == "exited with 3: surprise"


def fake_python(folder: Path, facts: str) -> str:
    """Prints noise, then what the real script would print."""
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\necho noise\nprintf '%s' \"$4\"\necho '{facts}'\n")
    fake.chmod(0o755)
    return str(fake)


async def test_an_interpreter_without_torch_names_the_remedy(tmp_path: Path) -> None:
    probe = await interpreter.probe(fake_python(tmp_path, '{"version": "3.12.1"}'))
    assert (probe.version, probe.torch, probe.problem) == ("3.12.1", None, None)
    assert "install torch" in (probe.remedy or "")


async def test_a_good_answer_is_remembered_and_a_bad_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(entry.RECORD, str(tmp_path / "started"))

    def calls(python: str) -> int:
        return (tmp_path / "started").read_text().count(json.dumps(python))

    good = fake_python(tmp_path, '{"version": "3.12.1", "torch": "2.9", "cuda": false}')
    assert (await interpreter.probe(good)).remedy is None
    assert (await interpreter.probe(good)).torch == "2.9"
    assert calls(good) == 1
    (tmp_path / "bad").mkdir()
    bad = fake_python(tmp_path / "bad", "{}")
    assert (await interpreter.probe(bad)).remedy
    assert (await interpreter.probe(bad)).remedy
    assert calls(bad) == 2


TELLING = """
import os
with open({told!r}, "a") as file:
    file.write(__name__ + " " + str("NVIDIA_API_KEY" in os.environ))
__version__ = "6.6.6"
"""


async def test_the_probe_executes_nothing_of_the_folder_it_is_asked_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, told = tmp_path / "workspace", tmp_path / "told"
    workspace.mkdir()
    for name in ("torch", "triton", "json", "gc", "sitecustomize", "usercustomize"):
        (workspace / f"{name}.py").write_text(TELLING.format(told=str(told)))
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("PYTHONPATH", str(workspace))
    monkeypatch.setenv("NVIDIA_API_KEY", "secret")
    probe = await interpreter._ask(sys.executable, None)
    assert probe.problem is None and probe.version is not None and probe.torch != "6.6.6"
    assert not told.exists()


async def test_the_probe_is_asked_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_API_KEY", "secret")
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nenv | grep -q secret && exit 4\npwd >&2\nexit 3\n")
    fake.chmod(0o755)
    probe = await interpreter.probe(str(fake))
    _, _, folder = (probe.problem or "").partition("exited with 3: ")
    assert folder.startswith(f"{scratch.room()}/"), "its own"


async def test_an_interpreter_reads_writes_and_reaches_nothing_of_the_user_s(
    tmp_path: Path,
) -> None:
    """An environment that a repository brings, whose Python does more than it should while it
    starts."""
    environment, told, secret = tmp_path / "project" / ".venv", tmp_path / "told", tmp_path / "key"
    secret.write_text("planted secret")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)  # noqa: ASYNC221
    (packages,) = environment.glob("lib/python*/site-packages")
    with socket.create_server(("127.0.0.1", 0)) as server:
        attempts = {
            "read": f"open({str(secret)!r}).read()",
            "write": f"open({str(told)!r}, 'w').write('written')",
            "reach": f"__import__('socket').create_connection({server.getsockname()!r})",
            "signal": f"os.kill({os.getpid()}, 0)",
        }
        lines = "".join(
            f"try:\n    {code}\n    done.append({name!r})\nexcept OSError:\n    pass\n"
            for name, code in attempts.items()
        )
        starting = (
            f"import os, sys\ndone = ['ran']\n{lines}os.write(2, ' "
            f"'.join(done).encode())\nos._exit(7)\n"
        )
        (packages / "begins.py").write_text(starting)
        (packages / "begins.pth").write_text("import begins\n")
        probe = await interpreter._ask(str(environment / "bin" / "python"), None)
    # To a /tmp of its own.
    assert probe.problem in ("exited with 7: ran", "exited with 7: ran write")
    assert not told.exists()


def test_an_interpreter_of_the_folder_needs_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    local, other = environment(folder / ".venv"), environment(elsewhere)

    def needs(setting: str | None = None, **variables: str) -> bool:
        found = interpreter.find(folder, setting, variables)
        return interpreter.needs_consent(found, folder, setting)

    assert needs() and needs(".venv/bin/python") and needs(VIRTUAL_ENV=str(folder / ".venv"))
    assert not needs(other) and not needs(local), (
        "the user's own settings name it by its whole path"
    )
    assert not needs(VIRTUAL_ENV=str(elsewhere))
    (tmp_path / "link").symlink_to(folder)
    found = interpreter.find(tmp_path / "link", None, {})
    assert interpreter.needs_consent(found, folder) and interpreter.needs_consent(
        found, tmp_path / "link"
    )
    monkeypatch.setattr(sys, "prefix", str(folder / ".venv"))
    assert not needs(), "it runs us already"


def test_an_environment_that_links_into_the_folder_needs_consent(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    environment(folder / "packages")
    (tmp_path / "venv").symlink_to(folder / "packages")
    found = interpreter.find(folder, None, {"VIRTUAL_ENV": str(tmp_path / "venv")})
    assert interpreter.needs_consent(found, folder)


CANCELLED_PROBE = """
import asyncio, gc, sys
from kernel_lsp import interpreter

async def cancelled():
    asking = asyncio.create_task(interpreter.probe(sys.argv[1]))
    await asyncio.sleep(3.0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

asyncio.run(cancelled())
gc.collect()
"""


def test_an_interpreter_that_is_asked_no_longer_leaves_no_open_pipe(tmp_path: Path) -> None:
    """Its process has a child that holds them: words of a closed loop came at the end."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nsleep 300 & wait\n")
    slow.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-c", CANCELLED_PROBE, str(slow)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0 and "closed" not in ended.stderr
