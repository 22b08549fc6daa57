"""Run as a program, by its path: the launcher (launching.py), seeing nothing but this package.

Packages are made here, empty, instead of imported: what others need of them would take longer to
import than confining takes, and sys.path stays the standard library's."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Run launching.py without importing the package around it, which would read files that are not
    needed."""
    for name, folder in (("kernel_lsp", os.path.dirname(HERE)), ("kernel_lsp.confinement", HERE)):
        package = sys.modules[name] = type(sys)(name)
        package.__path__ = [folder]
    from kernel_lsp.confinement import launching

    launching.main()


if __name__ == "__main__":
    main()
