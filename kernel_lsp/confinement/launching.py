"""Run as a program, in our own interpreter: confine this process and become another program.

    launcher -> guardian -> the program, confined, the first of its own process tree
    launcher -> bubblewrap -> the program, where this machine permits bubblewrap namespaces and us
    none

Both ways have the same view and the same filters. What took effect is written into a descriptor
before the program begins, and it does not begin when less holds than the order requires. Runs
nothing of a workspace; standard library only."""

from __future__ import annotations

import binascii
import marshal
import os
import sys

from kernel_lsp.confinement import confine, guarding, linux, mounts, namespaces, software, visible
from kernel_lsp.confinement.layers import IPC, MOUNTS, NETWORK, PROC, PROCESSES, REPLACED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

NAMESPACES = {"pid": PROCESSES, "net": NETWORK, "ipc": IPC, "mnt": MOUNTS}
WHOLE = frozenset({PROCESSES, NETWORK, MOUNTS, PROC})
"""Without one of these bubblewrap is tried."""
INSIDE = "--inside-bubblewrap"


def main() -> None:
    """Confine this process as the order in its last argument says, and become the program; ends
    with its parent."""
    _die_with(os.getppid())
    asked = marshal.loads(binascii.a2b_base64(sys.argv[-1]))
    order = confine.Order(**asked["order"])
    order.software = [*order.software, *software.folders(asked["argv"][0])]
    if INSIDE in sys.argv:
        prepared = _made_around(asked["outside"]) + ([REPLACED] if order.replaced else [])
        _become(order, asked, tree=False, prepared=prepared)
    bubblewrap = _which("bwrap") if asked["bubblewrap"] else None
    if bubblewrap is None:
        _guard(order, asked)
    reading, deciding = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        _die_with(parent)
        os.close(reading)
        _guard(order, asked, deciding)
    os.close(deciding)
    with open(reading, "rb") as pipe:
        begun = pipe.read(1)
    code = guarding.code(os.waitpid(pid, 0)[1])
    if begun:
        os._exit(code)
    if not _works(bubblewrap):
        _guard(order, asked)
    asked["outside"] = {name: _namespace(name) for name in NAMESPACES}
    os.set_inheritable(asked["tell"], True)
    options = [bubblewrap, *_options(order), "--", sys.executable, "-I", "-S", "-B"]
    os.execv(bubblewrap, [*options, sys.argv[0], INSIDE, encode(asked)])


def encode(asked: dict[str, Any]) -> str:
    """An order as an argument. Not JSON, whose module takes a third of a launcher's start."""
    return binascii.b2a_base64(marshal.dumps(asked), newline=False).decode()


def _which(program: str) -> str | None:
    places = [
        f"{place}/{program}" for place in os.environ.get("PATH", os.defpath).split(":") if place
    ]
    return next((path for path in places if os.access(path, os.X_OK)), None)


