"""Find a project's interpreter and learn what is in it. Standard library only.

``locate`` only looks at paths; ``find`` runs the interpreter once, so the folder needs consent first.
Order: the setting, VIRTUAL_ENV or CONDA_PREFIX, environments in the folder, and at last the interpreter
of this process. ``known`` answers from an earlier run without running anything.
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
from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError

PROBE_TIMEOUT_S = 60.0
_IN_FOLDER = (".venv", "venv", "env", ".pixi/envs/default")
_MARK = "@kernel-lsp facts@"
_SCRIPT = """
import json, sys
facts = {"version": "%d.%d.%d" % sys.version_info[:3]}
try:
    import torch
    facts["torch"] = torch.__version__
    facts["cuda"] = bool(torch.cuda.is_available())
    if facts["cuda"]:
        facts["device_name"] = torch.cuda.get_device_name(0)
        facts["capability"] = "sm_%d%d" % torch.cuda.get_device_capability(0)
except Exception as error:
    facts["torch_problem"] = "%s: %s" % (type(error).__name__, error)
try:
    import triton
    facts["triton"] = triton.__version__
except Exception as error:
    facts["triton_problem"] = "%s: %s" % (type(error).__name__, error)
sys.stdout.write("\\n" + sys.argv[1] + json.dumps(facts))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    path: str
    origin: str
    """Why this one, in words for status and doctor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """What an interpreter said about itself; None is unknown or absent."""

    path: str
    version: str | None = None
    torch: str | None = None
    triton: str | None = None
    cuda: bool | None = None
    device_name: str | None = None
    capability: str | None = None
    """sm_90 …"""
    torch_problem: str | None = None
    triton_problem: str | None = None
    problem: str | None = None
    """Why it could not be asked at all."""

    @property
    def remedy(self) -> str | None:
        """What the user has to do before anything can be measured; None when nothing is missing."""
        if self.problem is not None:
            return "set kernel-lsp.python (KERNEL_LSP_PYTHON) to a working interpreter"
        if self.torch is None:
            return f"install torch for {self.path}, or set kernel-lsp.python to an interpreter that has it"
        return None

    def device(self, wanted: str) -> str:
        """``cuda`` or ``cpu``. Raises EvaluationError when CUDA is asked for and torch has none."""
        if wanted == "cuda" and not self.cuda:
            raise EvaluationError(
                f"torch {self.torch} of {self.path} sees no CUDA device",
                "check nvidia-smi and that torch is a CUDA build, or set device to cpu",
            )
        return "cuda" if self.cuda and wanted != "cpu" else "cpu"


def locate(
    folder: Path | str | None, setting: str | None = None, environ: Mapping[str, str] | None = None
) -> Location:
    """The interpreter for a folder. A setting always wins, even when it does not exist: probe says so."""
    environ = os.environ if environ is None else environ
    if setting is not None:
        return Location(path=str(Path(folder or ".") / Path(setting).expanduser()), origin="setting python")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if found := _in_environment(environ.get(variable)):
            return Location(path=found, origin=f"variable {variable}")
    for name in _IN_FOLDER if folder is not None else ():
        if found := _in_environment(Path(folder or ".") / name):
            return Location(path=found, origin=f"{name} in the folder")
    return Location(path=sys.executable, origin="kernel-lsp's own interpreter, as no other was found")


async def find(settings: Settings, folder: Path | str | None) -> Interpreter:
    """The project's interpreter, ready to measure. Raises EvaluationError with the remedy otherwise."""
    location = locate(folder, settings.python)
    facts = await probe(location.path)
    if facts.remedy is not None:
        cause = facts.problem or f"no torch ({facts.torch_problem})"
        raise EvaluationError(f"{location.path} ({location.origin}): {cause}", facts.remedy)
    _remember(settings.data_dir, facts)
    return facts


def known(settings: Settings, folder: Path | str | None) -> Interpreter | None:
    """What `find` learned before, while the environment has not changed since; runs nothing."""
    path = locate(folder, settings.python).path
    try:
        stored = json.loads(_memory(settings.data_dir).read_text(encoding="utf-8"))[path]
        return wire.from_json(Interpreter, stored["facts"]) if stored["stamp"] == _stamp(path) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


async def probe(python: str) -> Interpreter:
    """Ask an interpreter for its versions, once per process unless that failed. Never raises."""
    task = _probes.get(python)
    if task is None:
        task = _probes[python] = asyncio.ensure_future(_ask(python))
        task.add_done_callback(lambda done: _forget_failure(python, done))
    return await asyncio.shield(task)  # a cancelled job must not spoil the answer for the next


_probes: dict[str, asyncio.Future[Interpreter]] = {}


def _forget_failure(python: str, done: asyncio.Future[Interpreter]) -> None:
    if done.cancelled() or done.exception() is not None or done.result().remedy is not None:
        _probes.pop(python, None)  # the user may repair it: ask again next time


async def _ask(python: str) -> Interpreter:
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", _SCRIPT, _MARK,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return Interpreter(path=python, problem=f"cannot be run: {error.strerror or error}")
    try:
        out, err = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
    except TimeoutError:
        return Interpreter(path=python, problem=f"gave no answer within {PROBE_TIMEOUT_S:.0f} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    _, mark, facts = out.decode(errors="replace").rpartition(_MARK)
    if not mark:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return Interpreter(path=python, problem=f"exited with {process.returncode}: {last[0][:200]}")
    return wire.from_json(Interpreter, {**json.loads(facts), "path": python})


def _memory(data_dir: str) -> Path:
    return Path(data_dir) / "interpreters.json"


def _remember(data_dir: str, facts: Interpreter) -> None:
    path = _memory(data_dir)
    with contextlib.suppress(OSError):  # a full or read-only disk only means that it is asked again
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            table = {}
        table[facts.path] = {"stamp": _stamp(facts.path), "facts": wire.to_json(facts)}
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(table), encoding="utf-8")
        fresh.replace(path)


def _stamp(python: str) -> list[float]:
    """Modification times that move when an environment is rebuilt or a package is installed."""
    root = Path(python).parent.parent
    watched = [Path(python), *sorted(root.glob("lib/python3*/site-packages"))]
    return [path.stat().st_mtime for path in watched]


def _in_environment(root: Path | str | None) -> str | None:
    if not root:
        return None
    tail = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    python = Path(root, *tail)
    return str(python) if python.exists() else None
