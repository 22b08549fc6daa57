"""Compiled kernels kept between processes and runs, by content: a second judgement does not
compile again.

A child compiles into its own scratch folder. The parent copies from there what a *later process
for the very same source* may find in its own scratch folder; nobody but the parent writes here,
and what one candidate compiled is never shown to another. Kept are regular files of a bounded
size; links and the rest stay behind, and none is followed on either side (leftovers.py).

Triton writes absolute paths into its groups of files, which are set right on the way. Not covered:
a candidate that leaves itself a note among its kernels. It learns that it ran before, which its
timed outputs do not profit from: they are judged like all others."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path

from kernel_lsp import leftovers, phases
from kernel_lsp.leftovers import LeftoverFile

FOLDERS = ("triton", "inductor", "native")
"""Where Triton, torch.compile (confinement.py sets the environment) and the builder write inside a
scratch folder."""
HEADERS = ("headers",)
"""Where a timer compiles what all kernels of torch.compile begin with (compiling.py): an entry by
itself."""
MAX_ENTRY_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 512 * 2**20
MAX_STORE_BYTES = 2 * 2**30
PATHS_INSIDE = "__grp__"
"""How the names of files begin that hold paths."""
ANYWHERE = "/kernel-lsp-scratch"
"""Stands for the scratch folder in the paths of stored files."""


class CompiledKernels:
    """One folder of entries; an entry is a copy of the cache folders of one scratch folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._making: dict[str, asyncio.Lock] = {}

    @staticmethod
    def key(*parts: str) -> str:
        """A name for what was compiled: kind, source, interpreter, device."""
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def holds(self, key: str) -> bool:
        """Whether there is an entry of that key."""
        return (self.folder / key).is_dir()

    @contextlib.asynccontextmanager
    async def made_once(self, key: str, *, patience_s: float) -> AsyncIterator[None]:
        """Lets one task of this process at a time make an entry within the block: others wait for
        it (no longer than ``patience_s``), so that they find it. Nobody waits for an entry that is
        there."""
        lock, mine = self._making.setdefault(key, asyncio.Lock()), False
        if not self.holds(key):
            with phases.phase("wait.baselines"), contextlib.suppress(TimeoutError):
                mine = await asyncio.wait_for(lock.acquire(), patience_s)
        if mine and self.holds(key):
            # Somebody else has made it: those who wait need not queue for it.
            lock.release()
            mine = False
        try:
            yield
        finally:
            if mine:
                lock.release()

    def lay_out(self, key: str, scratch: Path) -> bool:
        """Copy an entry into a scratch folder; whether there was one. Never raises: it is a
        shortcut."""
        entry = self.folder / key
        if not self.holds(key):
            return False
        with contextlib.suppress(OSError):
            scratch.mkdir(parents=True, exist_ok=True)
            found = itertools.chain(_files(entry), _files(entry, HEADERS))
            _lay_down(found, scratch, ANYWHERE, str(scratch))
            (entry / "used").touch()
            return True
        return False

    def take_in(self, key: str, scratch: Path, folders: Sequence[str] = FOLDERS) -> None:
        """Keep what a finished process compiled in its scratch folder, in one step."""
        try:
            files = list(_files(scratch, folders))
        except OSError:  # too much of it, or not only compilers were at work
            return
        if not files:
            return
        with contextlib.suppress(OSError):  # a full disk: it will be compiled again
            self.folder.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
            try:
                _lay_down(files, made, str(scratch), ANYWHERE)
                (made / "used").touch()
                leftovers.remove(self.folder / key)
                made.rename(self.folder / key)
            finally:
                leftovers.remove(made)
            self._prune()

    def begin(self, key: str) -> None:
        """Makes the entry, in which there is nothing yet."""
        with contextlib.suppress(OSError):
            (self.folder / key).mkdir(parents=True, exist_ok=True)
            (self.folder / key / "used").touch()

    def forget(self, key: str) -> None:
        """Remove an entry, if there is one."""
        leftovers.remove(self.folder / key)

    def _prune(self) -> None:
        """The longest unused go when the store has grown too large."""
        entries = [entry for entry in self.folder.iterdir() if (entry / "used").exists()]
        sizes = {entry: _size(entry) for entry in entries}
        for entry in sorted(entries, key=lambda e: (e / "used").stat().st_mtime):
            if sum(sizes.values()) <= MAX_STORE_BYTES:
                return
            del sizes[entry]
            leftovers.remove(entry)


def _size(entry: Path) -> int:
    return sum(path.lstat().st_size for path in entry.rglob("*") if path.is_file())


def _files(folder: Path, folders: Sequence[str] = FOLDERS) -> Iterator[LeftoverFile]:
    """Files of the cache folders. Raises OSError when there is more than an entry may hold."""
    most_bytes = MAX_HEADER_BYTES if folders == HEADERS else MAX_ENTRY_BYTES
    with leftovers.open_folder(folder) as descriptor:
        yield from leftovers.files(descriptor, *folders, most_bytes=most_bytes)


def _lay_down(files: Iterable[LeftoverFile], target: Path, old: str, new: str) -> None:
    """All files of an entry; paths that begin with ``old`` begin with ``new`` afterwards.

    What is there stays: it is named by its content, and a process may have it mapped.
    """
    with leftovers.open_folder(target) as folder:
        for file in files:
            name, content = file.names[-1], file.content
            if name.startswith(PATHS_INSIDE):
                content = content.replace(old.encode(), new.encode())
            leftovers.write(folder, file.names, content, 0o755 if name.endswith(".so") else 0o644)
