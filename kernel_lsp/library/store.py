"""Drafts and snapshots on disk: nothing is changed in place, nothing is deleted.

    library/staged/<name>/      SKILL.md and papers.json of a draft, verified or not
    library/snapshots/000007/   the library as it was: SKILL.md per skill, _retired/, manifest.json

A snapshot is written whole into a hidden folder, synced, and renamed into place, so a process that
is killed at any moment leaves the old library or the new one. What it leaves behind is removed by
the next writer, under a lock that all processes share. Going back makes a new snapshot that equals
an old one. Not covered: who decides what is added (uplift.py, commands), which snapshot counts
(skillbook/learned.py)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from kernel_lsp import wire
from kernel_lsp.errors import SkillError
from kernel_lsp.files import replace_file
from kernel_lsp.records import LearnedSkill, Lesson, Skill, Standing, Verification
from kernel_lsp.skillbook import format, learned

SCHEMA = 1
STAGED, PAPERS, SKILL = "staged", "papers.json", "SKILL.md"
RETIRED = "_retired"
"""Skips loading: names that begin with _ are no skills."""
UNFINISHED = ".new-"
LOCK_S = 20.0
WRITE_REMEDY = "check the data folder's permissions and free space; `kernel-lsp doctor` names it"


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryVersion:
    """One version of the learned library."""

    number: int
    created: str
    """ISO 8601, UTC."""
    action: str
    """What made it: ``promote NAME``, ``retire NAME``, ``rollback to 3`` …"""
    skills: tuple[LearnedSkill, ...] = ()
    """Verified and retired ones, by name."""

    def get(self, name: str) -> LearnedSkill | None:
        """The skill of that name; None: this version has none."""
        return next((skill for skill in self.skills if skill.name == name), None)


EMPTY = LibraryVersion(number=0, created="", action="nothing was learned yet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shelved:
    """A draft or a skill of the library with its text."""

    papers: LearnedSkill
    skill: Skill


class SkillLibrary:
    """The learned skills of one user. Any number of processes; a write that fails raises
    SkillError."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._root = data_dir / learned.FOLDER

    # --- reading -----------------------------------------------------------------------------

    @property
    def current(self) -> LibraryVersion:
        """The newest version; the empty one before there is any."""
        return next(reversed(self.history()), EMPTY)

    def history(self) -> list[LibraryVersion]:
        """Every snapshot that can be read, oldest first."""
        found = (_read_manifest(path) for path in learned.snapshots(self._data_dir))
        return [snapshot for snapshot in found if snapshot is not None]

    def staged(self) -> list[Shelved]:
        """Drafts by name; what cannot be read is no draft."""
        place = self._root / STAGED
        folders = sorted(place.iterdir()) if place.is_dir() else []
        found = (self._draft(path.name) for path in folders if not path.name.startswith("."))
        return [one for one in found if one is not None]

    def shelved(self) -> list[Shelved]:
        """What is in the library now, retired ones included."""
        snapshot = self.current
        found = []
        for papers in snapshot.skills:
            folder = self._folder(snapshot.number, papers)
            skill, _ = format.examine(folder, "learned")
            if skill is not None:
                found.append(Shelved(papers=papers, skill=skill))
        return found

    def find(self, name: str) -> Shelved | None:
        """What the library has under this name, else a draft."""
        every = [*self.shelved(), *self.staged()]
        return next((one for one in every if one.papers.name == name), None)

    # --- drafts ------------------------------------------------------------------------------

    def stage(self, lesson: Lesson, reason: str = "") -> LearnedSkill | None:
        """Keep a draft; with a ``reason`` as one that was turned down. None: this name is known
        already."""
        with self._lock():
            name = lesson.draft.name
            if self._draft(name) is not None or self.current.get(name) is not None:
                return None
            standing = Standing.REFUSED if reason else Standing.STAGED
            papers = LearnedSkill(
                name=name, standing=standing, reason=reason, origin=lesson.origin, since=now()
            )
            self._write_draft(name, learned.text_of(lesson.draft), papers)
            return papers

    def note(self, name: str, verification: Verification, *, refused: bool) -> LearnedSkill:
        """A draft's verification that did not add it."""
        with self._lock():
            draft = self._draft(name)
            if draft is None:
                raise _unknown_skill_error(name)
            standing = Standing.REFUSED if refused else Standing.STAGED
            papers = _learned_skill(draft.papers, verification, standing)
            self._write_papers(name, papers)
            return papers

    # --- the library -------------------------------------------------------------------------

    def promote(
        self, name: str, verification: Verification | None = None, reason: str = ""
    ) -> LibraryVersion:
        """Add a draft, or bring a retired skill back."""

        def change(snapshot: LibraryVersion, texts: dict[str, str]) -> Sequence[LearnedSkill]:
            known, draft = snapshot.get(name), self._draft(name)
            if known is None and draft is None:
                raise _unknown_skill_error(name)
            papers = known or (draft.papers if draft else None)
            assert papers is not None
            if known is None and draft is not None:
                texts[name] = (Path(draft.skill.path) / SKILL).read_text(encoding="utf-8")
            why = verification.reason if verification else reason
            papers = replace(papers, standing=Standing.VERIFIED, reason=why, since=now())
            if verification is not None:
                papers = replace(papers, verifications=(*papers.verifications, verification))
            return _with(snapshot, papers)

        return self._next(f"promote {name}", change)

    def retire(self, name: str, reason: str) -> LibraryVersion:
        """Take a skill out of use. It stays in every snapshot, and can be promoted again."""

        def change(snapshot: LibraryVersion, texts: dict[str, str]) -> Sequence[LearnedSkill]:
            papers = snapshot.get(name)
            if papers is None:
                raise _unknown_skill_error(name)
            if papers.standing is Standing.RETIRED:
                raise SkillError(
                    f"{name} is retired already", f"`kernel-lsp skills promote {name}`"
                )
            return _with(
                snapshot, replace(papers, standing=Standing.RETIRED, reason=reason, since=now())
            )

        return self._next(f"retire {name}", change)

    def record(self, name: str, verification: Verification) -> LibraryVersion:
        """One more verification of a skill that is in the library; its standing stays."""

        def change(snapshot: LibraryVersion, texts: dict[str, str]) -> Sequence[LearnedSkill]:
            papers = snapshot.get(name)
            if papers is None:
                raise _unknown_skill_error(name)
            return _with(snapshot, _learned_skill(papers, verification, papers.standing))

        return self._next(f"verify {name}", change)

    def rollback(self, number: int | None = None) -> LibraryVersion:
        """The library as it was in an earlier snapshot (the one before, unless named), as a new
        one."""
        history = self.history()
        numbers = [snapshot.number for snapshot in history]
        if number is None:
            number = numbers[-2] if len(numbers) > 1 else 0
        if number not in (0, *numbers) or not history:
            text = (
                f"there are {', '.join(map(str, [0, *numbers]))}"
                if numbers
                else "none was made yet"
            )
            raise SkillError(f"there is no version {number} of the library", text)
        chosen = next((one for one in history if one.number == number), EMPTY)

        def change(snapshot: LibraryVersion, texts: dict[str, str]) -> Sequence[LearnedSkill]:
            texts.update(self._texts(chosen))
            return chosen.skills

        return self._next(f"rollback to {number}", change)

    # --- writing -----------------------------------------------------------------------------

    def _next(
        self,
        action: str,
        change: Callable[[LibraryVersion, dict[str, str]], Sequence[LearnedSkill]],
    ) -> LibraryVersion:
        """The next snapshot. ``change`` is given the present one and its texts, to which it may
        add."""
        with self._lock(), _writing():
            present = self.current
            texts = self._texts(present)
            skills = tuple(sorted(change(present, texts), key=lambda papers: papers.name))
            made = LibraryVersion(
                number=self._last_number() + 1, created=now(), action=action, skills=skills
            )
            self._write_snapshot(made, texts)
            return made

    def _last_number(self) -> int:
        """Also of a snapshot that cannot be read: its number is taken."""
        place = self._root / learned.SNAPSHOTS
        names = [path.name for path in place.iterdir()] if place.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=0)

    def _write_snapshot(self, made: LibraryVersion, texts: Mapping[str, str]) -> None:
        place = self._root / learned.SNAPSHOTS
        place.mkdir(parents=True, exist_ok=True)
        for left in place.glob(f"{UNFINISHED}*"):  # of a writer that was killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        making = place / f"{UNFINISHED}{made.number:06d}"
        making.mkdir()
        for papers in made.skills:
            folder = making / _within(papers)
            folder.mkdir(parents=True)
            _write_synced(folder / SKILL, texts[papers.name].encode())
            _sync(folder)
        manifest = {"schema": SCHEMA, **wire.to_json(made)}
        _write_synced(making / learned.MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        _sync(making)
        making.rename(place / f"{made.number:06d}")
        _sync(place)

    def _texts(self, snapshot: LibraryVersion) -> dict[str, str]:
        return {
            papers.name: (self._folder(snapshot.number, papers) / SKILL).read_text(encoding="utf-8")
            for papers in snapshot.skills
        }

    def _folder(self, number: int, papers: LearnedSkill) -> Path:
        return self._root / learned.SNAPSHOTS / f"{number:06d}" / _within(papers)

    def _draft(self, name: str) -> Shelved | None:
        folder = self._root / STAGED / name
        try:
            papers = wire.from_json(
                LearnedSkill, json.loads((folder / PAPERS).read_text(encoding="utf-8"))
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None
        skill, _ = format.examine(folder, "learned")
        return None if skill is None else Shelved(papers=papers, skill=skill)

    def _write_draft(self, name: str, text: str, papers: LearnedSkill) -> None:
        """The papers come last: without them it is no draft."""
        folder = self._root / STAGED / name
        with _writing():
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / SKILL, text.encode())
        self._write_papers(name, papers)

    def _write_papers(self, name: str, papers: LearnedSkill) -> None:
        with _writing():
            text = json.dumps(wire.to_json(papers), indent=1) + "\n"
            replace_file(self._root / STAGED / name / PAPERS, text.encode())

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        lock = FileLock(self._root / ".lock")
        with _writing():
            self._root.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=LOCK_S)
            except Timeout as error:
                cause = "another process has been changing the skill library for too long"
                raise SkillError(cause, f"end it; it holds {self._root / '.lock'}") from error
        try:
            yield
        finally:
            lock.release()


