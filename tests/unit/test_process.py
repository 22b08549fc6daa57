"""Children die with everything they started, whatever they do; and their deaths are named."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from confined_helpers import launcher_without

from kernel_lsp import process
from kernel_lsp.confinement import entry, environment_for
from kernel_lsp.errors import Unconfined, WorkerLost

CHILD = """
import os, signal, sys, time
from kernel_lsp import wire
requests, replies = wire.claim_stdio()
while (request := wire.read_frame(requests)) is not None:
    message, blobs = request
    exec(message["code"])
    wire.write_frame(replies, {"pid": os.getpid(), "said": message["code"]}, blobs)
"""


LONG_S = 60.0
"""For what takes a moment on a quiet machine."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable module that runs what it is told."""
    (tmp_path / "obedient.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "obedient"


async def start(
    module: str, confinement: process.Confinement | None = None, **limits: int
) -> process.Child:
    return await process.start(
        module, python=sys.executable, limits=process.Limits(**limits), confinement=confinement
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def until_dead(pid: int) -> None:
    deadline = time.monotonic() + LONG_S
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


async def test_a_reply_carries_bytes_and_prints_are_only_log(module: str) -> None:
    child = await start(module)
    reply, blobs = await child.ask({"code": "print('hello')"}, [b"abc", b""], timeout_s=LONG_S)
    assert reply["said"] == "print('hello')" and blobs == [b"abc", b""]
    await child.kill()
    assert not child.alive


@pytest.mark.parametrize(
    "code, words",
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os._exit(3)", "exited with 3"),
        ("raise ValueError('so it is')", "so it is"),
        ("os.write(replies.stream.fileno(), b'x' * 100)", "spoke out of turn"),
        ("os.write(replies.stream.fileno(), b'\\0\\0\\0\\2{}' + bytes(64))", "spoke out of turn"),
    ],
)
async def test_a_death_is_named(module: str, code: str, words: str) -> None:
    child = await start(module)
    with pytest.raises(WorkerLost) as caught:
        await child.ask({"code": code}, timeout_s=LONG_S)
    assert words in str(caught.value) and not child.alive


async def test_the_last_words_are_the_error_not_the_advice_below_it(module: str) -> None:
    child = await start(module)
    advice = (
        "CUDA kernel errors might be asynchronously reported\\nCompile with `TORCH_USE_CUDA_DSA`"
    )
    said = f"AcceleratorError: CUDA error: out of memory\\n{advice}"
    with pytest.raises(WorkerLost, match="CUDA error: out of memory"):
        await child.ask({"code": f"print('{said}', flush=True); os._exit(1)"}, timeout_s=LONG_S)


async def test_what_has_ended_cannot_be_sent_anything(module: str) -> None:
    """asyncio of Python 3.12 raises TypeError there, and a gate called it its own failure."""
    child = await start(module)
    await child.kill()
    with pytest.raises(ConnectionError):
        await child.send({"code": "pass"})
    with pytest.raises(WorkerLost):
        await child.ask({"code": "pass"}, timeout_s=LONG_S)


async def test_silence_is_ended_in_time(module: str) -> None:
    child = await start(module)
    with pytest.raises(WorkerLost, match="no answer within"):
        await child.ask({"code": "time.sleep(100)"}, timeout_s=1)
    assert not child.alive


async def test_cancelling_a_question_kills_the_child_at_once(module: str) -> None:
    child = await start(module)
    await child.ask({"code": "pass"}, timeout_s=LONG_S)
    asking = asyncio.create_task(child.ask({"code": "time.sleep(100)"}, timeout_s=100))
    await asyncio.sleep(0.2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not child.alive


async def test_strays_that_leave_the_process_group_are_ended_too(module: str) -> None:
    child = await start(module)
    started = "subprocess.Popen(['sleep', '900'], start_new_session=True).pid"
    code = f"import subprocess; message['code'] = str({started})"
    reply, _ = await child.ask({"code": code}, timeout_s=LONG_S)
    assert alive(int(reply["said"]))
    await child.kill()
    await asyncio.to_thread(until_dead, int(reply["said"]))


async def test_memory_beyond_the_limit_is_a_memory_error(module: str) -> None:
    child = await start(module, memory_bytes=512 * 1024**2)
    with pytest.raises(WorkerLost, match="MemoryError"):
        await child.ask({"code": "bytearray(1024**3)"}, timeout_s=LONG_S)


WAYS = {
    "namespaces": (),
    "bubblewrap": ("namespaces",),
    "Landlock and seccomp": ("namespaces", "bubblewrap"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """How this machine confines what is started: each that it may have to."""
    off = WAYS[request.param]
    if "bubblewrap" in request.param and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if off:
        monkeypatch.setattr(entry.sys, "executable", launcher_without(tmp_path, *off))
    if "bubblewrap" in off:
        monkeypatch.setenv("KERNEL_LSP_NO_BWRAP", "1")
    return str(request.param)


PYTHON = sys.executable


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/written', 'w')",
        "import socket; socket.create_connection(('1.1.1.1', 53), timeout=2)",
        "os.kill(PARENT, 0)",
        "open('SECRET').read()",
        "import socket; socket.socket(socket.AF_UNIX).connect('SERVICE')",
    ],
    ids=["write", "network", "processes", "hidden", "service"],
)
async def test_a_confined_child_cannot(
    module: str, code: str, way: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scratch, secret = tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("secret") / "key"
    secret.write_text("x")
    confinement = process.Confinement(scratch=scratch, readable=(tmp_path,))
    child = await process.start(
        module,
        python=PYTHON,
        limits=process.Limits(),
        confinement=confinement,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    allowed, _ = await child.ask({"code": "open('mine', 'w').write('x')"}, timeout_s=LONG_S)
    assert (allowed["pid"] < 100) == (way != "Landlock and seccomp")  # in a process tree of its own
    assert {"Landlock", "seccomp", "no privileges"} <= child.layers
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(scratch / "service"))
        service.listen()
        for name, value in {
            "PARENT": os.getpid(),
            "SECRET": secret,
            "SERVICE": scratch / "service",
        }.items():
            code = code.replace(name, str(value))
        with pytest.raises(WorkerLost, match=r"said: .*Error"):
            await child.ask({"code": code}, timeout_s=LONG_S)
    assert "mine" in os.listdir(scratch) and "written" not in os.listdir("/etc")


async def test_a_replaced_file_is_seen_or_nothing_starts(
    module: str, way: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file, edited = tmp_path / "model.py", tmp_path_factory.mktemp("edited") / "text"
    file.write_text("real")
    edited.write_text("edited")
    confinement = process.Confinement(
        scratch=tmp_path_factory.mktemp("scratch"), readable=(tmp_path,), replaced={file: edited}
    )

    async def begun() -> process.Child:
        return await process.start(
            module,
            python=PYTHON,
            limits=process.Limits(),
            confinement=confinement,
            environment={"PYTHONPATH": str(tmp_path)},
        )

    if way == "Landlock and seccomp":
        with pytest.raises(Unconfined, match="unedited program"):
            await begun()
    else:
        child = await begun()
        await child.ask({"code": f"assert open('{file}').read() == 'edited'"}, timeout_s=LONG_S)
        await child.kill()


@pytest.mark.parametrize(
    ("off", "words"),
    [
        (("namespaces", "landlock"), "files of yours and of others can be read"),
        (("namespaces", "seccomp"), "sockets of local services can be reached"),
        (("seccomp",), "sockets of local services can be reached"),
        (("privileges",), "privileges of this user stay"),
    ],
    ids=str,
)
async def test_where_less_holds_than_is_required_nothing_runs_until_it_is_accepted(
    off: tuple[str, ...], words: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry.sys, "executable", launcher_without(tmp_path, *off))
    monkeypatch.setenv("KERNEL_LSP_NO_BWRAP", "1")
    confinement = process.Confinement(scratch=tmp_path, readable=(tmp_path,))

    async def begun() -> process.Child:
        marked = {"PYTHONPATH": str(tmp_path)}
        return await process.start(
            module,
            python=PYTHON,
            limits=process.Limits(),
            confinement=confinement,
            environment=marked,
        )

    with pytest.raises(Unconfined, match=words):
        await begun()
    with entry.requiring(frozenset()):
        child = await begun()
        await child.ask({"code": "pass"}, timeout_s=LONG_S)
        await child.kill()


async def test_a_promised_layer_that_is_missing_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry.sys, "executable", launcher_without(tmp_path, "landlock"))
    confinement = process.Confinement(scratch=tmp_path, readable=(tmp_path,))
    with (
        entry.requiring(frozenset({"Landlock"})),
        pytest.raises(Unconfined, match="promised and are not there: Landlock"),
    ):
        await process.start(module, python=PYTHON, limits=process.Limits(), confinement=confinement)


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "obedient.py").write_text(CHILD)
    program = textwrap.dedent("""
        import asyncio, sys
        from kernel_lsp import process
        async def main():
            child = await process.start("obedient", python=sys.executable, limits=process.Limits())
            reply, _ = await child.ask({"code": "pass"}, timeout_s=60)
            print(reply["pid"], flush=True)
            await asyncio.sleep(100)
        asyncio.run(main())
    """)
    root = str(Path(process.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": f"{root}:{tmp_path}"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    until_dead(pid)


@pytest.mark.parametrize(
    "name",
    [
        "SERVICE_TOKEN",
        "NVIDIA_API_KEY",
        "LANGSMITH_API_KEY",
        "LANGCHAIN_API_KEY",
        "TORCH_HUB_TOKEN",
        "TRITON_REMOTE_PASSWORD",
        "CONDA_TOKEN",
        "CCACHE_REMOTE_STORAGE",
        "LD_API_KEY",
        "CUDA_SECRET",
        "OMP_KEY",
        "MKL_LICENSE",
        "PATH_TO_KEY",
        "LC_SECRET",
        "VIRTUAL_ENV_TOKEN",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "HTTPS_PROXY",
    ],
)
async def test_a_confined_environment_carries_no_secrets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "secret")
    made = environment_for(process.Confinement(scratch=tmp_path), {"EXTRA": "1"})
    assert "secret" not in made.values() and made["HOME"] == str(tmp_path) and made["EXTRA"] == "1"


@pytest.mark.parametrize(
    "name", ["PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LC_ALL"]
)
async def test_what_programs_need_stays_in_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "value")
    assert environment_for(process.Confinement(scratch=tmp_path), {})[name] == "value"
