"""``kernel-lsp patches``: rewrites of installed packages that a workspace has accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from kernel_lsp import interpreter
from kernel_lsp.commands import console
from kernel_lsp.errors import KernelLspError
from kernel_lsp.guarding import patches
from kernel_lsp.patching import store
from kernel_lsp.patching.store import FoundPatch

app = typer.Typer(
    help="Rewrites of installed packages: modules of your workspace that are put into the package "
    "when the"
    " program calls them.",
    no_args_is_help=True,
)
FOLDER = typer.Option(Path(), "--folder", help="The workspace, or a folder of it.", file_okay=False)
AS_JSON = typer.Option(False, "--json", help="One JSON object on standard output.")


@app.command("list")
def list_patches(folder: Path = FOLDER, as_json: bool = AS_JSON) -> None:
    """Every patch module: what it replaces, of which package, and whether that version is
    installed."""
    root = _root(folder)
    settings = console.settings(root)
    python = interpreter.find(root, settings.python).path
    entries = [
        _patch_json(one, root, python, Path(settings.data_dir)) for one in store.find_patches(root)
    ]
    if as_json:
        console.print_json(patches=entries)
        return
    for one in entries:
        state = "" if one["unpatched"] is None else f": {one['unpatched']}"
        line = f"{one['library']}: {', '.join(one['targets'])}  ({one['path']}){state}"
        console.out.print(line, markup=False, soft_wrap=True)
    if not entries:
        console.err.print(f"no patches below {root}", markup=False, soft_wrap=True)


def _patch_json(one: FoundPatch, root: Path, python: str, data_dir: Path) -> dict[str, Any]:
    try:
        now = patches.find_patched(one, python, data_dir)
    except (KernelLspError, OSError, SyntaxError, UnicodeDecodeError) as error:
        now = str(error)
    return {
        "path": one.path.relative_to(root).as_posix(),
        "module": one.patch.library.module,
        "library": one.patch.library.words,
        "package": one.patch.library.package,
        "version": one.patch.library.version,
        "targets": list(one.patch.names),
        "unpatched": now if isinstance(now, str) else None,
    }


@app.command()
def remove(
    names: list[str] = typer.Argument(
        None, metavar="[MODULE[::TARGET]]…", help="As `patches list` shows them; without any: all."
    ),
    folder: Path = FOLDER,
    as_json: bool = AS_JSON,
) -> None:
    """Remove patches, what guard kept of them, and with the last one the line of the program.

    Exit code 0: removed, or there was none; 2: there is no such patch.
    """
    root = _root(folder)
    changed: list[Path] = []
    try:
        for one, targets in _choose(store.find_patches(root), names or [], root):
            changed += patches.remove(root, one, targets)
    except (KernelLspError, OSError, UnicodeEncodeError) as error:
        console.fail(KernelLspError(f"cannot remove patches: {error}", "remove the file by hand"))
    if as_json:
        console.print_json(changed=[path.relative_to(root).as_posix() for path in changed])
        return
    for path in changed:
        done = "changed" if path.exists() else "removed"
        console.out.print(f"{done} {path.relative_to(root)}", markup=False, soft_wrap=True)
    if not changed:
        console.err.print(f"no patches below {root}", markup=False, soft_wrap=True)


def _choose(
    found: list[FoundPatch], names: list[str], root: Path
) -> Iterator[tuple[FoundPatch, set[str]]]:
    """Patch modules, each with the targets that are asked for."""
    asked: dict[str, set[str]] = {}
    for name in names:
        module, _, target = name.partition("::")
        asked.setdefault(module, set()).update({target} if target else ())
    known = {one.patch.library.module: set(one.patch.names) for one in found}
    for module, targets in asked.items():
        if module not in known or targets - known[module]:
            word = module if module not in known else f"{module}::{min(targets - known[module])}"
            has = ", ".join(f"{one}::{name}" for one in known for name in sorted(known[one]))
            console.fail(
                KernelLspError(f"no patch of {word} below {root}", f"there are: {has or 'none'}")
            )
    for one in found:
        if not names or one.patch.library.module in asked:
            yield one, asked.get(one.patch.library.module) or set(one.patch.names)


def _root(folder: Path) -> Path:
    return console.workspace_of(folder.absolute() / "here")
