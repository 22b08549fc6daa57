"""What a forked worker may and may not do, asked through the worker's own door: a candidate's
source."""

import os
import re
import shutil
import socket
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from confined_helpers import in_a_container
from worker_helpers import loading

from kernel_lsp import scratch
from kernel_lsp.confinement import Confinement, Limits, visible
from kernel_lsp.errors import Unconfined
from kernel_lsp.evaluator import tensors
from kernel_lsp.evaluator.processes.warm import ZygoteClient, warm_up
from kernel_lsp.process import Child

pytestmark = [
    pytest.mark.torch,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="zygotes are Linux only"),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def zygote() -> AsyncIterator[ZygoteClient]:
    zygote = await warm_up(sys.executable, {})
    yield zygote
    await zygote.close()


@pytest.fixture
def confinement() -> AsyncIterator[Confinement]:
    root = scratch.make("test")
    (root / "mine").mkdir()
    (root / "judge").mkdir()
    (root / "judge" / "expected").write_text("secret")
    (root / "outbox").mkdir()
    (root / "outbox" / "inputs").write_text("inputs")
    yield Confinement(scratch=root / "mine", readable=(root / "outbox",), hidden=(root / "judge",))
    shutil.rmtree(root)


async def start(zygote: ZygoteClient, confinement: Confinement, **limits: int) -> Child:
    return await zygote.fork(
        "kernel_lsp.evaluator.running.worker",
        "cpu",
        limits=Limits(**limits),
        confinement=confinement,
        environment={},
    )


async def run(child: Child, code: str) -> str:
    """What running ``code`` raised, as the worker tells it; empty when it raised nothing."""
    out = tensors.TensorOutbox()
    init = tensors.encode([(), {}], out)
    source = textwrap.dedent(code) + "\ndef target():\n    pass\n"
    reply, _ = await child.ask(loading(source, init), out.blobs, timeout_s=120)
    return str(reply.get("error", ""))


