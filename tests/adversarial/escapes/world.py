"""What there is to steal, to change and to reach, all of it made here; and one run of cases against it."""

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cases
from cases import Case

import kernel_lsp
from kernel_lsp.confinement import visible

HERE = Path(__file__).parent
PACKAGE = Path(kernel_lsp.__file__).parent.parent
HELPERS = PACKAGE / "tests" / "helpers"
SECRET = "planted-0f7c3a91e5"
USER = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
REFUSED = {1, 13, 38}
"""EPERM, EACCES, ENOSYS."""
PLACES = {
    "home": "/home", "roots": "/root", "srv": "/srv", "mnt": "/mnt", "opt": "/opt", "vartmp": "/var/tmp",
    "varlib": "/var/lib", "run": "/run", "top": "/", "tmp": "/tmp", "shm": "/dev/shm",
}  # fmt: skip
LIMITS = {"memory_bytes": 4 * 2**30, "file_bytes": 2**20, "processes": 500}


@dataclass
class World:
    who: str
    scratch: Path
    names: dict[str, object]
    received: list[bytes] = field(default_factory=list)
    baseline: dict[str, object] = field(default_factory=dict)
    runs: int = 0

    @property
    def uid(self) -> int | None:
        return USER if self.who == "user" and os.geteuid() == 0 else None


def owned(path: Path, who: str) -> Path:
    if who == "user" and os.geteuid() == 0:
        os.chown(path, USER, USER)
    return path


@contextlib.contextmanager
def world(who: str) -> Iterator[World]:
    """Everything that a case may name, on this machine, for a child of this user."""
    with contextlib.ExitStack() as stack:

        def folder(place: str) -> Path | None:
            try:
                made = Path(tempfile.mkdtemp(prefix="kernel-lsp-escape-", dir=place))
            except OSError:
                return None  # a test that is not root has nothing there
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            made.chmod(0o755)
            return owned(made, who)

        root = folder("/tmp")
        assert root is not None
        secrets, out = {}, {}
        places = {name: folder(place) for name, place in PLACES.items()}
        for name in ("neighbor", "scratch"):
            (root / name).mkdir()
            owned(root / name, who)
        for name, place in {**places, "neighbor": root / "neighbor"}.items():
            if place is None or (name == "roots" and who == "user"):
                continue
            key = place / ".hidden" / "key"
            key.parent.mkdir()
            key.write_text(f"{SECRET}\n")
            for path in (key.parent, key):
                owned(path, who)
            secrets[name], out[name] = str(key), str(place)
        files = {}
        for case in cases.writing():
            if case.name.startswith("a file outside: "):
                what = case.name.removeprefix("a file outside: ")
                made = Path(out["home" if "home" in out else "tmp"]) / f"file {what}"
                made.write_text("original")
                files[what] = str(owned(made, who))
        names: dict[str, object] = {
            "SECRET": SECRET, "SECRETS": secrets, "OUT": out, "FILES": files,
            "FOLDERS": {name: os.path.dirname(path) for name, path in secrets.items()},
            "PYTHON": SYSTEM_PYTHON if who == "user" else sys.executable,
            "DISK": next(iter(sorted(os.listdir("/sys/block"))), "none") if os.path.isdir("/sys/block") else "none",
        }  # fmt: skip
        found = World(who=who, scratch=root / "scratch", names=names)
        _listen(stack, found, places["run"] or root / "scratch")
        names["VICTIM"] = _victim(stack, found)
        yield found


def _victim(stack: contextlib.ExitStack, found: World) -> int:
    """A process of the same user that has the secret in its environment, arguments, folder and files."""
    secrets = found.names["SECRETS"]
    assert isinstance(secrets, dict)
    key = Path(secrets.get("home") or secrets["tmp"])
    drop = {"user": USER, "group": USER, "extra_groups": ()} if found.uid is not None else {}
    victim = subprocess.Popen(
        ["/bin/sh", "-c", "while :; do sleep 1; done", SECRET],
        stdin=stack.enter_context(key.open()),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"KEY": SECRET, "PATH": "/bin:/usr/bin"},
        cwd=key.parent,
        start_new_session=True,
        **drop,  # type: ignore[call-overload]
    )
    stack.callback(victim.wait)
    stack.callback(os.killpg, victim.pid, 9)
    return int(victim.pid)


