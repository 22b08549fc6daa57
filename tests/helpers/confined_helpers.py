"""Code in a confined child, as root or as an ordinary user, with layers switched off."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import kernel_lsp

CHILD = Path(__file__).with_name("confined_child.py")
USER = 65534
AS = ["user", "root"] if os.geteuid() == 0 else ["user"]
"""Whom a test can be."""


@dataclass(frozen=True)
class Said:
    error: str
    layers: dict[str, object] = field(default_factory=dict)


def confined(
    code: str, scratch: Path, *, who: str, without: tuple[str, ...] = (), **order: object
) -> Said:
    asked = {
        "uid": USER if who == "user" and os.geteuid() == 0 else None,
        "without": without,
        "order": {"scratch": str(scratch), **order},
        "code": code,
    }
    environment = {**os.environ, "PYTHONPATH": str(Path(kernel_lsp.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-B", str(CHILD)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    return Said(**json.loads(done.stdout))


def permits_namespaces() -> bool:
    """Whether this machine does, asked by another program than ours."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    options = ["--mount", "--pid", "--net", "--fork"] + ([] if os.geteuid() == 0 else ["--user"])
    return (
        subprocess.run([unshare, *options, "true"], capture_output=True, check=False).returncode
        == 0
    )


@contextmanager
def folder_in(place: Path, who: str) -> Iterator[Path]:
    """A folder of that user's own."""
    made = Path(tempfile.mkdtemp(prefix="kernel-lsp-test-", dir=place))
    try:
        if who == "user" and os.geteuid() == 0:
            os.chown(made, USER, USER)
        made.chmod(0o755)
        yield made
    finally:
        shutil.rmtree(made)


def in_a_container(folder: Path) -> str:
    """An interpreter that may make no namespaces, like one in a default container."""
    package = Path(kernel_lsp.__file__).parent.parent
    (folder / "bin").mkdir(exist_ok=True)  # as in an environment: what lies there is seen
    script = folder / "bin" / "python"
    script.write_text(
        f"""#!{sys.executable} -B
import os, sys
sys.path.insert(0, {str(package)!r})
from kernel_lsp.confinement import linux, syscalls
linux.prctl("no_new_privs", linux.PR_SET_NO_NEW_PRIVS, 1)
syscalls.SOCKET = syscalls.PRCTL = (100000, 100000)
syscalls.install()
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""
    )
    script.chmod(0o755)
    return str(script)


def launcher_without(folder: Path, *layers: str, python: str = sys.executable) -> str:
    """An interpreter that starts our launcher with some of its layers switched off."""
    package = Path(kernel_lsp.__file__).parent.parent
    script = folder / "launcher"
    script.write_text(
        f"""#!{python} -B
import runpy, sys
sys.path[:1] = [{str(package)!r}, {str(CHILD.parent)!r}]
import confined_child
for layer in {[layer for layer in layers if layer != "bubblewrap"]!r}:
    confined_child.SWITCHES[layer]()
sys.path.remove({str(CHILD.parent)!r})
del sys.argv[0]
while sys.argv[0].startswith("-"):
    del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    )
    script.chmod(0o755)
    return str(script)
