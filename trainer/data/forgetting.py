"""Contributors of a team who asked to be forgotten: their rows are no part of any later training.

Their rows of the journal go with `kernel-lsp team forget`; a data set that was exported before
still holds them. So every exported row names its contributor by a hash, and whoever trains leaves
out the rows of those whom the team's registry names as forgotten, and says how many. While the
registry is away, those count who were known at the last sync. Not covered: models that were trained
before."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp import config, membership
from kernel_lsp.teams import syncing

FORGOTTEN = "its contributor asked to be forgotten"


def contributor_of(folder: str) -> str | None:
    """Of a row of a team's journal, whose key of a folder is ``owner:folder``; None: of a journal
    of one user."""
    owner, colon, _ = folder.partition(":")
    return membership.hash_of(owner) if colon else None


def forgotten_contributors(data_dir: Path | None = None) -> frozenset[str]:
    """Hashes of those whom this user's team knows as forgotten; nobody without a team."""
    place = data_dir or Path(config.load(None)[0].data_dir)
    syncing.sync_if_due(place)
    return frozenset(membership.read_state(place).forgotten)
