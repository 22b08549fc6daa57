"""Where a Triton kernel is named besides its program: who launches it there knows nothing of new
parameters.

By words alone, so that nothing is run or imported: another file of the folder counts when it has
the kernel's name and that of its module. That is too often rather than too seldom, and costs but
the rewrites that change how a kernel is launched. Not covered: names that are put together at run
time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kernel_lsp import foreign
from kernel_lsp.checker import find_files
from kernel_lsp.files import MAX_SOURCE_BYTES

MAX_FILES = 20_000
"""Of a folder; in a larger one the rest is unknown."""


def named_elsewhere(
    kernel: str, text: str, program: str, path: Path, folder: Path | None
) -> str | None:
    """A place, in words; None where ``program``, sliced out of ``text``, is all that names the
    kernel."""
    if _uses(ast.parse(text), kernel) > _uses(ast.parse(program), kernel):
        return f"{path.name}, beside its launchers"
    if folder is None:
        return next(_naming(kernel, path, path.parent.glob("*.py")), None)
    found = find_files(folder)
    first = next(_naming(kernel, path, islice(found, MAX_FILES)), None)
    if first is None and next(found, None) is not None:
        return f"perhaps one of the files of {folder} after the first {MAX_FILES:,}"
    return first


def _uses(tree: ast.AST, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def _naming(kernel: str, own: Path, files: Iterator[Path]) -> Iterator[str]:
    module = own.parent.name if own.stem == "__init__" else own.stem
    names = [word.encode() for word in (kernel, module)]
    words = [re.compile(rb"\b%s\b" % re.escape(name)) for name in names]
    for file in files:
        try:
            text = foreign.read_bytes(file, most=MAX_SOURCE_BYTES)
        except OSError:  # who cannot read it cannot import it, and no person wrote so much
            continue
        # A search for bytes takes a tenth of one for words: few files come so far as to be asked
        # for more.
        named = all(name in text for name in names) and all(word.search(text) for word in words)
        if named and file.resolve() != own.resolve():
            yield file.name