def _works(bubblewrap: str) -> bool:
    """Whether it may make namespaces here, which containers often forbid."""
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        options = ("--unshare-net", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc")
        os.execv(bubblewrap, [bubblewrap, *options, "--", "true"])
    return os.waitpid(pid, 0)[1] == 0


def _guard(order: confine.Order, asked: dict[str, Any], deciding: int | None = None) -> NoReturn:
    """Fork the program, wait for its end, leave nothing of it behind; exit as it has.

    With ``deciding`` it may also give up, so that bubblewrap is tried: a byte there says that it
    has not."""
    tree = namespaces.enter_process_tree()
    if not tree and deciding is not None:
        os._exit(1)
    if not tree:
        linux.prctl("subreaper", linux.PR_SET_CHILD_SUBREAPER, 1)
    asking, ask = os.pipe()
    hear, answer = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        _die_with(0 if tree else parent)  # seen from another tree it has no number
        os.close(asking)
        os.close(answer)
        _become(order, asked, tree=tree, channel=(ask, hear), deciding=deciding)
    os.close(ask)
    os.close(hear)
    if deciding is not None:
        os.close(deciding)
    if os.read(asking, 1):
        with linux.Ignoring(OSError):
            namespaces.write_maps(str(pid), os.geteuid(), os.getegid())
            os.write(answer, b"x")
    guarding.close_all_but()
    code = guarding.code(os.waitpid(pid, 0)[1])
    if not tree:
        guarding.end_strays()
    os._exit(code)


def _become(
    order: confine.Order,
    asked: dict[str, Any],
    *,
    tree: bool,
    prepared: Sequence[str] = (),
    channel: tuple[int, int] | None = None,
    deciding: int | None = None,
) -> NoReturn:
    """Confine this process, tell what took effect, and become the program."""
    said: dict[str, Any]
    try:
        ask = (lambda: _ask_for_maps(*channel)) if channel else None
        layers = confine.confine(
            order, asked["limits"], tree=tree, ask_for_maps=ask, prepared=prepared
        )
        said = {"layers": layers}
    except confine.Missing as missing:
        said = {"layers": missing.layers, "missing": missing.what}
    except OSError as error:
        said = {"problem": str(error)}
    if deciding is not None:
        if not set(said.get("layers", {}).get("namespaces", ())) >= WHOLE:
            os._exit(1)
        os.write(deciding, b"x")
    os.write(asked["tell"], repr(said).encode(errors="replace") + b"\n")
    if "layers" not in said or "missing" in said:
        os._exit(1)
    os.closerange(3, 2**20)
    try:
        os.execv(asked["argv"][0], asked["argv"])
    except OSError as error:
        os.write(2, f"{asked['argv'][0]} cannot be started: {error.strerror}\n".encode())
    os._exit(127)


def _ask_for_maps(ask: int, hear: int) -> None:
    os.write(ask, b"x")
    if not os.read(hear, 1):
        raise OSError("nobody has written the maps")


def _die_with(parent: int) -> None:
    """When the parent goes, so does this process. ``parent``: its number as it is seen here."""
    linux.prctl("pdeathsig", linux.PR_SET_PDEATHSIG, linux.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _namespace(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")


def _made_around(outside: dict[str, str]) -> list[str]:
    """Which namespaces are others than outside of bubblewrap: seen, not inferred."""
    found = [layer for name, layer in NAMESPACES.items() if _namespace(name) != outside[name]]
    return (
        [*found, PROC] if PROCESSES in found and os.path.exists(f"/proc/{os.getpid()}") else found
    )


def _options(order: confine.Order) -> list[str]:
    """bubblewrap's options for the view that mounts.py makes. Folders that change are read-only:
    only the newest bubblewrap knows overlays."""
    view = mounts.View(
        readable=order.readable,
        writable=[order.scratch, *order.writable],
        hidden=order.hidden,
        overlaid=order.overlaid,
        gpu=order.gpu,
        software=order.software,
    )
    options = [
        "--die-with-parent",
        "--unshare-net",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
    ]
    for name in (*visible.OPEN, "etc", "sys"):
        path = f"/{name}"
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    options += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"]
    if os.geteuid() == 0:
        for path in mounts.only_root_reads("/etc"):
            empty = ["--tmpfs"] if os.path.isdir(path) else ["--ro-bind", "/dev/null"]
            options += [*empty, path]
    writable = {*view.writable, *map(os.path.realpath, view.writable)}
    for path in sorted({*mounts.list_mounts(view), *view.hidden}, key=lambda path: path.count("/")):
        if path in view.hidden:
            options += ["--tmpfs", path]
        elif path.startswith("/dev/"):
            options += ["--dev-bind", path, path] if path in visible.gpu_devices() else []
        else:
            options += ["--bind" if path in writable else "--ro-bind", path, path]
    options += [part for path, file in order.replaced.items() for part in ("--ro-bind", file, path)]
    return [*options, "--chdir", order.scratch]
