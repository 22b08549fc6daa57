"""No local service can be reached from a confined child, by whatever sort of socket; a socketpair
works."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confined_helpers import AS, confined, folder_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
REACHING = {
    "stream": "socket.socket(socket.AF_UNIX).connect(STREAM)",
    "datagram": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', DATAGRAM)",
    "message": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, DATAGRAM)",
    "pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', DATAGRAM)",
    "raw pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'x', DATAGRAM)",
}
ELSEWHERE = {
    "TCP": "socket.socket().connect(('127.0.0.1', PORT))",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).bind((0, 0))",
}


@pytest.fixture(params=AS)
def who(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scratch(who: str) -> Iterator[Path]:
    with folder_in(Path("/tmp"), who) as folder:
        yield folder


@contextlib.contextmanager
def served(code: str, *places: str) -> Iterator[list[str]]:
    """The code for each place, where a service listens for streams and another for datagrams."""
    with contextlib.ExitStack() as stack:
        asked = []
        for place in places:
            for kind, name in (("STREAM", socket.SOCK_STREAM), ("DGRAM", socket.SOCK_DGRAM)):
                server = stack.enter_context(socket.socket(socket.AF_UNIX, name))
                server.bind(place + kind)
                if kind == "STREAM":
                    server.listen()
                if place.startswith("/"):
                    os.chmod(place + kind, 0o777)
                    stack.callback(os.unlink, place + kind)
            asked.append(
                code.replace("STREAM", repr(place + "STREAM"), 1) if "(STREAM" in code else code
            )
            asked[-1] = asked[-1].replace("DATAGRAM", repr(place + "DGRAM"))
        yield asked


@pytest.mark.parametrize("without", [(), ("namespaces", "landlock")], ids=str)
@pytest.mark.parametrize("how", REACHING)
def test_no_service_is_reached(how: str, without: tuple[str, ...], who: str, scratch: Path) -> None:
    """In a folder that it reads, below /run, and by an abstract name."""
    run = "/run/kernel-lsp-test-" if os.access("/run", os.W_OK) else f"{scratch}/run-"
    with served(
        "import socket; " + REACHING[how], f"{scratch}/", run, "\0kernel-lsp-test-"
    ) as asked:
        for code in asked:
            said = confined(code, scratch, who=who, without=without)
            assert said.error.split(":")[0] in ("PermissionError", "FileNotFoundError"), code


@pytest.mark.parametrize("how", REACHING)
def test_each_is_reached_without_the_layers(how: str, who: str, scratch: Path) -> None:
    with served("import socket; " + REACHING[how], f"{scratch}/", "\0kernel-lsp-test-") as asked:
        for code in asked:
            off = ("namespaces", "landlock", "seccomp")
            if "\0" not in code.replace("\\x00", "\0"):
                off = ("seccomp",)  # a socket in a folder that it sees is held by this one alone
            assert confined(code, scratch, who=who, without=off).error == ""


@pytest.mark.parametrize("without", [(), ("namespaces",), ("seccomp",)], ids=str)
@pytest.mark.parametrize("how", ELSEWHERE)
def test_no_network_is_reached(how: str, without: tuple[str, ...], who: str, scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = "import socket; " + ELSEWHERE[how].replace("PORT", str(server.getsockname()[1]))
        said = confined(code, scratch, who=who, without=without)
        if how == "netlink" and without == ("seccomp",) and "network" in said.layers["namespaces"]:
            return  # it talks about a network of its own, in which nobody is
        assert "Error" in said.error
        assert (
            confined(code, scratch, who=who, without=("namespaces", "landlock", "seccomp")).error
            == ""
        )


def test_what_stays(who: str, scratch: Path) -> None:
    code = """
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    one, two = socket.socketpair(socket.AF_UNIX, kind)
    one.send(b'x')
    assert two.recv(1) == b'x'
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # CUDA's driver does
listening.bind('\\0cuda-uvmfd-test')
listening.listen()
"""
    assert confined(code, scratch, who=who).error == ""
