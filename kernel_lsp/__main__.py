"""``python -m kernel_lsp`` is ``kernel-lsp``."""

from kernel_lsp.cli import main

main()
