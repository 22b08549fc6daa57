"""What a proposer wants, made into a candidate: by the engine with proofs, or from text that a
model wrote.

A candidate that leaves here fits the user's file as it is, so judging it cannot fail for that.
Nothing of the user's runs but its definitions on fake tensors, in the engine, which takes one
request at a time and is started again when it was lost. Not covered: whether a candidate is right
or faster."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kernel_lsp import analysis, parsing
from kernel_lsp.errors import CaptureError, RewriteError, WorkerLost
from kernel_lsp.pipeline import module_text, writing
from kernel_lsp.pipeline.module_text import definition_of, lines_of
from kernel_lsp.pipeline.prepare import Edited, PreparedJob, apply_candidate
from kernel_lsp.records import Candidate, Site, SourceEdit, Span, Step
from kernel_lsp.rewrite.client import Engine
from kernel_lsp.rewrite.edit import apply_edit

T = TypeVar("T")
UNPROVED = (
    "written by a language model: tests on this workload stand behind it, nothing was proved, "
    "and other "
    "shapes and types are not guarded"
)


class EngineWorkshop:
    """A `Workshop` for one prepared target, whose program ``engine`` has open."""

    def __init__(self, engine: Engine, prepared: PreparedJob) -> None:
        self._engine, self._prepared = engine, prepared
        self._turn = asyncio.Lock()

    async def sites(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        """What could follow these steps. Raises RewriteError."""
        return await self._asked(lambda: self._engine.look(steps))

    async def apply(self, steps: Sequence[Step]) -> Candidate:
        """The candidate that the engine makes of these steps, with proofs. Raises RewriteError."""
        if not steps:
            raise RewriteError("no step is named", "name at least one skill and site")
        made = await self._asked(lambda: self._engine.make(steps))
        self._fitting(made)
        return made

    async def write(self, code: str, parent: Candidate | None) -> Candidate:
        """The candidate of a module text, or of edit blocks against the parent's region. Raises
        RewriteError."""
        try:
            return self._written(code, parent.edit if parent else None)
        except RecursionError as error:
            raise RewriteError(
                "the code is nested too deeply", "split its longest expression"
            ) from error

    def _written(self, code: str, parent: SourceEdit | None) -> Candidate:
        program = self._prepared.program
        edit = writing.edit_of(code, program, parent)
        if name := module_text.clash(edit, self._prepared.snapshot.text):
            raise RewriteError(f"{name} means something else in the file", "use another name")
        edit = module_text.strip_unused(edit, self._sliced(_apply(program.source, edit)))
        source = _apply(program.source, edit)
        made = Candidate(
            id=hashlib.sha256(f"{program.entry}\0{source}".encode()).hexdigest()[:16],
            edit=edit,
            program=source,
            entry=program.entry,
            summary="rewritten by a language model",
            caveats=(UNPROVED,),
        )
        after = self._fitting(made)
        missing = [name for name in after.program.missing if name not in program.missing]
        if missing:
            raise RewriteError(
                f"nothing defines {', '.join(missing)}", "define or import it in your code"
            )
        file, span = self._prepared.snapshot.text, self._prepared.target.span
        if line := module_text.find_unjudged(
            file, apply_edit(file, span, edit), after.program.source
        ):
            raise RewriteError(
                f"{line!r} would stand in the file and never be judged", "leave it out"
            )
        return replace(
            made, uses_triton="triton" in parsing.imports(parsing.parse(after.program.source))
        )

    def _sliced(self, source: str) -> str:
        """The target and what it uses, out of a program."""
        snapshot = replace(self._prepared.snapshot, text=source)
        target = analysis.find_target(analysis.analyze(snapshot), self._prepared.target.qualname)
        return analysis.slice_program(snapshot, target).source if target else source

    def marked(self, parent: Candidate | None) -> str:
        """The program as a model sees it, its region between two marker comments."""
        return writing.mark_region(self._prepared.program, parent.edit if parent else None)

    def _fitting(self, candidate: Candidate) -> Edited:
        """What the user's file would hold. Raises RewriteError when it could not hold it."""
        try:
            after = apply_candidate(self._prepared, candidate)
        except CaptureError as error:
            raise RewriteError(error.cause, error.remedy) from error
        if after is None:
            raise RewriteError(
                f"{self._prepared.target.qualname} would be no target any more",
                "keep it a module class or a function of tensors, with its name",
            )
        return after

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """``ask`` is called when it is its turn: who is cancelled before that has asked nothing."""
        async with self._turn:
            try:
                return await ask()
            except (WorkerLost, CaptureError) as lost:  # also while it was started again
                cause = f"the engine was lost while it rewrote: {lost.cause}"
                raise RewriteError(cause, "choose other steps") from lost


def _apply(source: str, edit: SourceEdit) -> str:
    """The program with the edit; like the engine's, so that the same text has the same id."""
    first, last = lines_of(definition_of(source, edit.qualname))
    lines = source.split("\n")
    start = sum(len(line) + 1 for line in lines[: first - 1])
    start += len(lines[first - 1]) - len(lines[first - 1].lstrip())
    end = sum(len(line) + 1 for line in lines[:last]) - 1
    return apply_edit(source, Span(start=start, end=end), edit)
