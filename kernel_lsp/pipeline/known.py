"""The parameters that won before, by kind of site, architecture and version of Triton.

One small JSON file per key in the user's data folder, replaced in one step, so that any number of
processes may write; the longest unused go when there are too many. A file that cannot be read
counts as unknown and is named in ``notes``. What colleagues' devices of the same architecture
have measured (teams/) stands in where nothing has won here yet. It holds a skill's name and
parameters, no source. Not covered: whether they are right for a program; every rewrite is judged
all the same."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from pathlib import Path

from kernel_lsp.files import replace_file
from kernel_lsp.interpreter import Probe
from kernel_lsp.membership import read_tuning
from kernel_lsp.records import Json, Site

FOLDER = "tuning"
SCHEMA = 1
MAX_FILES = 5000


class KnownWinners:
    """What is known for one architecture."""

    def __init__(self, data_dir: Path, probe: Probe, device: str) -> None:
        self.folder = data_dir / FOLDER
        capability = probe.capability if device == "cuda" else None
        self._place = f"{device}\0{capability}\0{probe.triton}\0{probe.torch}"
        self._data_dir = data_dir
        self.notes: list[str] = []
        """Files that could not be used, and why."""

    @functools.cached_property
    def _of_team(self) -> dict[str, Json]:
        return read_tuning(self._data_dir)

    def best(self, site: Site) -> Json | None:
        """Parameters for a site of this kind, one of its choices each; None: nobody knows."""
        file = self._file(site)
        if file is None:
            return None
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            found = {str(name): value for name, value in data["parameters"].items()}
            current = data["schema"] == SCHEMA
        except FileNotFoundError:
            found, current = self._of_team.get(file.stem, {}), True
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.notes.append(f"{file} is ignored: {type(error).__name__} (it may be deleted)")
            return None
        fits = current and found.keys() == site.parameters.keys()
        if not fits or any(value not in site.parameters[name] for name, value in found.items()):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return found

    def keep(self, site: Site, parameters: Json) -> None:
        """Remember what won; a full or read-only disk only means that it is searched again."""
        if (file := self._file(site)) is None:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            record = {"schema": SCHEMA, "skill": site.skill, "parameters": parameters}
            replace_file(file, json.dumps(record).encode())
            _prune(self.folder)

    def _file(self, site: Site) -> Path | None:
        if not site.kind:
            return None
        key = hashlib.sha256(f"{SCHEMA}\0{site.kind}\0{self._place}".encode()).hexdigest()[:32]
        return self.folder / f"{key}.json"


def _prune(folder: Path) -> None:
    files = list(folder.glob("*.json"))
    if len(files) <= MAX_FILES:
        return
    ages = {}
    for file in files:
        with contextlib.suppress(OSError):  # another process has just deleted it
            ages[file] = file.stat().st_mtime
    for file in sorted(ages, key=lambda file: ages[file])[: len(ages) - MAX_FILES]:
        file.unlink(missing_ok=True)


def count(data_dir: Path) -> int:
    """Kinds of sites whose best parameters are known."""
    return sum(1 for _ in (data_dir / FOLDER).glob("*.json"))
