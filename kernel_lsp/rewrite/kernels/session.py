"""One opened kernel: like engine.Session for a graph, but its state is text, its skills of scope
triton.

Each step edits the text; the launcher is then run again on fake tensors, so the next skill sees
the launches as they would be now. What comes out is the kernel and, where it changed, its
launcher: nothing else of the file is touched. Not covered: kernels of other files, and launches
that follow from computed values."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from kernel_lsp import wire
from kernel_lsp.errors import CaptureError, RewriteError, boundary
from kernel_lsp.records import (
    ArgSpec,
    Candidate,
    Explained,
    KernelView,
    Program,
    Proof,
    Site,
    Skill,
    SourceEdit,
    Step,
    Viewed,
    Workload,
)
from kernel_lsp.rewrite.choices import combinations
from kernel_lsp.rewrite.client import Capture, Proposed
from kernel_lsp.rewrite.edit import LINE_END
from kernel_lsp.rewrite.kernels.launch_view import describe_launch
from kernel_lsp.rewrite.kernels.launched import Pointer
from kernel_lsp.rewrite.kernels.launching import observe
from kernel_lsp.rewrite.kernels.near_misses import near_misses_of
from kernel_lsp.rewrite.kernels.source import KernelSource
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch
from kernel_lsp.rewrite.scripts import load_skills

AppliedKernel = tuple[Kernel, list[Proof], list[str]]
MAX_PREFIXES = 500
"""States after the first steps of a chain that are kept at once: some ten kilobytes each."""


class KernelSession:
    """``program.kernel`` is the target, ``program.launcher`` launches it. Raises CaptureError."""

    def __init__(
        self, program: Program, workload: Workload, device: str, skills: list[Skill]
    ) -> None:
        self.program = replace(program, source=LINE_END.sub("\n", program.source))
        self.workload, self.device = workload, device
        self.rewrites, self.notes = load_skills(skills, "triton")
        self._prefixes: dict[str, AppliedKernel] = {}
        self._sites: dict[str, tuple[Site, ...]] = {}
        source = KernelSource.parse(
            self.program.source, str(program.kernel), program.launcher or program.entry
        )
        self.kernel = self._observed(source)
        if not self.kernel.launched:
            raise CaptureError(
                f"{source.launcher} launches other kernels than {source.kernel} for this workload",
                "give a workload, with sizes and flags, for which it launches this one",
            )

    def capture(self) -> Capture:
        """What of the opened kernel other processes see: its words, sites and inputs."""
        pointers = self.kernel.pointers()
        return Capture(
            words=tuple(words(self.kernel)),
            sites=self.sites(self.kernel),
            inputs=tuple(_spec(name, pointer) for name, pointer in pointers.items()),
            notes=tuple(self.notes),
        )

    def propose(self, steps: list[Step]) -> Proposed:
        """The candidate of these steps, and the sites that are left after them."""
        return Proposed(candidate=self.make(steps), sites_left=self.look(steps))

    def look(self, steps: list[Step]) -> tuple[Site, ...]:
        """What could follow; the same step once more would only have other parameters."""
        taken = [(step.skill, set(step.site.split(", "))) for step in steps]
        left = self.sites(self._applied(steps)[0])
        return tuple(
            site
            for site in left
            if not any(
                site.skill == skill and set(site.site.split(", ")) <= names
                for skill, names in taken
            )
        )

    def view(self, steps: list[Step]) -> Viewed:
        """Raises RewriteError: a kernel has no graph."""
        raise RewriteError("a Triton kernel has no graph to be shown", "ask how it is launched")

    def launched(self, steps: list[Step]) -> KernelView:
        """What these steps make of the kernel and its launch."""
        return describe_launch(self._applied(steps)[0])

    def explain(self) -> Explained:
        """Why not more is offered: matches of which a single precondition fails."""
        return Explained(misses=near_misses_of(self.kernel, self.rewrites))

    def weigh(self, steps: list[Step]) -> float:
        """Raises RewriteError: nothing is estimated of a user's kernel."""
        raise RewriteError("how long a Triton kernel takes is not estimated", "measure it")

    def make(self, steps: list[Step]) -> Candidate:
        """The rewritten program after these steps."""
        kernel, proofs, summaries = self._applied(steps)
        source = kernel.source
        changed = [
            name
            for name in (source.kernel, source.launcher)
            if self._text(name) != _function(source, name)
        ]
        if not changed:
            raise RewriteError("these steps change nothing", "choose other parameters")
        if self.device == "cpu" and _configs(source) not in (None, _configs(self.kernel.source)):
            raise RewriteError(
                f"{source.kernel} would be tuned among others, and Triton's interpreter runs the "
                f"first alone",
                "judge it on a machine with a GPU",
            )
        others = tuple((name, _function(source, name)) for name in changed if name != source.kernel)
        edit = SourceEdit(
            qualname=source.kernel,
            imports=tuple(kernel.imports),
            target=_function(source, source.kernel),
            others=others,
        )
        return Candidate(
            id=hashlib.sha256(f"{self.program.entry}\0{source.text}".encode()).hexdigest()[:16],
            edit=edit,
            program=source.text,
            entry=self.program.entry,
            steps=tuple(steps),
            proofs=tuple(proofs),
            summary="; ".join(dict.fromkeys(summaries)),
            uses_triton=True,
        )

    def variants(self, steps: list[Step], at: int, limit: int) -> list[Candidate]:
        """The same steps with other parameters at place ``at``, the given ones first.

        A later step that stands at its skill's first choice takes the first choice of the new
        state: eight warps are a guess for a block of 2048, and no good one for 128."""
        before = self._applied(steps[:at])[0]
        module, match = self._match(before, steps[at])
        choices = combinations(module.parameters(before, match), steps[at].parameters, limit)
        later = range(at + 1, len(steps))
        guessed = {
            place
            for place in later
            if steps[place].parameters == self._guess(steps[:place], steps[place])
        }
        made = (self._variant(steps, at, choice, guessed) for choice in choices)
        return [candidate for candidate in made if candidate is not None]

    def _variant(
        self, steps: list[Step], at: int, choice: dict[str, Any], guessed: set[int]
    ) -> Candidate | None:
        changed = [*steps[:at], replace(steps[at], parameters=choice)]
        try:
            for place in range(at + 1, len(steps)):
                step = steps[place]
                guess = self._guess(changed, step) if place in guessed else step.parameters
                changed.append(replace(step, parameters=guess))
            return self.make(changed)
        except RewriteError:
            # A combination that a skill refuses, or that is what there was, takes no part.
            return None

    def _guess(self, before: list[Step], step: Step) -> dict[str, Any]:
        """The first choice of the step's parameters after these steps."""
        kernel = self._applied(before)[0]
        module, match = self._match(kernel, step)
        return {name: choices[0] for name, choices in module.parameters(kernel, match).items()}

    # --- steps -------------------------------------------------------------------------------

    def sites(self, kernel: Kernel) -> tuple[Site, ...]:
        """Every place where a skill applies and all its preconditions are proved."""
        if kernel.source.text not in self._sites:
            self._sites[kernel.source.text] = self._found(kernel)
        return self._sites[kernel.source.text]

    def _found(self, kernel: Kernel) -> tuple[Site, ...]:
        found: list[Site] = []
        for name, module in self.rewrites.items():
            try:
                found += self._sites_of(name, module, kernel)
            except Exception as error:  # a broken skill must not hide the others; the note names it
                self.notes.append(f"skill {name} failed: {type(error).__name__}: {error}")
        return tuple(sorted(found, key=lambda site: -(site.benefit or 0.0)))

    def _sites_of(self, name: str, module: ModuleType, kernel: Kernel) -> list[Site]:
        found = []
        for match in module.match(kernel):
            proofs = tuple(module.preconditions(kernel, match))
            if all(proof.holds for proof in proofs):
                parameters = dict(module.parameters(kernel, match))
                found.append(_site(name, match, proofs, parameters))
        return found

    def _applied(self, steps: list[Step]) -> AppliedKernel:
        """After the steps; remembered, because a chain grows by one step at a time."""
        if not steps:
            return self.kernel, [], []
        key = wire.dumps(steps)
        if key not in self._prefixes:
            kernel, proofs, summaries = self._applied(steps[:-1])
            made, proved, summary = self._after(kernel, steps[-1])
            if len(self._prefixes) >= MAX_PREFIXES:
                self._prefixes.clear()
            self._prefixes[key] = made, [*proofs, *proved], [*summaries, summary]
        return self._prefixes[key]

    def _after(self, kernel: Kernel, step: Step) -> tuple[Kernel, list[Proof], str]:
        with boundary(RewriteError, f"{step.skill} failed at {step.site}"):
            module, match = self._match(kernel, step)
            proved = list(module.preconditions(kernel, match))
            if broken := [proof for proof in proved if not proof.holds]:
                raise RewriteError(
                    f"{step.skill}: {broken[0].claim} is not proved ({broken[0].because})"
                )
            defaults = {
                name: choices[0] for name, choices in module.parameters(kernel, match).items()
            }
            edited = replace(kernel, edits=[], imports=[*kernel.imports])
            module.apply(edited, match, {**defaults, **step.parameters})
            source = kernel.source.edited(edited.edits).importing(edited.imports)
            return self._observed(source, edited.imports), proved, match.summary

    def _match(self, kernel: Kernel, step: Step) -> tuple[ModuleType, KernelMatch]:
        module = self.rewrites.get(step.skill)
        if module is None:
            raise RewriteError(f"{step.skill} has no rewrite", "choose one of the open skills")
        match = next((m for m in module.match(kernel) if m.label == step.site), None)
        if match is None:
            raise RewriteError(
                f"{step.skill} does not apply at {step.site}", "choose one of the sites"
            )
        return module, match

    def _observed(self, source: KernelSource, imports: Sequence[str] = ()) -> Kernel:
        launched = observe(replace(self.program, source=source.text), self.workload)
        ours = tuple(one for one in launched if one.kernel == source.kernel)
        return Kernel(source, ours, self.program.elsewhere, imports=[*imports])

    def _text(self, name: str) -> str:
        return _function(self.kernel.source, name)


