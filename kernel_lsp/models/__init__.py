"""Trained policies on this machine: what they are, which one is used, and why one is not.

manifest.py  what a checkpoint says of itself, and whether that is true
store.py     the checkpoints that came with the package or were installed, and those in use: one
             for graphs, one for Triton kernels, or one for both

Checkpoints that come with the package lie in this folder, one folder each; a user's own in the
data folder."""

from kernel_lsp.models.manifest import GRAPH, KERNEL, TARGETS, HeldOut, Manifest, seal
from kernel_lsp.models.store import RULE, PolicyStore, StoredPolicy

__all__ = [
    "GRAPH",
    "KERNEL",
    "RULE",
    "TARGETS",
    "HeldOut",
    "Manifest",
    "PolicyStore",
    "StoredPolicy",
    "seal",
]
