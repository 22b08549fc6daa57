"""Find a project's interpreter and learn what is in it. Standard library only.

``find`` only looks at paths; ``probe`` runs the interpreter, and nothing of the working directory.
One that lies in the folder is the folder's code: `needs_consent`. Order: the setting, VIRTUAL_ENV
or CONDA_PREFIX (unless that is only where kernel-lsp is installed), environments in the folder,
and at last the interpreter of this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import scratch, wire
from kernel_lsp.confinement import Confinement, clean_environment, entry
from kernel_lsp.errors import Unconfined
from kernel_lsp.interpreter import answers

PROBE_TIMEOUT_S = 60.0
_IN_FOLDER = (".venv", "venv", "env", ".pixi/envs/default")
_MARK = "@kernel-lsp facts@"
_SCRIPT = """
import sys
sys.path[:] = [place for place in sys.path if place]
import gc, json, os
gc.disable()
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
modules = [sys.modules.get(name) for name in ("torch", "torch.version", "torch._C", "triton")]
facts["files"] = [module.__file__ for module in modules if getattr(module, "__file__", None)]
facts["places"] = sys.path
sys.stdout.write("\\n" + sys.argv[1] + json.dumps(facts))
sys.stdout.flush()
os._exit(0)
"""
"""Its last line leaves torch's modules as they are: taking them down is a quarter of its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    path: str
    origin: str
    """Why this one, in words for status and doctor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What an interpreter said about itself; None is unknown or absent."""

    python: str
    version: str | None = None
    torch: str | None = None
    triton: str | None = None
    cuda: bool | None = None
    device: str | None = None
    capability: str | None = None
    """sm_90 …"""
    torch_problem: str | None = None
    triton_problem: str | None = None

    @property
    def gpu(self) -> tuple[str | None, str | None]:
        """Capability and name of the GPU, as `devices.describe` takes them."""
        return self.capability, self.device

    problem: str | None = None
    """Why it could not be asked at all."""

    @property
    def remedy(self) -> str | None:
        """What the user has to do before anything can be measured; None when nothing is missing."""
        if self.problem is not None:
            return "set kernel-lsp.python (KERNEL_LSP_PYTHON) to a working interpreter"
        if self.torch is None:
            return (
                "activate the environment of your project, set kernel-lsp.python to an interpreter "
                f"that has torch, or install torch for {self.python}"
            )
        return None


def find(
    folder: Path | str | None, setting: str | None = None, environ: Mapping[str, str] | None = None
) -> Interpreter:
    """The interpreter for a folder. A setting always wins, even when it does not exist: probe says
    so."""
    environ = os.environ if environ is None else environ
    if setting is not None:
        return Interpreter(path=_choose(setting, folder), origin="setting python")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        found = _in_environment(environ.get(variable))
        if found and not _tools_alone(Path(environ[variable])):
            return Interpreter(path=found, origin=f"variable {variable}")
    for name in _IN_FOLDER if folder is not None else ():
        if found := _in_environment(Path(folder or ".") / name):
            return Interpreter(path=found, origin=f"{name} in the folder")
    return Interpreter(
        path=sys.executable, origin="kernel-lsp's own interpreter, as no other was found"
    )


async def probe(python: str, data_dir: Path | None = None) -> Probe:
    """Ask an interpreter for its versions, once per process unless that failed. Never raises.

    ``data_dir``: where the answer is kept for other processes, until something has changed
    (answers.py)."""
    task = _probes.get(python)
    if task is None:
        task = _probes[python] = asyncio.ensure_future(_find_probe(python, data_dir))
        task.add_done_callback(lambda done: _forget_failure(python, done))
    return await asyncio.shield(task)  # a cancelled job must not spoil the answer for the next


_probes: dict[str, asyncio.Future[Probe]] = {}


def _forget_failure(python: str, done: asyncio.Future[Probe]) -> None:
    if done.cancelled() or done.exception() is not None or done.result().remedy is not None:
        _probes.pop(python, None)  # the user may repair it: ask again next time


async def _find_probe(python: str, data_dir: Path | None) -> Probe:
    known = answers.recall_probe(data_dir, python) if data_dir is not None else None
    if known is not None:
        with contextlib.suppress(TypeError, ValueError):  # of another version of ours
            return wire.from_json(Probe, known)
    return await _ask(python, data_dir)


async def _ask(python: str, data_dir: Path | None) -> Probe:
    """Neither the working directory nor a variable of the user's chooses what it imports."""
    with scratch.folder("probe") as neutral:
        return await _ask_interpreter(python, data_dir, neutral)


async def _ask_interpreter(python: str, data_dir: Path | None, neutral: Path) -> Probe:
    try:
        begun = await entry.start(
            (_absolute(python), "-B", "-c", _SCRIPT, _MARK),
            confinement=Confinement(scratch=neutral, gpu=True),
            environment=clean_environment(),
        )
        process = begun.process
    except OSError as error:
        return Probe(python=python, problem=f"cannot be run: {error.strerror or error}")
    except Unconfined as error:
        return Probe(python=python, problem=str(error))
    try:
        out, err = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
    except TimeoutError:
        return Probe(python=python, problem=f"gave no answer within {PROBE_TIMEOUT_S:.0f} s")
    finally:
        if process.returncode is None:  # too late, or cancelled
            await asyncio.shield(entry.abandon(process))
    _, mark, facts = out.decode(errors="replace").rpartition(_MARK)
    if not mark:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return Probe(python=python, problem=f"exited with {process.returncode}: {last[0][:200]}")
    answer = {**json.loads(facts), "python": python}
    places, files = answer.pop("places", None), answer.pop("files", None)
    if data_dir is not None and places and files:
        answers.keep(data_dir, python, answer, places, files)
    return wire.from_json(Probe, answer)


def needs_consent(
    found: Interpreter, folder: Path | str | None, setting: str | None = None
) -> bool:
    """Whether this interpreter comes from the folder itself, so that starting it runs code of the
    folder.

    Not so the one that runs us, nor one that the user's own settings name by its whole path.
    """
    if folder is None or found.path == sys.executable:
        return False
    if setting is not None and Path(setting).is_absolute():
        return False
    environment = Path(_absolute(found.path)).parent.parent
    if environment.resolve() == Path(sys.prefix).resolve():
        return False
    places = (Path(_absolute(found.path)), environment.resolve(), Path(found.path).resolve())
    roots = (Path(folder).absolute(), Path(folder).resolve())
    return any(place.is_relative_to(root) for place in places for root in roots)


def _absolute(python: str) -> str:
    """The working directory is another one when it starts; a link stays what it is."""
    return str(Path(python).absolute()) if os.sep in python else python


def _choose(setting: str, folder: Path | str | None) -> str:
    """A bare command is looked up in PATH; a relative path belongs to the folder."""
    if os.sep not in setting:
        return shutil.which(setting) or setting
    return str(Path(folder or ".") / Path(setting).expanduser())


def _in_environment(root: Path | str | None) -> str | None:
    if not root:
        return None
    tail = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    python = Path(root, *tail)
    return str(python) if python.exists() else None


def _tools_alone(environment: Path) -> bool:
    """Ours, without torch: who follows the first lines of docs/ has it active, and means the
    folder's."""
    ours = environment.resolve() == Path(sys.prefix).resolve()
    places = ("lib/python*/site-packages/torch", "Lib/site-packages/torch")
    return ours and not any(found for place in places for found in environment.glob(place))
