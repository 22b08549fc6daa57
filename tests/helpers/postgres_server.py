"""A PostgreSQL of our own from Debian's programs: one cluster in a folder, on a socket, not as
root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NOBODY = 65534
DATABASE = "team"


def programs() -> Path | None:
    """Where initdb and pg_ctl are; None: PostgreSQL is not installed (scripts/setup does that)."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Postgres:
    """Made by the constructor, removed by `remove`. Refuses root, so as root it runs as nobody."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        # A socket's path is short.
        self.folder = Path(tempfile.mkdtemp(prefix="kl-pg-", dir="/tmp"))
        self._as_root = os.geteuid() == 0
        if self._as_root:
            os.chown(self.folder, NOBODY, NOBODY)
        self._run(
            "initdb",
            "-D",
            self._data,
            "-U",
            "ada",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--no-locale",
        )
        settings = (
            f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nfsync = off\n"
        )
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(settings)
        self.start()
        self._run("createdb", "-h", str(self.folder), "-U", "ada", DATABASE)

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://ada@/{DATABASE}?host={self.folder}"

    def start(self) -> None:
        self._run(
            "pg_ctl", "-D", self._data, "-l", str(self.folder / "log"), "-w", "-t", "180", "start"
        )

    def stop(self, mode: str = "immediate") -> None:
        """``immediate`` is a crash: connections are cut, what was not committed is gone."""
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "-t", "180", "stop")

    def sql(self, statement: str, user: str = "ada") -> str:
        """Through psql, not through what is being tested; ``ada`` is the superuser."""
        return self._run(
            "psql", "-h", str(self.folder), "-U", user, "-d", DATABASE, "-qAtc", statement
        )

    def remove(self) -> None:
        subprocess.run(
            self._command("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop"),
            capture_output=True,
        )
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _command(self, program: str, *arguments: str) -> list[str]:
        drop = (
            ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            if self._as_root
            else []
        )
        return [*drop, str(self._binaries / program), *arguments]

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            self._command(program, *arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE if program == "psql" else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL
            if program == "pg_ctl"
            else subprocess.PIPE,  # it leaves a server behind
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, (
            f"{program}: {done.stderr or (self.folder / 'log').read_text()[-2000:]}"
        )
        return (done.stdout or "").strip()
