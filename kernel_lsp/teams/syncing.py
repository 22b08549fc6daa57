"""Bring a team's releases and measurements to this machine, and this machine's to the team.

    synced = syncing.sync(data_dir)          # TeamAway: what was here before stays as it is

Each release is unpacked beside what is in use, its hash and its signature are checked, and only
then one file is replaced that names what counts (membership.py). What is refused (a signer who is
not trusted here, a changed file, a policy that is worse) is left out, said in `problems`, and
another release never stands in for it unseen. A policy is switched only where the user has not
chosen one by hand. Skills of a team are text and recipes; one with code of its own is refused. Not
covered: who decides what is released (registry.py)."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from kernel_lsp import foreign, membership, signatures
from kernel_lsp.agents.secrets import redact
from kernel_lsp.errors import KernelLspError, SkillError, TeamAway, TeamError
from kernel_lsp.files import is_plain_name, replace_file
from kernel_lsp.library.usage import UsageStatistics
from kernel_lsp.membership import Membership, SyncedState
from kernel_lsp.models import PolicyStore
from kernel_lsp.models.store import NOTHING
from kernel_lsp.records import UsageStats
from kernel_lsp.signatures import Keyring
from kernel_lsp.skillbook import format
from kernel_lsp.teams.objects import MAX_BYTES, Objects, digest_of, pack, unpack
from kernel_lsp.teams.registry import Registry
from kernel_lsp.teams.releases import POLICY, SKILL, Release, chosen

OWN_TUNING = "tuning"
"""Where pipeline/known.py keeps what has won on this machine."""
POLICIES, PACKED = "policies", "packed"
MAX_FOLDERS = 5
"""Folders of skills that stay: a job that runs reads the one it began with."""
DUE_S = 3600.0
LOCK_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Synced:
    """What a sync has come to."""

    state: SyncedState
    tuning: int
    """Kinds of sites whose parameters the team knows."""
    sent: int
    """Of ours, those that were new to the team."""


def sync(data_dir: Path) -> Synced:
    """Brings the team's state to this machine (see the top of the file). Raises TeamAway, or
    TeamError: in no team, or the disk refuses."""
    joined = required_membership(data_dir)
    with _lock(data_dir), Registry(joined.address, data_dir) as registry:
        info = registry.info()
        releases = registry.releases()
        before = membership.read_state(data_dir)
        sent = registry.report_tuning(_own_tuning(data_dir))
        membership.write_tuning(data_dir, tuning := registry.tuning())
        state = _adopt(data_dir, Objects(info.files), chosen(releases, registry.owner), before)
        forgotten = tuple(map(membership.hash_of, registry.forgotten()))
        membership.write_state(data_dir, state := replace(state, forgotten=forgotten))
        _report_usage(registry, data_dir, releases, state)
    _prune(data_dir, state.skills, {release.digest for release in releases})
    return Synced(state=state, tuning=len(tuning), sent=sent)


def sync_if_due(data_dir: Path) -> str | None:
    """Syncs where the last time was an hour ago, in idle moments. Returns what went wrong, if
    anything did; the last good state stays."""
    try:
        joined = membership.read_membership(data_dir)
        due = time.time() - membership.read_state(data_dir).time > DUE_S
        if joined is not None and due:
            sync(data_dir)
    except KernelLspError as error:
        return str(error)
    return None


def required_membership(data_dir: Path) -> Membership:
    """The user's membership. Raises TeamError for a user in no team."""
    found = membership.read_membership(data_dir)
    if found is None:
        raise TeamError("you are in no team", "`kernel-lsp team join ADDRESS`")
    return found


def push(data_dir: Path, folder: Path, *, kind: str, name: str, key: Path) -> Release:
    """Propose what lies in a folder, signed with ``key``. Raises KernelLspError: nothing that may
    be shared, no key, somebody else was first, away."""
    joined = required_membership(data_dir)
    with (
        Registry(joined.address, data_dir) as registry,
        tempfile.TemporaryDirectory(prefix="kernel-lsp-push-") as place,
    ):
        copy = Path(place) / name
        copy.mkdir()
        unpack(pack(folder), copy)  # bounded, and without links
        evidence, better = _examine(copy, kind, name)
        number = registry.next_number(kind, name)
        for old in copy.glob(f"{signatures.STATEMENT}*"):
            old.unlink()
        signatures.sign(copy, key=key, kind=kind, name=name, release=number)
        digest = Objects(registry.info().files).put(pack(copy))
        release = Release(
            kind=kind,
            name=name,
            number=number,
            digest=digest,
            pushed_by="",
            time=time.time(),
            evidence=evidence,
            better=better,
        )
        registry.push(release)
    return release


