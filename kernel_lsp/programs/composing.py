"""Texts of a program with our edits, in the variants that its step is timed with.

    optimizer   what belongs to no target alone (program_edits.py)
    kernels     the same, and rewrites of targets by kernels of ours
    unmatched   of these rewrites those that torch.compile does not match, to go with it
    best        the same, and torch.compile of single targets where that is the fastest

Each may also be there with torch.compile of the outermost module, as a line of the program. A
rewrite of an installed package is a patch module of the workspace (kernel_lsp/patching): the
program runs with what it would get, one more line of its script included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel_lsp import analysis
from kernel_lsp.errors import RewriteError
from kernel_lsp.files import read_source
from kernel_lsp.patching import store
from kernel_lsp.patching.making import PatchError
from kernel_lsp.patching.store import Place
from kernel_lsp.programs import program_edits
from kernel_lsp.programs.shares import ShareName, Shares
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.records import Snapshot
from kernel_lsp.rewrite import edit

OPTIMIZER, KERNELS, BEST = "a fused optimizer", "our kernels", "the best of each target"
UNMATCHED = "our kernels that torch.compile does not match"
COMPILER = "compile"
"""torch.compile among the baselines of a verdict."""
AHEAD = 1.05
"""Times as fast as torch.compile's kernels on the device is a rewrite that goes with it. One that
is as fast keeps what it computes from being fused with what stands beside it: a norm at 1.02 made a
compiled step of 12 layers 1.12x to 1.3x slower (H200, 2026-11-28, 25 norms, 76 more launches)."""


@dataclass(frozen=True, kw_only=True)
class ProgramVariant:
    """The program with some of our edits."""

    name: str
    texts: Mapping[Path, str]
    """Files as they would be."""
    before: Mapping[Path, str]
    """The same files as they are; what is not there yet is left out."""
    composed: tuple[ProgramTarget, ...] = ()
    """Targets whose rewrites are in it."""
    compiled: str | None = None
    """Mode of torch.compile of the outermost module, as a line in the texts; None: there is
    none."""
    patches: Mapping[Path, Path] = field(default_factory=dict)
    """File of an installed package -> the patch module that has its rewrites."""
    notes: tuple[str, ...] = ()
    """Why a rewrite is not in it."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """What may be written, and where patches of what may not belong."""

    root: Path
    place: Place


def fuse_optimizers(texts: Mapping[Path, str], optimizers: frozenset[str]) -> ProgramVariant | None:
    """The program with its optimizers fused. ``texts``: the files of the workspace that it imports.
    None: there is nothing to change."""
    found = {
        path: program_edits.with_fused_optimizers(text, optimizers) for path, text in texts.items()
    }
    changed = {path: text for path, text in found.items() if text != texts[path]}
    before = {path: texts[path] for path in changed}
    return ProgramVariant(name=OPTIMIZER, texts=changed, before=before) if changed else None


def with_targets(
    targets: Sequence[ProgramTarget],
    begun: ProgramVariant | None,
    shares: Shares | None,
    workspace: Workspace,
) -> list[ProgramVariant]:
    """The variants "kernels" and "best" where they differ from what is known."""
    edited = [one for one in targets if one.edit is not None]
    own = [one for one in edited if not one.compiles]
    best = [one for one in edited if not (one.compiles and _lies_in_compiled(one, edited, shares))]
    found = [_compose(own, begun, KERNELS, workspace)] if own else []
    if any(one.compiles for one in best):
        found.append(_compose(best, begun, BEST, workspace))
    return found


def without_last(
    variant: ProgramVariant, begun: ProgramVariant | None, workspace: Workspace
) -> ProgramVariant | None:
    """The variant without the rewrite that was composed last; None: nothing is left of it."""
    if len(variant.composed) < 2:
        return None
    return _compose(variant.composed[:-1], begun, variant.name, workspace)


def unmatched(
    variant: ProgramVariant, begun: ProgramVariant | None, workspace: Workspace
) -> ProgramVariant | None:
    """The variant as it goes with torch.compile; itself where it matches none of its rewrites, and
    None where it matches all of them."""
    kept = [one for one in variant.composed if _is_ahead_of_compiler(one)]
    if len(kept) == len(variant.composed):
        return variant
    return _compose(kept, begun, UNMATCHED, workspace) if kept else None


def _is_ahead_of_compiler(one: ProgramTarget) -> bool:
    """Unless torch.compile's time is known, a rewrite is taken to be."""
    if one.proposal is None:
        return True
    judged = one.proposal.evaluation
    known = judged.device_speedups.get(COMPILER) or judged.speedups.get(COMPILER)
    return known is None or known.mid >= AHEAD


