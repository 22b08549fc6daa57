"""Where a recorded module cannot be one graph, and which runs of its statements can.

`survey(program, workload, device) -> Surveyed`. PyTorch's own bytecode capture runs the recorded
call (with drawn numbers, on the CPU) and says where it breaks, each place once; the runs of
``forward``'s statements between these places are captured as `capture/tracing.py` does it, and
those that it takes are the parts. What that refuses and the bytecode capture bears (an attribute
that is set) is a break like the others.

Not covered: breaks that only other values or other shapes would show.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import logging
import os
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernel_lsp import parsing
from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Break, Part, Program, Workload
from kernel_lsp.rewrite.capture.live import numbers_that_vary, open_with_memory
from kernel_lsp.rewrite.capture.places import is_program
from kernel_lsp.rewrite.capture.results import ResultError
from kernel_lsp.rewrite.capture.tracing import capture
from kernel_lsp.rewrite.client import FoundPart, Surveyed
from kernel_lsp.rewrite.outlining import giving, halves, outline, readers, runs, statement_lines

MAX_TRIALS = 24
"""Runs of statements that are captured for one module."""
MIN_OPERATIONS = 2
"""Of a part: one operation alone leaves nothing to fuse."""
MEANINGS = (
    (
        ("generic_jump", "data-dependent branching", "data dependent branching"),
        "decides by tensor values",
        "choose by torch.where, or by torch.cond where a branch is expensive",
    ),
    (
        ("tensor.item", ".item()", "_local_scalar_dense", "capture_scalar_outputs"),
        "moves a value to the host",
        "keep it a tensor: operations take tensors of one element",
    ),
    (
        ("tolist", ".numpy()", "asarray"),
        "moves values to the host",
        "keep them a tensor, or compute them outside of forward",
    ),
    (
        ("dynamic shape operator", "nonzero", "masked_select", "unique"),
        "makes a tensor whose size depends on values",
        "keep every element, and give those that do not count no weight: torch.where(condition, "
        "value, 0)",
    ),
    (("`print`", "variable(print)"), "prints", "print after the step, or while debugging alone"),
    (("logg",), "writes to a log", "log after the step"),
    (("profiler",), "opens a range of a profiler", "keep it out of what runs every step"),
    (("packed", "pack_padded"), "packs sequences by their lengths", "mask what is padding"),
    (("skip",), "calls a function that is kept out of graphs", "call it outside of forward"),
    (("random.", "generator"), "draws with a generator of its own", "pass what was drawn as an "
                                                                    "argument"),
)  # fmt: skip
"""Words of torch's reasons -> what the line does, and what would remove the break."""


def survey(program: Program, workload: Workload, device: str) -> Surveyed:
    """Where a recorded module breaks, and its parts that do not. Raises CaptureError when there is
    no part, and nothing to say about why."""
    assert program.home is not None
    path = os.path.realpath(program.home.path)
    breaks = {
        (one.place, one.line, one.code): (one, at) for one, at in _breaks(program, workload, path)
    }
    for one in _kept_state(program):
        breaks.setdefault((one.place, one.line, one.code), (one, one.line))
    trial = _CaptureTrial(program, workload, device, path, {one.code for one, _ in breaks.values()})
    lines = {at for _, at in breaks.values() if at is not None}
    parts = trial.parts(lines)
    found = [one for one, _ in breaks.values()] + trial.breaks
    return Surveyed(
        breaks=tuple(_unique(found)), parts=tuple(sorted(parts, key=lambda p: -p.operations))
    )


def _unique(breaks: list[Break]) -> list[Break]:
    """One for each place, in the order of lines; what no line of the target leads to comes last."""
    found: dict[str | int | None, Break] = {}
    for one in sorted(breaks, key=lambda one: one.line is None):
        found.setdefault(one.place or one.line, one)
    return sorted(found.values(), key=lambda one: (one.line is None, one.line or 0))


