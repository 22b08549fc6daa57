"""Where the weights of a model of our own are: in a folder, or under a public id that may be
downloaded."""

from __future__ import annotations

from pathlib import Path


def local(model: str) -> str | None:
    """The absolute path of a model that is a folder; None for a public id."""
    folder = Path(model).expanduser()
    return str(folder.absolute()) if folder.is_dir() else None


def served_name(model: str) -> str:
    """How requests and evidence call it: an id, or the folder's last part."""
    folder = local(model)
    return Path(folder).name if folder else model
