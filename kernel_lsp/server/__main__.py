"""``python -m kernel_lsp.server``"""

from kernel_lsp.server.lifecycle import main

main()