def preview(data_dir: Path, files: str, release: Release) -> str:
    """What a coordinator reviews: who signed it, its files, and a skill's text. Raises
    KernelLspError where it is not what was pushed, or nobody trusted here has signed it."""
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-review-") as place:
        folder = Path(place) / release.name
        folder.mkdir()
        unpack(Objects(files).get(release.digest), folder)
        signer = _check(data_dir, folder, release)
        lines = [f"{release.id}, pushed by {release.pushed_by}, signed by {signer}"]
        lines += [release.evidence, ""]
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            lines.append(f"{path.relative_to(folder)}  {path.stat().st_size} bytes")
        if release.kind == SKILL:
            lines += ["", (folder / "SKILL.md").read_text(encoding="utf-8")]
    return "\n".join(lines)


# --- what comes ----------------------------------------------------------------------------------


def _adopt(
    data_dir: Path, files: Objects, wanted: Sequence[Release], before: SyncedState
) -> SyncedState:
    """Raises TeamAway where a file cannot be had: then nothing changes."""
    root = data_dir / membership.FOLDER
    number = int(before.skills or 0) + 1
    root.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=root, prefix=".new-"))
    problems, used = [], []
    try:
        for release in wanted:
            place = making / release.kind / release.name
            place.mkdir(parents=True)
            try:
                unpack(_fetch(root, files, release.digest), place)
                _check(data_dir, place, release)
                if release.kind == POLICY:
                    _use_policy(data_dir, place)
                used.append(release)
            except TeamAway:
                raise
            except KernelLspError as error:
                problems.append(f"{release.id}: {error}")
                shutil.rmtree(place)
        if not any(release.kind == POLICY for release in wanted):
            _leave_policy(data_dir)
        name = _publish(root, making, number)
    except OSError as error:
        raise TeamError(f"{root} cannot be written: {error}", "free space there") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    usage = UsageStatistics(data_dir).stats()
    return SyncedState(
        time=time.time(),
        releases=tuple(release.id for release in used),
        skills=name,
        problems=tuple(problems),
        before={
            release.id: before.before.get(release.id, _counts(usage, release.name))
            for release in used
        },
    )


def _fetch(root: Path, files: Objects, digest: str) -> bytes:
    """Packed files of a release, each brought once."""
    known = root / PACKED / digest
    with contextlib.suppress(OSError):
        content = foreign.read_bytes(known, most=MAX_BYTES)
        if digest_of(content) == digest:
            return content
    content = files.get(digest)
    known.parent.mkdir(exist_ok=True)
    replace_file(known, content)
    return content


def _publish(root: Path, making: Path, number: int) -> str:
    """Skills become the next folder in one step; returns its name."""
    place = root / membership.SKILLS
    place.mkdir(parents=True, exist_ok=True)
    (making / SKILL).mkdir(exist_ok=True)
    while (place / f"{number:06d}").exists():  # of a sync that was killed before it sent
        number += 1
    (making / SKILL).rename(place / f"{number:06d}")
    return f"{number:06d}"


def _check(data_dir: Path, folder: Path, release: Release) -> str:
    """It is what was pushed, by somebody who is trusted here: by whom. Raises KernelLspError."""
    signed = Keyring(data_dir).verify(folder, kind=release.kind, allow_rollback=True)
    if (signed.name, signed.release) != (release.name, release.number):
        raise TeamError(
            f"it was signed as {signed.name}, release {signed.release}", "have it pushed anew"
        )
    _examine(folder, release.kind, release.name)
    return signed.signer


def _examine(folder: Path, kind: str, name: str) -> tuple[str, bool]:
    """What speaks for it, and whether a check of a policy does; raises KernelLspError for what no
    team takes."""
    if not is_plain_name(name):
        raise TeamError(f"{name!r} is no name", "take letters, digits, - and _")
    if kind == POLICY:
        from kernel_lsp.models import manifest as manifests

        manifest = manifests.read(folder)
        manifests.verify(folder, manifest)
        manifests.refuse_worse(manifest, None)
        held = manifest.held_out
        return (str(held), held.clearly_better) if held else ("no held-out check", False)
    skill, problems = format.examine(folder, "team")
    if skill is None:
        cause = "; ".join(f"{one.field}: {one.cause}" for one in problems)
        raise SkillError(
            f"{folder.name} is no skill: {cause}", "`kernel-lsp skills lint` checks it"
        )
    if skill.name != name:
        raise SkillError(f"the skill is called {skill.name}, not {name}", "rename one of the two")
    strange = [
        path.name
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != "SKILL.md"
        and not path.name.startswith(signatures.STATEMENT)
    ]
    if strange:
        raise SkillError(
            f"a team's skill is its SKILL.md alone, and {strange[0]} lies beside it",
            "skills with code come in a package, or by `skill_folders`",
        )
    _refuse_secrets(folder / "SKILL.md")
    return skill.description[:200], False


