"""What a checkpoint says of itself: manifest.json, written last, so that a folder with one is
complete.

`seal` writes it, `read` and `verify` believe nothing of it that the files do not show. A policy
that did worse than the rule on held-out tasks is refused with its numbers. Not covered: whether
these numbers are true; whoever trains measures them (trainer/evaluate.py)."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_lsp import foreign, signatures, wire
from kernel_lsp.agents.backbones.small import shape
from kernel_lsp.agents.prompt_encoding import VERSION, tokenizer
from kernel_lsp.errors import ModelError
from kernel_lsp.files import is_plain_name, replace_file

if TYPE_CHECKING:
    from pydantic import TypeAdapter

GRAPH, KERNEL = TARGETS = ("graph", "kernel")
"""Kinds of targets: a graph of PyTorch's, a Triton kernel."""
NAME = "manifest.json"
SCHEMA = 1
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")
MAX_BYTES = 60_000_000
"""Of a policy's files together: what may go into the wheel."""
MAX_OWN_BYTES = 1_000_000
"""Of the manifest itself: it is read before anything is known of it."""
RETRAIN = "train it with this version's vocabulary (trainer/), or take another"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """How the policy did on tasks of structural families that it never saw, beside the rule."""

    metric: str
    """e.g. ``first/best``: geometric mean of the first suggestion's speedup over the best found."""
    tasks: int
    value: float
    low: float
    """Confidence bounds of ``value``."""
    high: float
    rule: float
    """The rule's on the same tasks."""
    device: str
    suite: str = ""
    """Hash of the tasks: only numbers of the same suite are compared."""

    @property
    def clearly_better(self) -> bool:
        """Whether it does better than the rule, by more than chance: what is used without anybody's
        asking."""
        return self.low > self.rule

    def __str__(self) -> str:
        between = f"{self.low:.3f} to {self.high:.3f}"
        return (
            f"{self.metric} {self.value:.3f} ({between}), the rule {self.rule:.3f},"
            f" on {self.tasks} held-out tasks ({self.device})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    name: str
    version: str
    vocabulary: str
    """`compact.VERSION` that it was trained with."""
    files: dict[str, str]
    """Name -> SHA-256."""
    held_out: HeldOut | None = None
    devices: tuple[str, ...] = ("cuda", "cpu")
    """Whose rewards it has learned from: ``cpu``, ``cuda``, or GPUs of one architecture
    (``cuda:sm_90``); elsewhere the rule plans."""
    margin: float = 0.0
    """Of log-probability, by which it must be surer than of the rule's word to leave the rule's
    plan."""
    weighs: bool = False
    """It has learned to weigh plans (agents/prompt_encoding/value_model.py), and is asked that
    about the rule's."""
    targets: tuple[str, ...] = (GRAPH,)
    """Kinds of targets that it plans; of others another policy or the rule does."""
    unasked: bool = True
    """The package may use it by itself, where its check is clearly better than the rule's. False:
    only who chooses it gets it, since first suggestions are not all that a search is worth."""
    created: str = ""
    notes: str = ""
    """Data, steps, limits: the model card in a few lines."""
    schema: int = SCHEMA

    @property
    def id(self) -> str:
        """`name@version`, as commands and settings name a policy."""
        return f"{self.name}@{self.version}"

    def knows(self, device: str, capability: str | None = None) -> bool:
        """Whether the policy was trained for that device. ``device``: cuda or cpu. ``capability``:
        of the GPU, ``sm_90``; None: unknown."""
        return device in self.devices or f"{device}:{capability}" in self.devices

    @property
    def digest(self) -> str:
        """One hash of all files: two checkpoints with the same one say the same."""
        return hashlib.sha256(wire.dumps(sorted(self.files.items())).encode()).hexdigest()[:12]


def seal(
    folder: Path,
    *,
    name: str,
    version: str,
    held_out: HeldOut | None,
    devices: tuple[str, ...] = ("cuda", "cpu"),
    margin: float = 0.0,
    weighs: bool = False,
    targets: tuple[str, ...] = (GRAPH,),
    unasked: bool = True,
    created: str = "",
    notes: str = "",
) -> Manifest:
    """Finish a checkpoint: hash every file that is there and write the manifest. Raises OSError."""
    files = sorted(
        file
        for file in folder.iterdir()
        if file.is_file() and file.name != NAME and not file.name.startswith(signatures.STATEMENT)
    )
    made = Manifest(
        name=name,
        version=version,
        vocabulary=VERSION,
        files={file.name: sha256(file) for file in files},
        held_out=held_out,
        devices=devices,
        margin=margin,
        weighs=weighs,
        targets=targets,
        unasked=unasked,
        created=created,
        notes=notes,
    )
    replace_file(folder / NAME, (json.dumps(wire.to_json(made), indent=1) + "\n").encode())
    for file in (*files, folder / NAME):
        # What a trainer has written for itself, everybody reads once it is in a package.
        file.chmod(0o644)
    return made


def read(folder: Path) -> Manifest:
    """What the folder says. Raises ModelError for one that nothing can be made of."""
    try:
        made = _reader().validate_json(
            foreign.read_bytes(folder / NAME, most=MAX_OWN_BYTES), strict=True
        )
    except FileNotFoundError:
        cause = f"{folder} holds no finished policy: it has no {NAME}"
        raise ModelError(cause, "finish it (trainer: save), or name another folder") from None
    except (OSError, ValueError) as error:  # pydantic's is a ValueError
        raise ModelError(
            f"{folder / NAME} cannot be read: {error}", "fetch or train it again"
        ) from None
    if made.schema != SCHEMA:
        raise ModelError(
            f"{folder / NAME} has schema {made.schema}, this version reads {SCHEMA}", RETRAIN
        )
    if not _plain(made.name) or not _plain(made.version):
        cause = f"{folder / NAME}: name and version must be of a-z, 0-9, . and -"
        raise ModelError(cause, "rename it")
    wrong = [file for file in made.files if not is_plain_name(file) or file == NAME]
    if wrong:
        cause = f"{folder / NAME} names the file {wrong[0][:100]!r}, which is not one beside it"
        raise ModelError(cause, "take the policy from whoever made it, not from here")
    return made


@functools.cache
def _reader() -> TypeAdapter[Manifest]:
    from pydantic import TypeAdapter  # 0.1 s, which nobody pays who has no policy to read

    return TypeAdapter(Manifest)


def _changed_files(folder: Path, manifest: Manifest) -> list[str]:
    """Names of files that are not what they were when the model was made. Raises ModelError where
    one cannot be used, and OSError."""
    for name in (*manifest.files, NAME):
        if not stat.S_ISREG((folder / name).stat().st_mode):  # a pipe or a device has no end
            raise ModelError(f"{manifest.id}: {name} is no regular file", "fetch it again")
    size = sum((folder / name).stat().st_size for name in manifest.files)
    if size > MAX_BYTES:
        raise ModelError(
            f"{manifest.id} has {size / 1e6:.0f} MB, at most {MAX_BYTES / 1e6:.0f} are used"
        )
    return [name for name, digest in manifest.files.items() if sha256(folder / name) != digest]


def verify(folder: Path, manifest: Manifest) -> None:
    """The files are there, unchanged, and of this version. Raises ModelError."""
    if manifest.vocabulary != VERSION:
        raise ModelError(
            f"{manifest.id} speaks {manifest.vocabulary}, this version {VERSION}", RETRAIN
        )
    if not set(manifest.targets) & set(TARGETS):
        planned = ", ".join(manifest.targets) or "nothing"
        raise ModelError(
            f"{manifest.id} plans {planned}, this version {' and '.join(TARGETS)}", RETRAIN
        )
    missing = [name for name in NEEDED if name not in manifest.files]
    if missing:
        raise ModelError(f"{manifest.id} has no {', '.join(missing)}", "fetch or train it again")
    try:
        changed = _changed_files(folder, manifest)
        data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        shape.read(folder)
    except (OSError, ValueError) as error:  # shape.Unfit is a ValueError
        raise ModelError(
            f"{manifest.id} cannot be used: {error}", "fetch or train it again"
        ) from None
    if changed:
        raise ModelError(
            f"{manifest.id}: {', '.join(changed)} changed since it was made", "fetch it again"
        )
    if not tokenizer.belongs(data):
        raise ModelError(
            f"{manifest.id} has another tokenizer than this version's vocabulary", RETRAIN
        )


def refuse_worse(manifest: Manifest, used: Manifest | None) -> None:
    """Raises ModelError with the numbers when the rule or the policy in use did better on held-out
    tasks."""
    mine, theirs = manifest.held_out, used.held_out if used else None
    if mine is None:
        raise ModelError(
            f"{manifest.id} was never checked on held-out tasks", "evaluate it (trainer/)"
        )
    numbers = (mine.value, mine.low, mine.high, mine.rule)
    if not all(math.isfinite(number) for number in numbers) or mine.tasks < 1:
        raise ModelError(
            f"{manifest.id}: its held-out check is no result: {mine}", "evaluate it again"
        )
    if mine.value <= mine.rule:
        raise ModelError(f"{manifest.id} is no better than the rule: {mine}", "train it further")
    same = theirs and (theirs.metric, theirs.suite, theirs.device) == (
        mine.metric,
        mine.suite,
        mine.device,
    )
    if theirs and used and same and mine.value < theirs.value:
        raise ModelError(
            f"{manifest.id} is worse than {used.id}, which is in use: {mine.value:.3f}"
            f" ({mine.low:.3f} to {mine.high:.3f}) against {theirs.value:.3f}"
            f" ({theirs.low:.3f} to {theirs.high:.3f}) on {mine.tasks} held-out tasks",
            "train it further",
        )


def sha256(file: Path) -> str:
    """The file's hash, 64 digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _plain(name: str) -> bool:
    """Fit to be a folder's name."""
    return (
        bool(name)
        and name[0].isalnum()
        and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    )
