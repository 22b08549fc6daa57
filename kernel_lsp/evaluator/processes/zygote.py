"""The warm process: has imported torch, has no CUDA context and no threads, and forks children.

    parent --order + 3 descriptors--> zygote --fork--> guardian --fork--> child (confined, one of
    our modules)

The control channel is a socket that keeps messages apart. The guardian waits for its child, makes
it the first of a process tree of its own where the machine permits that, and else hunts what it
leaves behind; it ends the child when the zygote is gone. The zygote leaves when its channel hangs
up. It imports packages of the project's interpreter, so it is confined itself (entry.py): it sees
the room of its parent's scratch folders and what its children may read; all else that a child must
not have is closed in the child.

Not covered: systems without pidfd (Linux before 5.3); Python that forks while it has threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from kernel_lsp.confinement import confine, guarding, linux, namespaces

CONTROL_BYTES = 128 * 1024
IMPORTS = (
    "kernel_lsp.evaluator.judging.judge",
    "kernel_lsp.evaluator.running.timer",
    "torch.fx.experimental.symbolic_shapes",
)
"""What every child needs; the last is imported by whoever differentiates first, with all of sympy:
0.9 s of CPU time for the judge and for each worker."""
TRITON = ("triton", "triton.compiler.code_generator")
ENGINE = (
    "torch.export._trace",
    "kernel_lsp.rewrite.*",
    "kernel_lsp.rewrite.algebra.*",
    "kernel_lsp.rewrite.codegen.*",
)
IMPORTED = {"triton": TRITON, "compiler": ("torch._inductor.compile_fx", *TRITON, *ENGINE)}
"""What a variant imports besides: for candidates that launch kernels, and for what torch.compile
and the engine need, who are forked from the same one."""
HASHED = {
    "triton.runtime.cache": "triton_key",
    "triton.compiler.compiler": "triton_key",
    "torch._inductor.codecache": "torch_key",
}
"""Functions that hash their whole library, once per process: 0.4 s of CPU time before the first
kernel."""
COMPILES = ("kernel_lsp.evaluator.running.timer", "kernel_lsp.evaluator.running.tuner")
"""What is forked with these known: it would find them out for itself at once, and the next one
again."""
IDLE_MS = 200.0
ASKS_DRIVER = "_device_count_nvml"
"""The one of torch.cuda's functions that `is_available` and `device_count` ask (torch 2.0 to
2.13)."""


class Zygote:
    """Forks on request; the guardians' descriptors are its only state."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.guardians: dict[int, tuple[int, int]] = {}
        """pidfd -> (number of the order, pid)."""
        self.unknown = [
            pair for pair in HASHED.items() if pair[0] in sys.modules and not _interprets()
        ]
        """What is hashed before a child needs it."""

    def serve(self) -> None:
        """Forks what the parent asks for, until it hangs up."""
        self.tell(ready=True, threads=len(os.listdir("/proc/self/task")), cuda=_has_cuda())
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        while True:
            events = poll.poll(IDLE_MS if self.unknown else None)
            if not events:
                _hash(*self.unknown.pop())
            for descriptor, _ in events:
                if descriptor != self.control.fileno():
                    poll.unregister(descriptor)
                    self._bury(descriptor)
                elif not self._obey(poll):
                    return

    def tell(self, descriptors: tuple[int, ...] = (), **message: Any) -> None:
        """Sends the parent a message with open descriptors; a parent that is gone is no error."""
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            socket.send_fds(self.control, [json.dumps(message).encode()], descriptors)

    def _obey(self, poll: select.poll) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self.control, CONTROL_BYTES, 4)
        if not data:
            return False
        order = json.loads(data)
        while self.unknown and order["module"] in COMPILES:
            _hash(*self.unknown.pop())
        myself = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid == 0:
            self._guard(order, descriptors, myself)
        for descriptor in (*descriptors, myself):
            os.close(descriptor)
        guardian = os.pidfd_open(pid)
        self.guardians[guardian] = (order["id"], pid)
        poll.register(guardian, select.POLLIN)
        return True

    def _bury(self, guardian: int) -> None:
        number, pid = self.guardians.pop(guardian)
        _, status = os.waitpid(pid, 0)
        os.close(guardian)
        self.tell(ended=number, status=guarding.code(status))

    # --- in the guardian -----------------------------------------------------------------

    def _guard(self, order: dict[str, Any], descriptors: list[int], zygote: int) -> NoReturn:
        """Fork the child, wait for its end, leave nothing of it behind; exit as it has."""
        code = 1
        try:
            tree = bool(order["confinement"]) and namespaces.enter_process_tree()
            if not tree:
                linux.prctl("subreaper", linux.PR_SET_CHILD_SUBREAPER, 1)
            alive, held = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(held)
                _become(order, descriptors, self, tree=tree, guardian=alive)
            child = os.pidfd_open(pid)
            self.tell((child,), started=order["id"], pid=pid)
            guarding.close_all_but(child, zygote, held)
            code = _watch(pid, child, zygote)
            if not tree:
                guarding.end_strays()
        except BaseException:  # nothing may return into the zygote's loop
            traceback.print_exc()
        os._exit(code)


