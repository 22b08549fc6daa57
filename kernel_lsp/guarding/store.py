"""``.kernel-lsp/accepted/*.json``: one file per accepted rewrite, written when it is accepted.

Meant to be committed, so the text is stable and small (no raw samples: a tenth of the evidence's
size). What was accepted later on top of it has a file of its own."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from kernel_lsp import analysis, foreign, wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import evidence
from kernel_lsp.files import replace_file
from kernel_lsp.records import ACCEPTANCE_VERSION, Acceptance, Event, Evidence, Snapshot

FOLDER = Path(".kernel-lsp", "accepted")
MAX_BYTES = 8 * 1024**2
MAX_NAME_CHARS = 1024
TOLD_OF_MACHINE = (
    "torch",
    "triton",
    "cuda",
    "python",
    "kernel_lsp",
    "driver",
    "baselines",
    "threads",
)
"""Of the environment only what versions and results depend on."""


def accept(event: Event, evidence_file: Path) -> Path | None:
    """Write what an ``accepted`` event was about; None when its evidence is gone or is no verdict
    of speed.

    Raises OSError where the folder cannot be written.
    """
    if event.folder is None or event.path is None or event.qualname is None:
        return None
    try:
        kept = evidence.read(evidence_file)
    except EvaluationError:  # old evidence is deleted, and a full disk never got it
        return None
    acceptance = Acceptance(
        proposal=event.proposal,
        path=PurePosixPath(Path(event.path)).as_posix(),
        qualname=event.qualname,
        before=str(event.data.get("before", "")),
        after=str(event.data.get("after", "")),
        accepted=event.time,
        evidence=_public(kept, Path(event.folder)),
    )
    return write(Path(event.folder), acceptance)


def write(folder: Path, acceptance: Acceptance) -> Path:
    """Writes the acceptance and returns its file. Raises OSError where the folder cannot be
    written."""
    path = folder / FOLDER / _name(acceptance)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OSError(errno.ELOOP, "a link leads out of the workspace", str(path.parent))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(wire.to_json(acceptance), indent=1) + "\n").encode())
    path.chmod(0o644)  # a temporary file is its owner's alone, this one belongs to a repository
    return path


def accept_file(folder: Path, path: Path, kept: Evidence) -> Path:
    """Have a file judged again from now on, that somebody wrote by hand and `verify` accepted.
    Raises EvaluationError for a file outside of the folder, OSError."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise EvaluationError(f"{path} is not below {folder}", "name a file of the workspace")
    target = analysis.find_target(
        analysis.analyze(Snapshot(uri=path.absolute().as_uri(), text=kept.candidate_source)),
        kept.candidate_entry,
    )
    if target is None:
        cause = f"{kept.candidate_entry} is no module, function or kernel that is looked after"
        raise EvaluationError(cause, "leave --accept out, and keep the evidence of this verdict")
    acceptance = Acceptance(
        proposal=f"verified-{target.fingerprint[:12]}",
        path=path.resolve().relative_to(folder.resolve()).as_posix(),
        qualname=kept.candidate_entry,
        before="",
        after=target.fingerprint,
        accepted=kept.created,
        evidence=_public(kept, folder),
    )
    return write(folder, acceptance)


def _name(acceptance: Acceptance) -> str:
    """Readable, and another for each target and rewrite: of two long paths the ends may be the
    same."""
    words = re.sub(r"[^\w.-]+", "-", f"{acceptance.path.removesuffix('.py')}.{acceptance.qualname}")
    text = f"{acceptance.path}::{acceptance.qualname} {acceptance.after}"
    return f"{words[-80:].lstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


def _public(kept: Evidence, folder: Path) -> Evidence:
    """Without samples, and without paths of this machine: recorded calls are found where it is
    judged."""
    environment = kept.evaluation.environment
    record = {name: environment[name] for name in TOLD_OF_MACHINE if name in environment}
    reference = kept.reference
    if (home := reference.home) is not None:
        place = Path(home.path)
        path = place.relative_to(folder) if place.is_relative_to(folder) else Path(place.name)
        home = replace(
            home,
            path=path.as_posix(),
            snapshot=Path(home.snapshot).name,
            search_path=(),
            pickler="",
            others=(),
        )
        reference = replace(reference, home=home)
    evaluation = replace(kept.evaluation, environment=record)
    return replace(kept, reference=reference, samples=(), python=None, evaluation=evaluation)


def acceptances(root: Path) -> Iterator[tuple[Path, Acceptance | EvaluationError]]:
    """Every file of a workspace, by name, with what it holds or why it cannot be read."""
    for path in sorted((root / FOLDER).glob("*.json")):
        try:
            if not path.name.isprintable():
                words = f"{path.name!r} has a name with control characters"
                raise EvaluationError(words, "delete it: such a name is none of ours")
            yield path, _read(path, root)
        except EvaluationError as error:
            yield path, error


def _read(path: Path, root: Path) -> Acceptance:
    remedy = "restore the file from the repository's history, or delete it"
    try:
        data: Any = foreign.json_value(foreign.read_bytes(path, most=MAX_BYTES, within=root))
        version = data["schema_version"]
    except OSError as error:
        raise EvaluationError(
            f"{path.name} cannot be read: {error.strerror or error}", remedy
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise EvaluationError(
            f"{path.name} cannot be read ({type(error).__name__})", remedy
        ) from error
    if version != ACCEPTANCE_VERSION:
        newer = isinstance(version, int) and version > ACCEPTANCE_VERSION
        way = "update kernel-lsp" if newer else "accept the rewrite again, or delete the file"
        cause = (
            f"{path.name} has schema version {version!r}, this kernel-lsp reads "
            f"{ACCEPTANCE_VERSION}"
        )
        raise EvaluationError(cause, way)
    try:
        acceptance = wire.from_json(Acceptance, data)
        evidence.request_of(acceptance.evidence)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise EvaluationError(
            f"{path.name} is no acceptance: {str(error)[:200]}", remedy
        ) from error
    if PurePosixPath(acceptance.path).is_absolute() or ".." in PurePosixPath(acceptance.path).parts:
        raise EvaluationError(f"{path.name} names a file outside of the workspace", remedy)
    # A line break would begin a line of its own in a report, and CI obeys lines (`::error …`).
    names = acceptance.path, acceptance.qualname, acceptance.proposal, acceptance.accepted
    if not all(name.isprintable() and len(name) <= MAX_NAME_CHARS for name in names):
        raise EvaluationError(f"{path.name} holds a name that no program has", remedy)
    return acceptance
