"""The rewrite.py of skills, imported: what is somebody's code never hides the others when it
fails."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from kernel_lsp.records import Skill


def load_skills(skills: Sequence[Skill], scope: str) -> tuple[dict[str, ModuleType], list[str]]:
    """Rewrites of the executable skills of one scope by name, and a note for each that cannot be
    loaded."""
    found: dict[str, ModuleType] = {}
    notes = []
    for skill in skills:
        if skill.executable and skill.scope == scope:
            try:
                found[skill.name] = load_rewrite(Path(skill.path))
            except Exception as error:  # a skill is somebody's code; the note names it
                notes.append(
                    f"skill {skill.name} cannot be loaded: {type(error).__name__}: {error}"
                )
    return found, notes


def load_rewrite(place: Path) -> ModuleType:
    """Import a skill folder's rewrite.py, or the file itself where one is named, under a name of
    its own."""
    name = f"kernel_lsp_skill_{place.stem.replace('-', '_')}"
    path = place if place.suffix == ".py" else place / "rewrite.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module