DENIED = {
    "write elsewhere": "open('/etc/written', 'w')",
    "write into a home": "open(os.path.expanduser('~root/written'), 'w')",
    "write where it reads": "open('ROOT/outbox/inputs', 'w')",
    "write into the program": "open('PACKAGE/written.py', 'w')",
    "read the judge's folder": "open('ROOT/judge/expected').read()",
    "read another's folder": "open('OTHER/expected').read()",
    "read hidden files of a home": "open('HIDDEN/key').read()",
    "read the parent's memory": "open('/proc/PARENT/mem', 'rb').read(1)",
    "read the parent's environment": "open('/proc/PARENT/environ', 'rb').read(1)",
    "signal the parent": "os.kill(PARENT, 0)",
    "signal the zygote": "os.kill(ZYGOTE, 0)",
    "trace": "call(101, 0, 0, 0, 0)",
    "read another's memory": "call(310, PARENT, 0, 0, 0, 0, 0)",
    "open a network socket": "socket.socket(socket.AF_INET)",
    "open a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "connect to the machine": "socket.create_connection(('127.0.0.1', PORT), timeout=2)",
    "reach an abstract socket": "socket.socket(socket.AF_UNIX).connect('\\0kernel-lsp-test')",
    "reach a socket in its folder": "socket.socket(socket.AF_UNIX).connect('ROOT/mine/service')",
    "log to a service": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', "
    "'ROOT/mine/log')",
    "make namespaces": "call(272, 0x10000000)",
    "make namespaces by clone": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "mount": "call(165, 0, 0, 0, 0, 0)",
    "open a ring": "call(425, 1, 0)",
    "load BPF": "call(321, 0, 0, 0)",
    "count events": "call(298, 0, 0, 0, 0, 0)",
    "outlive the parent": "prctl(1, 0)",
    "change the kernel": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "write too large a file": "open('large', 'wb').truncate(4 * 1024**2)",
}
PRELUDE = """
import ctypes, errno, os, signal, socket
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def call(*numbers):
    check(libc.syscall(*map(ctypes.c_long, numbers)))
def prctl(*numbers):
    check(libc.prctl(*numbers))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize("what", DENIED)
async def test_a_worker_cannot(
    what: str, zygote: ZygoteClient, confinement: Confinement, tmp_path: Path
) -> None:
    other, root = tmp_path / "other", confinement.scratch.parent
    other.mkdir()
    (other / "expected").write_text("secret")
    hidden = Path.home() / ".kernel-lsp-test"
    hidden.mkdir(exist_ok=True)
    (hidden / "key").write_text("secret")
    assert zygote.process is not None
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as service,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
    ):
        abstract.bind("\0kernel-lsp-test")
        service.bind(f"{root}/mine/service")
        log.bind(f"{root}/mine/log")
        for listening in (abstract, service):
            listening.listen()
        names = {
            "ROOT": root,
            "OTHER": other,
            "HIDDEN": hidden,
            "PACKAGE": Path(tensors.__file__).parent,
            "PARENT": os.getpid(),
            "ZYGOTE": zygote.process.pid,
            "PORT": server.getsockname()[1],
        }
        code = DENIED[what]
        for name, value in names.items():
            code = code.replace(name, str(value))
        child = await start(zygote, confinement, file_bytes=1024**2)
        try:
            said = await run(child, PRELUDE + code)
        finally:
            await child.kill()
            shutil.rmtree(hidden)
    assert re.search(
        r"raised (OS|Permission|FileNotFound|ProcessLookup|ConnectionRefused)Error", said
    ), said
    assert "written" not in os.listdir("/etc")


NEEDED = {
    "write to scratch": "open('mine', 'w').write('x'); os.rename('mine', 'yours')",
    "make folders": "os.makedirs('a/b'); open('a/b/c', 'w').write('x'); os.rename('a/b/c', 'd')",
    "write to temporary files": "import tempfile; tempfile.NamedTemporaryFile().write(b'x')",
    "read its inputs": "assert open('ROOT/outbox/inputs').read() == 'inputs'",
    "compute on several threads": "import torch; torch.set_num_threads(4); (torch.rand(512, 512) "
    "** 2).sum()",
    "start threads": "import threading; t = threading.Thread(target=int); t.start(); t.join()",
    "start a compiler": "import subprocess; subprocess.run(['cc', '--version'], check=True, "
    "stdout=-3)",
    "use a local socket": "import socket; socket.socketpair()",
    "know itself": "assert open('/proc/self/status').read()",
    "discard output": "open('/dev/null', 'w').write('x'); open('/dev/urandom', 'rb').read(4)",
    "name a thread": "open('/proc/self/comm', 'w').write('named')",
    "draw its own numbers": "import random; random.random()",
}


@pytest.mark.parametrize("what", NEEDED)
async def test_a_worker_can(what: str, zygote: ZygoteClient, confinement: Confinement) -> None:
    if what == "name a thread" and os.geteuid() == 0 and not visible.gpu_devices():
        pytest.skip("root's /proc is read-only where no driver writes there")
    child = await start(zygote, confinement)
    code = NEEDED[what].replace("ROOT", str(confinement.scratch.parent))
    try:
        assert await run(child, "import os\n" + code) == ""
    finally:
        await child.kill()


async def test_a_worker_compiles_with_the_inductor(
    zygote: ZygoteClient, confinement: Confinement
) -> None:
    branch = await zygote.branch("compiler")
    code = """
    import torch
    compiled = torch.compile(lambda x: torch.tanh(x) * 2 + 1)
    x = torch.rand(64)
    assert torch.allclose(compiled(x), torch.tanh(x) * 2 + 1)
    """
    child = await start(branch, confinement)
    try:
        assert await run(child, code) == ""
    finally:
        await child.kill()
        await branch.close()


async def test_the_evidence_names_the_layers(
    zygote: ZygoteClient, confinement: Confinement
) -> None:
    child = await start(zygote, replace(confinement, hidden=()))
    await child.kill()
    assert (
        "Landlock" in child.confined
        and "seccomp" in child.confined
        and "privileges" in child.confined
    )


async def test_a_worker_sees_the_edited_text_and_changes_a_folder_for_itself(
    zygote: ZygoteClient, confinement: Confinement
) -> None:
    root = confinement.scratch.parent
    project = root / "project"
    project.mkdir()
    file, edited = project / "model.py", root / "edited"
    file.write_text("real")
    edited.write_text("edited")
    child = await start(zygote, replace(confinement, overlaid=(project,), replaced={file: edited}))
    try:
        assert {"overlays", "replaced files"} <= child.layers
        assert (
            await run(
                child, f"assert open('{file}').read() == 'edited'; open('{project}/new', 'w')"
            )
            == ""
        )
    finally:
        await child.kill()
    assert os.listdir(project) == ["model.py"] and file.read_text() == "real"


async def test_where_no_file_can_be_replaced_nothing_is_run(
    confinement: Confinement, tmp_path: Path
) -> None:
    file, edited = tmp_path / "model.py", tmp_path / "edited"
    file.write_text("real")
    edited.write_text("edited")
    zygote = await warm_up(in_a_container(tmp_path), {})
    try:
        child = await start(zygote, replace(confinement, overlaid=(tmp_path,)))
        await child.kill()
        assert "overlays" not in child.layers and {"Landlock", "seccomp"} <= child.layers
        with pytest.raises(Unconfined, match="unedited program"):
            await start(zygote, replace(confinement, replaced={file: edited}))
    finally:
        await zygote.close()