def settle(library: SkillLibrary, shelved: Shelved, found: Verification) -> LearnedSkill:
    """What follows from a verification; returns the papers as they are then.

    Accepted: it comes (or stays, or comes back) into the library. Not accepted: a draft stays
    staged while more tasks may show it and is refused otherwise; a skill of the library is retired
    when it does harm."""
    name, standing = shelved.papers.name, shelved.papers.standing
    inside = library.current.get(name) is not None
    if found.accepted and standing is not Standing.VERIFIED:
        snapshot = library.promote(name, found)
    elif not inside:
        return library.note(name, found, refused=not found.undecided)
    else:
        snapshot = library.record(name, found)
        if not found.accepted and not found.undecided and standing is Standing.VERIFIED:
            snapshot = library.retire(name, found.reason)
    papers = snapshot.get(name)
    assert papers is not None
    return papers


def now() -> str:
    """The time now in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _with(snapshot: LibraryVersion, papers: LearnedSkill) -> list[LearnedSkill]:
    return [*(one for one in snapshot.skills if one.name != papers.name), papers]


def _learned_skill(
    papers: LearnedSkill, verification: Verification, standing: Standing
) -> LearnedSkill:
    changed = standing is not papers.standing
    return replace(
        papers,
        standing=standing,
        reason=verification.reason,
        verifications=(*papers.verifications, verification),
        since=now() if changed else papers.since,
    )


def _within(papers: LearnedSkill) -> Path:
    """Where a skill lies in a snapshot."""
    return Path(RETIRED, papers.name) if papers.standing is Standing.RETIRED else Path(papers.name)


def _unknown_skill_error(name: str) -> SkillError:
    return SkillError(
        f"no learned skill is called {name}", "`kernel-lsp skills list` shows the names"
    )


def _read_manifest(folder: Path) -> LibraryVersion | None:
    """None: damaged, or of a newer kernel-lsp."""
    try:
        data = json.loads((folder / learned.MANIFEST).read_text(encoding="utf-8"))
        return wire.from_json(LibraryVersion, data) if data["schema"] == SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SkillError(f"the skill library cannot be written: {error}", WRITE_REMEDY) from error


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """A name in a folder is on the disk when the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
