"""An sshd of our own from Debian's programs, on a high port of this machine, with keys made for
it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SSHD = Path("/usr/sbin/sshd")
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
ForceCommand printf 'Welcome to the cluster.\\nNo line ends here: '; eval "$SSH_ORIGINAL_COMMAND"
"""
"""A login shell that greets, as many do."""
CLIENT = """\
Host *
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


def installed() -> bool:
    """scripts/setup installs it."""
    return SSHD.exists() and shutil.which("ssh") is not None


class SshServer:
    """Made by the constructor, removed by `remove`. `bin` comes first in a test's PATH: ssh finds
    the keys there, as it finds a user's own in their folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kl-ssh-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        for name in ("host_key", "user_key"):
            key = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name)
            subprocess.run(key, check=True)
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")
        (self.folder / "sshd_config").write_text(CONFIG.format(folder=self.folder, port=self.port))
        (self.folder / "ssh_config").write_text(CLIENT.format(folder=self.folder))
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        real = shutil.which("ssh")
        (self.bin / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {self.folder}/ssh_config "$@"\n')
        (self.bin / "ssh").chmod(0o755)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # privilege separation
        self._log = (self.folder / "log").open("wb")
        command = (SSHD, "-D", "-e", "-f", self.folder / "sshd_config")
        self._process = subprocess.Popen(command, stderr=self._log)
        self._wait()

    @property
    def setting(self) -> str:
        return f"ssh://127.0.0.1:{self.port}{sys.executable}"

    def _wait(self) -> None:
        for _ in range(100):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    @property
    def started(self) -> list[psutil.Process]:
        """All that runs below it now."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def refuse(self) -> None:
        """Let nobody in any more; who is in stays."""
        (self.folder / "user_key.pub").write_text("")

    def remove(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