def _refuse_secrets(file: Path) -> None:
    """Raises TeamError where a text has something in it that should stay here."""
    text = file.read_text(encoding="utf-8")
    clean, _ = redact(text)
    if clean != text:
        lines = zip(text.splitlines(), clean.splitlines(), strict=False)
        number = next((n for n, (a, b) in enumerate(lines, 1) if a != b), 1)
        raise TeamError(
            f"line {number} of {file.name} holds a secret, or says who or where you are",
            "take it out; nothing was shared",
        )


# --- policies ------------------------------------------------------------------------------------


def _use_policy(data_dir: Path, folder: Path) -> None:
    """Install it, and use it where the user has not chosen another. Raises ModelError."""
    store = PolicyStore(data_dir)
    model = store.install(folder)
    if store.last_choice() in (NOTHING, *_of_team(data_dir)):
        if store.last_choice() != model.id:
            store.use(model.id)
        _remember_policy(data_dir, model.id)
    elif store.last_choice() != model.id:
        raise TeamError(
            f"{store.last_choice()} was chosen here by hand",
            f"`kernel-lsp models use {model.id}` takes the team's",
        )


def _leave_policy(data_dir: Path) -> None:
    """The team has none (any more): back to what was used before the team's."""
    store = PolicyStore(data_dir)
    with contextlib.suppress(KernelLspError):
        for _ in _of_team(data_dir):
            if store.last_choice() in _of_team(data_dir):
                store.rollback()


def _of_team(data_dir: Path) -> list[str]:
    """Policies that a sync has switched to."""
    try:
        found = foreign.json_value(
            foreign.read_bytes(data_dir / membership.FOLDER / POLICIES, most=2**16)
        )
        return [str(one) for one in found]
    except (OSError, ValueError, TypeError):
        return []


def _remember_policy(data_dir: Path, name: str) -> None:
    known = [*(one for one in _of_team(data_dir) if one != name), name]
    replace_file(data_dir / membership.FOLDER / POLICIES, json.dumps(known[-20:]).encode())


# --- what goes -----------------------------------------------------------------------------------


def _own_tuning(data_dir: Path) -> Iterator[tuple[str, str, dict[str, object]]]:
    for file in sorted((data_dir / OWN_TUNING).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            data = foreign.json_value(foreign.read_bytes(file, most=2**16))
            yield file.stem, str(data["skill"]), dict(data["parameters"])


def _counts(usage: Sequence[UsageStats], skill: str) -> list[list[object]]:
    return [
        [one.hardware, one.uses, one.wins, one.pairs, one.uplift_sum, one.uplift_squares]
        for one in usage
        if one.skill == skill
    ]


def _report_usage(
    registry: Registry, data_dir: Path, releases: Sequence[Release], state: SyncedState
) -> None:
    """Since the release came; what was counted before belongs to another one of the same name."""
    usage = UsageStatistics(data_dir).stats()
    for release in releases:
        if release.kind != SKILL or release.id not in state.releases:
            continue
        old = {str(row[0]): row[1:] for row in state.before.get(release.id, [])}
        rows = []
        for one in usage:
            if one.skill == release.name:
                less = old.get(one.hardware, [0, 0, 0, 0.0, 0.0])
                rows.append(
                    replace(
                        one,
                        uses=one.uses - less[0],
                        wins=one.wins - less[1],
                        pairs=one.pairs - less[2],
                        uplift_sum=one.uplift_sum - less[3],
                        uplift_squares=max(0.0, one.uplift_squares - less[4]),
                    )
                )
        registry.report_usage(release, rows)


# --- parts ---------------------------------------------------------------------------------------


def _prune(data_dir: Path, used: str, known: set[str]) -> None:
    place = data_dir / membership.FOLDER / membership.SKILLS
    for folder in sorted(path for path in place.iterdir() if path.name < used)[:-MAX_FOLDERS]:
        shutil.rmtree(folder, ignore_errors=True)
    for file in (data_dir / membership.FOLDER / PACKED).glob("*"):
        if file.name not in known:  # its maker has taken it back
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(data_dir: Path) -> Iterator[None]:
    file = data_dir / membership.FOLDER / ".lock"
    lock = FileLock(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOCK_S)
    except Timeout as error:
        raise TeamAway("another sync is under way", "wait for it") from error
    except OSError as error:
        raise TeamError(f"{file} cannot be written: {error.strerror}", "mend the folder") from error
    try:
        yield
    finally:
        lock.release()
