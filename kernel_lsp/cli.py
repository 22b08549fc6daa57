"""The command line: names and order of the commands. What each does is in ``kernel_lsp/commands``.

``serve`` is imported first and alone when it is asked for, because an editor waits for it: the
other commands load typer and rich, most of them SQLAlchemy too, which the server process must not
carry."""

from __future__ import annotations

import sys

EDITOR_FLAGS = ("serve", "--stdio", "--tcp")


def main() -> None:
    """Runs the command of the command line; an editor's flags start the server without the others'
    imports."""
    arguments = sys.argv[1:]
    if arguments[:1] and arguments[0].startswith(EDITOR_FLAGS) and "--help" not in arguments:
        from kernel_lsp.server import main as serve

        serve(arguments[1:] if arguments[0] == "serve" else arguments)
        return
    from kernel_lsp.commands import app

    app.main(arguments)


if __name__ == "__main__":
    main()
