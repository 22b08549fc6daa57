"""What `kernel-lsp optimize -- python train.py` offers for a whole program, for editors too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """Replace a piece of a file; offsets into the text that was measured."""

    path: str
    """Absolute."""
    start: int
    end: int
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramEdit:
    """Changes that belong together."""

    label: str
    """``MLP: fuse gelu and mul``."""
    changes: tuple[FileChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRewrite:
    """A judged rewrite among the edits, by which the journal knows it again."""

    proposal: str
    path: str
    """Absolute."""
    qualname: str
    before: str
    """Fingerprint of the target in the text that was measured."""
    after: str
    """The same with all edits applied."""
    skills: tuple[str, ...] = ()
    speedup: float | None = None
    """Of the target by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramOffer:
    """Edits with which a program's own step was measured, all together."""

    root: str
    """The workspace."""
    command: tuple[str, ...]
    created: str
    gain: str
    """``412 ms -> 371 ms per step, 1.11x (1.10–1.12) against torch.compile``."""
    edits: tuple[ProgramEdit, ...]
    before: Mapping[str, str] = field(default_factory=dict)
    """Path -> SHA-256 of the text that was measured; a file that is not in it is new."""
    rewrites: tuple[ProgramRewrite, ...] = ()
    """Of the workspace's own files. What becomes of a patch of a package, guard knows."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Files that change, in the order of the edits."""
        return tuple(dict.fromkeys(c.path for edit in self.edits for c in edit.changes))