class _CaptureTrial:
    """Captures runs of statements until those that are left are graphs."""

    def __init__(
        self, program: Program, workload: Workload, device: str, path: str, known: set[str]
    ) -> None:
        self.program, self.workload, self.device, self.path = program, workload, device, path
        self.breaks: list[Break] = []
        self._known = known
        """Code of lines that are known to break."""
        self._left = MAX_TRIALS
        self._tried: set[Part] = set()

    def parts(self, lines: set[int]) -> list[FoundPart]:
        """Runs of statements between these lines that can be captured, as many as there are tries
        left for."""
        todo = runs(self.program.source, self.program.entry, lines)
        found: list[FoundPart] = []
        while todo and self._left > 0:
            self._left -= 1
            part = todo.pop(0)
            self._tried.add(part)
            known = len(lines)
            try:
                count = len(
                    capture(replace(self.program, part=part), self.workload, self.device).nodes
                )
                varying = numbers_that_vary(self.program, part, self.workload.setting, self.device)
            except CaptureError as error:
                todo = [*self._split(part, lines, error), *todo]
                if len(lines) > known:  # what was halved around this statement may be whole
                    todo = self._whole_again(found, lines)
                continue
            if varying:  # each value would need another graph
                reading = readers(self.program.source, self.program.entry, part, varying)
                lines.update(reading)
                todo = [*(self._within(part, lines) if reading else ()), *todo]
                continue
            if count >= MIN_OPERATIONS:
                found.append(FoundPart(part=part, operations=count))
        return found

    def _whole_again(self, found: list[FoundPart], lines: set[int]) -> list[Part]:
        """The runs between what is known to break that were not tried. What was found inside of
        one of them is left out of ``found``."""
        wanted = runs(self.program.source, self.program.entry, lines)
        todo = [one for one in wanted if one not in self._tried]
        found[:] = [
            one
            for one in found
            if not any(r.first <= one.part.first and one.part.last <= r.last for r in todo)
        ]
        return todo

    def _split(self, part: Part, lines: set[int], error: CaptureError) -> list[Part]:
        """What is left of a run around the line that broke; its halves where no line is known."""
        line = self._line_of(error, part)
        if line is None:
            smaller = halves(self.program.source, self.program.entry, part)
            if not smaller:
                lines.add(part.first)
            return smaller
        around = statement_lines(self.program.source, self.program.entry, line)
        if around is None or around[0] in lines:
            return []
        lines.add(around[0])
        found = self._break_at(line, error)
        if found.code not in self._known:
            self.breaks.append(found)
        return self._within(part, lines)

    def _break_at(self, line: int, error: CaptureError) -> Break:
        """``line``: of forward's statement. The code is the one that the error quotes, wherever it
        stands."""
        code = self.program.source.split("\n")[line - 1].strip()
        cause, _, rest = error.cause.removeprefix(f"{self.program.entry} ").partition(": `")
        quoted = rest.partition("`")[0]
        remedy = error.remedy or ""
        if cause.startswith("decides by tensor values"):
            _, cause, remedy = MEANINGS[0]
        return Break(line=line, code=quoted or code, cause=cause, remedy=remedy)

    def _within(self, part: Part, lines: set[int]) -> list[Part]:
        inside = runs(self.program.source, self.program.entry, lines)
        return [one for one in inside if part.first <= one.first and one.last <= part.last]

    def _line_of(self, error: CaptureError, part: Part) -> int | None:
        """The line of the file whose statement was captured when it failed, or which gives what no
        graph can."""
        if isinstance(error, ResultError):
            return giving(self.program.source, self.program.entry, part, error.name)
        begin = _method_line(self.program, part)
        if begin is None or error.__cause__ is None:
            return None
        frames = traceback.extract_tb(error.__cause__.__traceback__)
        shift = begin - part.first
        for frame in frames:
            line = (frame.lineno or 0) - shift
            if os.path.realpath(frame.filename) == self.path and part.first <= line <= part.last:
                return line
        return None


def _method_line(program: Program, part: Part) -> int | None:
    """The line on which the statements of the part's method begin, in the text that holds it."""
    with contextlib.suppress(CaptureError):
        outlined = outline(program.source, program.entry, part)
        header = f"def {outlined.method}("
        lines = outlined.text.split("\n")
        return next(at for at, line in enumerate(lines, 1) if line.strip().startswith(header)) + 1
    return None


# --- what torch says ---------------------------------------------------------------------


def _breaks(program: Program, workload: Workload, path: str) -> Iterator[tuple[Break, int | None]]:
    """Breaks of the bytecode capture, each with the line of the target's file that led to it."""
    target, (args, kwargs) = open_with_memory(program)
    training = workload.setting.gradients is not False
    with _silence(), torch.set_grad_enabled(training):
        torch._dynamo.reset()
        try:
            reasons = torch._dynamo.explain(target)(*args, **kwargs).break_reasons
        except (Exception, SystemExit):  # the parts are tried all the same
            reasons = []
        finally:
            torch._dynamo.reset()
    for reason in reasons:
        if (found := _break_of(reason, path)) is not None:
            yield found


def _break_of(reason: Any, path: str) -> tuple[Break, int | None] | None:
    frames = [frame for frame in reason.user_stack if is_program(frame.filename)]
    if not frames:
        return None
    own = [frame for frame in frames if os.path.realpath(frame.filename) == path]
    at, last = (own[0].lineno if own else None), frames[-1]
    here = os.path.realpath(last.filename) == path
    cause, remedy = _meaning(str(reason.reason))
    code = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    place = "" if here else f"{Path(last.filename).name}:{last.lineno}"
    return Break(
        line=last.lineno if here else at, code=code, cause=cause, remedy=remedy, place=place
    ), at


def _meaning(reason: str) -> tuple[str, str]:
    """What the line does, and what would remove the break."""
    said = reason.lower()
    for words, cause, remedy in MEANINGS:
        if any(word in said for word in words):
            return cause, remedy
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    explained = next(
        (line for line in lines if line.startswith("Explanation:")), lines[0] if lines else ""
    )
    what = explained.removeprefix("Explanation:").strip().rstrip(".")
    return f"stops a graph ({what[:160]})", "move it out of forward"


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Torch's log of breaks and the program's warnings are nobody's news here."""
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _kept_state(program: Program) -> Iterator[Break]:
    """Statements of ``forward`` that set an attribute: bytecode capture bears them, a graph does
    not."""
    lines = program.source.split("\n")
    node: ast.AST = parsing.parse(program.source)
    for name in [*program.entry.split("."), "forward"]:
        named = (ast.ClassDef, ast.FunctionDef)
        found = [one for one in ast.walk(node) if isinstance(one, named) and one.name == name]
        if not found:
            return
        node = found[-1]
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            name = ast.unparse(one)
            yield Break(
                line=one.lineno,
                code=lines[one.lineno - 1].strip(),
                cause=f"keeps {name} for later",
                remedy="return it, or set it outside of forward",
            )
