"""The filter of calls alone, as where nothing else keeps signals from processes outside."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
SCRIPT = """
import fcntl, os, socket, struct
from kernel_lsp.confinement import linux, syscalls

linux.prctl("no_new_privs", linux.PR_SET_NO_NEW_PRIVS, 1)
syscalls.install(signals=False)
one, other = socket.socketpair()
outside = os.getppid()
for attempt in (
    lambda: os.kill(outside, 0),
    lambda: fcntl.fcntl(one, fcntl.F_SETOWN, outside),
    lambda: fcntl.fcntl(one, 15, struct.pack("ii", 1, outside)),
    lambda: fcntl.ioctl(one, 0x8901, struct.pack("i", outside)),
    lambda: fcntl.ioctl(one, 0x8902, struct.pack("i", outside)),
):
    try:
        attempt()
    except PermissionError:
        print("refused")
other.send(b"abc")
fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_NONBLOCK)
print(struct.unpack("i", fcntl.ioctl(one, 0x541B, bytes(4)))[0], "bytes")
"""


def test_no_file_signals_for_its_owner() -> None:
    """A file's owner is sent whatever signal when there is something to be read: SIGKILL, say."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:-1] == ["refused"] * 5 + ["3 bytes"], done.stderr
