"""The policies on this machine and those in use. Switching is one file replaced in one step.

    <package>/models/<name>-<version>/   came with the package
    <data folder>/models/<name>-<version>/   installed by the user
    <data folder>/models/used.json       which one, and which ones before it

A choice counts for the kinds of targets that the chosen policy plans, until another is chosen for
these; where nothing was, the package's own default counts, and `rule` counts for all. Whoever asks
reads the file anew, so the next request already gets the new policy. Not covered: running one
(agents/backbones/small)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.errors import ModelError
from kernel_lsp.files import replace_file
from kernel_lsp.models import manifest as manifests
from kernel_lsp.models.manifest import GRAPH, KERNEL, TARGETS, Manifest

RULE = "rule"
"""The deterministic planner, which needs no model."""
NOTHING = "package"
"""What `rollback` comes back to where nothing had been chosen: what the package uses by itself."""
PACKAGED = Path(__file__).parent
FOLDER, USED = "models", "used.json"
SCHEMA = 1
MAX_REMEMBERED = 20
LIST = "`kernel-lsp models list` shows them"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPolicy:
    """A policy that is there, usable or not."""

    folder: Path
    manifest: Manifest | None = None
    """None: it cannot be read, and ``problem`` says why."""
    packaged: bool = False
    problem: ModelError | None = None

    @property
    def id(self) -> str:
        """`name@version`; the folder's name where its manifest cannot be read."""
        return self.manifest.id if self.manifest else self.folder.name

    @property
    def proposer(self) -> str:
        """`Candidate.proposer` of what it suggests."""
        assert self.manifest is not None
        return f"policy:{self.manifest.id}#{self.manifest.digest}"

    def plans(self, target: str) -> bool:
        """Whether the policy plans such targets. ``target``: a kind of them, of `TARGETS`."""
        return self.manifest is not None and target in self.manifest.targets


