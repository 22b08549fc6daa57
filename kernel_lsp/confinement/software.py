"""Where an interpreter's programs and packages lie, read from its files: it is not started.

Its environment and the one that this was made from, lines of .pth files that are folders, and the
folders of packages that setuptools has installed by a finder. Whatever is read is text of the
environment: bounded, and what makes no sense is passed over. Standard library only."""

from __future__ import annotations

import os
import stat
import sys

from kernel_lsp.confinement import linux, visible

if sys.platform != "win32":
    import pwd

MAX_BYTES = 1024**2
_FINDER = r"^MAPPING[^=\n]{0,80}=[ ]?(\{[^\n]{0,100000}\})$"


def folders(python: str) -> list[str]:
    """Folders that a program of this interpreter reads besides the machine's own. No home, and no
    folder that holds one."""
    found = set()
    for path in _environments(python):
        found.add(path)
        for packages in visible.matching("lib*/python3*/site-packages", path):
            found |= _named_below(packages)
    if not any(os.path.exists(f"{path}/pyvenv.cfg") for path in found):
        found |= _of_the_user()
    private = visible.private()
    shown = {path for path in map(os.path.normpath, found) if visible.is_program(path, private)}
    itself = {os.path.abspath(python), os.path.realpath(python)}
    return sorted(shown | {file for file in itself if not _is_below(file, shown)})


def _is_below(path: str, folders: set[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _of_the_user() -> set[str]:
    """Where `pip install --user` puts packages; an environment does not see them."""
    found = set()
    with linux.Ignoring(KeyError):
        home = pwd.getpwuid(os.getuid()).pw_dir
        for packages in visible.matching(".local/lib/python3*/site-packages", home):
            found |= {packages, *_named_below(packages)}
    return found


def _environments(python: str) -> set[str]:
    """By the name it was given, by each link on the way, and by what made it."""
    found, path = set(), os.path.abspath(python)
    for _ in range(8):
        found.add(os.path.dirname(os.path.dirname(path)))
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    found.add(os.path.dirname(os.path.dirname(os.path.realpath(python))))
    for place in tuple(found):
        for line in _text(f"{place}/pyvenv.cfg").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home" and os.path.isabs(value.strip()):
                found.add(os.path.dirname(value.strip()))
    return found


def _named_below(packages: str) -> set[str]:
    found = set()
    for file in visible.matching("*.pth", packages):
        lines = (line.strip() for line in _text(file).splitlines())
        found |= {line for line in lines if os.path.isabs(line) and os.path.isdir(line)}
    for file in visible.matching("__editable__*.py", packages):
        found |= _mapped_by(_text(file))
    return found


def _mapped_by(finder: str) -> set[str]:
    """Folders that a finder of setuptools leads to."""
    import ast  # here: few environments have one, and all would wait for it
    import re

    match = re.search(_FINDER, finder, re.MULTILINE)
    with linux.Ignoring(ValueError, SyntaxError, RecursionError, MemoryError):
        mapping = ast.literal_eval(match[1]) if match else {}
        return {str(path) for path in mapping.values()}
    return set()


def _text(file: str) -> str:
    """Of a regular file, its first megabyte; empty where it cannot be read."""
    with linux.Ignoring(OSError):
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return opened.read(MAX_BYTES).decode(errors="replace")
    return ""
