"""The real server, which waits long for the proof of a choice: a test says when it comes, not the
machine."""

from kernel_lsp.journal import tracker

tracker.CHOICE_TIMEOUT_S = 120.0

if __name__ == "__main__":
    from kernel_lsp.server import main

    main()
