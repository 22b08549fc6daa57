"""Accepted rewrites: kept beside the code with their evidence, and judged again whenever somebody
asks.

`store` writes and reads them, `reverting` makes the text without one, `judging` says how each does
now. Judging runs code through the gate, like every verdict; the rest is pure or touches files
alone."""

from kernel_lsp.guarding.judging import guard
from kernel_lsp.guarding.reverting import combine_patches, without
from kernel_lsp.guarding.store import FOLDER, accept, accept_file, acceptances

__all__ = ["FOLDER", "accept", "accept_file", "acceptances", "combine_patches", "guard", "without"]
