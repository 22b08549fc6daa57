"""Edits of a measured variant as a person can look at them one by one: which pieces of which files
belong together.

Applied all together they give exactly the texts that were measured: pieces are the differences of
the texts, and each is put to the rewrites that change that place. An import that two rewrites need
makes one edit of both. Pure but for finding targets in the texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernel_lsp import analysis
from kernel_lsp.errors import RewriteError
from kernel_lsp.patching import store
from kernel_lsp.positions import split_lines
from kernel_lsp.programs.composing import ProgramVariant
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.records import FileChange, ProgramEdit, ProgramRewrite, Snapshot
from kernel_lsp.rewrite import edit

PATCHES = "rewrites of installed packages, as patches of this workspace"
FUSED, COMPILED, OTHER = "a fused optimizer", "torch.compile of the model", "another change"


def edits_of(variant: ProgramVariant, root: Path) -> tuple[ProgramEdit, ...]:
    """A variant's edits of the workspace's own files, in the order of its texts."""
    found: dict[str, list[FileChange]] = {}
    for path, after in variant.texts.items():
        if not store.is_own(path, root):
            continue
        before = variant.before.get(path)
        if before is None:
            change = FileChange(path=str(path), start=0, end=0, new=after)
            found.setdefault(PATCHES, []).append(change)
            continue
        mine = [one for one in variant.composed if one.path == path]
        places = {_label(one): _places(one, before) for one in mine}
        for change in _differences(path, before, after):
            found.setdefault(_owner(change, before, places), []).append(change)
    return tuple(
        ProgramEdit(label=label, changes=tuple(changes)) for label, changes in found.items()
    )


def rewrites_of(variant: ProgramVariant, root: Path) -> tuple[ProgramRewrite, ...]:
    """The judged rewrites among the edits that can be seen in the workspace's own files."""
    found = []
    for one in variant.composed:
        text, proposal = variant.before.get(one.path), one.proposal
        if proposal is None or text is None or not store.is_own(one.path, root):
            continue
        before = analysis.fingerprint_of(text, one.qualname)
        after = analysis.fingerprint_of(variant.texts.get(one.path, text), one.qualname)
        if not before or not after or before == after:
            continue
        speedup = proposal.evaluation.speedup
        rewrite = ProgramRewrite(
            proposal=proposal.id,
            path=str(one.path),
            qualname=one.qualname,
            before=before,
            after=after,
            skills=tuple(dict.fromkeys(step.skill for step in proposal.candidate.steps)),
            speedup=speedup.mid if speedup else None,
        )
        found.append(rewrite)
    return tuple(found)


def _label(one: ProgramTarget) -> str:
    summary = one.proposal.candidate.summary if one.proposal is not None else ""
    return f"{one.qualname}: {summary}" if summary else one.qualname


def _places(one: ProgramTarget, before: str) -> list[tuple[int, int]]:
    """Where a rewrite changes the text by itself."""
    target = analysis.named_target(Snapshot(uri=one.path.as_uri(), text=before), one.qualname)
    if target is None or one.edit is None:
        return []
    try:
        changes = edit.changes(before, target.span, one.edit)
    except RewriteError:
        return []
    return [(target.span.start, target.span.end), *((c.start, c.end) for c in changes)]


def _differences(path: Path, before: str, after: str) -> Iterator[FileChange]:
    """The smallest replacements of whole lines."""
    old, new = split_lines(before), split_lines(after)
    starts = [0]
    for line in old:
        starts.append(starts[-1] + len(line))
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            text = "".join(new[c:d])
            yield FileChange(path=str(path), start=starts[a], end=starts[b], new=text)


def _owner(change: FileChange, before: str, places: dict[str, list[tuple[int, int]]]) -> str:
    """What an edit with this change is called: by the rewrites that change this place."""
    owners = [
        label
        for label, spans in places.items()
        if any(start <= change.end and change.start <= end for start, end in spans)
    ]
    if owners:
        return " and ".join(owners)
    new = _added(before[change.start : change.end], change.new)
    if store.PACKAGE in new:
        return PATCHES
    kinds = {"fused=True": FUSED, ".compile(": COMPILED}
    return " and ".join(name for word, name in kinds.items() if word in new) or OTHER


def _added(old: str, new: str) -> str:
    known: Sequence[str] = split_lines(old)
    return "".join(line for line in split_lines(new) if line not in known)
