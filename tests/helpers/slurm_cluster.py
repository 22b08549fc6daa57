"""A Slurm cluster of this machine alone, from Debian's programs: munged, slurmctld, slurmd."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "squeue")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:1 State=UNKNOWN
PartitionName=gpu Nodes={host} Default=YES State=UP
"""


def installed() -> bool:
    """scripts/setup installs it, for root alone: slurmd runs as root."""
    folders = f"{os.environ['PATH']}:/usr/sbin"
    return os.geteuid() == 0 and all(shutil.which(name, path=folders) for name in PROGRAMS)


class SlurmCluster:
    """Made by the constructor, removed by `remove`. Its GPU is a word: no device stands behind
    it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kl-slurm-", dir="/tmp"))
        host = socket.gethostname().partition(".")[0]
        controller, node = _free_ports(2)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self.config = self.folder / "slurm.conf"
        cores = os.cpu_count()
        self.config.write_text(
            CONFIG.format(
                host=host, controller=controller, node=node, folder=self.folder, cores=cores
            )
        )
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self._processes: list[subprocess.Popen[bytes]] = []
        names = ("key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid")
        files = (*names, "log-file=munged.log", "seed-file=munge.seed")
        places = [f"--{part.replace('=', f'={self.folder}/')}" for part in files]
        self._start("munged", "--foreground", "--force", *places)
        while not (self.folder / "munge.sock").exists():
            time.sleep(0.02)
        self._start("slurmctld", "-D", "-f", str(self.config))
        self._start("slurmd", "-D", "-f", str(self.config))
        self._wait()

    def run(self, *command: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(self.config)}
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    def _start(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        with (self.folder / f"{name}.out").open("wb") as log:
            command = [str(program), *arguments]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _wait(self) -> None:
        for _ in range(100):
            if "idle" in self.run("sinfo", "-h", "-o", "%T"):
                return
            time.sleep(0.1)
        raise AssertionError("\n".join(f.read_text() for f in self.folder.glob("*.out")))

    def remove(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