def _watch(pid: int, child: int, zygote: int) -> int:
    """Wait for the child's end, and end it when the zygote's comes first."""
    poll = select.poll()
    poll.register(child, select.POLLIN)
    poll.register(zygote, select.POLLIN)
    if any(descriptor == zygote for descriptor, _ in poll.poll()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return guarding.code(os.waitpid(pid, 0)[1])


# --- in the child ----------------------------------------------------------------------------


def _become(
    order: dict[str, Any], descriptors: list[int], zygote: Zygote, *, tree: bool, guardian: int
) -> NoReturn:
    """Turn this fork into the module that was ordered, confined, with nothing of the zygote's
    open."""
    code = 1
    try:
        os.setsid()
        linux.prctl("pdeathsig", linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if select.select([guardian], [], [], 0)[0]:  # hung up: it went before the line above
            os._exit(1)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        _rename(order["module"], order["argv"])
        os.nice(order["nice"])
        _set_environment(order["environment"])
        if order["confinement"] is not None:
            wanted = confine.Order(**order["confinement"])
            try:
                layers = confine.confine(wanted, order["limits"], tree=tree)
            except confine.Missing as missing:
                zygote.tell(confined=order["id"], layers=missing.layers, missing=missing.what)
                os._exit(1)
            zygote.tell(confined=order["id"], layers=layers)
        else:
            zygote.tell(confined=order["id"], layers=None)
        os.closerange(3, 2**20)
        _reseed()
        sys.argv = [order["module"], *order["argv"]]
        importlib.import_module(order["module"]).main()
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
    except BaseException:  # nothing may return into the guardian's code
        traceback.print_exc()
    with contextlib.suppress(Exception):  # closed or full: there is nobody to tell
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _interprets() -> bool:
    """Whether Triton's kernels are interpreted below this process: then nobody asks for hashes."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _hash(module: str, function: str) -> None:
    """What every child would find out for itself. It is a private function: nothing depends on
    it."""
    with contextlib.suppress(Exception):
        getattr(sys.modules[module], function)()


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None


def _reseed() -> None:
    """Forks must not share a random stream that a fresh process would have drawn for itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _rename(module: str, argv: list[str]) -> None:
    """Show the module instead of the zygote's command line in `ps`, where the kernel tells its
    place."""
    with contextlib.suppress(OSError):
        linux.prctl("name", linux.PR_SET_NAME, module.rpartition(".")[2].encode()[:15])
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = "\0".join([sys.executable, module, *argv]).encode()[: max(0, end - start - 1)]
    if 0 < start < end:
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


@contextlib.contextmanager
def driver_unasked(devices: Path = Path("/dev")) -> Iterator[None]:
    """Makes torch count GPUs by their device files inside the block: torch 2.11's inductor asks
    while it is imported, and the answer would open NVML, whose state does not survive a fork."""
    cuda = sys.modules["torch"].cuda if "torch" in sys.modules else None
    ask = getattr(cuda, ASKS_DRIVER, None)
    if ask is not None:
        count = sum(path.name.removeprefix("nvidia").isdigit() for path in devices.glob("nvidia*"))
        setattr(cuda, ASKS_DRIVER, lambda: count)
    try:
        yield
    finally:
        if ask is not None:
            setattr(cuda, ASKS_DRIVER, ask)


def _import(name: str) -> None:
    """A module; with ``.*`` all that lie in a package."""
    with contextlib.suppress(ImportError):  # triton is optional; a child tells of the others
        package = importlib.import_module(name.removesuffix(".*"))
        if name.endswith(".*"):
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)


def _has_cuda() -> bool:
    """Whether an import has opened the driver: its state does not survive a fork."""
    opened = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            opened.append(os.readlink(f"/proc/self/fd/{entry}"))
    return any(name.startswith("/dev/nvidia") for name in opened)


def main() -> None:
    """Imports, then forks a child for each order. ``zygote [variant]``: with the argument, what
    IMPORTED says is imported too."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    warnings.simplefilter("ignore")
    gc.disable()  # imports leave little garbage: looking for it took 0.7 of 5.2 s of CPU time
    with contextlib.suppress(ModuleNotFoundError):  # a child tells it
        importlib.import_module("torch")
    with driver_unasked():
        for name in (*IMPORTS, *(more for variant in sys.argv[1:] for more in IMPORTED[variant])):
            _import(name)
    if "numpy" in sys.modules:  # `_reseed` needs it: 20 ms of CPU time for each child else
        _import("numpy.random")
    gc.collect()
    gc.freeze()
    gc.enable()
    Zygote(control).serve()


if __name__ == "__main__":
    main()
