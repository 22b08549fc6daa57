"""Where learned skills lie, and how a draft becomes a SKILL.md.

A snapshot is a folder ``library/snapshots/<number>`` in the user's data folder that nobody changes
any more: a folder per skill in it, and what was retired below ``_retired``. The newest one counts.
Who makes them is kernel_lsp/library; this module is what reading needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from kernel_lsp.records import SkillDraft
from kernel_lsp.skillbook import conditions

FOLDER = "library"
SNAPSHOTS = "snapshots"
MANIFEST = "manifest.json"
_NUMBER = re.compile(r"\d{6}")


def snapshots(data_dir: Path) -> list[Path]:
    """Folders of all versions of the learned library, the oldest first; those without a manifest
    are left out."""
    place = data_dir / FOLDER / SNAPSHOTS
    try:
        found = [path for path in place.iterdir() if _NUMBER.fullmatch(path.name)]
    except OSError:  # none was made yet, or nobody may look: then nothing is learned
        return []
    return sorted(path for path in found if (path / MANIFEST).is_file())


def newest(data_dir: Path) -> Path | None:
    """The folder of the newest version that is whole; None where there is none."""
    return next((path for path in reversed(snapshots(data_dir)) if _is_whole(path)), None)


def _is_whole(snapshot: Path) -> bool:
    try:
        return isinstance(json.loads((snapshot / MANIFEST).read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def text_of(draft: SkillDraft, version: int = 1) -> str:
    """The whole SKILL.md."""
    metadata = {"scope": draft.scope, "tags": list(draft.tags), "version": version}
    metadata |= conditions.as_data(draft.requires, draft.recipe)
    front = {"name": draft.name, "description": draft.description, "metadata": metadata}
    text = yaml.safe_dump(
        front, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return f"---\n{text}---\n\n{draft.content.strip()}\n"