class PolicyStore:
    """The policies of one user."""

    def __init__(self, data_dir: Path, packaged: Path = PACKAGED) -> None:
        self._mine, self._packaged = data_dir / FOLDER, packaged

    def models(self) -> tuple[StoredPolicy, ...]:
        """The policies here: those of the package first, then installed ones, by name and
        version."""
        return (*_in(self._packaged, packaged=True), *_in(self._mine))

    def used(self, target: str = GRAPH) -> StoredPolicy | None:
        """What the next request about this kind of target is answered by; None: the rule.

        The last choice that was about this kind; where there was none the package's own, if it has
        one that is clearly better than the rule. Raises ModelError when what was chosen is gone or
        cannot be used: then the rule counts, and this is why."""
        for name in reversed(self._history()):
            if name == RULE:
                return None
            if name == NOTHING:
                break
            if (model := self._usable(name)).plans(target):
                return model
        return self._default(target)

    def last_choice(self) -> str:
        """What was chosen last: a policy's id, `RULE`, or `NOTHING`. Raises ModelError."""
        return next(reversed(self._history()), NOTHING)

    def chose(self, model: StoredPolicy) -> bool:
        """Whether somebody asked for it, rather than that the package uses it by itself."""
        with contextlib.suppress(ModelError):
            return model.id in self._history()
        return False

    def use(self, name: str) -> StoredPolicy | None:
        """Switch to a policy, or to ``rule``. Raises ModelError: unknown, damaged, or worse, with
        numbers."""
        if name == RULE:
            self._switch([*self._before(), RULE])
            return None
        model = self.get(name)
        assert model.manifest is not None
        manifests.verify(model.folder, model.manifest)
        for target in filter(model.plans, TARGETS):
            current = None
            with contextlib.suppress(ModelError):
                # What cannot be used is no reason to refuse another.
                current = self.used(target)
            other = current.manifest if current and current.id != model.id else None
            manifests.refuse_worse(model.manifest, other)
        self._switch([*self._before(), model.id])
        return model

    def rollback(self) -> StoredPolicy | None:
        """Switches back to what was used before and returns it. Raises ModelError when there is
        nothing, or it cannot be used."""
        before = self._before()[:-1]
        if not before:
            raise ModelError("nothing was used before", LIST)
        if before[-1] == NOTHING:
            model = self._default(GRAPH) or self._default(KERNEL)
        else:
            model = None if before[-1] == RULE else self._usable(before[-1])
        self._switch(before)
        return model

    def get(self, name: str) -> StoredPolicy:
        """The policy named ``name@version``, or of a name its last version. Raises ModelError."""
        found = [m for m in self.models() if name in (m.id, m.manifest.name if m.manifest else "")]
        if not found:
            raise ModelError(f"no policy is called {name}", LIST)
        if found[-1].problem is not None:
            raise found[-1].problem
        return found[-1]

    def install(self, folder: Path) -> StoredPolicy:
        """Copy a finished checkpoint here, unused as yet. Raises ModelError, and leaves nothing
        then."""
        manifest_found = manifests.read(folder)
        manifests.verify(folder, manifest_found)
        there = next(
            (m for m in self.models() if m.manifest and m.manifest.id == manifest_found.id), None
        )
        if there is not None and there.manifest is not None:
            if there.manifest.digest == manifest_found.digest:
                return there
            raise ModelError(
                f"{manifest_found.id} is here already, with other weights",
                "give it another version",
            )
        place = self._mine / manifest_found.id.replace("@", "-")
        try:
            self._mine.mkdir(parents=True, exist_ok=True)
            _copy_policy(folder, manifest_found, place)
        except OSError as error:
            raise ModelError(
                f"{manifest_found.id} cannot be installed: {error}",
                "free space, or mend the folder",
            ) from None
        return StoredPolicy(folder=place, manifest=manifest_found)

    # --- what is in use ---------------------------------------------------------------------

    def _history(self) -> list[str]:
        """Raises ModelError for a file that nothing can be made of."""
        file = self._mine / USED
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            found = [str(name) for name in data["history"]]
            current = data["schema"] == SCHEMA
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            cause = f"{file} cannot be read: {type(error).__name__}"
            raise ModelError(cause, "`kernel-lsp models use` writes it anew") from None
        if not current:
            raise ModelError(
                f"{file} is of another version", "`kernel-lsp models use` writes it anew"
            )
        return found

    def _before(self) -> list[str]:
        """What was chosen until now."""
        with contextlib.suppress(ModelError):
            return self._history() or [NOTHING]
        return [RULE]

    def _switch(self, history: list[str]) -> None:
        content = {"schema": SCHEMA, "history": history[-MAX_REMEMBERED:]}
        try:
            self._mine.mkdir(parents=True, exist_ok=True)
            replace_file(self._mine / USED, json.dumps(content).encode())
        except OSError as error:
            raise ModelError(
                f"the choice cannot be kept: {error}", "free space, or mend the folder"
            ) from None

    def _default(self, target: str) -> StoredPolicy | None:
        for model in reversed(_in(self._packaged, packaged=True)):
            with contextlib.suppress(ModelError):  # the rule stands in for what is no better
                if model.manifest is not None and model.manifest.unasked and model.plans(target):
                    manifests.refuse_worse(model.manifest, None)
                    if model.manifest.held_out and model.manifest.held_out.clearly_better:
                        return model
        return None

    def _usable(self, name: str) -> StoredPolicy:
        model = self.get(name)
        assert model.manifest is not None
        if model.manifest.held_out is None:
            manifests.refuse_worse(model.manifest, None)
        return model


def _in(folder: Path, *, packaged: bool = False) -> list[StoredPolicy]:
    """Finished or broken policies; a folder without anything of one is none."""
    try:
        places = sorted(
            p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))
        )
    except OSError:
        return []
    found = []
    for place in places:
        try:
            manifest_found = manifests.read(place)
            found.append(StoredPolicy(folder=place, manifest=manifest_found, packaged=packaged))
        except ModelError as error:
            found.append(StoredPolicy(folder=place, packaged=packaged, problem=error))
    return sorted(found, key=lambda model: _order(model.id))


def _order(name: str) -> list[tuple[int, str]]:
    """Versions by number: 10 comes after 9."""
    parts = name.replace("@", ".").replace("-", ".").split(".")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _copy_policy(folder: Path, manifest_found: Manifest, place: Path) -> None:
    """All or nothing: a copy beside it becomes the folder in one step."""
    copy = Path(tempfile.mkdtemp(dir=place.parent, prefix=".installing-"))
    try:
        for name in (*manifest_found.files, manifests.NAME):
            shutil.copyfile(folder / name, copy / name)
            with (copy / name).open("rb") as stream:
                os.fsync(stream.fileno())
        copy.chmod(0o755)
        copy.rename(place)
    except BaseException:  # also KeyboardInterrupt: half a policy may not stay behind
        shutil.rmtree(copy, ignore_errors=True)
        raise