def compile_outermost(
    variant: ProgramVariant, root: ShareName, texts: Mapping[Path, str], mode: str | None
) -> ProgramVariant | None:
    """The variant with a line that compiles the outermost module, where one place constructs it;
    else None."""
    found = {}
    for path, text in {**texts, **variant.texts}.items():
        changed = program_edits.with_compiled(text, root[1], mode)
        if changed is not None:
            found[path] = changed
    if len(found) != 1:
        return None
    return replace(
        variant,
        name=f"{variant.name}, {mode_words(mode)}",
        texts={**variant.texts, **found},
        before={**{path: texts[path] for path in found if path in texts}, **variant.before},
        compiled=mode or "default",
    )


def mode_words(mode: str | None) -> str:
    """The mode of torch.compile in words; None is the default mode."""
    return "torch.compile" if mode in (None, "default") else f"torch.compile in mode {mode}"


def _lies_in_compiled(
    one: ProgramTarget, edited: Sequence[ProgramTarget], shares: Shares | None
) -> bool:
    """A compiled target needs no second compiler inside of it."""
    if shares is None:
        return False
    return any(other.compiles and shares.is_within(one.name, other.name) for other in edited)


def _compose(
    targets: Sequence[ProgramTarget], begun: ProgramVariant | None, name: str, workspace: Workspace
) -> ProgramVariant:
    """Every rewrite in its file; those whose target another edit has changed are left out."""
    texts = dict(begun.texts) if begun else {}
    before = dict(begun.before) if begun else {}
    kept = []
    for one in targets:
        original = before.setdefault(one.path, read_source(one.path).text)
        text = texts.get(one.path) or _patch(one, original, workspace)
        target = analysis.named_target(Snapshot(uri=one.path.as_uri(), text=text), one.qualname)
        if target is None or one.edit is None:
            continue
        try:
            texts[one.path] = edit.apply_edit(text, target.span, one.edit)
        except RewriteError:
            continue
        kept.append(one)
    before = {path: before[path] for path in texts}
    made = ProgramVariant(name=name, texts=texts, before=before, composed=tuple(kept))
    return _with_patches(made, workspace)


def _patch(one: ProgramTarget, original: str, workspace: Workspace) -> str:
    """What the file holds now: a library's with the patch module that the workspace has of it."""
    if store.is_own(one.path, workspace.root):
        return original
    return store.begin_patch(workspace.place, store.library_of(one.path, one.module), original)


def _with_patches(variant: ProgramVariant, workspace: Workspace) -> ProgramVariant:
    """Rewrites of installed packages as patch modules. Where no script of the workspace runs
    first, their texts stay, and are served to the runs."""
    installed = [path for path in variant.texts if not store.is_own(path, workspace.root)]
    for path in installed:
        try:
            variant = _with_patch(variant, path, workspace.place)
        except PatchError as error:
            variant = _without(variant, path, str(error))
    fresh = [path for path in variant.texts if path not in variant.before and path.is_file()]
    before = {**variant.before, **{path: read_source(path).text for path in fresh}}
    return replace(variant, before={path: before[path] for path in variant.texts if path in before})


def _with_patch(variant: ProgramVariant, path: Path, place: Place) -> ProgramVariant:
    """Raises PatchError."""
    module = next(one.module for one in variant.composed if one.path == path)
    library = store.library_of(path, module)
    texts = {
        **variant.texts,
        **store.files(place, library, variant.before[path], variant.texts[path]),
    }
    if place.script is not None:
        del texts[path]
        changed = variant.texts.get(place.script)  # by another edit
        if changed is not None:
            texts[place.script] = store.with_line(changed) or changed
    patches = {**variant.patches, path: place.file(library)}
    return replace(variant, texts=texts, patches=patches)


def _without(variant: ProgramVariant, path: Path, why: str) -> ProgramVariant:
    """The variant without the rewrites of one file."""
    return replace(
        variant,
        texts={other: text for other, text in variant.texts.items() if other != path},
        composed=tuple(one for one in variant.composed if one.path != path),
        notes=(*variant.notes, why),
    )
