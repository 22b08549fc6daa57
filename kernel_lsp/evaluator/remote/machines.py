"""Which machine the setting `judge_on` names, and the command that runs a Python there.

    ssh://[USER@]HOST[:PORT][/PYTHON]
    slurm://[PARTITION][/PYTHON][?OPTION=VALUE&...]
    slurm+ssh://[USER@]HOST[:PORT][/PYTHON][?OPTION=VALUE&...]     srun on that login node

PYTHON is absolute, or `~/…`: the interpreter there that has torch, else python3 of its PATH.
OPTIONs are srun's (`partition`, `gres`, `time`, `account` …); one GPU is asked for where none says
how many. Standard library only. Runs nothing."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from kernel_lsp.errors import ConfigError

SSH = (
    *("ssh", "-T", "-a", "-x", "-oClearAllForwardings=yes", "-oBatchMode=yes"),
    *("-oConnectTimeout=20", "-oServerAliveInterval=10"),
)
"""Nobody can be asked for a password, and neither keys of this machine nor its ports can be used
from there; what else is needed stands in the user's own ssh_config."""
SRUN = ("srun", "--quiet", "--ntasks=1", "--job-name=kernel-lsp")
ONE_GPU = "--gres=gpu:1"
GPU_OPTIONS = ("gres", "gpus", "gpus-per-task", "gpus-per-node", "tres-per-task")
FORMS = "ssh://HOST/PYTHON, slurm://PARTITION/PYTHON or slurm+ssh://LOGIN-HOST/PYTHON"
_HOST = re.compile(
    r"(?P<user>[\w.-]+@)?(?P<host>\w[\w.-]*|\[[0-9a-fA-F:.]+\])(:(?P<port>\d{1,5}))?"
)
_WORD = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    setting: str
    """As its user wrote it."""
    name: str
    """In a sentence."""
    ssh: tuple[str, ...] = ()
    """Reaches the machine; empty: this one is."""
    srun: tuple[str, ...] = ()
    """Reaches a node from there."""
    python: str = "python3"

    def command(self, *arguments: str) -> list[str]:
        """What is started here to run the Python there with these arguments."""
        there = [*self.srun, self.python, *arguments]
        return [*self.ssh, shlex.join(there)] if self.ssh else there

    def __str__(self) -> str:
        return self.name


def parse(setting: str) -> Machine:
    """The machine that the setting names. Raises ConfigError."""
    parts = urlsplit(setting)
    if parts.scheme not in ("ssh", "slurm", "slurm+ssh") or parts.fragment:
        raise _refusal(setting, f"give {FORMS}")
    python = _python(setting, parts.path, home="." if "ssh" in parts.scheme else str(Path.home()))
    if parts.scheme == "ssh":
        if parts.query:
            raise _refusal(setting, "options after ? are srun's: give slurm+ssh://…")
        host, ssh = _ssh(setting, parts.netloc)
        return Machine(setting=setting, name=host, ssh=ssh, python=python)
    options = parse_qsl(parts.query, keep_blank_values=True)
    if parts.scheme == "slurm+ssh":
        host, ssh = _ssh(setting, parts.netloc)
        name = f"a Slurm node of {host}"
        return Machine(
            setting=setting, name=name, ssh=ssh, srun=_srun(setting, options), python=python
        )
    if parts.netloc:
        options = [("partition", parts.netloc), *options]
    return Machine(
        setting=setting, name="a Slurm node", srun=_srun(setting, options), python=python
    )


def _ssh(setting: str, place: str) -> tuple[str, tuple[str, ...]]:
    found = _HOST.fullmatch(place)
    if found is None:
        raise _refusal(setting, f"give {FORMS}; what else ssh needs belongs into ~/.ssh/config")
    port = ("-p", found["port"]) if found["port"] else ()
    destination = f"{found['user'] or ''}{found['host'].strip('[]')}"
    return found["host"], (*SSH, *port, "--", destination)


def _srun(setting: str, options: list[tuple[str, str]]) -> tuple[str, ...]:
    for name, value in options:
        if not _WORD.fullmatch(name) or (name == "partition" and not _WORD.fullmatch(value)):
            raise _refusal(setting, "options are srun's long ones: ?gres=gpu:1&time=01:00:00")
    given = [f"--{name}={value}" if value else f"--{name}" for name, value in options]
    gpu = () if any(name in GPU_OPTIONS for name, _ in options) else (ONE_GPU,)
    return (*SRUN, *gpu, *given)


def _python(setting: str, path: str, home: str) -> str:
    if path in ("", "/"):
        return "python3"
    if path.startswith("/~/"):
        return f"{home}/{path.removeprefix('/~/')}"
    if path.startswith("//") or path.endswith("/"):
        raise _refusal(setting, "after the host comes the path of an interpreter, if anything")
    return path


def _refusal(setting: str, remedy: str) -> ConfigError:
    return ConfigError(f"judge_on = {setting!r} names no machine", remedy)
