"""What a skill is shown on: every Model of the files that are named, or every Triton kernel that
they launch.

Not covered: which of them can be captured and timed (that shows when they are opened).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import analysis
from kernel_lsp.checker.discovery import find_files
from kernel_lsp.errors import CaptureError, EvaluationError, KernelLspError
from kernel_lsp.files import read_source
from kernel_lsp.pipeline.prepare import prepare
from kernel_lsp.records import Job, Outcome, Snapshot, TargetKind

NO_TASKS = (
    "name a folder or files with Model and get_inputs, as `kernel-lsp bench` takes them, or "
    "with Triton"
    " kernels and their launchers, with --tasks"
)
MODEL = "Model"
MAX_FILES, MAX_TARGETS = 500, 32
"""Of a workspace that are looked at: a verification needs three to six."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationTask:
    """One target that a skill is shown on."""

    path: Path
    qualname: str = MODEL
    folder: str | None = None
    """The workspace whose recordings say what it is called with; None: its file says it."""
    kernel: bool = False
    """A Triton kernel."""
    stamp: str = ""
    """Fingerprint, for targets of a workspace: they change."""

    @property
    def name(self) -> str:
        """The file's name with its suffix, and the target where it is not the file's Model."""
        return self.path.name if self.qualname == MODEL else f"{self.path.name}::{self.qualname}"

    @property
    def title(self) -> str:
        """The file's name, with the target where it is not the file's Model."""
        return self.path.stem if self.qualname == MODEL else f"{self.path.stem}::{self.qualname}"

    def job(self, device: str) -> Job:
        """The job that looks at the task on that device. Raises CaptureError when the file cannot
        be read."""
        # As in the background no baseline is compiled on suspicion: everything here is compared
        # with eager.
        return Job(
            text=_text(self.path),
            path=str(self.path),
            qualname=self.qualname,
            folder=self.folder,
            device=device,
            background=True,
        )


def tasks_of(places: Sequence[Path]) -> tuple[Path, ...]:
    """Files with class Model or with Triton kernels, of folders all below. Raises EvaluationError
    when there is none."""
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise EvaluationError(f"{place} does not exist", NO_TASKS)
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    texts = {path: path.read_text(errors="replace") for path in found}
    tasks = tuple(
        path for path, text in texts.items() if "class Model" in text or "triton.jit" in text
    )
    if not tasks:
        where = f" in {', '.join(map(str, places))}" if places else ""
        raise EvaluationError(f"no task to verify on{where or ' was named'}", NO_TASKS)
    return tasks


def targets(files: Sequence[Path], scope: str) -> list[ValidationTask]:
    """What a skill of this scope is shown on: of each file its Model, or every kernel that it
    launches."""
    if scope != "triton":
        return [
            ValidationTask(path=path)
            for path in files
            if "class Model" in path.read_text(errors="replace")
        ]
    return [
        ValidationTask(path=path, qualname=target.qualname, kernel=True)
        for path in files
        for target in analysis.analyze(
            Snapshot(uri=path.absolute().as_uri(), text=_text(path))
        ).targets
        if target.kind is TargetKind.TRITON_KERNEL and target.launchers
    ]


def workspace_targets(folder: Path, data_dir: Path) -> list[ValidationTask]:
    """What of a workspace can be judged: targets that say, or were recorded, what they are called
    with. Files that cannot be read are passed over."""
    found: list[ValidationTask] = []
    for path in itertools.islice(find_files(folder), MAX_FILES):
        try:
            text = _text(path)
        except CaptureError:
            continue
        snapshot = Snapshot(uri=path.absolute().as_uri(), text=text)
        for target in analysis.analyze(snapshot).targets:
            task = ValidationTask(
                path=path,
                qualname=target.qualname,
                folder=str(folder),
                kernel=target.kind is TargetKind.TRITON_KERNEL,
                stamp=target.fingerprint,
            )
            with contextlib.suppress(KernelLspError):
                if not isinstance(prepare(task.job("auto"), str(data_dir)), Outcome):
                    found.append(task)
            if len(found) == MAX_TARGETS:
                return found
    return found


def mix_families(tasks: Sequence[ValidationTask], seed: str) -> list[ValidationTask]:
    """Families mixed, always in the same order for one skill: a run that goes on meets the same
    tasks."""
    return sorted(
        tasks, key=lambda task: hashlib.sha256(f"{seed}\0{task.name}".encode()).hexdigest()
    )


def _text(path: Path) -> str:
    try:
        return read_source(path).text
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path} cannot be read: {error}") from error
