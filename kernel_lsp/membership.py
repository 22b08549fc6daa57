"""Of which team this user is a member, and what was last brought from it. Standard library only.

    <data folder>/team/membership.json     address of the PostgreSQL, name of the team
    <data folder>/team/state.json          the releases in use here: the last good state
    <data folder>/team/skills/000007/      their skills; the folder that the state names counts
    <data folder>/team/tuning.json         parameters that colleagues' devices have measured

Everything but the files themselves is replaced in one step, so that a registry that is away, or a
process that is killed, leaves the last good state. Not covered: who writes it (syncing.py)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp import foreign
from kernel_lsp.errors import TeamError
from kernel_lsp.files import replace_file

FOLDER, MEMBERSHIP, STATE, SKILLS, TUNING = (
    "team",
    "membership.json",
    "state.json",
    "skills",
    "tuning.json",
)
SCHEMA = 1
MAX_BYTES = 2**24


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """The team of one user on one machine."""

    address: str
    """Of the PostgreSQL; without a password, which belongs into ~/.pgpass."""
    team: str
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncedState:
    """What the last sync left here."""

    time: float = 0.0
    """POSIX seconds of the sync; 0: there was none yet."""
    releases: tuple[str, ...] = ()
    """Ids (``skill:name#3``) of the releases in use."""
    skills: str = ""
    """Name of the folder below ``team/skills``; empty: none."""
    problems: tuple[str, ...] = ()
    """Why releases of the team are not used here."""
    before: dict[str, list[list[Any]]] = field(default_factory=dict)
    """Release -> rows of the usage statistics when it came: what it is worth is counted from
    there."""
    forgotten: tuple[str, ...] = ()
    """Hashes (`hash_of`) of owners who asked to be forgotten."""
    schema: int = SCHEMA


def hash_of(owner: str) -> str:
    """Names an owner of rows without being the id that the rows stand under."""
    return hashlib.sha256(f"owner:{owner}".encode()).hexdigest()[:16]


def read_membership(data_dir: Path) -> Membership | None:
    """The membership of this user; None: in no team. Raises TeamError for a file that cannot be
    read."""
    file = data_dir / FOLDER / MEMBERSHIP
    try:
        data = foreign.json_value(foreign.read_bytes(file, most=MAX_BYTES))
        if data["schema"] == SCHEMA:
            return Membership(address=str(data["address"]), team=str(data["team"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TeamError(
            f"{file} cannot be read: {error}", "`kernel-lsp team join` writes it anew"
        ) from error
    raise TeamError(f"{file} is of another version", "`kernel-lsp team join` writes it anew")


def write_membership(data_dir: Path, membership: Membership) -> None:
    """Writes of which team this user is a member. Raises TeamError."""
    content = {
        "schema": SCHEMA,
        "address": membership.address,
        "team": membership.team,
    }
    _write(data_dir / FOLDER / MEMBERSHIP, content)


def leave(data_dir: Path) -> None:
    """Nothing of the team counts here any more; its files stay, unused. Raises TeamError."""
    for name in (MEMBERSHIP, STATE, TUNING):
        try:
            (data_dir / FOLDER / name).unlink(missing_ok=True)
        except OSError as error:
            raise TeamError(
                f"{data_dir / FOLDER / name} cannot be removed: {error.strerror}", _MEND
            ) from error


def read_state(data_dir: Path) -> SyncedState:
    """The last good state; an empty one where there is none."""
    try:
        content = foreign.read_bytes(data_dir / FOLDER / STATE, most=MAX_BYTES)
        data = foreign.json_value(content)
        if data["schema"] != SCHEMA:
            return SyncedState()
        return SyncedState(
            time=float(data["time"]),
            releases=tuple(map(str, data["releases"])),
            skills=str(data["skills"]),
            problems=tuple(map(str, data["problems"])),
            before=dict(data["before"]),
            forgotten=tuple(map(str, data["forgotten"])),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return SyncedState()


def write_state(data_dir: Path, state: SyncedState) -> None:
    """Writes what was last brought from the team. Raises TeamError."""
    content = {
        "schema": SCHEMA,
        "time": state.time,
        "releases": list(state.releases),
        "skills": state.skills,
        "problems": list(state.problems),
        "before": state.before,
        "forgotten": list(state.forgotten),
    }
    _write(data_dir / FOLDER / STATE, content)


def skills_folder(data_dir: Path) -> Path | None:
    """Where the team's skills lie that are in use here; None: there are none."""
    name = read_state(data_dir).skills
    return data_dir / FOLDER / SKILLS / name if name.isdigit() else None


def read_tuning(data_dir: Path) -> dict[str, dict[str, Any]]:
    """Key of a kind of site (pipeline/known.py) -> parameters; nothing where nobody sent any."""
    try:
        content = foreign.read_bytes(data_dir / FOLDER / TUNING, most=MAX_BYTES)
        data = foreign.json_value(content)
        return {str(key): dict(value) for key, value in data["parameters"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_tuning(data_dir: Path, parameters: dict[str, dict[str, Any]]) -> None:
    """Writes the parameters that colleagues have measured. Raises TeamError."""
    _write(data_dir / FOLDER / TUNING, {"schema": SCHEMA, "parameters": parameters})


_MEND = "mend the folder, or free space"


def _write(file: Path, content: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(file, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise TeamError(f"{file} cannot be written: {error}", _MEND) from error
