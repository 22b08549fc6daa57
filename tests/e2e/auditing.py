"""Watches every process below this one while tests run: whoever runs something foreign must be
confined.

    with audited() as seen: ...      seen.confined, seen.bare: what was started, by its command line

Processes are told by their command lines: modules of ours that run candidates, originals or
packages, and the probe. What they start inherits the filter from them. Looks a few times a second,
so that it finds whatever lives for longer than a moment; what is started by which code is
tests/unit/confinement/test_one_entry.py's.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOREIGN = (
    "kernel_lsp.evaluator.", "kernel_lsp.rewrite.engine", "kernel_lsp.agents.backbones.small.",
    "@kernel-lsp facts@", "find_spec",
)  # fmt: skip
LAUNCHING = "kernel_lsp/confinement/launcher.py"
"""Not confined yet, and runs nothing but our own code."""
LOOK_S = 0.2


@dataclass
class Seen:
    confined: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)


@contextlib.contextmanager
def audited(foreign: tuple[str, ...] = FOREIGN) -> Iterator[Seen]:
    seen, over = Seen(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            look(seen, foreign)

    thread = threading.Thread(target=watch, name="audit", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def look(seen: Seen, foreign: tuple[str, ...]) -> None:
    for pid in _below(os.getpid()):
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}")
            words = (place / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            status = (place / "status").read_text()
            again = (place / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if LAUNCHING in words or words != again or not any(name in words for name in foreign):
                continue
            held = "\nNoNewPrivs:\t1" in status and "\nSeccomp:\t2" in status
            (seen.confined if held else seen.bare).add(words[:200])


def _below(root: int) -> set[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (
                    Path(f"/proc/{name}/stat")
                    .read_text(errors="replace")
                    .rpartition(")")[2]
                    .split()
                )
                parents[int(name)] = int(fields[1])
    found, grown = {root}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found - {root}
