"""Trained policies on this machine: what they are, which one is used, and why one is not.

manifest.py  what a checkpoint says of itself, and whether that is true
store.py     the checkpoints that came with the package or were installed, and the one in use

Checkpoints that come with the package lie in this folder, one folder each; a user's own in the data folder.
"""

from kernel_lsp.models.manifest import HeldOut, Manifest, seal
from kernel_lsp.models.store import RULE, Model, Store

__all__ = ["RULE", "HeldOut", "Manifest", "Model", "Store", "seal"]
