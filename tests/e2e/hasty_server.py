"""The real server, impatient: its pauses between two tries last a moment, and the machine counts
as quiet."""

from kernel_lsp.server import retries

retries.PAUSES_S = (0.2, 0.2, 0.2)
retries.quiet = lambda: True

if __name__ == "__main__":
    from kernel_lsp.server import main

    main()
