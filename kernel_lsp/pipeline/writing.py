"""What a model wrote becomes an edit of the target: text work alone, nothing runs.

A model sees the program with one *region* between two marker comments (`mark_region`): the target,
with the imports and definitions that a rewrite has brought along. It answers with a module text
that replaces the region, or with edit blocks against it (`edit_of`). Either way only the target,
new imports and new definitions can come of it; what stands outside keeps its bytes, and get_inputs
is not even shown. Every refusal says what to do, because the model reads it. Not covered: what a
module text may hold (module_text.py), and whether the code is right, fast or hostile (the gate).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from kernel_lsp.agents import blocks
from kernel_lsp.agents.prompts import MAX_CODE, without_inputs
from kernel_lsp.errors import RewriteError
from kernel_lsp.pipeline import module_text
from kernel_lsp.pipeline.module_text import definition_of, lines_of
from kernel_lsp.records import Program, SourceEdit

BEGINS, ENDS = "# --- rewrite begins ---", "# --- rewrite ends ---"
MAX_REGION = 100_000
"""Characters of a region after its edits."""
_NEW_LINES = re.compile(r"\r\n?")
_DIVIDER = re.compile(r"={5,9}")


def mark_region(program: Program, edit: SourceEdit | None) -> str:
    """The program as a model sees it, its region as ``edit`` has left it (None: the original)."""
    text = without_inputs(program.source)
    node = definition_of(text, program.entry)
    inside = [BEGINS, region(program, edit), ENDS]
    lines = text.rstrip("\n").split("\n")
    if node.col_offset:  # inside a class or an if: shown apart, because a region starts its lines
        return "\n".join([*lines, "", f"# {program.entry}:", *inside, ""])
    first, last = lines_of(node)
    return "\n".join([*lines[: first - 1], *inside, *lines[last:], ""])


def region(program: Program, edit: SourceEdit | None) -> str:
    """What stands between the markers: imports, definitions and the target, all from column 0."""
    if edit is None:
        return _original(program)
    imports = module_text.fresh_imports(edit.imports, program)
    parts = ["\n".join(imports), edit.definitions.strip("\n"), edit.target.strip("\n")]
    return "\n\n\n".join(part for part in parts if part)


def edit_of(code: str, program: Program, parent: SourceEdit | None) -> SourceEdit:
    """What ``code``, a module text or edit blocks against the parent's region, makes of the target.

    Raises RewriteError.
    """
    if len(code) > MAX_CODE:
        raise RewriteError(
            f"the code has {len(code)} characters",
            f"at most {MAX_CODE}: send edit blocks, or write less",
        )
    text = _without_markers(_NEW_LINES.sub("\n", code))
    if blocks.edits(text):
        text = _apply_blocks(region(program, parent), text)
    edit = module_text.edit_of(text, program)
    if parent and module_text.same(region(program, edit), region(program, parent)):
        raise RewriteError("the code is what it started from", "change what its calls compute")
    return edit


def _original(program: Program) -> str:
    """The target's own lines, from column 0."""
    node = definition_of(program.source, program.entry)
    first, last = lines_of(node)
    lines = program.source.split("\n")[first - 1 : last]
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    return "\n".join(line.removeprefix(indent) for line in lines)


def _without_markers(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if line.strip() not in (BEGINS, ENDS))


# --- edit blocks ---------------------------------------------------------------------------


def _apply_blocks(text: str, code: str) -> str:
    """The region after all blocks, one after the other."""
    for number, block in enumerate(blocks.edits(code), 1):
        where = f"edit {number}"
        if not block.complete:
            raise RewriteError(f"{where} has no end", "close it with >>>>>>> REPLACE")
        old, new = _sides(block.text, where)
        text = _replace_lines(text, old, new, where)
        if len(text) > MAX_REGION:
            raise RewriteError(f"{where} makes more than {MAX_REGION} characters", "write less")
    return text


def _sides(block: str, where: str) -> tuple[list[str], list[str]]:
    lines = block.split("\n")[1:-1]
    middle = next((i for i, line in enumerate(lines) if _DIVIDER.fullmatch(line.rstrip())), None)
    if middle is None:
        raise RewriteError(
            f"{where} has no ======= between old and new lines", "put it on its own line"
        )
    old, new = lines[:middle], lines[middle + 1 :]
    if not any(line.strip() for line in old):
        raise RewriteError(
            f"{where} has no old lines", "copy the lines that it replaces, or adds to"
        )
    return old, new


def _replace_lines(text: str, old: list[str], new: list[str], where: str) -> str:
    """Whole lines; blanks at their ends do not count."""
    lines, wanted = text.split("\n"), [line.rstrip() for line in old]
    have = [line.rstrip() for line in lines]
    count = len(wanted)
    found = [i for i in range(len(have) - count + 1) if have[i : i + count] == wanted]
    if len(found) > 1:
        raise RewriteError(
            f"the old lines of {where} occur {len(found)} times",
            "add lines around them until they are unique",
        )
    if not found:
        raise RewriteError(
            f"the old lines of {where} do not occur between the markers",
            f"copy them with their indentation{_closest(have, wanted)}",
        )
    return "\n".join([*lines[: found[0]], *new, *lines[found[0] + count :]])


def _closest(have: Sequence[str], wanted: Sequence[str]) -> str:
    """Where a block that does not fit was probably meant to."""
    for line in wanted:
        same = [one for one in have if one.strip() == line.strip()] if line.strip() else []
        near = (
            same or difflib.get_close_matches(line, have, n=1, cutoff=0.6) if line.strip() else []
        )
        if near and near[0] != line:
            return f"; there is {near[0]!r}, not {line!r}"
    return ""
