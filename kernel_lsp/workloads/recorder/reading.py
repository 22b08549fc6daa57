"""Which files a recorded program reads outside of its workspace: what it has to see when it is run
again (snapshots/replaying.py).

Python's own audit events say so, so files that extensions open by themselves are not seen. Left
out are Python's and its packages' own folders, which every child sees, devices, and where people
keep keys."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

MAX_FILES = 256
WRITES = os.O_WRONLY | os.O_RDWR
OF_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/run", "/var/run")
KEYS = frozenset({
    "stored_tokens", "netrc", ".netrc", ".pgpass", ".git-credentials", "kaggle.json", "htpasswd",
    ".env",
})  # fmt: skip
KEY_SUFFIXES = (".pem", ".key", ".p12", ".pfx", ".jks", ".kdbx", ".ppk", ".asc", ".gpg")
KEY_WORDS = frozenset({
    "secret", "secrets", "credential", "credentials", "password", "passwords", "passwd", "rsa",
    "dsa", "ecdsa", "ed25519",
})  # fmt: skip
"""Words in names of files and folders in which people keep keys. A candidate sees what the program
has read, wherever it lay. Not covered: keys in a file that is called something else."""
CACHES = ".cache"
"""The one hidden folder of a home that programs keep their data in."""


class FilesRead:
    """Of one process."""

    def __init__(self, root: str) -> None:
        self._left_out = [Path(one).resolve() for one in (root, sys.prefix, sys.base_prefix)]
        self._seen: dict[str, None] = {}
        sys.addaudithook(self._saw)

    def _saw(self, event: str, given: tuple[Any, ...]) -> None:
        # Of every audited event of the program: nothing in here may raise.
        if event != "open" or len(self._seen) >= 8 * MAX_FILES:
            return
        path, _, flags = given
        is_read = isinstance(flags, int) and not flags & WRITES
        if is_read and isinstance(path, str) and not path.endswith((".py", ".pyc")):
            self._seen[os.path.abspath(path)] = None  # noqa: PTH100 - touches no disk

    def to_record(self) -> list[str]:
        """Paths, in the order in which they were opened first."""
        return [path for path in list(self._seen) if self._counts(path)][:MAX_FILES]

    def _counts(self, path: str) -> bool:
        real, home = Path(path).resolve(), Path.home().resolve()
        apart = (*map(Path, OF_SYSTEM), *self._left_out)
        if any(real.is_relative_to(one) for one in apart) or not real.is_file():
            return False
        named = [*real.parts, *Path(path).parts]  # of a link too
        if "site-packages" in real.parts or any(map(_is_called_like_keys, named)):
            return False
        below = real.relative_to(home).parts[0] if real.is_relative_to(home) else ""
        return below == CACHES or not below.startswith(".")


def _is_called_like_keys(name: str) -> bool:
    name = name.lower()
    words = name.replace("-", ".").replace("_", ".").split(".")
    is_token = words[-1] == "token" or words[-2:-1] == ["token"]  # not tokens.bin, tokenizer.json
    is_account = {"service", "account"} <= {*words}
    named = name in KEYS or name.startswith(".env.") or name.endswith(KEY_SUFFIXES)
    return named or is_token or is_account or bool(KEY_WORDS & {*words})
