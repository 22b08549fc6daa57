"""Find a project's interpreter and learn what is in it. Standard library only.

``find`` only looks at paths; ``probe`` runs the interpreter, so it needs the folder's consent when the
interpreter lies inside the folder. Order: setting, VIRTUAL_ENV or CONDA_PREFIX, environments in the
folder, and at last the interpreter of the server itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import wire

PROBE_TIMEOUT_S = 60.0
_IN_FOLDER = (".venv", "venv", "env", ".pixi/envs/default")
_SCRIPT = """
import json, sys
facts = {"version": "%d.%d.%d" % sys.version_info[:3]}
try:
    import torch
    facts["torch"] = torch.__version__
    facts["cuda"] = bool(torch.cuda.is_available())
    if facts["cuda"]:
        facts["device"] = torch.cuda.get_device_name(0)
        facts["capability"] = "sm_%d%d" % torch.cuda.get_device_capability(0)
except Exception as error:
    facts["torch_problem"] = "%s: %s" % (type(error).__name__, error)
try:
    import triton
    facts["triton"] = triton.__version__
except Exception as error:
    facts["triton_problem"] = "%s: %s" % (type(error).__name__, error)
sys.stdout.write("\\n@facts@" + json.dumps(facts))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    path: str
    origin: str
    """Why this one, in words for status and doctor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What an interpreter said about itself; None is unknown."""

    python: str
    version: str | None = None
    torch: str | None = None
    triton: str | None = None
    cuda: bool | None = None
    device: str | None = None
    capability: str | None = None
    torch_problem: str | None = None
    triton_problem: str | None = None
    problem: str | None = None
    """Why it could not be asked at all."""

    @property
    def remedy(self) -> str | None:
        """What the user has to do before anything can be measured; None when nothing is missing."""
        if self.problem is not None:
            return f"set kernel-lsp.python to a working interpreter ({self.python}: {self.problem})"
        if self.torch is None:
            return f"install torch where {self.python} finds it, or set kernel-lsp.python to one that has it"
        return None


def find(
    folder: Path | str | None, setting: str | None = None, environ: Mapping[str, str] | None = None
) -> Interpreter:
    """The interpreter for a folder. A setting always wins, even when it does not exist: probe says so."""
    environ = os.environ if environ is None else environ
    if setting is not None:
        chosen = Path(setting).expanduser()
        return Interpreter(path=str(Path(folder or ".") / chosen), origin="the setting python")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if found := _in_environment(environ.get(variable)):
            return Interpreter(path=found, origin=f"the variable {variable}")
    for name in _IN_FOLDER if folder is not None else ():
        if found := _in_environment(Path(folder or ".") / name):
            return Interpreter(path=found, origin=f"{name} in the folder")
    return Interpreter(path=sys.executable, origin="the server's own interpreter; no other was found")


async def probe(python: str) -> Probe:
    """Ask an interpreter for its versions; remembered for the life of the process. Never raises."""
    if python not in _probed:
        _probed[python] = asyncio.ensure_future(_run_probe(python))
    try:
        return await asyncio.shield(_probed[python])
    except asyncio.CancelledError:
        raise
    finally:
        task = _probed.get(python)
        if task is not None and task.done() and (task.cancelled() or task.result().problem):
            del _probed[python]  # the user may repair it: ask again next time


_probed: dict[str, asyncio.Future[Probe]] = {}


async def _run_probe(python: str) -> Probe:
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", _SCRIPT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return Probe(python=python, problem=error.strerror or str(error))
    try:
        out, err = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
    except TimeoutError:
        return Probe(python=python, problem=f"gave no answer within {PROBE_TIMEOUT_S:.0f} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    _, mark, facts = out.decode(errors="replace").rpartition("@facts@")
    if not mark:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return Probe(python=python, problem=f"exited with {process.returncode}: {last[0][:200]}")
    return wire.from_json(Probe, {**json.loads(facts), "python": python})


def _in_environment(root: Path | str | None) -> str | None:
    if not root:
        return None
    tail = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    python = Path(root, *tail)
    return str(python) if python.exists() else None