def words(kernel: Kernel) -> list[str]:
    """What the kernel does, in words a skill's description would use."""
    found = ["triton", "kernel"]
    text = kernel.text(kernel.function)
    known = (
        "dot",
        "exp",
        "sum",
        "max",
        "atomic_add",
        "cumsum",
        "associative_scan",
        "sort",
        "autotune",
        "for",
    )
    found += [word for word in known if f"{word}(" in text or f"{word} " in text]
    return found


def _function(source: KernelSource, name: str) -> str:
    """A function as an edit wants it: dedented, with its decorators."""
    node = source.function(name)
    start, end = source.span(node)
    start = source.text.rindex("\n", 0, start) + 1 if "\n" in source.text[:start] else 0
    return textwrap.dedent(source.text[start:end])


def _configs(source: KernelSource) -> str | None:
    found = source.configs()
    return None if found is None else source.segment(found)


def _site(
    skill: str, match: KernelMatch, proofs: tuple[Proof, ...], parameters: dict[str, list[Any]]
) -> Site:
    return Site(
        skill=skill,
        site=match.label,
        summary=match.summary,
        proofs=proofs,
        parameters=parameters,
        benefit=match.benefit,
        plain=False,
    )


def _spec(name: str, pointer: Pointer) -> ArgSpec:
    stride = None if pointer.contiguous else pointer.stride
    return ArgSpec(name=name, dtype=pointer.dtype, shape=pointer.shape, stride=stride)