def _listen(stack: contextlib.ExitStack, found: World, run: Path) -> None:
    """Services that keep what they are told."""
    tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    served = [tcp]
    streams = {"SERVICE": str(found.scratch / "service"), "RUN": str(run / "service")}
    for name, place in (
        *streams.items(),
        ("ABSTRACT", f"\0kernel-lsp-escape-{os.getpid()}-{found.who}"),
    ):
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(place)
        server.listen(64)
        served.append(server)
        found.names[name] = place
    log = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    log.bind(str(found.scratch / "log"))
    for path in (*streams.values(), str(found.scratch / "log")):
        os.chmod(path, 0o777)
    found.names |= {
        "LOG": str(found.scratch / "log"),
        "TCP": tcp.getsockname(),
        "UDP": udp.getsockname(),
    }

    def keep(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(5)
            while data := connection.recv(4096):
                found.received.append(data)

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=keep, args=(server.accept()[0],), daemon=True).start()

    for server in served:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        stack.callback(server.shutdown, socket.SHUT_RDWR)

    def keep_datagrams(datagrams: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                found.received.append(datagrams.recv(4096))

    for datagrams in (udp, log):
        threading.Thread(target=keep_datagrams, args=(datagrams,), daemon=True).start()


@functools.cache
def usable(python: str) -> bool:
    """Whether there is such an interpreter, new enough for us."""
    asked = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return os.path.exists(python) and subprocess.run(asked, check=False).returncode == 0


def possible(case: Case, found: World) -> bool:
    """Whether what it is about is there."""
    secrets = found.names["SECRETS"]
    assert isinstance(secrets, dict)
    named = [place for place in (*PLACES, "neighbor") if f"[{place!r}]" in case.code]
    return all(place in secrets for place in named)


def groups() -> dict[tuple[str, ...], list[Case]]:
    """Layers that are switched off together -> the cases that are shown to get out then."""
    found: dict[tuple[str, ...], list[Case]] = {}
    for case in cases.CASES:
        if case.shown:
            found.setdefault(case.off, []).append(case)
    return found


def escaped(
    found: World,
    chosen: Sequence[Case],
    *,
    how: str = "forked",
    without: Sequence[str] = (),
    launcher: str = "",
    limits: Mapping[str, int] = LIMITS,
) -> tuple[set[str], list[str], dict[str, dict[str, object]]]:
    """Run the cases in one confined child: those that got out, the layers that held, and what each said.

    ``how``: forked, or launch (by the entry). ``launcher``: our interpreter for the entry, with layers off.
    """
    found.runs += 1
    found.received.clear()
    asked = [
        (case, f"n{found.runs}x{number}n")
        for number, case in enumerate(chosen)
        if possible(case, found)
    ]
    found.baseline = {what: _state(path) for what, path in dict(found.names["FILES"]).items()}  # type: ignore[call-overload]
    order = {
        "scratch": str(found.scratch),
        "readable": [str(PACKAGE / "kernel_lsp"), str(HERE)],
        "hidden": [str(found.scratch.parent / "neighbor")],
        "gpu": bool(visible.gpu_devices()),
    }
    request = {
        "uid": found.uid,
        "without": list(without),
        "order": order,
        "limits": dict(limits),
        "run": f"r{found.runs}",
        "world": found.names,
        "cases": [
            {"name": case.name, "code": case.code.replace("NAME", token)} for case, token in asked
        ],
    }
    environment = {
        **{name: value for name, value in os.environ.items() if name != "KERNEL_LSP_NO_BWRAP"},
        "PYTHONPATH": f"{PACKAGE}:{HELPERS}:{HERE}",
        **({"KERNEL_LSP_NO_BWRAP": "1"} if "bubblewrap" in without else {}),
    }
    python = SYSTEM_PYTHON if how == "launch" and found.uid is not None else sys.executable
    if launcher:
        environment["LAUNCHER"] = launcher
    done = subprocess.run(
        [python, "-B", str(HERE / "runner.py"), how],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert "problem" not in said, said["problem"]
    results = said["results"]
    got_out = {
        case.name for case, token in asked if _got_out(found, case, token, results[case.name])
    }
    return got_out, said["layers"], results


def _got_out(found: World, case: Case, token: str, result: dict[str, object]) -> bool:
    if case.proof == "read":
        return SECRET in str(result.get("found")) or (
            "list" in case.name and result.get("found") == "key"
        )
    if case.proof == "written":
        out = found.names["OUT"]
        assert isinstance(out, dict)
        return any(os.path.lexists(os.path.join(place, token)) for place in out.values())
    if case.proof == "changed":
        what = case.name.removeprefix("a file outside: ")
        files = found.names["FILES"]
        assert isinstance(files, dict)
        return bool(_state(files[what]) != found.baseline[what])
    if case.proof == "reached":
        return any(token.encode() in data for data in found.received)
    if case.proof == "call":
        words = str(result["error"])
        return not words or (result["errno"] is not None and result["errno"] not in REFUSED)
    return not result["error"]


def _state(path: str) -> object:
    try:
        status = os.stat(path)
        attributes = sorted(os.listxattr(path))
        content = Path(path).read_text()
    except OSError:
        return None
    return (
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        content,
        attributes,
    )
